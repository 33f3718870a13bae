package transport_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/xroce/xroce/roce"
	"github.com/xroce/xroce/roce/memory"
	"github.com/xroce/xroce/roce/queue"
	"github.com/xroce/xroce/roce/transport"
)

// The client of these tests is another process that shares its rings with the engine and is hostile: it writes into
// them whatever and whenever it likes, also between the engine's looks. Its half of each ring is a second mapping of
// the same memory.

const (
	capacity  = 8
	maxSGE    = 3
	maxInline = 32
	part      = 8192 // bytes of each region, and of the memory on both sides of it
)

// shared maps memory twice: for the engine and for its client.
func shared(t testing.TB, size int) (engine, client []byte) {
	fd, err := unix.MemfdCreate("ring", unix.MFD_CLOEXEC)
	require.NoError(t, err)
	defer unix.Close(fd)
	require.NoError(t, unix.Ftruncate(fd, int64(size)))
	for _, view := range []*[]byte{&engine, &client} {
		*view, err = unix.Mmap(fd, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, unix.Munmap(*view)) })
	}
	return engine, client
}

// side is an engine with a queue pair, whose rings lie in memory shared with the client, and a region in the middle of
// memory that nobody may touch.
type side struct {
	engine            *transport.Engine
	qp                *transport.QP
	posted            *queue.Consumer // receives
	completed         *queue.Producer
	send, recv, cq    []byte // the client's views
	all               []byte
	key, foreign      uint32
	frame             [4608]byte
	frames            [][]byte
	secret, untouched []byte
	packet            roce.Packet
}

const region = uint64(0x10000) // the address of the region's first byte

func newSide(t testing.TB, seed uint64) *side {
	table, domain := memory.NewTable(seed), new(memory.Domain)
	s := &side{engine: transport.NewEngine(table.NewUser())}
	s.untouched = bytes.Repeat([]byte{0xA5}, part)
	s.all = bytes.Join([][]byte{s.untouched, make([]byte, part), s.untouched}, nil)
	const rights = memory.LocalWrite | memory.RemoteWrite | memory.RemoteRead | memory.RemoteAtomic | memory.BindWindow | memory.FlushGlobal
	r, err := table.Register(domain, s.all[part:2*part], region, rights)
	require.NoError(t, err)
	s.key = r.Key()
	s.secret = bytes.Repeat([]byte("secret!!"), part/8)
	r, err = table.Register(new(memory.Domain), s.secret, region, rights)
	require.NoError(t, err)
	s.foreign = r.Key()

	ring := func(l queue.Layout) (*queue.Producer, *queue.Consumer, []byte) {
		engine, client := shared(t, l.Size())
		require.NoError(t, queue.Create(client, l))
		p, err := queue.NewProducer(engine, l)
		require.NoError(t, err)
		c, err := queue.NewConsumer(engine, l)
		require.NoError(t, err)
		return p, c, client
	}
	var sends *queue.Consumer
	_, sends, s.send = ring(queue.SendLayout(capacity, maxSGE, maxInline))
	_, s.posted, s.recv = ring(queue.RecvLayout(capacity, maxSGE))
	s.completed, _, s.cq = ring(queue.CompletionLayout(4 * capacity))
	s.qp, err = transport.NewQP(transport.Config{
		QPN: 0x77, Type: transport.RC, Domain: domain, Send: sends, Receive: (*receives)(s),
		SendCQ: (*completions)(s), RecvCQ: (*completions)(s), MaxSendSGE: maxSGE, MaxRecvSGE: maxSGE, MaxInline: maxInline,
	})
	require.NoError(t, err)
	s.qp.Attach(s.engine)
	return s
}

type receives side

func (s *receives) Take(wr *queue.RecvWR) (found, valid bool) {
	if s.posted.Available(0) == 0 {
		return false, false
	}
	valid = s.posted.ReadRecv(0, wr)
	s.posted.Release(1)
	return true, valid
}

func (s *receives) Waiting() int { return s.posted.Available(s.posted.Capacity()) }
func (s *receives) Discard()     { s.posted.Discard() }

type completions side

func (s *completions) Complete(wc *queue.WC, _ bool) bool { return s.completed.WriteCompletion(wc) }

func (s *side) Buffer() []byte    { return s.frame[:] }
func (s *side) Commit(length int) { s.frames = append(s.frames, bytes.Clone(s.frame[:length])) }

// hostile is two sides, of which the first has the hostile client.
type hostile struct {
	t     testing.TB
	sides [2]*side
	now   transport.Time
	lives int
}

