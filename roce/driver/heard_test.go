package driver

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/xroce/xroce/roce"
	"github.com/xroce/xroce/roce/link"
	"github.com/xroce/xroce/roce/link/loop"
	"github.com/xroce/xroce/roce/link/mem"
	"github.com/xroce/xroce/roce/transport"
)

// defaultRing is how many frames a receive ring of link/mem holds.
const defaultRing = 1024

const (
	timeoutCode = 14 // 67 ms
	stop        = 100 * time.Millisecond
)

// answered has each of many queue pairs of a write one packet, and its acknowledgement wait in the ring of a queue of
// a.
func answered(t *testing.T, queues, at, count int, noRetry bool) (m *movers, qps []*QP, home *Shard) {
	m = newMovers(t, mem.Options{}, queues, 0)
	m.a.timeout, m.a.noRetry, m.b.timeout = timeoutCode, noRetry, timeoutCode
	resize(t, m.a.cq, count)
	number := make(map[roce.QPN]bool)
	for range count {
		near, far := m.a.newQP(t), m.b.newQP(t)
		m.a.connect(t, near, m.b, far.number)
		m.b.connect(t, far, m.a, near.number)
		t.Cleanup(func() {
			require.NoError(t, near.Close())
			require.NoError(t, far.Close())
		})
		qps, number[near.number] = append(qps, near), true
	}
	m.network.SetSpread(func(n roce.QPN) int {
		if number[n] {
			return at
		}
		return -1
	})
	for _, q := range qps {
		m.a.write(t, q, m.b, 8)
	}
	m.arrive()
	for m.b.device.Drive() {
	}
	m.arrive()
	return m, qps, qps[0].shard()
}

// none makes sure that every queue pair was answered and none has timed out.
func none(t *testing.T, m *movers, qps []*QP) {
	t.Helper()
	c, _ := m.a.device.Counters()
	require.Zero(t, c.Timeouts, "of %d answered queue pairs", len(qps))
	m.clean()
	require.Equal(t, len(qps), m.a.drain(t))
	for _, q := range qps {
		require.Equal(t, transport.StateRTS, q.State())
	}
}

// TestAnswersBeforeDeadlines: a process that was stopped for longer than the ACK timeout finds the answers of all its
// queue pairs in the ring, whichever that is, and none of them times out, with retries or without.
func TestAnswersBeforeDeadlines(t *testing.T) {
	for _, at := range []struct{ queues, ring int }{{1, 0}, {2, 1}, {2, 0}, {3, 2}, {4, 3}} {
		for _, noRetry := range []bool{false, true} {
			t.Run(fmt.Sprintf("%d queues, ring %d, no retry %v", at.queues, at.ring, noRetry), func(t *testing.T) {
				m, qps, home := answered(t, at.queues, at.ring, 100, noRetry)
				m.network.AdvanceTo(m.network.Now() + stop)
				home.drive(driveBriefly)
				for m.a.device.Drive() {
				}
				none(t, m, qps)
			})
		}
	}
}

// TestAnswersInAnInbox: the same for answers that were read by another shard and handed over before the process was
// stopped.
func TestAnswersInAnInbox(t *testing.T) {
	m, qps, home := answered(t, 2, 0, loop.Slots, true)
	leave := occupy(home)
	m.a.device.shards[0].drive(driveBriefly)
	m.network.AdvanceTo(m.network.Now() + stop)
	require.Equal(t, loop.Slots, home.inboxFrom(m.a.device.shards[0]).ring.Waiting())
	leave(home.unlock)
	for m.a.device.Drive() {
	}
	none(t, m, qps)
}

// TestStopInsideATurn: the process is stopped at the worst moment, after the ring was found empty and before the clock
// is read.
func TestStopInsideATurn(t *testing.T) {
	for _, ring := range []int{0, 1} {
		m, qps, home := answered(t, 2, ring, 3, true)
		later := m.a.device.shards[ring]
		own, hidden := later.queue, true
		later.queue = &heldQueue{Queue: own, receive: func(frames []link.Frame) int {
			if hidden {
				return 0
			}
			return own.Receive(frames)
		}}
		clock := m.a.device.options.Clock
		m.a.device.options.Clock = func() transport.Time {
			if hidden {
				hidden = false
				m.network.AdvanceTo(m.network.Now() + stop)
			}
			return clock()
		}
		home.drive(driveBriefly)
		require.False(t, hidden)
		for m.a.device.Drive() {
		}
		none(t, m, qps)
	}
}

