package queue

import (
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// TestMove: what is inside is in the other ring, in order, with the request for a notification, or stays where it is.
func TestMove(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		capacity := rapid.IntRange(1, 20).Draw(t, "capacity")
		into := rapid.IntRange(1, 20).Draw(t, "into")
		written := rapid.IntRange(0, capacity).Draw(t, "written")
		gone := rapid.IntRange(0, written).Draw(t, "gone")
		start := rapid.OneOf(rapid.Uint32(), rapid.Uint32Range(1<<32-20, 1<<32-1)).Draw(t, "start")
		p, c := ends(t, newMemory(CompletionLayout(capacity), start), CompletionLayout(capacity))
		to, from := ends(t, newMemory(CompletionLayout(into), 7), CompletionLayout(into))
		for i := range written {
			require.True(t, p.WriteCompletion(&WC{WRID: uint64(i), Timestamp: int64(i) - 5}))
		}
		wcs := make([]WC, 2*capacity)
		require.Equal(t, gone, c.ReadCompletions(wcs[:gone]))
		c.Arm(true)
		first, count, moved := p.Move(to)
		require.Equal(t, start+uint32(gone), first)
		require.Equal(t, written-gone, count)
		require.Equal(t, written-gone <= into, moved)
		if !moved {
			require.Zero(t, from.Available(0))
			from = c
		} else {
			require.False(t, p.Disarm(true))
			require.False(t, to.Disarm(false))
			require.True(t, to.Disarm(true))
			// Those that were taken out of the old ring after it was copied are left out in the new one.
			late := rapid.IntRange(0, written-gone).Draw(t, "late")
			require.Equal(t, late, c.ReadCompletions(wcs[:late]))
			require.True(t, from.SkipTo(c, first))
			gone += late
			require.False(t, from.SkipTo(c, c.next-uint32(written-gone)-1), "more than there is")
		}
		require.Equal(t, written-gone, from.ReadCompletions(wcs))
		for i, wc := range wcs[:written-gone] {
			require.EqualValues(t, gone+i, wc.WRID)
			require.EqualValues(t, gone+i-5, wc.Timestamp)
		}
	})
	p, _ := ends(t, newMemory(RecvLayout(2, 1), 0), RecvLayout(2, 1))
	other, _ := ends(t, newMemory(RecvLayout(2, 2), 0), RecvLayout(2, 2))
	require.NoError(t, p.PostRecv(&RecvWR{}))
	_, _, moved := p.Move(other)
	require.False(t, moved, "slots of another length")
	same, _ := ends(t, newMemory(RecvLayout(2, 1), 0), RecvLayout(2, 1))
	require.NoError(t, same.PostRecv(&RecvWR{}))
	_, _, moved = p.Move(same)
	require.False(t, moved, "a ring with something in it")
}
