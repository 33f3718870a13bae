package driver

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/xroce/xroce/roce"
	"github.com/xroce/xroce/roce/link/mem"
	"github.com/xroce/xroce/roce/transport"
)

// leave brings b's QP, at home at shard 1, to the point where it was let go and shard 3 has not taken it in. The packet
// that did it came in there.
func (m *movers) leave() (home, to *Shard) {
	home, to = m.b.device.shards[1], m.b.device.shards[3]
	m.spread(m.b, 3)
	m.a.write(m, m.a.qp, m.b, 8)
	m.a.device.Drive()
	m.arrive()
	var e errands
	require.True(m, to.run(1, &e))
	require.Same(m, home, e.next())
	home.run(1, &e)
	require.Same(m, to, e.next())
	require.Equal(m, place{shard: home, to: to}, *m.b.qp.place.Load())
	return home, to
}

// unring takes back the doorbell that was rung when b's QP was let go: the moment before.
func (m *movers) unring(to *Shard) {
	to.doorbells.Store(nil)
	m.b.qp.ringing.Store(false)
}

// TestMoveMeets: whatever comes for a queue pair that stands between two shards finds it, and it goes to one of them.
func TestMoveMeets(t *testing.T) {
	const stays, moves = 1, 3
	frame := func(m *movers, queue int) {
		m.spread(m.b, queue)
		m.a.write(m, m.a.qp, m.b, 8)
		m.a.device.Drive()
		m.arrive()
	}
	var e errands
	for name, c := range map[string]struct {
		act  func(m *movers, home, to *Shard)
		home int
	}{
		"nothing":                  {func(*movers, *Shard, *Shard) {}, moves},
		"its doorbell at the new":  {func(_ *movers, _, to *Shard) { to.run(1, &e) }, moves},
		"a packet at the new":      {func(m *movers, _, to *Shard) { m.unring(to); frame(m, 3); to.run(1, &e) }, moves},
		"a packet at the old":      {func(m *movers, home, _ *Shard) { frame(m, 1); home.run(1, &e) }, stays},
		"a packet at a third":      {func(m *movers, _, to *Shard) { frame(m, 2); m.b.device.shards[2].run(1, &e); to.run(1, &e) }, moves},
		"frames that came earlier": {func(m *movers, home, to *Shard) { require.True(m, putFrom(home, 3)); to.run(1, &e) }, stays},
		"a look":                   {func(m *movers, _, _ *Shard) { m.b.qp.Query() }, stays},
		"a post":                   {func(m *movers, _, _ *Shard) { m.b.write(m, m.b.qp, m.a, 8) }, moves},
		"a post before it rings":   {func(m *movers, _, to *Shard) { m.unring(to); m.b.write(m, m.b.qp, m.a, 8); to.ring(m.b.qp) }, stays},
		"the end of its CQ":        {func(m *movers, _, to *Shard) { m.b.qp.end(); to.run(1, &e) }, moves},
		"the end, before it rings": {func(m *movers, _, to *Shard) { m.unring(to); m.b.qp.end(); to.ring(m.b.qp) }, stays},
		"a transition":             {func(m *movers, _, _ *Shard) { m.b.end(m) }, stays},
		"its destruction":          {func(m *movers, _, _ *Shard) { require.NoError(m, m.b.qp.Close()); m.b.qp = m.b.newQP(m) }, 0},
	} {
		t.Run(name, func(t *testing.T) {
			m := newMovers(t, mem.Options{}, 4, 1)
			home, to := m.leave()
			q := m.b.qp
			c.act(m, home, to)
			for m.b.device.Drive() {
			}
			if c.home == stays {
				require.Equal(t, home.index, q.shard().index)
			}
			if c.home == moves {
				require.Equal(t, to.index, q.shard().index)
			}
			require.Nil(t, q.place.Load().to)
			total, _ := m.b.device.Counters()
			if c.home > 0 {
				require.EqualValues(t, c.home/moves, total.Moves)
				require.EqualValues(t, 1<<c.home, m.b.cq.shards.bits.Load())
			} else {
				require.Zero(t, m.b.cq.shards.bits.Load(), "the CQ has no QP that is anywhere")
			}
			m.network.SetSpread(nil)
			m.settle()
			if q.State() == transport.StateRTS && !q.closed.Load() {
				require.Zero(t, poster(m.a.qp).Outstanding())
				require.Zero(t, poster(m.b.qp).Outstanding())
				if name != "frames that came earlier" {
					m.clean()
				}
			}
		})
	}
}

