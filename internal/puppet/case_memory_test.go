package puppet_test

import (
	"bytes"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/xroce/xroce/internal/puppet"
	"github.com/xroce/xroce/internal/support"
	"github.com/xroce/xroce/roce"
	"github.com/xroce/xroce/roce/link/mem"
	"github.com/xroce/xroce/verbs"
)

// What a peer may reach, and what it may not.

// access is a WRITE or READ request of one packet, which carries as much payload as fits.
func access(opcode roce.Opcode, psn roce.PSN, reth roce.RETHFields) puppet.Packet {
	packet := puppet.Packet{Opcode: opcode, PSN: psn, RETH: reth, AckRequest: true, Immediate: 1}
	if opcode != roce.RCReadRequest {
		if reth.Length > 1024 {
			packet.Opcode = roce.RCWriteFirst
		}
		packet.Payload = bytes.Repeat([]byte{0xBD}, int(min(reth.Length, 1024)))
	}
	return packet
}

// TestCase_C1: no address and length lead out of a region, be it by a wrap of 64 bits.
func TestCase_C1(t *testing.T) {
	const size = 0x20000 // of both regions
	const top = 1<<64 - size
	for name, c := range map[string]struct {
		inTop  bool // the region that reaches up to the end of the address space, else the one at IOVA
		va     uint64
		length uint32
		good   bool
	}{
		"wraps to 0":                 {false, 1<<64 - 0x400, 0x400, false},
		"wraps beyond 0":             {false, 1<<64 - 0x400, 0x401, false},
		"wraps into the region":      {false, 1<<64 - 0x400, 0x80000000, false},
		"last byte of the space":     {false, 1<<64 - 1, 1, false},
		"address 0":                  {false, 0, 1, false},
		"one below":                  {false, puppet.IOVA - 1, 1, false},
		"one below, reaching in":     {false, puppet.IOVA - 1, 1024, false},
		"first byte":                 {false, puppet.IOVA, 1, true},
		"last byte":                  {false, puppet.IOVA + size - 1, 1, true},
		"one above":                  {false, puppet.IOVA + size, 1, false},
		"end, one too long":          {false, puppet.IOVA + size - 0x400, 0x401, false},
		"end, exactly":               {false, puppet.IOVA + size - 0x400, 0x400, true},
		"one longer than the region": {false, puppet.IOVA, size + 1, false},
		"2^31":                       {false, puppet.IOVA, 1 << 31, false},
		"2^31 up to the end":         {false, 1<<64 - 1<<31, 1 << 31, false},
		"top, wraps to 0":            {true, 1<<64 - 0x400, 0x400, true},
		"top, wraps beyond 0":        {true, 1<<64 - 0x400, 0x401, false},
		"top, last byte":             {true, 1<<64 - 1, 1, true},
		"top, last byte and 0":       {true, 1<<64 - 1, 2, false},
		"top, address 0":             {true, 0, 1, false},
		"top, first byte":            {true, top, 1, true},
		"top, one below":             {true, top - 1, 1, false},
		"top, one below and all":     {true, top - 1, size, false},
		"top, 2^31":                  {true, top, 1 << 31, false},
		"top, 2^31 from below":       {true, 1<<64 - 1<<31, 1 << 31, false},
	} {
		for _, opcode := range []roce.Opcode{roce.RCWriteOnly, roce.RCReadRequest} {
			t.Run(fmt.Sprintf("%v %s", opcode, name), func(t *testing.T) {
				_, end, p := sender(t)
				high, err := end.PD.RegMRIOVA(make([]byte, size), top, puppet.AllAccess)
				require.NoError(t, err)
				defer func() { require.NoError(t, high.Dereg()) }()
				image := bytes.Clone(end.MR.Bytes())
				reth := roce.RETHFields{VA: c.va, RKey: end.MR.RKey(), Length: c.length}
				if c.inTop {
					reth.RKey = high.RKey()
				}
				p.Send(access(opcode, 100, reth))
				if c.good {
					a := p.Expect()
					require.Equal(t, roce.SyndromeAckNoCredits, a.AETH().Syndrome(), "%v", a)
					require.Equal(t, verbs.StateRTS, end.QP.State())
					return
				}
				p.ExpectNAK(100, roce.SyndromeNAKRemoteAccess)
				require.Equal(t, verbs.StateError, end.QP.State())
				require.True(t, bytes.Equal(image, end.MR.Bytes()))
				require.True(t, bytes.Equal(make([]byte, size), high.Bytes()))
				p.ExpectNothing(time.Second)
			})
		}
	}
	support.Fault(t, "WRITE or READ beyond the region", support.Outcome{Wire: roce.SyndromeNAKRemoteAccess, Responder: verbs.StateError})
}

