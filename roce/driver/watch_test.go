package driver

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/xroce/xroce/roce/memory"
)

// TestWatch: a copy is told of once, when it was seen often enough in the same turn at the same region, and once more
// when it is over; a shard that is busy with one region turn after turn is not.
func TestWatch(t *testing.T) {
	a, b := new(memory.Region), new(memory.Region)
	now := time.Now()
	var w watched
	look := func(turn uint64, r *memory.Region) [2]bool {
		now = now.Add(suspectPause)
		stuck, over := w.look(turn, r, now)
		return [2]bool{stuck, over}
	}
	nothing := [2]bool{}
	for turn := range uint64(100) {
		require.Equal(t, nothing, look(turn, a), "busy")
	}
	for i := range 100 {
		require.Equal(t, nothing, look(200, nil), "idle")
		require.Equal(t, nothing, look(200, []*memory.Region{a, b}[i%2]), "between regions")
	}
	begin := now.Add(suspectPause)
	require.Equal(t, nothing, look(300, a))
	for i := 1; i <= 30; i++ {
		require.Equal(t, [2]bool{i == suspectLooks, false}, look(300, a), "%d", i)
	}
	require.Equal(t, begin, w.since)
	require.Equal(t, [2]bool{false, true}, look(301, a), "another turn")
	require.Equal(t, nothing, look(302, nil))
}
