package puppet_test

import (
	"bytes"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/xroce/xroce/internal/puppet"
	"github.com/xroce/xroce/internal/support"
	"github.com/xroce/xroce/roce"
	"github.com/xroce/xroce/roce/link/mem"
	"github.com/xroce/xroce/verbs"
)

// Keys that go away: by SEND with invalidate, by a local invalidate, by deregistration, also while a READ is being
// answered.

// sendInvalidate makes a SEND with invalidate.
func sendInvalidate(psn roce.PSN, payload string, key uint32) puppet.Packet {
	return puppet.Packet{Opcode: roce.RCSendOnlyInvalidate, PSN: psn, AckRequest: true, Payload: []byte(payload), Invalidate: key}
}

// invalidated is a key that a SEND with invalidate names.
type invalidated struct {
	key  func(*puppet.Stage, *puppet.End) uint32
	good bool
}

// boundWindow is a window of that type over the first page of the end's region.
func boundWindow(end *puppet.End, kind verbs.MWType) *verbs.MW {
	w := newWindow(end, kind)
	bind(end, w, verbs.WCSuccess, verbs.MWBind{MR: end.MR, Addr: end.MR.Addr(), Length: 4096, Access: windowRights})
	return w
}

// invalidatedKeys are the keys that may be named, and all kinds of keys that may not.
func invalidatedKeys() map[string]invalidated {
	return map[string]invalidated{
		"fast registration": {func(_ *puppet.Stage, end *puppet.End) uint32 { return fastRegion(end, 64).RKey() }, true},
		"type 2 window":     {func(_ *puppet.Stage, end *puppet.End) uint32 { return boundWindow(end, verbs.MWType2).RKey() }, true},
		"key byte":          {func(_ *puppet.Stage, end *puppet.End) uint32 { return fastRegion(end, 64).RKey() ^ 1 }, false},
		"window's key byte": {func(_ *puppet.Stage, end *puppet.End) uint32 { return boundWindow(end, verbs.MWType2).RKey() ^ 1 }, false},
		"nobody's key":      {func(*puppet.Stage, *puppet.End) uint32 { return 0xFFFFFF00 }, false},
		"key 0":             {func(*puppet.Stage, *puppet.End) uint32 { return 0 }, false},
		"plain region":      {func(_ *puppet.Stage, end *puppet.End) uint32 { return end.MR.RKey() }, false},
		"type 1 window":     {func(_ *puppet.Stage, end *puppet.End) uint32 { return boundWindow(end, verbs.MWType1).RKey() }, false},
		"unbound window":    {func(_ *puppet.Stage, end *puppet.End) uint32 { return newWindow(end, verbs.MWType2).RKey() }, false},
		"free region": {func(_ *puppet.Stage, end *puppet.End) uint32 {
			mr, err := end.PD.AllocMR(64)
			end.Require(err)
			end.Cleanup(mr.Dereg)
			return mr.RKey()
		}, false},
		"another domain's": {func(stage *puppet.Stage, end *puppet.End) uint32 {
			pd, err := end.Device.AllocPD()
			end.Require(err)
			end.Cleanup(pd.Dealloc)
			mine, qp := end.PD, end.QP
			defer func() { end.PD, end.QP = mine, qp }()
			end.PD = pd
			end.QP = end.NewQP(verbs.QPCap{})
			stage.NewPuppet().Connect(end)
			return fastRegion(end, 64).RKey()
		}, false},
		"another queue pair's window": {func(stage *puppet.Stage, end *puppet.End) uint32 {
			mine := end.QP
			defer func() { end.QP = mine }()
			end.QP = end.NewQP(verbs.QPCap{})
			stage.NewPuppet().Connect(end)
			w := newWindow(end, verbs.MWType2)
			wr := verbs.MWBind{Flags: verbs.SendSignaled, MR: end.MR, Addr: end.MR.Addr(), Length: 64, Access: windowRights}
			end.Require(end.QP.BindMW(w, wr))
			end.ExpectSend(0, success)
			return w.RKey()
		}, false},
		"region with a window": {func(_ *puppet.Stage, end *puppet.End) uint32 {
			mr, err := end.PD.AllocMR(64)
			end.Require(err)
			end.Cleanup(mr.Dereg)
			end.Require(mr.Map(make([]byte, 64), 0))
			wr := mr.RegWR(puppet.AllAccess)
			wr.WRID, wr.Flags = 9, verbs.SendSignaled
			end.Post(wr)
			end.ExpectSend(9, verbs.WCSuccess)
			bind(end, newWindow(end, verbs.MWType1), verbs.WCSuccess, verbs.MWBind{MR: mr, Length: 8, Access: windowRights})
			return mr.RKey()
		}, false},
	}
}