// TestCase_C1_DuplicateRead: a duplicate is not the way around the check.
func TestCase_C1_DuplicateRead(t *testing.T) {
	_, end, p := sender(t)
	p.Send(read(end, 100, 0, 4096))
	expectRead(p, end, 100, 1, 0, 4096)
	for _, reth := range []roce.RETHFields{
		{VA: 1<<64 - 0x400, Length: 0x400}, {VA: 1<<64 - 0x400, Length: 0x401}, {VA: 0, Length: 4096},
		{VA: puppet.IOVA + 1<<17, Length: 4096}, {VA: puppet.IOVA + 4096, Length: 1024}, {VA: puppet.IOVA, Length: 1 << 31},
		{VA: puppet.IOVA, Length: 1<<32 - 1},
	} {
		reth.RKey = end.MR.RKey()
		p.Send(access(roce.RCReadRequest, 100, reth))
		p.ExpectNothing(time.Millisecond)
	}
	require.Equal(t, verbs.StateRTS, end.QP.State())
	p.Send(read(end, 100, 0, 4096))
	expectRead(p, end, 100, 1, 0, 4096)
	support.Fault(t, "duplicate of a READ, beyond the region", support.Outcome{Wire: "nothing", Responder: verbs.StateRTS})
}

// TestCase_C2: length 0 reaches no byte, so key and address may be anything (C9-88, as cited by
// drivers/infiniband/sw/rxe/rxe_resp.c).
func TestCase_C2(t *testing.T) {
	_, end, p := sender(t)
	end.PostRecv(1, 4096, 4)
	end.PostRecv(2, 4096, 4)
	image := bytes.Clone(end.MR.Bytes())
	psn, msn := roce.PSN(100), uint32(1)
	for _, opcode := range []roce.Opcode{roce.RCWriteOnly, roce.RCReadRequest, roce.RCWriteOnlyImmediate} {
		for _, reth := range []roce.RETHFields{
			{}, {RKey: 1<<32 - 1, VA: 1<<64 - 1}, {RKey: end.MR.RKey() ^ 1, VA: puppet.IOVA}, {RKey: end.MR.RKey(), VA: 1},
		} {
			if opcode == roce.RCWriteOnlyImmediate && msn > 9 {
				break // one receive for it, one for the SEND
			}
			p.Send(access(opcode, psn, reth))
			a := p.Expect()
			require.Equal(t, psn, a.PSN)
			a.Says(roce.SyndromeAckNoCredits, msn).Carries(nil)
			psn, msn = psn+1, msn+1
		}
	}
	wc := end.ExpectRecv(1, verbs.WCSuccess)
	require.Zero(t, wc.ByteLen)
	p.Send(send(psn, ""))
	p.ExpectAck(psn, msn)
	wc = end.ExpectRecv(2, verbs.WCSuccess)
	require.Zero(t, wc.ByteLen)
	require.True(t, bytes.Equal(image, end.MR.Bytes()))
	support.Fault(t, "wrong key or address with length 0", support.Outcome{Wire: roce.SyndromeAckNoCredits, Responder: "executes it"})
}

// TestCase_C2_Requester: the same from the other side, where the local elements need not name anything either.
func TestCase_C2_Requester(t *testing.T) {
	_, end, p := sender(t)
	wild := []verbs.SGE{{Addr: 1<<64 - 1, LKey: 1<<32 - 1}}
	for i, c := range []struct {
		operation verbs.WROpcode
		opcode    roce.Opcode
	}{
		{verbs.WRSend, roce.RCSendOnly}, {verbs.WRSendWithImm, roce.RCSendOnlyImmediate},
		{verbs.WRRDMAWrite, roce.RCWriteOnly}, {verbs.WRRDMAWriteWithImm, roce.RCWriteOnlyImmediate},
		{verbs.WRRDMARead, roce.RCReadRequest},
	} {
		for j, list := range [][]verbs.SGE{nil, wild} {
			psn := roce.PSN(40 + 2*i + j)
			end.Post(verbs.SendWR{WRID: uint64(psn), Opcode: c.operation, Flags: verbs.SendSignaled, SGList: list, RemoteAddr: 1<<64 - 1, RKey: 5})
			a := p.ExpectPacket(c.opcode, psn).Carries(nil)
			if c.opcode.Info().Has(roce.HeaderRETH) {
				a.Asks(roce.RETHFields{VA: 1<<64 - 1, RKey: 5})
			}
			if c.operation == verbs.WRRDMARead {
				p.Respond(roce.RCReadResponseOnly, psn, nil)
			} else {
				p.Ack(psn, 0)
			}
			require.Zero(t, end.ExpectSend(uint64(psn), verbs.WCSuccess).ByteLen)
		}
	}
	support.Fault(t, "wrong key or address with length 0", support.Outcome{Requester: verbs.WCSuccess})
}

