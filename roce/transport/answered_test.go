package transport

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// TestBusySavedRequests: a ring that is made smaller keeps the newest requests, so an old one whose responses are being sent again
// stands for all that came after it.
func TestBusySavedRequests(t *testing.T) {
	var r responder
	r.start(4)
	require.Zero(t, r.busy())
	for i := range uint64(6) {
		first := origin + 10*i
		r.saved[i%4] = savedRequest{first: first, count: 10, next: first + 10, stop: first + 10, sent: first + 10}
		r.savedNext++
	}
	require.Zero(t, r.busy(), "all answered")
	replayed := &r.saved[3]
	replayed.next -= 2
	require.Equal(t, 3, r.busy())
	r.resize(3)
	require.Equal(t, 1, r.responsesDue)
	require.Equal(t, 3, r.busy())
	r.saved[2].sent--
	require.Equal(t, 3, r.busy())
	r.saved[0].next += 2
	require.Equal(t, 1, r.busy())
}
