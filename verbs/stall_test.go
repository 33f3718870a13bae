package verbs_test

import (
	"context"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/xroce/xroce/internal/netlab"
	"github.com/xroce/xroce/internal/opener"
	"github.com/xroce/xroce/roce/link/mem"
	"github.com/xroce/xroce/verbs"
)

// These tests give the engine no second chance: nobody polls, nothing is lost, and the ACK timeout is longer than the
// test. Whatever is left behind in a doorbell, an inbox, a transmit ring or a list of waiters stays there and is
// noticed.

const (
	stallTime  = 1500 * time.Millisecond      // how long each of them posts
	stallBound = 3 * time.Second              // what is stranded stays so; what is late on a busy machine is not
	noTimeout  = 4096 * time.Nanosecond << 22 // 17 s
)

func write(a, b *end, flags verbs.SendFlags) verbs.SendWR {
	return verbs.SendWR{
		Opcode: verbs.WRRDMAWrite, Flags: flags, SGList: []verbs.SGE{a.mr.SGE(0, 8)}, RemoteAddr: b.mr.Addr(), RKey: b.mr.RKey(),
	}
}

// settle waits until all requests of the ends are done, and fails if that takes too long.
func settle(t *testing.T, ends ...*end) bool {
	for start := time.Now(); ; runtime.Gosched() {
		left := 0
		for _, e := range ends {
			left += e.qp.Outstanding()
		}
		if left == 0 {
			return true
		}
		if time.Since(start) > stallBound {
			t.Errorf("%d requests are stuck: %+v", left, opener.Counters(ends[0].device))
			return false
		}
	}
}

// TestPostBesideControlCalls: posts that find the shard's lock taken by somebody who only looks at counters or
// attributes.
func TestPostBesideControlCalls(t *testing.T) {
	da, db := memDevices(t, mem.Options{}, mem.DeviceOptions{})
	a, b := newEnd(t, da, make([]byte, 64), verbs.QPCap{}), newEnd(t, db, make([]byte, 64), verbs.QPCap{})
	connect(t, a, b, verbs.ConnectOptions{Timeout: noTimeout})
	var stop atomic.Bool
	var others sync.WaitGroup
	others.Go(func() {
		for !stop.Load() {
			opener.Counters(a.device)
			a.qp.Query()
			opener.Counters(b.device)
		}
	})
	for start := time.Now(); time.Since(start) < stallTime && !t.Failed(); {
		require.NoError(t, a.qp.PostSend(write(a, b, 0)))
		settle(t, a)
	}
	stop.Store(true)
	others.Wait()
}

// TestPostBesideWaiter: posts at every moment of a waiter's way to sleep; the waiter gets every completion.
func TestPostBesideWaiter(t *testing.T) {
	da, db := memDevices(t, mem.Options{}, mem.DeviceOptions{})
	a, b := newEnd(t, da, make([]byte, 64), verbs.QPCap{}), newEnd(t, db, make([]byte, 64), verbs.QPCap{})
	connect(t, a, b, verbs.ConnectOptions{Timeout: noTimeout})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{}, 16)
	var waiter sync.WaitGroup
	waiter.Go(func() {
		for wcs := make([]verbs.WC, 4); a.sends.Wait(ctx) == nil; {
			n, _ := a.sends.Poll(wcs)
			for range n {
				done <- struct{}{}
			}
		}
	})
	posts := 0
	for start := time.Now(); time.Since(start) < stallTime; posts++ {
		// A wait spins for 30 us before it sleeps.
		for from, pause := time.Now(), time.Duration(20+posts%40)*time.Microsecond; time.Since(from) < pause; {
			runtime.Gosched()
		}
		require.NoError(t, a.qp.PostSend(write(a, b, verbs.SendSignaled)))
		select {
		case <-done:
		case <-time.After(stallBound):
			require.Fail(t, "a completion is stuck", "post %d: %d outstanding, %+v", posts, a.qp.Outstanding(), opener.Counters(a.device))
		}
	}
	cancel()
	waiter.Wait()
}

// TestPostersBesideEachOther: several posters share a shard, or hand frames to each other's shards, and look only
// whether their requests are done.
func TestPostersBesideEachOther(t *testing.T) {
	for name, open := range map[string]func(*testing.T) (a, b *verbs.Device){
		"memory": func(t *testing.T) (a, b *verbs.Device) {
			return memDevices(t, mem.Options{}, mem.DeviceOptions{})
		},
		"memory, scattered": func(t *testing.T) (a, b *verbs.Device) {
			return memDevices(t, mem.Options{Scatter: true}, mem.DeviceOptions{Queues: 3})
		},
		"veth": func(t *testing.T) (a, b *verbs.Device) { return vethDevices(t, netlab.PairOptions{}, verbs.Options{}) },
		"veth, generic": func(t *testing.T) (a, b *verbs.Device) {
			return vethDevices(t, netlab.PairOptions{Queues: 2}, verbs.Options{Mode: verbs.XDPGeneric})
		},
	} {
		t.Run(name, func(t *testing.T) {
			a, b := open(t)
			postersBesideEachOther(t, a, b, false)
		})
	}
	t.Run("loopback", func(t *testing.T) {
		d := neighbours(t, 1, mem.DeviceOptions{Queues: 3})[0]
		postersBesideEachOther(t, d, d, true)
	})
	t.Run("loopback between devices", func(t *testing.T) {
		d := neighbours(t, 2, mem.DeviceOptions{Queues: 2})
		postersBesideEachOther(t, d[0], d[1], true)
	})
}

func postersBesideEachOther(t *testing.T, da, db *verbs.Device, loopback bool) {
	const posters = 3
	var as, bs []*end
	for i := range posters {
		a, b := newEnd(t, da, make([]byte, 64), verbs.QPCap{}), newEnd(t, db, make([]byte, 64), verbs.QPCap{})
		oa, ob := verbs.ConnectOptions{Timeout: noTimeout}, verbs.ConnectOptions{Timeout: noTimeout}
		if loopback { // one shard, two shards
			oa.FlowLabel, ob.FlowLabel = 6, uint32(6+i)
		}
		meet(t, a, b, oa, ob)
		as, bs = append(as, a), append(bs, b)
	}
	var round, ready atomic.Int64
	var all sync.WaitGroup
	for i := range posters {
		all.Go(func() {
			for next := int64(1); ; next++ {
				for round.Load() < next {
					if round.Load() < 0 {
						return
					}
					runtime.Gosched()
				}
				// Both ways, so that each end is requester and responder.
				if err := as[i].qp.PostSend(write(as[i], bs[i], 0)); err != nil {
					t.Errorf("post: %v", err)
				}
				if err := bs[i].qp.PostSend(write(bs[i], as[i], 0)); err != nil {
					t.Errorf("post: %v", err)
				}
				ready.Add(1)
			}
		})
	}
	rounds := int64(0)
	for start := time.Now(); time.Since(start) < stallTime && !t.Failed(); {
		rounds++
		ready.Store(0)
		round.Store(rounds)
		for ready.Load() < posters && !t.Failed() {
			runtime.Gosched()
		}
		settle(t, as...)
		settle(t, bs...)
	}
	round.Store(-1)
	all.Wait()
	require.Zero(t, opener.Counters(da).Transport.Timeouts)
	t.Logf("%d rounds", rounds)
}
