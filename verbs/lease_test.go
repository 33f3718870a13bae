package verbs_test

import (
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/xroce/xroce/roce"
	"github.com/xroce/xroce/roce/link/mem"
	"github.com/xroce/xroce/verbs"
)

// connected returns two ends on a live network in memory, with a megabyte each.
func connected(t *testing.T, o verbs.ConnectOptions) (a, b *end) {
	da, db := memDevices(t, mem.Options{}, mem.DeviceOptions{})
	a, b = newEnd(t, da, make([]byte, 1<<20), verbs.QPCap{}), newEnd(t, db, make([]byte, 1<<20), verbs.QPCap{})
	connect(t, a, b, o)
	return a, b
}

func writeAll(t *testing.T, a, b *end, bytes int) verbs.WCStatus {
	require.NoError(t, a.qp.PostSend(verbs.SendWR{
		Opcode: verbs.WRRDMAWrite, Flags: verbs.SendSignaled,
		SGList: []verbs.SGE{a.mr.SGE(0, bytes)}, RemoteAddr: b.mr.Addr(), RKey: b.mr.RKey(),
	}))
	return poll(t, a.sends).Status
}

// TestLeaseOfOccasionalPoller: a program that looked into its CQ now and then and has just stopped does not keep the
// background away for longer than its peer's short ACK timeouts. One of a few tries is enough: a machine that has other
// things to do may well not run the background for so long.
func TestLeaseOfOccasionalPoller(t *testing.T) {
	for _, o := range []verbs.ConnectOptions{
		{Timeout: roce.AckTimeout(8), RetryCnt: new(uint8(7))}, {Timeout: roce.AckTimeout(9), RetryCnt: new(uint8(3))},
		{Timeout: roce.AckTimeout(10), RetryCnt: new(uint8(1))},
	} {
		status := verbs.WCStatus(255)
		for try := 0; try < 10 && status != verbs.WCSuccess; try++ {
			a, b := connected(t, o)
			var wc [1]verbs.WC
			for range 30 {
				_, _ = b.recvs.Poll(wc[:])
				time.Sleep(time.Millisecond)
			}
			status = writeAll(t, a, b, 8)
		}
		require.Equal(t, verbs.WCSuccess, status, "timeout %v, retry count %d", o.Timeout, *o.RetryCnt)
	}
}

// TestRateOfSlowPoller: a target that looks into its CQ every few milliseconds takes WRITEs nearly as fast as one
// that never does.
func TestRateOfSlowPoller(t *testing.T) {
	rate := func(every time.Duration) float64 {
		a, b := connected(t, verbs.ConnectOptions{})
		var stop atomic.Bool
		var g sync.WaitGroup
		if every > 0 {
			g.Go(func() {
				var wc [1]verbs.WC
				for !stop.Load() {
					_, _ = b.recvs.Poll(wc[:])
					time.Sleep(every)
				}
			})
		}
		start := time.Now()
		for range 60 {
			require.Equal(t, verbs.WCSuccess, writeAll(t, a, b, 1<<20))
		}
		elapsed := time.Since(start)
		stop.Store(true)
		g.Wait()
		return 60 * 8 * (1 << 20) / elapsed.Seconds() / 1e9
	}
	never, sometimes := rate(0), rate(5*time.Millisecond)
	t.Logf("a target that never polls: %.2f Gbit/s; every 5 ms: %.2f Gbit/s", never, sometimes)
	require.Greater(t, sometimes, never/4)
}