func newHostile(t testing.TB) *hostile {
	h := &hostile{t: t, sides: [2]*side{newSide(t, 1), newSide(t, 2)}, now: 1}
	h.connect()
	return h
}

// connect gives both queue pairs a new life.
func (h *hostile) connect() {
	h.lives++
	gids := [2]roce.GID{roce.GIDFromAddr(netip.MustParseAddr("10.0.0.1")), roce.GIDFromAddr(netip.MustParseAddr("10.0.0.2"))}
	for i, s := range h.sides {
		s.frames = nil
		a := transport.Attributes{
			Port: 1, Access: memory.RemoteRead | memory.RemoteWrite | memory.RemoteAtomic | memory.FlushGlobal,
			PathMTU: roce.MTU256, DestinationQPN: 0x77, RQPSN: 5, SQPSN: 5, MaxRDAtomic: 2, MaxDestRDAtomic: 2,
			MinRNRTimer: 1, Timeout: 1, RetryCount: 1, RNRRetry: 1,
			Path: roce.Path{Source: gids[i], Destination: gids[1-i], HopLimit: 64, SourcePort: 0xC000},
		}
		for _, step := range []struct {
			state transport.State
			mask  transport.AttributeMask
		}{
			{transport.StateReset, 0},
			{transport.StateInit, transport.MaskPKeyIndex | transport.MaskPort | transport.MaskAccess},
			{transport.StateRTR, transport.MaskAV | transport.MaskPathMTU | transport.MaskDestinationQPN | transport.MaskRQPSN |
				transport.MaskMaxDestRDAtomic | transport.MaskMinRNRTimer},
			{transport.StateRTS, transport.MaskTimeout | transport.MaskRetryCount | transport.MaskRNRRetry | transport.MaskSQPSN | transport.MaskMaxRDAtomic},
		} {
			a.State = step.state
			require.NoError(h.t, s.qp.Modify(h.now, &a, step.mask|transport.MaskState))
		}
	}
}

// turn lets packets and time pass, and looks at the memory.
func (h *hostile) turn() {
	for range 20 {
		h.now += 3000
		for i, s := range h.sides {
			s.engine.Ready(s.qp)
			s.engine.Expire(h.now, h.now)
			s.engine.Emit(h.now, 64, s)
			other := h.sides[1-i]
			for _, frame := range s.frames {
				require.Equal(h.t, roce.DropNone, other.packet.Parse([][]byte{frame}))
				other.engine.Receive(h.now, other.qp, &other.packet)
			}
			s.frames = s.frames[:0]
		}
	}
	for _, s := range h.sides {
		require.True(h.t, bytes.Equal(s.untouched, s.all[:part]), "memory before the region was written")
		require.True(h.t, bytes.Equal(s.untouched, s.all[2*part:]), "memory behind the region was written")
		require.True(h.t, bytes.Equal(s.secret, bytes.Repeat([]byte("secret!!"), part/8)), "a region of another domain was written")
	}
	require.False(h.t, bytes.Contains(h.sides[1].all, []byte("secret")), "a region of another domain was read")
	require.False(h.t, bytes.Contains(h.sides[1].all[part:2*part], s8), "memory beside the region was read")
	for _, s := range h.sides {
		if s.qp.State() != transport.StateRTS {
			h.connect()
			break
		}
	}
}

var s8 = bytes.Repeat([]byte{0xA5}, 8)

