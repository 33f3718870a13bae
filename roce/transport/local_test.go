package transport

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/xroce/xroce/roce/memory"
	"github.com/xroce/xroce/roce/queue"
)

// TestLocalOperationsEndATurn: a program that posts local operations as fast as they are executed does not keep the
// shard from receiving, whose lock is held all the time: they count against the budget, though they make no frame.
func TestLocalOperationsEndATurn(t *testing.T) {
	const posts, budget = 2000, 32
	d := newDrainer(t)
	window, err := d.table.Allocate(d.domain, memory.KindWindow1, 0)
	require.NoError(t, err)
	left := posts
	post := func() {
		if left == 0 {
			return
		}
		left--
		wr := queue.SendWR{Opcode: queue.BindWindow, Flags: queue.SendSignaled, RKey: window.Key()} // unbinds it
		require.NoError(t, d.send.PostSend(&wr, queue.SendLimits{MaxSGE: 1}, nil))
	}
	d.completed = post
	post()
	post()
	d.engine.Ready(d.qp)
	turns := 0
	for ; !d.engine.Idle(); turns++ {
		before := left
		require.Positive(t, d.engine.Emit(1, budget, &d.sink), "a turn that says that it did nothing is not repeated at once")
		require.LessOrEqual(t, before-left, 2*budget)
	}
	require.Len(t, d.entries, posts)
	require.Zero(t, d.sink.frames)
	require.Equal(t, StateRTS, d.qp.State())
	require.GreaterOrEqual(t, turns, posts/(2*budget))
}
