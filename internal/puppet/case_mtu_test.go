package puppet_test

import (
	"bytes"
	"context"
	"fmt"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/xroce/xroce/internal/puppet"
	"github.com/xroce/xroce/internal/support"
	"github.com/xroce/xroce/roce"
	"github.com/xroce/xroce/roce/link/mem"
	"github.com/xroce/xroce/verbs"
)

// How messages are cut into packets, and who may use which path MTU.

// guard is how many bytes around a target must stay what they were.
const guard = 64

// TestCase_A8 moves messages whose lengths are at the edges of packets, by every operation and path MTU, and looks at
// the packets and at every byte.
func TestCase_A8(t *testing.T) {
	operations := []verbs.WROpcode{
		verbs.WRSend, verbs.WRSendWithImm, verbs.WRRDMAWrite, verbs.WRRDMAWriteWithImm, verbs.WRRDMARead,
	}
	for mtu := verbs.MTU256; mtu <= verbs.MTU4096; mtu++ {
		t.Run(fmt.Sprintf("P=%v", mtu), func(t *testing.T) {
			stage := puppet.NewStage(t, mem.Options{})
			a, b := stage.NewEnd(puppet.EndOptions{}), stage.NewEnd(puppet.EndOptions{})
			stage.Connect(a, b, func(at *verbs.QPAttr) { at.PathMTU = mtu })
			wire := stage.Watch()
			P := mtu.Bytes()
			for i, length := range []int{1, P - 1, P, P + 1, 2 * P, 2*P + 1, 10*P + 3} {
				for _, operation := range operations {
					wire.Clear()
					move(t, a, b, operation, length, 8*i+3)
					checkPackets(t, wire, a, b, operation, length, P)
				}
			}
		})
	}
}

// move transfers length bytes by one operation and compares the whole memory of both ends.
func move(t *testing.T, a, b *puppet.End, operation verbs.WROpcode, length, offset int) {
	source, target := a, b
	if operation == verbs.WRRDMARead {
		source, target = b, a
	}
	const far = 64 << 10 // where the target is, so that the same bytes are not moved onto themselves
	at := far + guard + offset
	want := bytes.Clone(target.MR.Bytes())
	copy(want[at:], source.Bytes(offset, length))
	untouched := bytes.Clone(source.MR.Bytes())
	wr := source.Request(1, operation, offset, length)
	if operation == verbs.WRRDMARead {
		wr.SGList[0] = target.MR.SGE(at, length)
		wr.RemoteAddr, wr.RKey = source.MR.Addr()+uint64(offset), source.MR.RKey()
	} else {
		wr.RemoteAddr, wr.RKey = target.MR.Addr()+uint64(at), target.MR.RKey()
	}
	wr.ImmData = 0x01020304
	if operation != verbs.WRRDMAWrite && operation != verbs.WRRDMARead {
		b.PostRecv(2, at, length+guard)
	}
	a.Post(wr)
	a.ExpectSend(1, verbs.WCSuccess)
	switch operation {
	case verbs.WRSend, verbs.WRSendWithImm:
		wc := b.ExpectRecv(2, verbs.WCSuccess)
		require.Equal(t, verbs.WCRecv, wc.Opcode)
		require.Equal(t, uint32(length), wc.ByteLen)
		require.Equal(t, operation == verbs.WRSendWithImm, wc.Flags == verbs.WCWithImm)
	case verbs.WRRDMAWriteWithImm:
		wc := b.ExpectRecv(2, verbs.WCSuccess)
		require.Equal(t, verbs.WCRecvRDMAWithImm, wc.Opcode)
		require.Equal(t, uint32(length), wc.ByteLen)
		require.Equal(t, wr.ImmData, wc.ImmData)
	}
	require.True(t, bytes.Equal(want, target.MR.Bytes()), "%v of %d bytes: target differs", operation, length)
	require.True(t, bytes.Equal(untouched, source.MR.Bytes()), "%v of %d bytes: source was changed", operation, length)
}

// cut are the opcodes of a message's packets: first, middle, last, only. Those of a READ are of its responses.
var cut = map[verbs.WROpcode][4]roce.Opcode{
	verbs.WRSend:             {roce.RCSendFirst, roce.RCSendMiddle, roce.RCSendLast, roce.RCSendOnly},
	verbs.WRSendWithImm:      {roce.RCSendFirst, roce.RCSendMiddle, roce.RCSendLastImmediate, roce.RCSendOnlyImmediate},
	verbs.WRSendWithInv:      {roce.RCSendFirst, roce.RCSendMiddle, roce.RCSendLastInvalidate, roce.RCSendOnlyInvalidate},
	verbs.WRRDMAWrite:        {roce.RCWriteFirst, roce.RCWriteMiddle, roce.RCWriteLast, roce.RCWriteOnly},
	verbs.WRRDMAWriteWithImm: {roce.RCWriteFirst, roce.RCWriteMiddle, roce.RCWriteLastImmediate, roce.RCWriteOnlyImmediate},
	verbs.WRRDMARead:         {roce.RCReadResponseFirst, roce.RCReadResponseMiddle, roce.RCReadResponseLast, roce.RCReadResponseOnly},
}

// place is the opcode of packet i of a message of count packets.
func place(operation verbs.WROpcode, i, count int) roce.Opcode {
	switch {
	case count == 1:
		return cut[operation][3]
	case i == 0:
		return cut[operation][0]
	case i == count-1:
		return cut[operation][2]
	}
	return cut[operation][1]
}

