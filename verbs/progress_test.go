package verbs_test

import (
	"context"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/xroce/xroce/internal/opener"
	"github.com/xroce/xroce/roce"
	"github.com/xroce/xroce/roce/link/mem"
	"github.com/xroce/xroce/verbs"
)

func TestMain(m *testing.M) {
	if device := os.Getenv(victimDevice); device != "" {
		if err := victim(device); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	if number := os.Getenv(inhabitantNumber); number != "" {
		fmt.Fprintln(os.Stderr, inhabit(number))
		os.Exit(1)
	}
	// Control sockets are made where they disturb nobody.
	folder, err := os.MkdirTemp("", "xroce-run")
	if err == nil {
		err = os.Setenv("XROCE_RUN", folder)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	goleak.VerifyTestMain(m, goleak.Cleanup(func(status int) {
		_ = os.RemoveAll(folder)
		os.Exit(status)
	}))
}

// pair returns two connected ends on a live network in memory.
func pair(t *testing.T, o mem.Options) (a, b *end) {
	t.Helper()
	da, db := memDevices(t, o, mem.DeviceOptions{})
	a, b = newEnd(t, da, make([]byte, 4096), verbs.QPCap{}), newEnd(t, db, make([]byte, 4096), verbs.QPCap{})
	connect(t, a, b, verbs.ConnectOptions{Timeout: roce.AckTimeout(15)}) // 134 ms, more than a busy machine takes
	return a, b
}

// TestProgressWithoutPolling: a program that posts and then neither polls nor waits still gets its data across, a lost
// packet and its timeout included.
func TestProgressWithoutPolling(t *testing.T) {
	var drops atomic.Int32
	a, b := pair(t, mem.Options{Intercept: func(_ []byte, p *roce.Packet) mem.Verdict {
		return mem.Verdict{Drop: p != nil && p.Opcode == roce.RCWriteOnly && drops.Add(1) <= 2}
	}})
	a.mr.Bytes()[0] = 0x11
	require.NoError(t, a.qp.PostSend(verbs.SendWR{
		Opcode: verbs.WRRDMAWrite, SGList: []verbs.SGE{a.mr.SGE(0, 8)}, RemoteAddr: b.mr.Addr(), RKey: b.mr.RKey(),
	}))
	require.Eventually(t, func() bool {
		word, err := b.mr.LoadUint64(0)
		return err == nil && word != 0
	}, 5*time.Second, time.Millisecond)
	require.Eventually(t, func() bool { return a.qp.Outstanding() == 0 }, 5*time.Second, time.Millisecond)
	require.EqualValues(t, 2, opener.Counters(a.device).Transport.Timeouts)
}

func TestWaitEnds(t *testing.T) {
	a, _ := pair(t, mem.Options{})
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Millisecond)
	defer cancel()
	require.ErrorIs(t, a.sends.Wait(ctx), context.DeadlineExceeded)

	cq, err := a.device.CreateCQ(verbs.CQInitAttr{CQE: 4})
	require.NoError(t, err)
	done := make(chan error)
	go func() { done <- cq.Wait(context.Background()) }()
	time.Sleep(10 * time.Millisecond)
	require.NoError(t, cq.Destroy())
	require.ErrorIs(t, <-done, verbs.ErrClosed)
	require.ErrorIs(t, cq.Wait(context.Background()), verbs.ErrClosed)
	_, err = cq.Poll(make([]verbs.WC, 1))
	require.ErrorIs(t, err, verbs.ErrClosed)
}

// TestWaitersTakeOver: waits on different CQs of one shard lead and follow; whoever leads leaves the others with a new
// leader, and each gets its completions.
func TestWaitersTakeOver(t *testing.T) {
	da, db := memDevices(t, mem.Options{}, mem.DeviceOptions{})
	const pairs, rounds = 6, 200
	var all sync.WaitGroup
	for i := range pairs {
		a, b := newEnd(t, da, make([]byte, 64), verbs.QPCap{}), newEnd(t, db, make([]byte, 64), verbs.QPCap{})
		connect(t, a, b, verbs.ConnectOptions{})
		all.Go(func() {
			ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
			defer cancel()
			var wc [1]verbs.WC
			for round := range rounds {
				if i%2 == 0 && round%50 == 0 {
					time.Sleep(time.Millisecond) // leave the others alone for a moment
				}
				if err := a.qp.PostSend(verbs.SendWR{
					WRID: uint64(round), Opcode: verbs.WRRDMARead, Flags: verbs.SendSignaled,
					SGList: []verbs.SGE{a.mr.SGE(0, 8)}, RemoteAddr: b.mr.Addr(), RKey: b.mr.RKey(),
				}); err != nil {
					t.Errorf("post: %v", err)
					return
				}
				for {
					if err := a.sends.Wait(ctx); err != nil {
						t.Errorf("pair %d round %d: %v", i, round, err)
						return
					}
					n, err := a.sends.Poll(wc[:])
					if n == 1 && wc[0].Status == verbs.WCSuccess && wc[0].WRID == uint64(round) {
						break
					}
					if n != 0 || err != nil {
						t.Errorf("pair %d round %d: %+v, %v", i, round, wc[0], err)
						return
					}
				}
			}
		})
	}
	all.Wait()
}

// TestIdleCostsNothing: neither an idle device nor a blocked wait uses the CPU.
func TestIdleCostsNothing(t *testing.T) {
	a, _ := pair(t, mem.Options{})
	ctx, cancel := context.WithTimeout(context.Background(), 600*time.Millisecond)
	defer cancel()
	done := make(chan error)
	go func() { done <- a.sends.Wait(ctx) }()
	time.Sleep(100 * time.Millisecond)
	before := cpuTime(t)
	require.ErrorIs(t, <-done, context.DeadlineExceeded)
	require.Less(t, cpuTime(t)-before, 20*time.Millisecond, "CPU time in half a second of waiting")
}

func cpuTime(t *testing.T) time.Duration {
	var usage unix.Rusage
	require.NoError(t, unix.Getrusage(unix.RUSAGE_SELF, &usage))
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}