// TestFlood: where more comes in than is read, on any shard, a deadline waits for as many frames as a ring holds, not
// for ever.
func TestFlood(t *testing.T) {
	for _, ring := range []int{0, 1} {
		m, qps, home := answered(t, 2, 0, 1, false)
		m.network.SetIntercept(func([]byte, *roce.Packet) mem.Verdict { return mem.Verdict{Drop: true} })
		m.a.device.Drive()
		m.a.drain(t)
		m.a.write(t, qps[0], m.b, 8)
		m.network.AdvanceTo(m.network.Now() + stop)
		read := 0
		flooded := m.a.device.shards[ring]
		flooded.queue = &heldQueue{Queue: flooded.queue, receive: func(frames []link.Frame) int {
			for i := range frames {
				frames[i].Segments = [][]byte{make([]byte, 60)}
			}
			read += len(frames)
			return len(frames)
		}}
		timeouts := func() uint64 {
			home.mu.Lock()
			defer home.mu.Unlock()
			return home.engine.Counters().Timeouts
		}
		for timeouts() == 0 && read < 10*defaultRing {
			home.drive(1)
		}
		require.EqualValues(t, 1, timeouts(), "flood on shard %d", ring)
		require.GreaterOrEqual(t, read, defaultRing)
		require.LessOrEqual(t, read, defaultRing+8*receiveBatch)
	}
}

// heldBack makes a QP whose deadline has passed, at home in a shard that waits for another one, which is locked: nobody
// can drive that.
func heldBack(t *testing.T) (m *movers, qps []*QP, home, held *Shard, leave func(release func())) {
	t.Helper()
	m, qps, home = answered(t, 2, 0, 1, false)
	m.network.SetIntercept(func([]byte, *roce.Packet) mem.Verdict { return mem.Verdict{Drop: true} })
	m.a.device.Drive()
	m.a.drain(t)
	m.a.write(t, qps[0], m.b, 8)
	m.network.AdvanceTo(m.network.Now() + stop)
	held = m.a.device.shards[0]
	leave = occupy(held)
	home.drive(driveBriefly)
	return m, qps, home, held, leave
}

// TestShardThatIsHeld: a shard that nobody can drive puts the deadlines of others off for a second, in which they
// sleep.
func TestShardThatIsHeld(t *testing.T) {
	m, _, home, held, leave := heldBack(t)
	w, err := newWaiter()
	require.NoError(t, err)
	defer w.close()
	timeout, ok := home.lead(w)
	require.True(t, ok)
	require.Equal(t, longestHearing, timeout)
	home.sleep.leave(w)
	for range 2 { // whoever was stopped for so long may read then
		m.network.AdvanceTo(m.network.Now() + longestHearing - 1)
		home.drive(driveBriefly)
		require.Zero(t, home.engine.Counters().Timeouts)
		m.network.AdvanceTo(m.network.Now() + 1)
		home.drive(driveBriefly)
	}
	require.EqualValues(t, 1, home.engine.Counters().Timeouts)
	leave(held.unlock)

	// The next one is judged as soon as that shard is free: whoever has held it looks.
	m.network.AdvanceTo(m.network.Now() + stop)
	leave = occupy(held)
	home.drive(driveBriefly)
	require.EqualValues(t, 1, home.engine.Counters().Timeouts)
	m.network.AdvanceTo(m.network.Now() + 200*time.Millisecond)
	leave(held.unlock)
	home.drive(driveBriefly)
	// The time that it waited does not count against the next timeout.
	require.EqualValues(t, 2, home.engine.Counters().Timeouts)
}

// TestDeadlineThatGoesAway: where a deadline waited for another shard and its queue pair has gone meanwhile, nobody is
// kept awake.
func TestDeadlineThatGoesAway(t *testing.T) {
	m, qps, home, held, leave := heldBack(t)
	require.NotZero(t, home.overdue.Load())
	require.NoError(t, qps[0].Modify(t.Context(), &transport.Attributes{State: transport.StateReset}, nil, transport.MaskState))
	leave(held.unlock)
	m.network.AdvanceTo(m.network.Now() + 2*longestHearing)
	home.drive(driveBriefly)
	_, timed := home.nextDeadline()
	require.False(t, timed)
}

// heldQueue is a queue that does not give out what has arrived, or gives out something else.
type heldQueue struct {
	link.Queue
	receive func([]link.Frame) int
}

func (q *heldQueue) Receive(frames []link.Frame) int { return q.receive(frames) }
