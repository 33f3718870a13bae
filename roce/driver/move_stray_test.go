package driver

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/xroce/xroce/roce/link/mem"
)

// TestStrayPacketIsNoRun: a packet that comes in at a third shard, in the turn in which the run at another one is
// complete, ends the run: the queue pair goes to neither.
func TestStrayPacketIsNoRun(t *testing.T) {
	m := newMovers(t, mem.Options{}, 4, 4)
	home := m.b.device.shards[1]
	var e errands
	arriveAt := func(queue int) {
		m.spread(m.b, queue)
		m.a.write(t, m.a.qp, m.b, 8)
		m.a.device.Drive()
		m.arrive()
		m.b.device.shards[queue].run(1, &e)
	}
	for range m.b.qp.arrivals.patience {
		arriveAt(2)
	}
	arriveAt(3)
	home.run(1, &e)
	require.True(t, m.b.qp.place.Load().to == nil)
	m.network.SetSpread(nil)
	m.settle()
	require.Equal(t, home.index, m.b.qp.shard().index)
	total, _ := m.b.device.Counters()
	require.Zero(t, total.Moves)
	require.Zero(t, poster(m.a.qp).Outstanding())
}