// TestSendWithInvalidate: of fast-registered regions and type 2 windows of this queue pair, and nothing else. The
// data are there in either case, and the sender is told that all is well.
func TestSendWithInvalidate(t *testing.T) {
	for name, c := range invalidatedKeys() {
		for _, long := range []bool{false, true} {
			t.Run(name, func(t *testing.T) { c.send(t, name, long) })
		}
	}
}

// send has the key named by a message of one packet, or of two.
func (c invalidated) send(t *testing.T, name string, long bool) {
	stage, end, p := sender(t)
	end.PostRecv(1, 8192, 2048)
	end.PostRecv(2, 16384, 64)
	key := c.key(stage, end)
	packet := sendInvalidate(100, "rose", key)
	length := uint32(4)
	if long {
		p.Send(puppet.Packet{Opcode: roce.RCSendFirst, PSN: 100, Payload: make([]byte, 1024), AckRequest: true})
		p.ExpectAck(100, 0)
		packet.Opcode, packet.PSN, length = roce.RCSendLastInvalidate, 101, 1028
	}
	packet.AckRequest = c.good
	packet.Solicited = true
	p.Send(packet)
	p.ExpectAck(packet.PSN, 1)
	require.Equal(t, "rose", string(end.Bytes(8192+int(length)-4, 4)))
	if !c.good {
		require.Equal(t, verbs.StateError, end.QP.State())
		end.ExpectRecv(1, verbs.WCRemInvReqErr)
		end.ExpectRecv(2, verbs.WCWRFlushErr)
		p.Send(write(end, packet.PSN+1))
		p.ExpectNothing(time.Second)
		require.Empty(t, events(end))
		support.Fault(t, "SEND with invalidate, of: "+name, support.Outcome{
			Wire: ack, Responder: verbs.StateError, Receive: verbs.WCRemInvReqErr, Event: "none",
		})
		return
	}
	wc := end.ExpectRecv(1, verbs.WCSuccess)
	require.Equal(t, verbs.WCWithInv, wc.Flags)
	require.Equal(t, key, wc.InvalidatedRKey)
	require.Equal(t, length, wc.ByteLen)
	require.Equal(t, verbs.WCRecv, wc.Opcode)
	p.Send(reach(roce.RCReadRequest, packet.PSN+1, key, 0x1000, 8))
	p.ExpectNAK(packet.PSN+1, refused)
	end.ExpectRecv(2, verbs.WCWRFlushErr)
	support.Opcode(t, packet.Opcode, support.Received)
	support.Object(t, "MR and MW", "SEND with invalidate, of: "+name, verbs.WCSuccess)
}

// TestInvalidateItself: data that go through the key which they invalidate are placed first.
func TestInvalidateItself(t *testing.T) {
	_, end, p := sender(t)
	mr := fastRegion(end, 2048)
	require.NoError(t, end.QP.PostRecv(verbs.RecvWR{WRID: 1, SGList: []verbs.SGE{{Addr: 0x1000, Length: 2048, LKey: mr.LKey()}}}))
	p.Send(
		puppet.Packet{Opcode: roce.RCSendFirst, PSN: 100, Payload: bytes.Repeat([]byte{1}, 1024)},
		puppet.Packet{Opcode: roce.RCSendLastInvalidate, PSN: 101, Payload: bytes.Repeat([]byte{2}, 1024), AckRequest: true, Invalidate: mr.RKey()},
	)
	p.ExpectAck(101, 1)
	require.EqualValues(t, 2048, end.ExpectRecv(1, verbs.WCSuccess).ByteLen)
	require.Equal(t, append(bytes.Repeat([]byte{1}, 1024), bytes.Repeat([]byte{2}, 1024)...), mr.Bytes())
	support.Object(t, "MR and MW", "SEND with invalidate, of the receive's own key", "data are placed first")
}

