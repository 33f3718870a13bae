package driver

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/xroce/xroce/internal/support"
	"github.com/xroce/xroce/roce"
	"github.com/xroce/xroce/roce/link/mem"
	"github.com/xroce/xroce/roce/memory"
	"github.com/xroce/xroce/roce/queue"
	"github.com/xroce/xroce/roce/transport"
)

// waiting lists the opcodes of the frames in an inbox, which stay there. It wants both shards' locks.
func (b *inbox) waiting(t *testing.T) (list []roce.Opcode) {
	t.Helper()
	for range b.ring.Waiting() {
		frame := bytes.Join(b.ring.Front(), nil)
		b.ring.Release()
		var p roce.Packet
		require.Equal(t, roce.DropNone, p.Parse([][]byte{frame}))
		list = append(list, p.Opcode)
		b.ring.Commit(copy(b.ring.Buffer(), frame)) // as loopback does
	}
	return list
}

// TestLoopbackOpcodes: every operation between two devices of one process, of one packet and of three: what goes there,
// what comes back, and that it does what it shall.
func TestLoopbackOpcodes(t *testing.T) {
	const one, three = 8, 3 * 1024 // lengths
	ack := []roce.Opcode{roce.RCAcknowledge}
	found := []roce.Opcode{roce.RCAtomicAcknowledge}
	empty := []roce.Opcode{roce.RCReadResponseOnly}
	for _, c := range []loopedOperation{
		{queue.Send, one, []roce.Opcode{roce.RCSendOnly}, ack},
		{queue.Send, three, []roce.Opcode{roce.RCSendFirst, roce.RCSendMiddle, roce.RCSendLast}, ack},
		{queue.SendWithImmediate, one, []roce.Opcode{roce.RCSendOnlyImmediate}, ack},
		{queue.SendWithImmediate, three, []roce.Opcode{roce.RCSendFirst, roce.RCSendMiddle, roce.RCSendLastImmediate}, ack},
		{queue.SendWithInvalidate, one, []roce.Opcode{roce.RCSendOnlyInvalidate}, ack},
		{queue.SendWithInvalidate, three, []roce.Opcode{roce.RCSendFirst, roce.RCSendMiddle, roce.RCSendLastInvalidate}, ack},
		{queue.RDMAWrite, one, []roce.Opcode{roce.RCWriteOnly}, ack},
		{queue.RDMAWrite, three, []roce.Opcode{roce.RCWriteFirst, roce.RCWriteMiddle, roce.RCWriteLast}, ack},
		{queue.RDMAWriteWithImmediate, one, []roce.Opcode{roce.RCWriteOnlyImmediate}, ack},
		{queue.RDMAWriteWithImmediate, three, []roce.Opcode{roce.RCWriteFirst, roce.RCWriteMiddle, roce.RCWriteLastImmediate}, ack},
		{queue.RDMARead, one, []roce.Opcode{roce.RCReadRequest}, []roce.Opcode{roce.RCReadResponseOnly}},
		{queue.RDMARead, three, []roce.Opcode{roce.RCReadRequest},
			[]roce.Opcode{roce.RCReadResponseFirst, roce.RCReadResponseMiddle, roce.RCReadResponseLast}},
		{queue.FetchAdd, one, []roce.Opcode{roce.RCFetchAdd}, found},
		{queue.CompareSwap, one, []roce.Opcode{roce.RCCompareSwap}, found},
		{queue.AtomicWrite, one, []roce.Opcode{roce.RCAtomicWrite}, empty},
		{queue.Flush, one, []roce.Opcode{roce.RCFlush}, empty},
	} {
		t.Run(fmt.Sprintf("%v of %d bytes", c.operation, c.length), c.run)
	}
}

// loopedOperation is an operation between two devices of the process, with the packets that it takes.
type loopedOperation struct {
	operation      queue.Opcode
	length         int // bytes
	there, andBack []roce.Opcode
}

func (c loopedOperation) run(t *testing.T) {
	p := newOpcodePair(t, c.length)
	wr, takesReceive := p.request(c.operation)
	if takesReceive {
		_, err := poster(p.b.qp).PostRecv([]queue.RecvWR{{SGList: []queue.SGE{p.place(p.target)}}})
		require.NoError(t, err)
	}
	there, andBack := p.exchange(t, wr)
	require.Equal(t, c.there, there)
	require.Equal(t, c.andBack, andBack)
	p.a.completed(t, c.operation.Completed())
	if takesReceive {
		into := queue.WCRecv
		if c.operation == queue.RDMAWriteWithImmediate {
			into = queue.WCRecvRDMAWithImmediate
		}
		p.b.completed(t, into)
	}
	require.Equal(t, p.want, p.remote[far:][:c.length])
	if c.operation == queue.RDMARead || c.operation == queue.FetchAdd || c.operation == queue.CompareSwap {
		require.Equal(t, p.brought, p.local[far:][:c.length])
	}
	for _, opcode := range append(there, andBack...) {
		support.Opcode(t, opcode, support.Looped)
	}
}

