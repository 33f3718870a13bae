package verbs_test

import (
	"context"
	"encoding/binary"
	"net"
	"net/netip"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/xroce/xroce/internal/netlab"
	"github.com/xroce/xroce/internal/opener"
	"github.com/xroce/xroce/internal/support"
	"github.com/xroce/xroce/verbs"
)

// usage is what the process uses: CPU time, and how often a thread of it slept.
type usage struct {
	cpu    time.Duration
	sleeps int64
}

// used measures the process for a while. A busy machine makes each wake-up cost more, so the least of a few counts.
func used(t *testing.T, interval time.Duration, limit float64) (share float64, u usage) {
	t.Helper()
	runtime.GC()
	for range 4 {
		time.Sleep(20 * time.Millisecond) // what has just ended may have an end yet
		var before, after unix.Rusage
		require.NoError(t, unix.Getrusage(unix.RUSAGE_SELF, &before))
		begin := time.Now()
		time.Sleep(interval)
		require.NoError(t, unix.Getrusage(unix.RUSAGE_SELF, &after))
		u = usage{
			time.Duration(after.Utime.Nano() + after.Stime.Nano() - before.Utime.Nano() - before.Stime.Nano()),
			after.Nvcsw - before.Nvcsw,
		}
		if share = u.cpu.Seconds() / time.Since(begin).Seconds(); share < limit {
			break
		}
	}
	return share, u
}

// TestCase_F15: devices with idle queue pairs and blocked waits use next to no CPU: left alone, while packets come in
// that are for nobody, when the link is down at either end, and when the network device is deleted. poll(2) never
// returns at once again and again.
func TestCase_F15(t *testing.T) {
	for _, mode := range []verbs.XDPMode{verbs.XDPNative, verbs.XDPGeneric} {
		t.Run(mode.String(), func(t *testing.T) { idle(t, mode) })
	}
}

func idle(t *testing.T, mode verbs.XDPMode) {
	netlab.RequireRoot(t)
	pair, err := netlab.NewPair(netlab.PairOptions{})
	require.NoError(t, err)
	t.Cleanup(func() { _ = pair.Close() })
	da, db := openDevice(t, &pair.A, verbs.Options{Mode: mode}), openDevice(t, &pair.B, verbs.Options{Mode: mode})
	var as, bs []*end
	for range 16 {
		a, b := newEnd(t, da, make([]byte, 64), verbs.QPCap{}), newEnd(t, db, make([]byte, 64), verbs.QPCap{})
		connect(t, a, b, verbs.ConnectOptions{})
		require.Equal(t, verbs.WCSuccess, a.do(t, write(a, b, 0)).Status)
		as, bs = append(as, a), append(bs, b)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var waits sync.WaitGroup
	for _, e := range []*end{as[0], as[1], bs[0]} {
		waits.Go(func() { _ = e.sends.Wait(ctx) })
	}
	defer waits.Wait()
	defer cancel()
	const limit = 0.02
	// A packet costs some ten wake-ups of threads, those of this test among them, and a race detector makes them dear.
	const limitPerPacket = 0.1
	interval := time.Duration(size(250, 5000)) * time.Millisecond
	rest := func(what string, limit float64) {
		t.Helper()
		share, u := used(t, interval, limit)
		require.Less(t, share, limit, "%s: %+v", what, u)
		t.Logf("%s: %.2f %% of a CPU, %d sleeps in %v", what, 100*share, u.sleeps, interval)
	}
	rest("left alone", limit)

	stop := garbage(t, pair, as[2].qp.QPN(), 50*time.Millisecond)
	rest("with 20 packets a second for nobody", limitPerPacket)
	stop()
	require.NotZero(t, sum(opener.Counters(da).DropReasons()), "%v", opener.Counters(da).DropReasons())

	change(t, &pair.B, netlink.LinkSetDown)
	rest("peer down", limit)
	change(t, &pair.A, netlink.LinkSetDown)
	rest("both down", limit)
	change(t, &pair.A, netlink.LinkDel)
	rest("deleted", limit)
	support.Object(t, "Device", "idle, with idle queue pairs and blocked waits, "+mode.String(), "less than 2 % of a CPU")
}

// garbage has the kernel of B send something like packets to a queue pair of A until stop is called.
func garbage(t *testing.T, pair *netlab.Pair, to verbs.QPN, every time.Duration) (stop func()) {
	t.Helper()
	var c net.Conn
	require.NoError(t, pair.B.Namespace.Do(func() (err error) {
		c, err = net.Dial("udp4", netip.AddrPortFrom(pair.A.IPv4(), 4791).String())
		return err
	}))
	packet := make([]byte, 64)
	binary.BigEndian.PutUint32(packet[4:], uint32(to))
	quit, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		for {
			select {
			case <-quit:
				return
			case <-time.After(every):
				_, _ = c.Write(packet)
			}
		}
	}()
	return func() {
		close(quit)
		<-ended
		_ = c.Close()
	}
}

// TestCase_F15_Busy: a program that polls uses one CPU for each goroutine that does, and no more.
func TestCase_F15_Busy(t *testing.T) {
	da, db := vethDevices(t, netlab.PairOptions{}, verbs.Options{})
	a, b := newEnd(t, da, make([]byte, 64), verbs.QPCap{}), newEnd(t, db, make([]byte, 64), verbs.QPCap{})
	connect(t, a, b, verbs.ConnectOptions{})
	var stop atomic.Bool
	var pollers sync.WaitGroup
	defer func() { stop.Store(true); pollers.Wait() }()
	for count, e := range []*end{a, b} {
		pollers.Go(func() {
			var wc [1]verbs.WC
			for !stop.Load() {
				_, _ = e.sends.Poll(wc[:])
			}
		})
		limit := float64(count+1) + 0.1
		share, u := used(t, time.Duration(size(400, 5000))*time.Millisecond, limit)
		require.Less(t, share, limit, "%+v", u)
		t.Logf("%d pollers: %.2f CPUs", count+1, share)
	}
}
