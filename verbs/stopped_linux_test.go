package verbs_test

import (
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/xroce/xroce/internal/netlab"
	"github.com/xroce/xroce/roce"
	"github.com/xroce/xroce/verbs"
)

// TestStoppedPeer: a debugger stops the peer for more than a second. With the defaults that ends the connection after
// 537 ms; with the timeout that docs/operating.md names for development it is waited for.
func TestStoppedPeer(t *testing.T) {
	netlab.RequireRoot(t)
	pair, err := netlab.NewPair(netlab.PairOptions{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, pair.Close()) })
	device := openDevice(t, &pair.A, verbs.Options{})
	for _, c := range []struct {
		options verbs.ConnectOptions
		want    verbs.WCStatus
	}{
		{verbs.ConnectOptions{}, verbs.WCRetryExcErr},
		{verbs.ConnectOptions{Timeout: roce.AckTimeout(20)}, verbs.WCSuccess},
	} {
		peer := startVictim(t, &pair.B, 0)
		e := newEnd(t, device, make([]byte, 1<<20), verbs.QPCap{})
		e.mr.Bytes()[1<<20-1] = 1
		target, err := meetStranger(e.qp, e.mr, standardStreams{peer.channel}, c.options)
		require.NoError(t, err)
		wc, err := writeOnce(e.qp, e.sends, e.mr, target, 8)
		require.NoError(t, err)
		require.Equal(t, verbs.WCSuccess, wc.Status)

		require.NoError(t, peer.cmd.Process.Signal(syscall.SIGSTOP))
		var status syscall.WaitStatus // of the whole process: none of its threads runs any more
		for err = syscall.EINTR; err == syscall.EINTR; {
			_, err = syscall.Wait4(peer.cmd.Process.Pid, &status, syscall.WUNTRACED, nil)
		}
		require.NoError(t, err)
		require.True(t, status.Stopped())
		begin := time.Now()
		if c.want == verbs.WCSuccess {
			resume := time.AfterFunc(1200*time.Millisecond, func() { _ = peer.cmd.Process.Signal(syscall.SIGCONT) })
			defer resume.Stop()
		}
		wc, err = writeOnce(e.qp, e.sends, e.mr, target, 8)
		took := time.Since(begin)
		require.NoError(t, err)
		require.Equal(t, c.want, wc.Status, "%v: %s", took, e.qp.Explain(wc))
		if c.want == verbs.WCSuccess {
			require.Greater(t, took, time.Second)
		} else {
			require.Greater(t, took, 500*time.Millisecond)
		}
		peer.kill(t)
	}
}