// post posts a request of the hostile client, as if it were honest, to a ring whatever its indices are.
func (h *hostile) post(random *rand.Rand) {
	own, peer := h.sides[0], h.sides[1]
	rarely := func() bool { return random.IntN(40) == 0 }
	address := func() uint64 {
		if rarely() {
			return []uint64{region - 8, region + part - 8, region + part, 1<<64 - 8, random.Uint64()}[random.IntN(5)]
		}
		return region + random.Uint64()%(part/2)&^7
	}
	element := func(length uint32) queue.SGE {
		if rarely() {
			return queue.SGE{Addr: address(), Length: length, LKey: own.foreign}
		}
		return queue.SGE{Addr: address(), Length: length, LKey: own.key}
	}
	often := []queue.Opcode{
		queue.RDMAWrite, queue.RDMAWriteWithImmediate, queue.Send, queue.SendWithImmediate, queue.RDMARead,
		queue.CompareSwap, queue.FetchAdd, queue.Flush, queue.AtomicWrite,
	}
	wr := queue.SendWR{
		WRID: random.Uint64(), Opcode: often[random.IntN(len(often))], Flags: queue.SendFlags(random.IntN(8)),
		RemoteAddr: address(), RKey: peer.key, CompareAdd: random.Uint64(),
		Bind:  queue.Bind{LKey: own.key, Addr: address(), Length: 8, Access: uint32(memory.RemoteRead)},
		Flush: queue.FlushRange{Length: 8, Placement: 1},
	}
	if rarely() {
		wr.Opcode = []queue.Opcode{queue.LocalInvalidate, queue.BindWindow, queue.SendWithInvalidate, queue.RegisterRegion}[random.IntN(4)]
	}
	switch wr.Opcode {
	case queue.CompareSwap, queue.FetchAdd, queue.AtomicWrite:
		wr.SGList = []queue.SGE{element(8)}
	case queue.RDMAWrite, queue.RDMAWriteWithImmediate, queue.Send, queue.SendWithImmediate, queue.RDMARead:
		for range random.IntN(maxSGE + 1) {
			wr.SGList = append(wr.SGList, element([]uint32{0, 4, 8, 600}[random.IntN(4)]))
		}
	}
	if wr.Opcode != queue.RDMARead && random.IntN(4) == 0 {
		wr.Flags |= queue.SendInline
	}
	send := attached(own.send, queue.SendLayout(capacity, maxSGE, maxInline), queue.NewProducer)
	_ = send.PostSend(&wr, queue.SendLimits{MaxSGE: maxSGE, MaxInline: maxInline}, zeros{})
	for _, s := range h.sides {
		recv := attached(s.recv, queue.RecvLayout(capacity, maxSGE), queue.NewProducer)
		_ = recv.PostRecv(&queue.RecvWR{SGList: []queue.SGE{{Addr: region, Length: part, LKey: s.key}}})
		attached(s.cq, queue.CompletionLayout(4*capacity), queue.NewConsumer).Discard()
	}
}

// attached is the client's end of a ring whose head somebody may be writing nonsense to.
func attached[E any](memory []byte, l queue.Layout, attach func([]byte, queue.Layout) (*E, error)) *E {
	for {
		if err := queue.Create(memory, l); err != nil {
			panic(err)
		}
		if end, err := attach(memory, l); err == nil {
			return end
		}
	}
}

type zeros struct{}

func (zeros) Gather(_ []queue.SGE, into []byte) error { clear(into); return nil }

// scribble changes something in a ring of the hostile client.
func (h *hostile) scribble(which, offset uint32, value uint64) {
	own := h.sides[0]
	ring := [][]byte{own.send, own.send, own.recv, own.cq}[which%4]
	if which%16 == 0 { // an index, near to where it is
		at := ring[offset%2*64:]
		binary.NativeEndian.PutUint32(at, binary.NativeEndian.Uint32(at)+uint32(int32(value<<28)>>28))
		return
	}
	at := ring[offset%uint32(len(ring)-8):]
	switch which / 16 % 4 {
	case 0:
		at[0] = byte(value)
	case 1:
		binary.NativeEndian.PutUint16(at, uint16(value))
	case 2:
		binary.NativeEndian.PutUint64(at, value)
	case 3:
		at[0]++
	}
}

// TestCase_C9: whatever a hostile client writes into its rings while the engine works on them, the engine touches no
// memory but that of the client's domain, and lives on.
func TestCase_C9(t *testing.T) {
	h := newHostile(t)
	var stop atomic.Bool
	var client sync.WaitGroup
	client.Go(func() {
		random := rand.New(rand.NewPCG(1, 1))
		for !stop.Load() {
			h.scribble(random.Uint32(), random.Uint32(), random.Uint64()&(1<<random.IntN(65)-1))
			// Long enough in between for requests to come through.
			for range random.IntN(50_000) {
				if stop.Load() {
					return
				}
			}
		}
	})
	random := rand.New(rand.NewPCG(2, 2))
	for start := time.Now(); time.Since(start) < 3*time.Second && !t.Failed(); {
		for range random.IntN(4) {
			h.post(random)
		}
		h.turn()
	}
	stop.Store(true)
	client.Wait()
	own, peer := h.sides[0].engine.Counters(), h.sides[1].engine.Counters()
	t.Logf("%d lives, %d packets sent, %d received, %d bytes", h.lives, own.SentPackets, peer.ReceivedPackets, own.SentBytes)
	require.NotZero(t, peer.SentBytes, "no READ came through")
	require.Greater(t, h.lives, 10)
}