// end brings the QP of a station into the error state.
func (s *station) end(t testing.TB) {
	require.NoError(t, s.qp.Modify(context.Background(), &transport.Attributes{State: transport.StateError}, nil, transport.MaskState))
}

// TestThirdShardsPackets: a packet that waits in the inbox of the old home, from a third shard, follows the queue pair,
// and one for which there is no place is dropped and counted.
func TestThirdShardsPackets(t *testing.T) {
	m := newMovers(t, mem.Options{}, 4, 1)
	home, to := m.leave()
	third := m.b.device.shards[2]
	m.spread(m.b, 2)
	m.a.write(t, m.a.qp, m.b, 8)
	m.a.device.Drive()
	m.arrive()
	var e errands
	third.run(1, &e)
	require.Equal(t, 1, home.inboxFrom(third).ring.Waiting())
	to.run(1, &e)
	require.Equal(t, to.index, m.b.qp.shard().index)
	received := m.b.qp.counters().ReceivedPackets
	for putFrom(to, home.index) {
	}
	home.run(1, &e)
	require.EqualValues(t, 1, home.engine.Counters().Drops[roce.DropInboxFull])
	to.run(1, &e)
	require.Equal(t, received, m.b.qp.counters().ReceivedPackets)

	// It comes again after the ACK timeout, by the same way. That begins with the acknowledgement of the packet before.
	for m.a.qp.counters().Timeouts == 0 {
		deadline, timed := m.a.device.NextDeadline()
		require.True(t, timed)
		m.network.AdvanceTo(time.Duration(deadline))
		m.a.device.Drive()
	}
	m.arrive()
	home.inboxFrom(third).ring.Put([][]byte{make([]byte, 60)}) // others hand over, too
	third.run(1, &e)
	m.settle()
	require.Zero(t, poster(m.a.qp).Outstanding())
}

// TestLookAtALeavingQP: a control call takes a queue pair back that stands between two shards, and who sleeps at its
// home learns of its deadline.
func TestLookAtALeavingQP(t *testing.T) {
	m := newMovers(t, mem.Options{}, 4, 0)
	m.network.SetIntercept(func([]byte, *roce.Packet) mem.Verdict { return mem.Verdict{Drop: true} })
	q := m.a.qp
	m.a.write(t, q, m.b, 8)
	home, to := m.a.device.shards[1], m.a.device.shards[3]
	home.mu.Lock()
	q.arrivals.at, q.arrivals.run = to, q.arrivals.patience-1
	home.leaving = append(home.leaving, q)
	home.letGo()
	home.mu.Unlock()
	require.True(t, to.called())
	w, err := newWaiter()
	require.NoError(t, err)
	defer w.close()
	timeout, ok := home.lead(w)
	require.True(t, ok)
	require.Negative(t, timeout, "for ever")
	before := q.place.Load()
	q.Query()
	require.Equal(t, home.index, q.shard().index)
	to.drive(driveBriefly) // as the one will who had it let go
	require.True(t, w.woken.Load())
	home.sleep.leave(w)

	// The other one comes too late: it has seen the place as it was.
	to.mu.Lock()
	require.False(t, to.take(q, before))
	to.mu.Unlock()
	home.mu.Lock()
	require.True(t, home.has(q))
	home.unlock()
	_, timed := home.engine.NextDeadline()
	require.True(t, timed)
	_, timed = to.engine.NextDeadline()
	require.False(t, timed)
}
