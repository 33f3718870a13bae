package driver

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/xroce/xroce/internal/support"
	"github.com/xroce/xroce/roce"
	"github.com/xroce/xroce/roce/link/mem"
	"github.com/xroce/xroce/roce/queue"
	"github.com/xroce/xroce/roce/transport"
)

// movers are two stations on a network in virtual time whose QPs are connected, with flow label 1: on a device of
// several queues their home is the second one.
type movers struct {
	testing.TB
	network *mem.Network
	a, b    *station
}

func newMovers(t testing.TB, o mem.Options, queues, moveAfter int, labels ...uint8) *movers {
	o.Manual = true
	m := &movers{TB: t, network: mem.NewNetwork(o)}
	clock := func() transport.Time { return transport.Time(m.network.Now()) }
	open := func(label uint8) *station {
		s := newStationOf(t, m.network, "", mem.DeviceOptions{Queues: queues}, Options{MoveAfter: moveAfter, Clock: clock})
		s.label, s.timeout = label, 18 // 1.07 s
		return s
	}
	m.a, m.b = open(append(labels, 1)[0]), open(append(labels, 1, 1)[1])
	m.a.connect(t, m.a.qp, m.b, m.b.qp.number)
	m.b.connect(t, m.b.qp, m.a, m.a.qp.number)
	t.Cleanup(func() {
		m.a.close(t)
		m.b.close(t)
	})
	return m
}

// spread makes the packets for the QP of a station arrive at a queue.
func (m *movers) spread(s *station, queue int) {
	m.network.SetSpread(func(number roce.QPN) int {
		if number == s.qp.number {
			return queue
		}
		return -1
	})
}

// settle runs both stations until nothing is in flight.
func (m *movers) settle() {
	for {
		for m.a.device.Drive() || m.b.device.Drive() {
		}
		next, found := m.network.NextArrival()
		if !found {
			return
		}
		m.network.AdvanceTo(next)
	}
}

// arrive delivers what is in flight, and has nobody look at it.
func (m *movers) arrive() {
	for next, found := m.network.NextArrival(); found; next, found = m.network.NextArrival() {
		m.network.AdvanceTo(next)
	}
}

// send moves a message of a few bytes, one packet, from a to b.
func (m *movers) send(count int) {
	for range count {
		m.a.write(m, m.a.qp, m.b, 8)
		m.settle()
		require.Zero(m, poster(m.a.qp).Outstanding())
		m.a.drain(m)
	}
}

// drain takes all completions, which must be successes.
func (s *station) drain(t testing.TB) (count int) {
	var wcs [8]queue.WC
	for {
		n, err := poller(s.cq).Poll(wcs[:])
		require.NoError(t, err)
		if n == 0 {
			return count
		}
		for _, wc := range wcs[:n] {
			require.Equal(t, queue.WCSuccess, wc.Status)
		}
		count += n
	}
}

// clean says that nothing was lost, doubled or out of order.
func (m *movers) clean() {
	m.Helper()
	for _, s := range []*station{m.a, m.b} {
		c, l := s.device.Counters()
		require.Empty(m, c.Dropped())
		require.Zero(m, c.Retransmitted+c.OutOfSequence+c.DuplicateRequests+c.SentSequenceNAKs+c.Timeouts+l.ReceiveDropped)
	}
}

func (q *QP) counters() transport.Counters {
	home := q.lock()
	defer home.unlock()
	return q.transport.Status().Counters
}

