package transport

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/xroce/xroce/roce"
)

// TestUnanswered: the second ACK timeout in a row, and each one after it, says that the peer is silent, the one that
// ends the queue pair included. An acknowledgement begins anew.
func TestUnanswered(t *testing.T) {
	for _, retries := range []uint8{0, 1, 2, 7} {
		d := newDrainer(t)
		d.qp.attrs.RetryCount = retries
		now := Time(1)
		timeout := func() {
			now += Time(roce.AckTimeout(d.qp.attrs.Timeout)) + 1
			d.engine.Expire(now, now)
			d.engine.Emit(now, 100, &d.sink)
		}
		if retries > 0 {
			d.post(1)
			timeout()
			d.acknowledge(1)
			require.Empty(t, d.silent)
			d.post(1)
		} else {
			d.post(1)
		}
		want := 0
		for i := range int(retries) + 1 {
			require.Equal(t, StateRTS, d.qp.State())
			timeout()
			if i > 0 || retries == 0 {
				want++
			}
			require.Len(t, d.silent, want, "after %d timeouts, retry count %d", i+1, retries)
		}
		require.Equal(t, StateError, d.qp.State())
		for _, path := range d.silent {
			require.Equal(t, d.qp.attrs.Path, path)
		}
	}
}
