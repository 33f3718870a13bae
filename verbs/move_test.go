package verbs_test

import (
	"context"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/xroce/xroce/internal/opener"
	"github.com/xroce/xroce/roce"
	"github.com/xroce/xroce/roce/driver"
	"github.com/xroce/xroce/roce/link/mem"
	"github.com/xroce/xroce/verbs"
)

// movingDevices opens two devices of several queues whose queue pairs move all the time: the queue where the packets of
// one arrive changes every few hundred microseconds, and few packets are enough. With look somebody looks at everything
// meanwhile, which also makes progress: a control call sees to what was left behind.
func movingDevices(t *testing.T, o mem.Options, queues int, look bool) (a, b *verbs.Device) {
	n := mem.NewNetwork(o)
	var devices [2]*verbs.Device
	for i := range devices {
		l, err := n.NewDevice(mem.DeviceOptions{Queues: queues})
		require.NoError(t, err)
		d, err := opener.Open[verbs.Device](l, driver.Options{MoveAfter: 1})
		require.NoError(t, err)
		t.Cleanup(func() { requireClose(t, d) })
		devices[i] = d
	}
	stop := make(chan struct{})
	var others sync.WaitGroup
	others.Go(func() {
		for {
			salt := rand.Uint32() | 1
			n.SetSpread(func(number roce.QPN) int { return int(uint32(number) * salt >> 20) })
			select {
			case <-stop:
				return
			case <-time.After(200 * time.Microsecond):
			}
		}
	})
	others.Go(func() {
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			case <-time.After(time.Millisecond):
				if look {
					devices[i%2].Snapshot()
				}
			}
		}
	})
	t.Cleanup(func() {
		close(stop)
		others.Wait()
	})
	return devices[0], devices[1]
}

func moves(devices ...*verbs.Device) (sum uint64) {
	for _, d := range devices {
		sum += opener.Counters(d).Transport.Moves
	}
	return sum
}

// TestMovesUnderLoad: whoever posts, polls or waits meets queue pairs that move at that moment; nothing is lost or
// doubled, and the order of each queue stays.
func TestMovesUnderLoad(t *testing.T) {
	a, b := movingDevices(t, mem.Options{Faults: mem.Faults{Drop: 0.001}}, 4, true)
	strand(t, a, b, false)
	require.Greater(t, moves(a, b), uint64(50))
	t.Logf("%d moves", moves(a, b))
}

// TestMovesStrandNothing: the same without losses, timeouts and pollers, which would make up for what a move has left
// behind.
func TestMovesStrandNothing(t *testing.T) {
	a, b := movingDevices(t, mem.Options{}, 3, false)
	postersBesideEachOther(t, a, b, false)
	t.Logf("%d moves", moves(a, b))
	require.NotZero(t, moves(a, b))
}

// TestMovesOfTheDying: queue pairs go to RESET and are destroyed while they move.
func TestMovesOfTheDying(t *testing.T) {
	a, b := movingDevices(t, mem.Options{Faults: mem.Faults{Drop: 0.01}}, 4, true)
	dieYoung(t, a, b, size(400, 20_000))
	require.Greater(t, moves(a, b), uint64(50))
	t.Logf("%d moves", moves(a, b))
}

// TestWaitersFollowMoves: a blocked wait gets each completion of a queue pair that moves meanwhile, and its shard is
// driven by it.
func TestWaitersFollowMoves(t *testing.T) {
	da, db := movingDevices(t, mem.Options{}, 4, false)
	a, b := newEnd(t, da, make([]byte, 64), verbs.QPCap{}), newEnd(t, db, make([]byte, 64), verbs.QPCap{})
	connect(t, a, b, verbs.ConnectOptions{Timeout: noTimeout})
	ctx, cancel := context.WithCancel(context.Background())
	var done atomic.Int64
	var waiters sync.WaitGroup
	for range 2 {
		waiters.Go(func() {
			for wcs := make([]verbs.WC, 4); a.sends.Wait(ctx) == nil; {
				n, _ := a.sends.Poll(wcs)
				done.Add(int64(n))
			}
		})
	}
	posts := int64(0)
	for start := time.Now(); time.Since(start) < stallTime; {
		require.NoError(t, a.qp.PostSend(write(a, b, verbs.SendSignaled)))
		posts++
		if posts%3 == 0 { // they go to sleep
			time.Sleep(100 * time.Microsecond)
		}
		for from := time.Now(); done.Load() < posts; runtime.Gosched() {
			require.Less(t, time.Since(from), stallBound, "post %d of %+v", posts, opener.Counters(da))
		}
	}
	cancel()
	waiters.Wait()
	require.Zero(t, opener.Counters(da).Transport.Timeouts)
	t.Logf("%d posts, %d moves", posts, moves(da, db))
	require.NotZero(t, moves(da, db))
}