// TestCase_B4: who asks for what it may not have learns so at once, whether or not a receive is used.
func TestCase_B4(t *testing.T) {
	for name, c := range map[string]struct {
		spoil func(wr *verbs.SendWR, own, stranger *verbs.MR)
	}{
		"key":    {func(wr *verbs.SendWR, _, _ *verbs.MR) { wr.RKey ^= 1 }},
		"index":  {func(wr *verbs.SendWR, _, _ *verbs.MR) { wr.RKey += 1 << 20 }},
		"key 0":  {func(wr *verbs.SendWR, _, _ *verbs.MR) { wr.RKey = 0 }},
		"range":  {func(wr *verbs.SendWR, own, _ *verbs.MR) { wr.RemoteAddr += uint64(own.Length()) - 8 }},
		"domain": {func(wr *verbs.SendWR, _, stranger *verbs.MR) { wr.RKey = stranger.RKey() }},
	} {
		for _, operation := range []verbs.WROpcode{verbs.WRRDMAWrite, verbs.WRRDMAWriteWithImm, verbs.WRRDMARead} {
			t.Run(fmt.Sprintf("%v %s", operation, name), func(t *testing.T) {
				stage := puppet.NewStage(t, mem.Options{})
				a, b := stage.NewEnd(puppet.EndOptions{}), stage.NewEnd(puppet.EndOptions{})
				stage.Connect(a, b)
				pd, err := b.Device.AllocPD()
				require.NoError(t, err)
				stranger, err := pd.RegMRIOVA(make([]byte, 4096), puppet.IOVA, puppet.AllAccess)
				require.NoError(t, err)
				b.PostRecv(1, 0, 4096)
				image := bytes.Clone(b.MR.Bytes())
				wr := a.Request(1, operation, 64, 4096)
				wr.RemoteAddr, wr.RKey = b.MR.Addr(), b.MR.RKey()
				c.spoil(&wr, b.MR, stranger)
				start := stage.Now()
				a.Post(wr)
				wc := a.ExpectSend(1, verbs.WCRemAccessErr)
				require.Less(t, stage.Now()-start, time.Millisecond)
				require.Zero(t, wc.Retries)
				require.Equal(t, roce.SyndromeNAKRemoteAccess, wc.Syndrome)
				require.Equal(t, verbs.StateError, a.QP.State())
				require.Equal(t, verbs.StateError, b.QP.State())
				require.True(t, bytes.Equal(image, b.MR.Bytes()))
				b.ExpectRecv(1, verbs.WCWRFlushErr) // the first packet of a long WRITE takes no receive
				require.NoError(t, stranger.Dereg())
				require.NoError(t, pd.Dealloc())
				support.Fault(t, "remote memory, wrong "+name, support.Outcome{
					Wire: wc.Syndrome, Responder: b.QP.State(), Requester: wc.Status,
				})
			})
		}
	}
}

// TestRights: a right that the queue pair lacks makes an invalid request (0x61), one that the region lacks a remote
// access error (0x62).
func TestRights(t *testing.T) {
	all := verbs.AccessRemoteRead | verbs.AccessRemoteWrite
	for name, c := range map[string]struct {
		qp, mr verbs.AccessFlags
		opcode roce.Opcode
		want   roce.Syndrome
	}{
		"WRITE, both":   {all, all, roce.RCWriteOnly, roce.SyndromeAckNoCredits},
		"WRITE, no QP":  {all &^ verbs.AccessRemoteWrite, all, roce.RCWriteOnly, roce.SyndromeNAKInvalidRequest},
		"WRITE, no MR":  {all, all &^ verbs.AccessRemoteWrite, roce.RCWriteOnly, roce.SyndromeNAKRemoteAccess},
		"WRITE, none":   {0, 0, roce.RCWriteOnly, roce.SyndromeNAKInvalidRequest},
		"imm, no QP":    {all &^ verbs.AccessRemoteWrite, all, roce.RCWriteOnlyImmediate, roce.SyndromeNAKInvalidRequest},
		"imm, no MR":    {all, all &^ verbs.AccessRemoteWrite, roce.RCWriteOnlyImmediate, roce.SyndromeNAKRemoteAccess},
		"READ, both":    {all, all, roce.RCReadRequest, roce.SyndromeAckNoCredits},
		"READ, no QP":   {all &^ verbs.AccessRemoteRead, all, roce.RCReadRequest, roce.SyndromeNAKInvalidRequest},
		"READ, no MR":   {all, all &^ verbs.AccessRemoteRead, roce.RCReadRequest, roce.SyndromeNAKRemoteAccess},
		"SEND needs no": {0, 0, roce.RCSendOnly, roce.SyndromeAckNoCredits},
	} {
		t.Run(name, func(t *testing.T) {
			_, end, p := sender(t, func(a *verbs.QPAttr) { a.AccessFlags = c.qp })
			mr, err := end.PD.RegMR(make([]byte, 4096), c.mr|verbs.AccessLocalWrite)
			require.NoError(t, err)
			defer func() { require.NoError(t, mr.Dereg()) }()
			end.PostRecv(1, 0, 64)
			p.Send(access(c.opcode, 100, roce.RETHFields{VA: mr.Addr(), RKey: mr.RKey(), Length: 8}))
			a := p.Expect()
			require.Equal(t, roce.PSN(100), a.PSN)
			require.Equal(t, c.want, a.AETH().Syndrome(), "%v", a)
			state := verbs.StateError
			if c.want.IsAck() {
				state = verbs.StateRTS
			}
			require.Equal(t, state, end.QP.State())
			support.Fault(t, "rights of queue pair and region: "+name, support.Outcome{Wire: c.want, Responder: state})
		})
	}
}