// endings are the ways in which a key can go away while b answers; each returns what makes the key and what ends it.
var endings = map[string]func(b *puppet.End, invalidate func(key uint32), buffer []byte) (va uint64, key uint32, end func()){
	"Dereg": func(b *puppet.End, invalidate func(uint32), buffer []byte) (uint64, uint32, func()) {
		mr, err := b.PD.RegMR(buffer, verbs.AccessRemoteRead)
		b.Require(err)
		return mr.Addr(), mr.RKey(), func() { b.Require(mr.Dereg()) }
	},
	"Rereg": func(b *puppet.End, invalidate func(uint32), buffer []byte) (uint64, uint32, func()) {
		mr, err := b.PD.RegMR(buffer, verbs.AccessRemoteRead)
		b.Require(err)
		b.Cleanup(mr.Dereg)
		return mr.Addr(), mr.RKey(), func() { b.Require(mr.Rereg(verbs.MRChange{Access: new(verbs.AccessFlags)})) }
	},
	"Dereg of a fast registration": func(b *puppet.End, invalidate func(uint32), buffer []byte) (uint64, uint32, func()) {
		mr := registered(b, buffer)
		return 0, mr.RKey(), func() { b.Require(mr.Dereg()) }
	},
	"local invalidate": func(b *puppet.End, invalidate func(uint32), buffer []byte) (uint64, uint32, func()) {
		mr := registered(b, buffer)
		b.Cleanup(mr.Dereg)
		return 0, mr.RKey(), func() { b.Post(mr.InvalidateWR()) }
	},
	"SEND with invalidate": func(b *puppet.End, invalidate func(uint32), buffer []byte) (uint64, uint32, func()) {
		mr := registered(b, buffer)
		b.Cleanup(mr.Dereg)
		b.PostRecv(1, 0, 64)
		return 0, mr.RKey(), func() {
			invalidate(mr.RKey())
			b.ExpectRecv(1, verbs.WCSuccess)
		}
	},
	"Dealloc of a window": func(b *puppet.End, invalidate func(uint32), buffer []byte) (uint64, uint32, func()) {
		mr := bindable(b, buffer)
		w, err := b.PD.AllocMW(verbs.MWType2)
		b.Require(err)
		bind(b, w, verbs.WCSuccess, verbs.MWBind{MR: mr, Length: uint64(len(buffer)), Access: windowRights})
		return 0, w.RKey(), func() { b.Require(w.Dealloc()) }
	},
	"another binding": func(b *puppet.End, invalidate func(uint32), buffer []byte) (uint64, uint32, func()) {
		mr, w := bindable(b, buffer), newWindow(b, verbs.MWType1)
		bind(b, w, verbs.WCSuccess, verbs.MWBind{MR: mr, Length: uint64(len(buffer)), Access: windowRights})
		return 0, w.RKey(), func() { b.Require(b.QP.BindMW(w, verbs.MWBind{MR: mr, Length: 8, Access: windowRights})) }
	},
	"local invalidate of a window": func(b *puppet.End, invalidate func(uint32), buffer []byte) (uint64, uint32, func()) {
		mr, w := bindable(b, buffer), newWindow(b, verbs.MWType2)
		bind(b, w, verbs.WCSuccess, verbs.MWBind{MR: mr, Length: uint64(len(buffer)), Access: windowRights})
		return 0, w.RKey(), func() { b.Post(verbs.SendWR{Opcode: verbs.WRLocalInv, InvalidateRKey: w.RKey()}) }
	},
}

// registered is buffer as a fast registration of b with address 0.
func registered(b *puppet.End, buffer []byte) *verbs.MR {
	mr, err := b.PD.AllocMR(len(buffer))
	b.Require(err)
	b.Require(mr.Map(buffer, 0))
	wr := mr.RegWR(verbs.AccessRemoteRead)
	wr.WRID, wr.Flags = 1000, verbs.SendSignaled
	b.Post(wr)
	b.ExpectSend(1000, verbs.WCSuccess)
	return mr
}

// bindable registers buffer with address 0 for windows. Make it before the window, which must be gone first in the end.
func bindable(b *puppet.End, buffer []byte) *verbs.MR {
	mr, err := b.PD.RegMRIOVA(buffer, 0, verbs.AccessMWBind|verbs.AccessLocalWrite)
	b.Require(err)
	b.Cleanup(mr.Dereg)
	return mr
}

