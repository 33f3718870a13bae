package transport

import (
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// TestWindowBounds: whatever happens, the window stays between 1 and its limit, grows with what is acknowledged and by
// no more than that, and at least halves with a loss down to its minimum.
func TestWindowBounds(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		limit := rapid.OneOf(rapid.IntRange(1, 10), rapid.IntRange(1, 1<<16)).Draw(t, "limit")
		var w window
		w.start(uint64(limit))
		t.Repeat(map[string]func(*rapid.T){
			"acknowledged": func(t *rapid.T) {
				before := w.size
				n := rapid.Uint64Range(1, before).Draw(t, "n")
				w.acknowledged(n)
				require.GreaterOrEqual(t, w.size, before)
				require.LessOrEqual(t, w.size, before+n)
			},
			"lost": func(t *rapid.T) {
				before := w.size
				w.lost()
				require.LessOrEqual(t, w.size, max(before/2, minimumWindow))
				require.GreaterOrEqual(t, w.size, min(before/2, uint64(limit)))
			},
			"": func(t *rapid.T) {
				require.GreaterOrEqual(t, w.size, uint64(1))
				require.LessOrEqual(t, w.size, uint64(limit))
				require.GreaterOrEqual(t, ackInterval(w.size), uint64(1))
				require.LessOrEqual(t, ackInterval(w.size), w.size, "an acknowledgement is asked for within each window")
			},
		})
	})
}

// TestWindowCourse: doubled per round trip up to the first loss, halved, then one frame more per round trip.
func TestWindowCourse(t *testing.T) {
	var w window
	w.start(100)
	require.Equal(t, uint64(initialWindow), w.size)
	w.acknowledged(32)
	require.Equal(t, uint64(64), w.size)
	w.acknowledged(64)
	require.Equal(t, uint64(100), w.size)
	w.lost()
	require.Equal(t, uint64(50), w.size)
	for trip := range uint64(50) {
		require.Equal(t, 50+trip, w.size)
		for range w.size {
			w.acknowledged(1)
		}
	}
	require.Equal(t, uint64(100), w.size)
	for range 10 {
		w.lost()
	}
	require.Equal(t, uint64(minimumWindow), w.size)
	w.start(2)
	w.lost()
	require.Equal(t, uint64(2), w.size)
}
