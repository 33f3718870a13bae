package transport

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/xroce/xroce/roce/queue"
)

// TestAdopt: a QP that another engine adopts goes on there with what it had to send and with its deadline, and the
// first engine knows nothing of it any more, wherever in its list and its heap it was. Its counts go with it, those of
// the engine stay.
func TestAdopt(t *testing.T) {
	d := newDrainer(t)
	require.Equal(t, 2, d.post(2))
	d.acknowledge(1)
	deadline, timed := d.engine.NextDeadline()
	require.True(t, timed)
	d.sent++
	wr := queue.SendWR{WRID: d.sent, Opcode: queue.Send, Flags: queue.SendSignaled}
	require.NoError(t, d.send.PostSend(&wr, queue.SendLimits{MaxSGE: 1}, nil))
	first, second := newDrainer(t), newDrainer(t) // others that are ready before and behind it
	ready := []*QP{first.qp, d.qp, second.qp}
	d.engine.Release(d.qp)
	for _, q := range ready {
		q.Attach(d.engine)
		d.engine.Ready(q)
	}

	before := d.engine.Counters()
	d.engine.Release(d.qp)
	_, timed = d.engine.NextDeadline()
	require.False(t, timed)
	require.Equal(t, d.qp.recovery.una+1, d.qp.recovery.next)
	require.Zero(t, d.engine.Emit(2, 100, &d.sink))
	require.Equal(t, before, d.engine.Counters())
	require.True(t, d.engine.Idle())

	other := NewEngine(d.table.NewUser())
	other.Adopt(d.qp)
	got, timed := other.NextDeadline()
	require.True(t, timed)
	require.Equal(t, deadline, got)
	require.Equal(t, 1, other.Emit(2, 100, &d.sink), "what was posted before")
	require.EqualValues(t, 1, other.Counters().SentPackets)
	require.EqualValues(t, 3, d.qp.Status().Counters.SentPackets)
	d.engine = other
	d.acknowledge(3)
	require.Equal(t, []string{"1 success", "2 success", "3 success"}, d.entries)
	require.EqualValues(t, 1, other.Counters().Moves)

	// The same engine takes it back without a move.
	other.Release(d.qp)
	other.Adopt(d.qp)
	require.EqualValues(t, 1, other.Counters().Moves)
	require.EqualValues(t, 1, d.qp.Status().Counters.Moves)
}
