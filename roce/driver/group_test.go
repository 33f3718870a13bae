package driver

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/xroce/xroce/internal/support"
	"github.com/xroce/xroce/roce/queue"
)

// signals is a Notifier that can be selected on.
type signals chan struct{}

func (s signals) Notify() {
	select {
	case s <- struct{}{}:
	default:
	}
}

// TestArmConcurrent: a consumer that asks for the next event and then looks into the CQ once more misses no completion.
// The producer makes the next one as soon as there is room, so it comes before, between or after the two.
func TestArmConcurrent(t *testing.T) {
	d, _ := newManual(t, 1)
	told := make(signals, 1)
	const count = 5000
	cq := newCQ(t, d, CQConfig{Capacity: 1, Notifier: told})
	own := poller(cq)
	own.Notify(false)
	var taken, ticks atomic.Int64
	pause := func(n int64) { // a few nanoseconds each: the two meet at every offset
		for range n {
			ticks.Load()
		}
	}
	go func() {
		for i := int64(0); i < count; i++ {
			for n := 1; i > taken.Load(); n++ {
				if n%10_000 == 0 {
					yield()
				}
			}
			pause(i % 503)
			_, due := cq.add(&queue.WC{WRID: uint64(i)}, false)
			cq.due.Or(due)
			cq.fire(new(errands))
		}
	}()
	var wcs [1]queue.WC
	late := time.NewTimer(20 * time.Second)
	for next := int64(0); next < count; {
		select {
		case <-told:
		case <-late.C:
			require.Fail(t, "no event", "after completion %d", next)
		}
		for armed := false; ; {
			if own.Take(wcs[:]) > 0 {
				require.EqualValues(t, next, wcs[0].WRID)
				next++
				taken.Store(next)
			} else if armed {
				break
			} else {
				pause(next % 2003)
				own.Notify(false)
				armed = true
			}
		}
	}
	require.NoError(t, cq.Close())
	support.Object(t, "CompChannel", "ReqNotify while a completion is made", "no event is lost")
}

// never is nothing that comes.
type never struct{}

func (never) Ready() bool { return false }
func (never) Over() error { return nil }
func (never) Arm()        {}

// TestGroupFollowsShards: a blocked wait for a group watches every shard that a queue pair of its CQs comes to, from
// then on.
func TestGroupFollowsShards(t *testing.T) {
	d, _ := newManual(t, 3)
	group := d.NewGroup()
	cq := newCQ(t, d, CQConfig{Capacity: 1, Group: group})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error)
	go func() { done <- group.Wait(ctx, never{}) }()
	watched := func(s *Shard, want int32) {
		t.Helper()
		require.Eventually(t, func() bool { return s.sleep.waiters.Load() == want }, 5*time.Second, time.Millisecond)
	}
	come := func(s *Shard) {
		require.True(t, cq.enter(s))
		cq.due.Or(dueShards)
		cq.fire(new(errands))
	}
	come(d.shards[2])
	watched(d.shards[2], 1)
	watched(d.shards[1], 0)
	come(d.shards[1])
	watched(d.shards[1], 1)
	require.False(t, cq.enter(d.shards[1]), "a second queue of a QP there")
	cq.exit(d.shards[1])
	cq.exit(d.shards[2])
	come(d.shards[0])
	watched(d.shards[0], 1)
	watched(d.shards[1], 1)
	watched(d.shards[2], 0)
	cancel()
	require.ErrorIs(t, <-done, context.Canceled)
	watched(d.shards[1], 0)
	watched(d.shards[2], 0)
	require.NoError(t, cq.Close())
}
