package queue

import (
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// TestMove: what is inside goes over in order, with the request for a notification, or stays where it is.
func TestMove(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		capacity := rapid.IntRange(1, 20).Draw(t, "capacity")
		into := rapid.IntRange(1, 20).Draw(t, "into")
		inside := rapid.IntRange(0, capacity).Draw(t, "inside")
		start := rapid.OneOf(rapid.Uint32(), rapid.Uint32Range(1<<32-20, 1<<32-1)).Draw(t, "start")
		p, c := ends(t, newMemory(CompletionLayout(capacity), start), CompletionLayout(capacity))
		to, from := ends(t, newMemory(CompletionLayout(into), 7), CompletionLayout(into))
		for i := range inside {
			require.True(t, p.WriteCompletion(&WC{WRID: uint64(i), Timestamp: int64(i) - 5}))
		}
		c.Arm(true)
		count, moved := c.Move(to)
		require.Equal(t, inside, count)
		require.Equal(t, inside <= into, moved)
		wcs := make([]WC, 2*capacity)
		if !moved {
			require.Zero(t, from.Available(0))
			from = c
		}
		require.Equal(t, inside, from.ReadCompletions(wcs))
		for i, wc := range wcs[:inside] {
			require.EqualValues(t, i, wc.WRID)
			require.EqualValues(t, i-5, wc.Timestamp)
		}
		if moved {
			require.Zero(t, p.Used(), "nothing is there twice")
			require.False(t, p.Disarm(true))
			require.False(t, to.Disarm(false))
			require.True(t, to.Disarm(true))
		}
	})
	p, c := ends(t, newMemory(RecvLayout(2, 1), 0), RecvLayout(2, 1))
	other, _ := ends(t, newMemory(RecvLayout(2, 2), 0), RecvLayout(2, 2))
	require.NoError(t, p.PostRecv(&RecvWR{}))
	_, moved := c.Move(other)
	require.False(t, moved, "slots of another length")
}