// TestRequestsAreReadOnce: what the client writes into the slot of a request that the engine has taken changes nothing,
// neither the packets that follow, nor those that are sent again, nor where the answer goes.
func TestRequestsAreReadOnce(t *testing.T) {
	const length, offset = 1800, 4096 // 8 packets; where they go at the peer, or come from
	for _, opcode := range []queue.Opcode{queue.RDMAWrite, queue.Send, queue.RDMARead} {
		for _, lost := range []bool{false, true} {
			t.Run(fmt.Sprintf("%v lost=%v", opcode, lost), func(t *testing.T) {
				h := newHostile(t)
				own, peer := h.sides[0], h.sides[1]
				from, into := own.all[part:part+length], peer.all[part+offset:part+offset+length]
				if opcode == queue.RDMARead {
					from, into = into, from
				}
				_, _ = rand.NewChaCha8([32]byte{9}).Read(from)

				send, err := queue.NewProducer(own.send, queue.SendLayout(capacity, maxSGE, maxInline))
				require.NoError(t, err)
				wr := queue.SendWR{WRID: 7, Opcode: opcode, Flags: queue.SendSignaled, RemoteAddr: region + offset, RKey: peer.key}
				for i := range uint64(3) {
					wr.SGList = append(wr.SGList, queue.SGE{Addr: region + i*length/3, Length: length / 3, LKey: own.key})
				}
				require.NoError(t, send.PostSend(&wr, queue.SendLimits{MaxSGE: maxSGE}, nil))
				recv, err := queue.NewProducer(peer.recv, queue.RecvLayout(capacity, maxSGE))
				require.NoError(t, err)
				require.NoError(t, recv.PostRecv(&queue.RecvWR{
					WRID: 8, SGList: []queue.SGE{{Addr: region + offset, Length: length, LKey: peer.key}},
				}))

				own.engine.Ready(own.qp)
				require.Equal(t, 1, own.engine.Emit(h.now, 1, own))
				require.Equal(t, roce.DropNone, peer.packet.Parse([][]byte{own.frames[0]}))
				peer.engine.Receive(h.now, peer.qp, &peer.packet)
				own.frames = nil
				const slots = 256 // where they begin
				for _, ring := range [][]byte{own.send[slots:], peer.recv[slots:]} {
					for i := range ring {
						ring[i] = 0x02 // a SEND of nonsense
					}
				}
				if lost {
					own.engine.Emit(h.now, 64, own)
					peer.engine.Emit(h.now, 64, peer)
					own.frames, peer.frames = nil, nil
				}
				for range 5 {
					h.turn()
				}

				require.Equal(t, 1, h.lives, "a queue pair failed: %+v %+v", own.qp.Failure(), peer.qp.Failure())
				require.True(t, bytes.Equal(from, into))
				var wc [2]queue.WC
				cq, err := queue.NewConsumer(own.cq, queue.CompletionLayout(4*capacity))
				require.NoError(t, err)
				require.Equal(t, 1, cq.ReadCompletions(wc[:]))
				require.EqualValues(t, 7, wc[0].WRID)
				require.Equal(t, queue.WCSuccess, wc[0].Status)
				require.EqualValues(t, length, wc[0].ByteLen)
				cq, err = queue.NewConsumer(peer.cq, queue.CompletionLayout(4*capacity))
				require.NoError(t, err)
				if opcode == queue.Send {
					require.Equal(t, 1, cq.ReadCompletions(wc[:]))
					require.EqualValues(t, 8, wc[0].WRID)
					require.EqualValues(t, length, wc[0].ByteLen)
				}
			})
		}
	}
}

// FuzzHostileRings plays C9 without a second thread: the script says what is written between which steps of the engine.
func FuzzHostileRings(f *testing.F) {
	for seed := range uint64(8) {
		random := rand.New(rand.NewPCG(seed, 3))
		script := make([]byte, 400)
		for i := range script {
			script[i] = byte(random.Uint32())
		}
		f.Add(seed, script)
	}
	f.Fuzz(func(t *testing.T, seed uint64, script []byte) {
		h := newHostile(t)
		random := rand.New(rand.NewPCG(seed, 4))
		for ; len(script) >= 16; script = script[16:] {
			for range script[0] % 4 {
				h.post(random)
			}
			which, offset := uint32(script[1]), uint32(binary.NativeEndian.Uint16(script[2:]))
			h.scribble(which, offset, binary.NativeEndian.Uint64(script[8:]))
			if script[4]%2 == 0 {
				h.turn()
			}
		}
		h.turn()
	})
}
