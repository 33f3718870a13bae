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
