package driver

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/xroce/xroce/roce"
	"github.com/xroce/xroce/roce/link/mem"
	"github.com/xroce/xroce/roce/transport"
)

// TestLingerLength: sleeps that a little more patience would have saved make the background more patient, up to a
// limit. Long ones end that soon, and so do those that no packet of a peer has ended.
func TestLingerLength(t *testing.T) {
	var b background
	sleep := func(d time.Duration, admitted bool) {
		b.slept = d
		if admitted {
			b.learn(b.admitted + 1)
		} else {
			b.learn(b.admitted)
		}
		require.Zero(t, b.slept)
	}
	sleep(mostPatience, true)
	require.Zero(t, b.patience, "an idle device costs nothing")
	sleep(1, false)
	require.Zero(t, b.patience, "nobody's frames cost little")
	for want := leastPatience; want < mostPatience; want *= 2 {
		sleep(mostPatience-1, true)
		require.Equal(t, want, b.patience)
	}
	for range 3 {
		sleep(1, true)
		require.Equal(t, mostPatience, b.patience)
	}
	b.learn(7)
	require.Equal(t, mostPatience, b.patience, "it has not slept")
	for _, admitted := range []bool{true, false} {
		b.patience = mostPatience
		sleeps := 0
		for ; b.patience > 0; sleeps++ {
			if admitted {
				sleep(time.Second, true)
			} else {
				sleep(1, false)
			}
		}
		require.Equal(t, 4, sleeps)
	}
}

// TestLinger: the background looks until nothing has come for as long as it is patient, and takes what comes meanwhile.
func TestLinger(t *testing.T) {
	const patience = 3
	now := transport.Time(1000) // advances with each look
	var meanwhile func()
	network := mem.NewNetwork(mem.Options{Manual: true})
	open := func() *station {
		clock := func() transport.Time {
			if now++; meanwhile != nil {
				meanwhile()
			}
			return now
		}
		s := newStationOf(t, network, "", mem.DeviceOptions{}, Options{Clock: clock})
		s.timeout = 18
		return s
	}
	a, b := open(), open()
	defer b.close(t)
	defer a.close(t)
	a.connect(t, a.qp, b, b.qp.number)
	b.connect(t, b.qp, a, a.qp.number)
	s := b.device.shards[0]
	s.waker = nil // as on a link with a socket to sleep on
	linger := &s.background

	before := now
	linger.linger(s)
	require.Equal(t, before, now, "without patience it does not look")
	linger.patience = patience
	a.write(t, a.qp, b, 8)
	a.device.Drive()
	for next, found := network.NextArrival(); found; next, found = network.NextArrival() {
		network.AdvanceTo(next)
	}
	linger.linger(s)
	require.EqualValues(t, 1, b.qp.counters().ReceivedOpcodes[roce.RCWriteOnly])

	for name, end := range map[string]func(){
		"quit":   func() { linger.quit.Store(true) },
		"waiter": func() { s.sleep.waiters.Store(1) },
		"poller": func() { s.polls.Add(1) },
	} {
		var begin transport.Time
		meanwhile = func() {
			if now == begin+10 {
				end()
			}
		}
		linger.patience = 0
		for linger.patience == 0 { // somebody has wanted the CPU
			linger.patience, begin = time.Hour, now
			linger.linger(s)
			linger.quit.Store(false)
			s.sleep.waiters.Store(0)
		}
		require.InDelta(t, float64(begin+10), float64(now), 2, name)
	}
	meanwhile = nil
}
