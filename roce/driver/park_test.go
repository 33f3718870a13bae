package driver

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/xroce/xroce/roce/link/mem"
	"github.com/xroce/xroce/roce/queue"
)

// TestParkedWaits: on a network without descriptors waits sleep in the Go runtime, so they work in virtual time: an
// idle second costs none, a wait ends with its context at the very moment, and a poller that finds nothing lets time
// pass.
func TestParkedWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, err := mem.NewNetwork(mem.Options{NoFD: true}).NewDevice(mem.DeviceOptions{Queues: 2})
		require.NoError(t, err)
		d, err := Open(l, Options{})
		require.NoError(t, err)
		cq := newCQ(t, d, CQConfig{Capacity: 4})
		cq.enter(d.shards[0])
		cq.enter(d.shards[1])
		begin := time.Now()
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		require.ErrorIs(t, cq.Wait(ctx, poller(cq)), context.DeadlineExceeded)
		require.Equal(t, time.Hour, time.Since(begin))
		polls := uint32(0)
		for begin = time.Now(); time.Since(begin) < time.Second; polls++ {
			cq.DrivePolled()
			require.Zero(t, poller(cq).Take(make([]queue.WC, 1)))
			cq.Pause(polls, poller(cq))
		}
		require.Less(t, polls, uint32(1_000_000))
		cq.exit(d.shards[0])
		cq.exit(d.shards[1])
		require.NoError(t, cq.Close())
		require.NoError(t, d.Close())
	})
}

// TestParkSeesWhatCame: frames that came before a goroutine parks keep it from sleeping, and those that come later
// wake it.
func TestParkSeesWhatCame(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		network := mem.NewNetwork(mem.Options{NoFD: true})
		l, err := network.NewDevice(mem.DeviceOptions{})
		require.NoError(t, err)
		peer, err := network.NewDevice(mem.DeviceOptions{})
		require.NoError(t, err)
		d, err := Open(l, Options{Manual: true})
		require.NoError(t, err)
		send := func() {
			q := peer.Queues()[0]
			mac := l.HardwareAddr()
			copy(q.Buffer(), mac[:])
			q.Commit(64)
			q.Publish()
			require.NoError(t, q.Kick())
		}
		s := d.shards[0]
		w, err := newWaiter()
		require.NoError(t, err)
		defer w.close()
		_, led := s.lead(w)
		require.True(t, led)
		begin := time.Now()
		w.sleep([]*Shard{s}, time.Hour)
		require.Equal(t, time.Hour, time.Since(begin), "nothing has come")
		s.sleep.leave(w)

		send()
		_, led = s.lead(w)
		require.True(t, led)
		begin = time.Now()
		w.sleep([]*Shard{s}, time.Hour)
		require.Zero(t, time.Since(begin), "a frame waits")

		require.True(t, d.Drive())
		time.AfterFunc(time.Minute, send)
		w.sleep([]*Shard{s}, time.Hour)
		require.Equal(t, time.Minute, time.Since(begin), "a frame comes")
		s.sleep.leave(w)
		require.NoError(t, d.Close())
	})
}
