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

// TestLoopbackOpcodes: every operation between two devices of one process, of one packet and of three: what goes there, what comes
// back, and that it does what it shall.
func TestLoopbackOpcodes(t *testing.T) {
	const far, one, three = 1 << 16, 8, 3 * 1024 // the offset of what is sent, and lengths
	ack := []roce.Opcode{roce.RCAcknowledge}
	found := []roce.Opcode{roce.RCAtomicAcknowledge}
	empty := []roce.Opcode{roce.RCReadResponseOnly}
	for _, c := range []struct {
		operation      queue.Opcode
		length         int
		there, andBack []roce.Opcode
	}{
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
		t.Run(fmt.Sprintf("%v of %d bytes", c.operation, c.length), func(t *testing.T) {
			network := mem.NewNetwork(mem.Options{Manual: true})
			a, b := newStation(t, network, "one"), newStation(t, network, "one")
			defer b.close(t)
			defer a.close(t)
			a.connect(t, a.qp, b, b.qp.number)
			b.connect(t, b.qp, a, a.qp.number)
			const rights = memory.LocalWrite | memory.RemoteWrite | memory.RemoteRead | memory.RemoteAtomic | memory.FlushGlobal
			at := transport.Attributes{Access: rights &^ memory.LocalWrite}
			require.NoError(t, b.qp.Modify(context.Background(), &at, nil, transport.MaskAccess))
			buffer := make([]byte, 1<<17)
			_, _ = rand.NewChaCha8([32]byte{1}).Read(buffer[far:])
			source, err := a.device.memory.Register(a.domain, buffer, 0x10000, rights)
			require.NoError(t, err)
			defer func() { require.NoError(t, a.device.memory.Deregister(source)) }()
			remote := make([]byte, 1<<17)
			_, _ = rand.NewChaCha8([32]byte{2}).Read(remote[far:])
			want := bytes.Clone(remote[far:][:c.length]) // what the peer's memory has in the end
			target, err := b.device.memory.Register(b.domain, remote, 0x10000, rights)
			require.NoError(t, err)
			defer func() { require.NoError(t, b.device.memory.Deregister(target)) }()
			key, err := b.device.memory.Allocate(b.domain, memory.KindFast, 64)
			require.NoError(t, err)
			defer func() { require.NoError(t, key.Free()) }()
			require.NoError(t, key.Map(make([]byte, 64), 0))
			_, err = poster(b.qp).PostSend([]queue.SendWR{{Opcode: queue.RegisterRegion, RKey: key.Key(), Access: uint32(memory.LocalWrite)}})
			require.NoError(t, err)

			place := func(r *memory.Region) queue.SGE {
				return queue.SGE{Addr: r.Address() + far, Length: uint32(c.length), LKey: r.Key()}
			}
			wr := queue.SendWR{
				Opcode: c.operation, Flags: queue.SendSignaled, SGList: []queue.SGE{place(source)},
				RemoteAddr: target.Address() + far, RKey: target.Key(), InvalidateRKey: key.Key(), ImmData: 7,
			}
			brought := bytes.Clone(want) // what comes back, if it is not empty
			takesReceive := false
			switch c.operation {
			case queue.Send, queue.SendWithImmediate, queue.SendWithInvalidate, queue.RDMAWriteWithImmediate:
				takesReceive = true
				want = bytes.Clone(buffer[far:][:c.length])
			case queue.RDMAWrite, queue.AtomicWrite:
				want = bytes.Clone(buffer[far:][:c.length])
			case queue.FetchAdd:
				wr.CompareAdd = 1
				binary.NativeEndian.PutUint64(want, binary.NativeEndian.Uint64(want)+1)
			case queue.CompareSwap:
				wr.CompareAdd, wr.Swap = binary.NativeEndian.Uint64(want), 5
				binary.NativeEndian.PutUint64(want, 5)
			case queue.Flush:
				wr.SGList, wr.Flush = nil, queue.FlushRange{Length: one, Placement: 1}
			}
			if takesReceive {
				_, err = poster(b.qp).PostRecv([]queue.RecvWR{{SGList: []queue.SGE{place(target)}}})
				require.NoError(t, err)
			}
			sa, sb := a.device.shards[0], b.device.shards[0]
			sb.mu.Lock()
			_, err = poster(a.qp).PostSend([]queue.SendWR{wr})
			require.NoError(t, err)
			sa.mu.Lock()
			there := sb.inboxFrom(sa).waiting(t)
			sb.unlock()
			b.device.Drive()
			sb.mu.Lock()
			andBack := sa.inboxFrom(sb).waiting(t)
			sb.unlock()
			sa.unlock()
			a.device.Drive()
			require.Equal(t, c.there, there)
			require.Equal(t, c.andBack, andBack)
			complete := func(s *station, want queue.WCOpcode) {
				t.Helper()
				var wc [2]queue.WC
				n, err := poller(s.cq).Poll(wc[:])
				require.NoError(t, err)
				require.Equal(t, 1, n)
				require.Equal(t, queue.WCSuccess, wc[0].Status)
				require.Equal(t, want, wc[0].Opcode)
			}
			complete(a, c.operation.Completed())
			if takesReceive {
				into := queue.WCRecv
				if c.operation == queue.RDMAWriteWithImmediate {
					into = queue.WCRecvRDMAWithImmediate
				}
				complete(b, into)
			}
			require.Equal(t, want, remote[far:][:c.length])
			if c.operation == queue.RDMARead || c.operation == queue.FetchAdd || c.operation == queue.CompareSwap {
				require.Equal(t, brought, buffer[far:][:c.length])
			}
			for _, opcode := range append(there, andBack...) {
				support.Opcode(t, opcode, support.Looped)
			}
		})
	}
}
