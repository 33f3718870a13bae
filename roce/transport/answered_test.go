package transport

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// TestGrant: the limit is what the peer may have unanswered; what was saved stays findable however the limit changes,
// until as many newer requests have come as the largest limit was.
func TestGrant(t *testing.T) {
	var r responder
	r.start(4)
	next := uint64(origin)
	accept := func() {
		r.saved[r.savedNext%uint64(len(r.saved))] = savedRequest{first: next, count: 10, sent: next}
		r.savedNext++
		next += 10
	}
	answer := func(back uint64) {
		s := &r.saved[(r.savedNext-back)%uint64(len(r.saved))]
		s.sent = s.first + s.count
	}
	for range 4 {
		require.False(t, r.full())
		accept()
	}
	require.True(t, r.full())
	answer(4)
	require.False(t, r.full())
	r.grant(1)
	require.True(t, r.full(), "three are unanswered")
	for back := range uint64(3) {
		require.True(t, r.full())
		answer(3 - back)
	}
	require.False(t, r.full())
	for i := range uint64(4) {
		require.NotNil(t, r.find(origin+10*i+5), "request %d", i)
	}
	r.grant(6)
	for i := range uint64(4) {
		require.NotNil(t, r.find(origin+10*i+5), "request %d in the larger ring", i)
	}
	for range 6 {
		require.False(t, r.full())
		accept()
	}
	require.True(t, r.full())
	require.Nil(t, r.find(origin+5))
	require.NotNil(t, r.find(next-60))
	r.grant(0)
	require.True(t, r.full())
}
