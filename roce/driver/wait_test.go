package driver

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestLateSignal: a wake whose signal comes after the sleeper has gone ends one further sleep, not all that follow: a
// descriptor that stays readable would make an idle device burn a CPU.
func TestLateSignal(t *testing.T) {
	w, err := newWaiter()
	require.NoError(t, err)
	defer w.close()
	w.event.signal()
	start := time.Now()
	w.sleep(nil, 10*time.Second)
	require.Less(t, time.Since(start), 5*time.Second, "the signal ends a sleep")
	start = time.Now()
	w.sleep(nil, 30*time.Millisecond)
	require.GreaterOrEqual(t, time.Since(start), 30*time.Millisecond, "the signal is used up")
}

// TestWakeBeforeSleep: a wake is not lost when it comes before the sleep, in poll(2) or parked.
func TestWakeBeforeSleep(t *testing.T) {
	w, err := newWaiter()
	require.NoError(t, err)
	defer w.close()
	for _, sleep := range []func(){
		func() { w.sleep(nil, 10*time.Second) },
		w.parkUntilWoken,
	} {
		w.wake()
		start := time.Now()
		sleep()
		require.Less(t, time.Since(start), 5*time.Second)
	}
}

// TestGiveBack: whoever gives the lease back while the background leaves the shard to him ends its pause, and keeps it
// from another one until he has polled often again.
func TestGiveBack(t *testing.T) {
	d, _ := newManual(t, 1)
	s := d.shards[0]
	b := &s.background
	require.NoError(t, b.init(false))
	defer func() { b.waiter.close(); b.waiter = nil }()
	s.polls.Add(leasePolls)
	ended := make(chan struct{})
	go func() { b.pause(s, time.Hour); close(ended) }()
	require.Eventually(t, func() bool { return b.waiter.mode.Load() == parked }, 5*time.Second, time.Millisecond)
	s.giveBack()
	select {
	case <-ended:
	case <-time.After(5 * time.Second):
		require.Fail(t, "it goes on")
	}
	s.polls.Add(leasePolls - 1)
	b.pause(s, time.Hour)
	require.False(t, b.leased(s))
	s.polls.Add(1)
	require.False(t, s.givenBack())
}

// TestCrowd: after each slow yield there are twice as many naps until the next one, up to a limit, and a fast one ends
// that.
func TestCrowd(t *testing.T) {
	var c crowd
	for want := uint32(1); want <= mostNaps; want *= 2 {
		c.slow() // its own nap
		for range want - 1 {
			require.True(t, c.yield())
		}
		require.Zero(t, c.naps.Load(), "of %d naps", want)
	}
	c.slow()
	require.EqualValues(t, mostNaps, c.after.Load())
	c.naps.Store(0)
	require.Eventually(t, func() bool { return !c.yield() }, 20*time.Second, time.Microsecond, "a yield that is fast")
	require.Zero(t, c.after.Load())
}

func BenchmarkYield(b *testing.B) {
	var c crowd
	b.Run("measured", func(b *testing.B) {
		for b.Loop() {
			c.naps.Store(0)
			c.yield()
		}
	})
	b.Run("alone", func(b *testing.B) {
		for b.Loop() {
			yield()
		}
	})
}