// TestRightsChange: the rights of a live queue pair may be changed.
func TestRightsChange(t *testing.T) {
	_, end, p := sender(t)
	p.Send(write(end, 100))
	p.ExpectAck(100, 1)
	require.NoError(t, end.QP.Modify(t.Context(), verbs.QPAttr{AccessFlags: verbs.AccessRemoteRead}, verbs.QPAccessFlags))
	p.Send(read(end, 101, 0, 8))
	expectRead(p, end, 101, 2, 0, 8)
	p.Send(write(end, 102))
	p.ExpectNAK(102, roce.SyndromeNAKInvalidRequest)
}

// TestCase_B12: a region that goes away in the middle of an answer ends it with a NAK in place of the next response.
func TestCase_B12(t *testing.T) {
	stage := puppet.NewStage(t, mem.Options{})
	a, b := stage.NewEnd(puppet.EndOptions{}), stage.NewEnd(puppet.EndOptions{})
	stage.Connect(a, b)
	mr, err := b.PD.RegMR(bytes.Repeat([]byte{0xEE}, 100<<10), verbs.AccessRemoteRead)
	require.NoError(t, err)
	wire := stage.Watch()
	gone := false
	wire.Drop = func(s *puppet.Sent) bool { gone = gone || s.PSN == 80 && s.Length > 0; return false }
	wr := a.Request(1, verbs.WRRDMARead, 0, 100<<10)
	wr.RemoteAddr, wr.RKey = mr.Addr(), mr.RKey()
	a.Post(wr)
	require.True(t, stage.Run(time.Second, func() bool { return gone }))
	require.NoError(t, mr.Dereg())
	wc := a.ExpectSend(1, verbs.WCRemAccessErr)
	require.Zero(t, wc.Retries)
	packets := wire.From(b)
	nak := packets[len(packets)-1]
	require.Equal(t, roce.RCAcknowledge, nak.Opcode)
	require.Equal(t, packets[len(packets)-2].PSN+1, nak.PSN)
	require.Equal(t, verbs.StateError, b.QP.State())
	support.Fault(t, "region deregistered during a READ", support.Outcome{Wire: "NAK in place of the next response", Responder: verbs.StateError, Requester: verbs.WCRemAccessErr})
}

// TestCase_B12_Duplicate: nor is a region that has gone away read for a duplicate. The peer may have all it wanted,
// so the duplicate is no reason to fail.
func TestCase_B12_Duplicate(t *testing.T) {
	_, end, p := sender(t)
	mr, err := end.PD.RegMR(make([]byte, 4096), verbs.AccessRemoteRead)
	require.NoError(t, err)
	request := access(roce.RCReadRequest, 100, roce.RETHFields{VA: mr.Addr(), RKey: mr.RKey(), Length: 8})
	p.Send(request)
	p.ExpectPacket(roce.RCReadResponseOnly, 100)
	require.NoError(t, mr.Dereg())
	p.Send(request)
	p.ExpectNothing(time.Millisecond)
	require.Equal(t, verbs.StateRTS, end.QP.State())
	p.Send(access(roce.RCReadRequest, 101, end.RETH(0, 8)))
	p.ExpectPacket(roce.RCReadResponseOnly, 101)
	support.Fault(t, "region deregistered before the duplicate of a READ", support.Outcome{Wire: "nothing", Responder: verbs.StateRTS})
}
