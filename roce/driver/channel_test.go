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

// TestArmConcurrent: a consumer that asks for the next event and then looks into the CQ once more misses no completion. The
// producer makes the next one as soon as there is room, so it comes before, between or after the two.
func TestArmConcurrent(t *testing.T) {
	d, _ := newManual(t, 1)
	ch, err := d.CreateCompChannel()
	require.NoError(t, err)
	const count = 5000
	cq, err := d.CreateCQ(1, ch)
	require.NoError(t, err)
	require.NoError(t, cq.ReqNotify(false))
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
		case <-ch.Ready():
		case <-late.C:
			require.Fail(t, "no event", "after completion %d", next)
		}
		if _, found := ch.take(); !found {
			continue
		}
		for armed := false; ; {
			if _, empty := cq.take(wcs[:]); !empty {
				require.EqualValues(t, next, wcs[0].WRID)
				next++
				taken.Store(next)
			} else if armed {
				break
			} else {
				pause(next % 2003)
				require.NoError(t, cq.ReqNotify(false))
				armed = true
			}
		}
	}
	require.NoError(t, cq.Close())
	require.NoError(t, ch.Close())
	support.Object(t, "CompChannel", "ReqNotify while a completion is made", "no event is lost")
}

// TestChannelFollowsShards: a blocked Get watches every shard that a queue pair of its CQs comes to, from then on.
func TestChannelFollowsShards(t *testing.T) {
	d, _ := newManual(t, 3)
	ch, err := d.CreateCompChannel()
	require.NoError(t, err)
	cq, err := d.CreateCQ(1, ch)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error)
	go func() { _, err := ch.Get(ctx); done <- err }()
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
	require.NoError(t, ch.Close())
}