// completed takes the one completion of a station, a success.
func (s *station) completed(t *testing.T, want queue.WCOpcode) {
	t.Helper()
	var wc [2]queue.WC
	n, err := poller(s.cq).Poll(wc[:])
	require.NoError(t, err)
	require.Equal(t, 1, n)
	require.Equal(t, queue.WCSuccess, wc[0].Status)
	require.Equal(t, want, wc[0].Opcode)
}

// opcodePair is two connected stations of a process with memory of random bytes each.
type opcodePair struct {
	a, b           *station
	source, target *memory.Region
	local, remote  []byte // of source and target
	length         int    // of what is moved, from far on
	fast           *memory.Allocation
	want           []byte // what is in the peer's memory in the end
	brought        []byte // what comes back, if anything does
}

// far is the offset of what is moved in both memories.
const far = 1 << 16

func newOpcodePair(t *testing.T, length int) *opcodePair {
	network := mem.NewNetwork(mem.Options{Manual: true})
	p := &opcodePair{a: newStation(t, network, "one"), b: newStation(t, network, "one"), length: length}
	t.Cleanup(func() {
		p.a.close(t)
		p.b.close(t)
	})
	p.a.connect(t, p.a.qp, p.b, p.b.qp.number)
	p.b.connect(t, p.b.qp, p.a, p.a.qp.number)
	const rights = memory.LocalWrite | memory.RemoteWrite | memory.RemoteRead | memory.RemoteAtomic | memory.FlushGlobal
	at := transport.Attributes{Access: rights &^ memory.LocalWrite}
	require.NoError(t, p.b.qp.Modify(context.Background(), &at, nil, transport.MaskAccess))
	register := func(s *station, seed byte) (*memory.Region, []byte) {
		buffer := make([]byte, 1<<17)
		_, _ = rand.NewChaCha8([32]byte{seed}).Read(buffer[far:])
		region, err := s.device.memory.Register(s.domain, buffer, 0x10000, rights)
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, s.device.memory.Deregister(region)) })
		return region, buffer
	}
	p.source, p.local = register(p.a, 1)
	p.target, p.remote = register(p.b, 2)
	p.want = bytes.Clone(p.remote[far:][:length])
	p.brought = bytes.Clone(p.want)

	// A key for the peer to invalidate.
	var err error
	p.fast, err = p.b.device.memory.Allocate(p.b.domain, memory.KindFast, 64)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, p.fast.Free()) })
	require.NoError(t, p.fast.Map(make([]byte, 64), 0))
	_, err = poster(p.b.qp).PostSend([]queue.SendWR{
		{Opcode: queue.RegisterRegion, RKey: p.fast.Key(), Access: uint32(memory.LocalWrite)},
	})
	require.NoError(t, err)
	return p
}

// place is what is moved, in a region.
func (p *opcodePair) place(r *memory.Region) queue.SGE {
	return queue.SGE{Addr: r.Address() + far, Length: uint32(p.length), LKey: r.Key()}
}

// request is the one to post at a, and says whether it takes a receive of b.
func (p *opcodePair) request(operation queue.Opcode) (wr queue.SendWR, takesReceive bool) {
	wr = queue.SendWR{
		Opcode: operation, Flags: queue.SendSignaled, SGList: []queue.SGE{p.place(p.source)},
		RemoteAddr: p.target.Address() + far, RKey: p.target.Key(), InvalidateRKey: p.fast.Key(), ImmData: 7,
	}
	switch operation {
	case queue.Send, queue.SendWithImmediate, queue.SendWithInvalidate, queue.RDMAWriteWithImmediate:
		takesReceive = true
		p.want = bytes.Clone(p.local[far:][:p.length])
	case queue.RDMAWrite, queue.AtomicWrite:
		p.want = bytes.Clone(p.local[far:][:p.length])
	case queue.FetchAdd:
		wr.CompareAdd = 1
		binary.NativeEndian.PutUint64(p.want, binary.NativeEndian.Uint64(p.want)+1)
	case queue.CompareSwap:
		wr.CompareAdd, wr.Swap = binary.NativeEndian.Uint64(p.want), 5
		binary.NativeEndian.PutUint64(p.want, 5)
	case queue.Flush:
		wr.SGList, wr.Flush = nil, queue.FlushRange{Length: uint32(p.length), Placement: 1}
	}
	return wr, takesReceive
}

// exchange posts a request at a, and returns the packets that wait in the inboxes on the way there and back.
func (p *opcodePair) exchange(t *testing.T, wr queue.SendWR) (there, andBack []roce.Opcode) {
	sa, sb := p.a.device.shards[0], p.b.device.shards[0]
	leaveB := occupy(sb)
	_, err := poster(p.a.qp).PostSend([]queue.SendWR{wr})
	require.NoError(t, err)
	leaveA := occupy(sa)
	there = sb.inboxFrom(sa).waiting(t)
	leaveB(sb.unlock)
	p.b.device.Drive()
	leaveB = occupy(sb)
	andBack = sa.inboxFrom(sb).waiting(t)
	leaveB(sb.unlock)
	leaveA(sa.unlock)
	p.a.device.Drive()
	return there, andBack
}