// checkPackets compares what went over the wire with what a message of that length is cut into.
func checkPackets(t *testing.T, wire *puppet.Wire, a, b *puppet.End, operation verbs.WROpcode, length, P int) {
	packets := wire.From(a)
	if operation == verbs.WRRDMARead {
		require.Len(t, packets, 1)
		require.Equal(t, roce.RCReadRequest, packets[0].Opcode)
		require.Equal(t, uint32(length), packets[0].RETH.Length)
		support.Opcode(t, packets[0].Opcode, support.Sent, support.Received)
		packets = wire.From(b)
	}
	count := (length + P - 1) / P
	require.Len(t, packets, count, "%v of %d bytes", operation, length)
	for i, p := range packets {
		require.Equal(t, place(operation, i, count), p.Opcode, "%v of %d bytes, packet %d", operation, length, i)
		require.Equal(t, packets[0].PSN.Add(uint32(i)), p.PSN)
		require.Equal(t, min(P, length-i*P), p.Length)
		support.Opcode(t, p.Opcode, support.Sent, support.Received) // by one end and by the other
		if h := p.Opcode.Info(); h.Request && h.Has(roce.HeaderRETH) {
			require.Equal(t, uint32(length), p.RETH.Length)
		}
	}
	if operation != verbs.WRRDMARead {
		require.True(t, packets[count-1].Ack, "the last packet asks for an acknowledgement")
	}
}

// TestCase_A9: a device of MTU 1500 carries path MTU 1024, and says so before anything is sent.
func TestCase_A9(t *testing.T) {
	stage := puppet.NewStage(t, mem.Options{})
	end := stage.NewEnd(puppet.EndOptions{Device: mem.DeviceOptions{Name: "small", MTU: 1500}})
	peer := stage.NewEnd(puppet.EndOptions{})
	wire := stage.Watch()
	port, err := end.Device.QueryPort()
	require.NoError(t, err)
	require.Equal(t, verbs.MTU1024, port.ActiveMTU)
	require.Equal(t, verbs.MTU4096, port.MaxMTU)

	attr := puppet.Attributes()
	attr.State = verbs.StateInit
	require.NoError(t, end.QP.Modify(t.Context(), attr, verbs.QPStateMask|verbs.QPPKeyIndex|verbs.QPPort|verbs.QPAccessFlags))
	gid, err := peer.Device.QueryGID(0)
	require.NoError(t, err)
	attr.State, attr.AH.DGID, attr.DestQPN = verbs.StateRTR, gid, peer.QP.QPN()
	mask := verbs.QPStateMask | verbs.QPAV | verbs.QPPathMTU | verbs.QPDestQPN | verbs.QPRQPSN | verbs.QPMaxDestRDAtomic | verbs.QPMinRNRTimer
	for mtu, need := range map[verbs.MTU]string{verbs.MTU2048: "2144", verbs.MTU4096: "4192"} {
		attr.PathMTU = mtu
		err = end.QP.Modify(t.Context(), attr, mask)
		require.ErrorIs(t, err, verbs.ErrPathMTU)
		for _, text := range []string{mtu.String(), need, "1500", "small"} {
			require.ErrorContains(t, err, text)
		}
		require.Equal(t, verbs.StateInit, end.QP.State())
	}
	require.Empty(t, wire.Packets)
	attr.PathMTU = verbs.MTU1024
	require.NoError(t, end.QP.Modify(t.Context(), attr, mask))
}

// TestCase_A9_MixedEnds: Connect picks the smaller path MTU of both ends.
func TestCase_A9_MixedEnds(t *testing.T) {
	for _, c := range []struct {
		mtus [2]int
		want verbs.MTU
	}{
		{[2]int{1500, 4200}, verbs.MTU1024},
		{[2]int{4200, 1500}, verbs.MTU1024},
		{[2]int{4191, 4192}, verbs.MTU2048},
		{[2]int{4192, 4192}, verbs.MTU4096},
		{[2]int{352, 1500}, verbs.MTU256},
	} {
		t.Run(fmt.Sprint(c.mtus), func(t *testing.T) {
			stage := puppet.NewStage(t, mem.Options{})
			var ends [2]*puppet.End
			var endpoints [2]verbs.Endpoint
			for i, mtu := range c.mtus {
				ends[i] = stage.NewEnd(puppet.EndOptions{Device: mem.DeviceOptions{MTU: mtu}})
				var err error
				endpoints[i], err = ends[i].QP.Endpoint(verbs.ConnectOptions{})
				require.NoError(t, err)
			}
			for i, e := range ends {
				require.NoError(t, e.QP.Connect(context.Background(), endpoints[1-i], verbs.ConnectOptions{}))
				require.Equal(t, c.want, e.QP.Query().PathMTU)
			}
			wire := stage.Watch()
			move(t, ends[0], ends[1], verbs.WRRDMAWrite, 3*c.want.Bytes(), 0)
			require.Len(t, wire.From(ends[0]), 3)
		})
	}
}

// TestCase_A9_PathMTUByHand: a path MTU that the user names must fit both ends, the local one at once.
func TestCase_A9_PathMTUByHand(t *testing.T) {
	stage := puppet.NewStage(t, mem.Options{})
	small := stage.NewEnd(puppet.EndOptions{Device: mem.DeviceOptions{MTU: 1500}})
	err := small.QP.Connect(context.Background(),
		verbs.Endpoint{Address: netip.MustParseAddr("10.0.0.2"), QPN: 0x123, MTU: verbs.MTU4096, RDAtomic: 1},
		verbs.ConnectOptions{PathMTU: verbs.MTU4096})
	require.ErrorIs(t, err, verbs.ErrPathMTU)
	require.ErrorContains(t, err, "4192")
	require.ErrorContains(t, err, "1500")
}