// TestMove: a queue pair whose packets all come in at another shard goes there, both as requester and as responder,
// once, and sends from there. Nothing is lost, doubled or out of order, and the counts are those of one queue pair that
// did not move.
func TestMove(t *testing.T) {
	m := newMovers(t, mem.Options{}, 4, 0)
	a, b := m.a, m.b
	m.network.SetSpread(func(number roce.QPN) int {
		if number == a.qp.number {
			return 2
		}
		return 3
	})
	_, _ = rand.NewChaCha8([32]byte{1}).Read(a.buffer)
	var moved [2]uint64 // packets that each had received when it moved
	for both := 0; both < 20; {
		a.write(t, a.qp, b, 64<<10)
		m.settle()
		require.Equal(t, 1, a.drain(t))
		if moved[0] > 0 && moved[1] > 0 {
			both++
		}
		for i, s := range []*station{a, b} {
			if c := s.qp.counters(); moved[i] == 0 && c.Moves > 0 {
				moved[i] = c.ReceivedPackets
			}
		}
	}
	require.Equal(t, a.buffer[:64<<10], b.buffer[:64<<10])
	m.clean()
	for i, s := range []*station{a, b} {
		home := s.device.shards[2+i]
		require.Equal(t, home.index, s.qp.shard().index)
		require.GreaterOrEqual(t, moved[i], uint64(defaultMoveAfter))
		require.LessOrEqual(t, moved[i], uint64(2*defaultMoveAfter+64), "or a message more")
		require.EqualValues(t, 1<<(2+i), s.cq.shards.bits.Load(), "the CQ drives the new home, and only that")
		total, _ := s.device.Counters()
		require.EqualValues(t, 1, total.Moves)
		require.Equal(t, total.Moves, home.engine.Counters().Moves)
		require.LessOrEqual(t, total.HandedOver, moved[i], "none any more")
		require.NotZero(t, total.HandedOver)
		total.HandedOver = 0
		require.Equal(t, total, s.qp.counters(), "the sums over the shards are those of the queue pair")
		require.NotZero(t, home.queue.Counters().Transmitted)
		require.NotZero(t, s.device.shards[1].queue.Counters().Transmitted)
		require.Zero(t, s.device.shards[0].queue.Counters().Transmitted)
		require.Zero(t, s.device.shards[3-i].queue.Counters().Transmitted)

		before := s.device.shards[1].queue.Counters().Transmitted
		m.send(1)
		require.Equal(t, before, s.device.shards[1].queue.Counters().Transmitted, "nothing is sent from the old home")
		status := s.device.QPs()[0].Status()
		require.Equal(t, home.index, status.Home)
		require.EqualValues(t, 1, status.Transport.Counters.Named()["moves"])
		require.EqualValues(t, 1, s.device.ShardCounters()[home.index].Transport.Named()["moves"])
	}
	support.Object(t, "QP", "packets that all come in at another queue of the device", "it moves to the shard of that queue")
}

// TestPatience: a queue pair moves after as many packets in a row as its patience is, which one at home or at a third
// shard begins anew, and each move of a connection doubles.
func TestPatience(t *testing.T) {
	m := newMovers(t, mem.Options{}, 4, 10)
	q := m.b.qp
	least := uint32(10)
	for i := range moveDoublings + 2 {
		home, to := q.shard().index, (q.shard().index+1)%4
		patience := q.arrivals.patience
		require.GreaterOrEqual(t, patience, least)
		require.Less(t, patience, 2*least)
		if i < 4 {
			for _, other := range []int{home, (to + 1) % 4} {
				m.spread(m.b, to)
				m.send(int(patience) - 1)
				m.spread(m.b, other)
				m.send(1)
			}
		}
		m.spread(m.b, to)
		m.send(int(patience) - 1)
		require.Equal(t, home, q.shard().index)
		m.send(1)
		require.Equal(t, to, q.shard().index)
		if i < moveDoublings {
			least *= 2
		}
	}
	m.clean()

	// Another connection of the queue pair is another story.
	require.NoError(t, q.Modify(context.Background(), &transport.Attributes{State: transport.StateReset}, nil, transport.MaskState))
	require.NoError(t, m.a.qp.Modify(context.Background(), &transport.Attributes{State: transport.StateReset}, nil, transport.MaskState))
	m.a.connect(t, m.a.qp, m.b, q.number)
	m.b.connect(t, q, m.a, m.a.qp.number)
	require.Equal(t, 1, q.shard().index)
	require.Less(t, q.arrivals.patience, uint32(20))
}