// TestCase_B12_EveryWay: whatever ends a key in the middle of a READ of 1 MiB, the answer ends there, with a NAK for
// the packet that could not be sent, and what came before is right.
func TestCase_B12_EveryWay(t *testing.T) {
	const size = 1 << 20
	for name, ending := range endings {
		t.Run(name, func(t *testing.T) {
			stage, b, p := sender(t)
			buffer := bytes.Repeat([]byte{0xEE}, size)
			va, key, end := ending(b, func(key uint32) { p.Send(sendInvalidate(100+size/1024, "", key)) }, buffer)
			wire := stage.Watch()
			// The whole answer takes no virtual time. What the program does happens while it leaves; what comes as a
			// request is executed between its packets.
			program := strings.HasPrefix(name, "Dereg") || name == "Rereg" || name == "Dealloc of a window"
			wire.Drop = func(s *puppet.Sent) bool {
				if program && s.PSN == 200 && s.Length > 0 {
					var calls sync.WaitGroup
					calls.Go(end) // this goroutine holds locks of the engine
					calls.Wait()
				}
				return false
			}
			p.Send(reach(roce.RCReadRequest, 100, key, va, size))
			if !program {
				end()
			}
			psn := roce.PSN(100)
			for ; ; psn++ {
				a := p.Expect()
				require.Equal(t, psn, a.PSN, "%v", a)
				if a.Opcode == roce.RCAcknowledge {
					require.Equal(t, refused, a.AETH().Syndrome())
					break
				}
				require.NotEqual(t, roce.RCReadResponseLast, a.Opcode)
				a.Carries(buffer[:1024])
			}
			require.Equal(t, program, psn > 200)
			require.Less(t, int(psn), 100+size/1024)
			require.Equal(t, verbs.StateError, b.QP.State())
			p.ExpectNothing(time.Second)
			require.Equal(t, []verbs.AsyncEvent{{Type: verbs.EventQPAccessErr, QP: b.QP}}, events(b))
			support.Fault(t, "READ while its key goes by "+name, support.Outcome{Wire: refused, Responder: verbs.StateError, Event: verbs.EventQPAccessErr})
		})
	}
}

// TestCase_B12_Requester: the same from the other end, which has the good part of the data and an error.
func TestCase_B12_Requester(t *testing.T) {
	const size = 1 << 20
	for name, ending := range endings {
		t.Run(name, func(t *testing.T) {
			stage := puppet.NewStage(t, mem.Options{})
			a, b := stage.NewEnd(puppet.EndOptions{Memory: size}), stage.NewEnd(puppet.EndOptions{})
			stage.Connect(a, b)
			buffer := bytes.Repeat([]byte{0xEE}, size)
			va, key, end := ending(b, func(key uint32) {
				a.Post(verbs.SendWR{WRID: 2, Opcode: verbs.WRSendWithInv, InvalidateRKey: key})
			}, buffer)
			clear(a.MR.Bytes())
			wire := stage.Watch()
			wr := a.Request(1, verbs.WRRDMARead, 0, size)
			wr.RemoteAddr, wr.RKey = va, key
			a.Post(wr)
			require.True(t, stage.Run(time.Second, func() bool { return len(wire.From(b)) >= 100 }))
			end()
			wc := a.ExpectSend(1, verbs.WCRemAccessErr)
			require.Zero(t, wc.Retries)
			packets := wire.From(b)
			nak, before := packets[len(packets)-1], packets[len(packets)-2]
			require.Equal(t, refused, nak.AETH.Syndrome)
			require.Equal(t, before.PSN+1, nak.PSN)
			require.Equal(t, wc.PSN, nak.PSN)
			require.Equal(t, verbs.StateError, b.QP.State())
			got := int(nak.PSN-puppet.FirstPSNOfQP) * 1024
			require.Less(t, got, size)
			require.True(t, bytes.Equal(buffer[:got], a.Bytes(0, got)))
			require.True(t, bytes.Equal(make([]byte, size-got), a.Bytes(got, size-got)))
			support.Fault(t, "READ while its key goes by "+name, support.Outcome{Requester: wc.Status})
		})
	}
}