// TestScatteredStay: where packets come in at any queue, nothing moves.
func TestScatteredStay(t *testing.T) {
	for seed := range uint64(3) {
		m := newMovers(t, mem.Options{Scatter: true, Seed: seed}, 2, 32)
		m.send(5000)
		for _, s := range []*station{m.a, m.b} {
			c, _ := s.device.Counters()
			require.Zero(t, c.Moves)
			require.Greater(t, c.HandedOver, uint64(2000))
		}
	}
}

// TestNoPingPong: two ends that were connected with different flow labels, each at home where the other one's packets
// do not come in, meet at one queue after a move, seldom two or three, and stay there. So do those of which one sends
// more.
func TestNoPingPong(t *testing.T) {
	histogram := map[uint64]int{}
	for round := range 30 {
		m := newMovers(t, mem.Options{Seed: uint64(round)}, 2, 0, 2, 3)
		require.NotEqual(t, m.a.qp.shard().index, m.b.qp.shard().index)
		exchange := func(packets int) {
			for sent := 0; sent < packets; sent += 8 {
				for _, s := range []*station{m.a, m.b} {
					peer, count := m.a, 8
					if s == m.a {
						peer, count = m.b, 8>>(round%3)
					}
					for range count {
						s.write(t, s.qp, peer, 8)
					}
				}
				m.settle()
				require.Equal(t, 8>>(round%3), m.a.drain(t))
				require.Equal(t, 8, m.b.drain(t))
			}
		}
		moves := func() uint64 { return m.a.qp.counters().Moves + m.b.qp.counters().Moves }
		exchange(4 * defaultMoveAfter)
		first := moves()
		histogram[first]++
		require.NotZero(t, first)
		exchange(8 * defaultMoveAfter)
		require.Equal(t, m.a.qp.shard().index, m.b.qp.shard().index)
		require.LessOrEqual(t, moves(), uint64(5), "seed %d", round)
		m.clean()
	}
	t.Logf("moves: %v", histogram)
	require.Greater(t, histogram[1], 24)
}

// TestDeadlineMoves: the ACK timeout of a queue pair that moves fires at its time at the new home, and the resend
// leaves from there.
func TestDeadlineMoves(t *testing.T) {
	m := newMovers(t, mem.Options{}, 4, 0)
	m.network.SetIntercept(func([]byte, *roce.Packet) mem.Verdict { return mem.Verdict{Drop: true} })
	q := m.a.qp
	m.a.write(t, q, m.b, 8)
	m.settle()
	from, to := m.a.device.shards[1], m.a.device.shards[3]
	want, timed := from.engine.NextDeadline()
	require.True(t, timed)
	m.network.AdvanceTo(time.Duration(want) / 2)
	q.moveNow(to)
	require.Equal(t, to.index, q.shard().index)
	_, timed = from.engine.NextDeadline()
	require.False(t, timed)
	got, timed := to.engine.NextDeadline()
	require.True(t, timed)
	require.Equal(t, want, got)
	m.network.AdvanceTo(time.Duration(want) - 1)
	m.settle()
	require.Zero(t, to.engine.Counters().SentPackets)
	m.network.SetIntercept(nil)
	m.network.AdvanceTo(time.Duration(want))
	m.settle()
	require.Zero(t, poster(q).Outstanding())
	require.EqualValues(t, 1, to.engine.Counters().Timeouts)
	require.EqualValues(t, 1, to.queue.Counters().Transmitted)
}

// moveNow makes a queue pair move without a packet.
func (q *QP) moveNow(to *Shard) {
	from := q.lock()
	q.arrivals.at, q.arrivals.run = to, q.arrivals.patience-1
	from.leaving = append(from.leaving, q)
	from.letGo()
	from.mu.Unlock()
	to.drive(driveBriefly)
}

// TestPublishedFramesFirst: a queue pair does not leave while frames that it wrote wait for a kick: they would come
// behind those that it sends from its new home.
func TestPublishedFramesFirst(t *testing.T) {
	m := newMovers(t, mem.Options{}, 4, 1)
	home := m.b.device.shards[1]
	pending := true
	link := home.queue
	home.queue = &hookedQueue{Queue: link, pending: func() bool { return pending || link.Pending() }, kick: func() error {
		if pending {
			return errors.New("later")
		}
		return link.Kick()
	}}
	m.spread(m.b, 3)
	for range 5 {
		m.a.write(t, m.a.qp, m.b, 8)
		m.settle()
		require.Equal(t, home.index, m.b.qp.shard().index)
	}
	require.Equal(t, 5, poster(m.a.qp).Outstanding())
	pending = false
	m.settle()
	home.drive(driveBriefly)
	m.settle()
	require.Zero(t, poster(m.a.qp).Outstanding())
	m.a.write(t, m.a.qp, m.b, 8)
	m.settle()
	require.Equal(t, 3, m.b.qp.shard().index)
	m.clean()
}

// TestForgeriesMoveNothing: packets that are not the peer's, and those with a wrong ICRC, count for nothing.
func TestForgeriesMoveNothing(t *testing.T) {
	for _, name := range []string{"ICRC", "source"} {
		t.Run(name, func(t *testing.T) {
			m := newMovers(t, mem.Options{}, 4, 4)
			path := m.a.qp.transport.Attributes().Path
			path.Source = roce.GIDFromAddr(netip.MustParseAddr("10.0.0.99"))
			forged := roce.NewHeaderTemplate(path)
			m.spread(m.b, 3)
			m.network.SetIntercept(func(frame []byte, p *roce.Packet) mem.Verdict {
				switch {
				case p == nil || p.DestinationQPN != m.b.qp.number:
				case name == "ICRC":
					frame[len(frame)-1]++
				default:
					forged.Put(frame)
					forged.Seal(frame)
				}
				return mem.Verdict{}
			})
			m.a.write(t, m.a.qp, m.b, 20<<10)
			m.settle()
			c, _ := m.b.device.Counters()
			require.Zero(t, c.HandedOver)
			require.EqualValues(t, 20, c.Drops[roce.DropICRC]+c.Drops[roce.DropAddressMismatch], fmt.Sprint(c.Dropped()))
			require.Zero(t, c.Moves)
			require.Zero(t, m.b.qp.arrivals.run)
		})
	}
}

// BenchmarkMove is what a move costs, there and back again.
func BenchmarkMove(b *testing.B) {
	m := newMovers(b, mem.Options{}, 2, 0)
	m.network.SetIntercept(func([]byte, *roce.Packet) mem.Verdict { return mem.Verdict{Drop: true} })
	m.a.write(b, m.a.qp, m.b, 8) // it has a deadline
	b.ReportAllocs()
	for i := range b.N {
		m.a.qp.moveNow(m.a.device.shards[i&1])
	}
	require.InDelta(b, b.N, m.a.qp.counters().Moves, 1)
}

// BenchmarkHandedOver is what a packet costs on its way from QP to QP that comes in at its home, and one that comes in
// elsewhere.
func BenchmarkHandedOver(b *testing.B) {
	for _, size := range []int{8, 1024} {
		for _, at := range []string{"home", "elsewhere"} {
			b.Run(fmt.Sprintf("%d/%s", size, at), func(b *testing.B) {
				m := newMovers(b, mem.Options{}, 2, longestMoveAfter)
				if at == "elsewhere" {
					m.spread(m.b, 0)
				} else {
					m.spread(m.b, 1)
				}
				count := 0
				for b.Loop() {
					for range 16 {
						m.a.write(b, m.a.qp, m.b, size)
					}
					m.settle()
					count += m.a.drain(b)
				}
				require.Equal(b, 16*b.N, count)
				b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(count), "ns/packet")
			})
		}
	}
}
