package verbs_test

import (
	"context"
	"errors"
	"flag"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/xroce/xroce/internal/netlab"
	"github.com/xroce/xroce/internal/opener"
	"github.com/xroce/xroce/roce"
	"github.com/xroce/xroce/roce/link/mem"
	"github.com/xroce/xroce/verbs"
)

var strandTime = flag.Duration("strand", 2*time.Second, "how long TestNoStrandedWork posts")

// TestNoStrandedWork: eight goroutines post to queue pairs that they share and to ones of their own, while others poll
// or wait. Every request completes, and each goroutine's requests complete in the order in which it posted them.
func TestNoStrandedWork(t *testing.T) {
	t.Run("memory", func(t *testing.T) {
		a, b := memDevices(t, mem.Options{Seed: 1}, mem.DeviceOptions{Queues: 2})
		strand(t, a, b, false)
	})
	t.Run("memory with scattered queues and loss", func(t *testing.T) {
		faults := mem.Faults{Drop: 0.001, Reorder: 0.001, Duplicate: 0.001}
		a, b := memDevices(t, mem.Options{Seed: 1, Scatter: true, Faults: faults}, mem.DeviceOptions{Queues: 3})
		strand(t, a, b, false)
	})
	t.Run("veth", func(t *testing.T) {
		a, b := vethDevices(t, netlab.PairOptions{Queues: 2}, verbs.Options{})
		strand(t, a, b, false)
	})
	t.Run("loopback", func(t *testing.T) {
		d := neighbours(t, 1, mem.DeviceOptions{Queues: 3})[0]
		strand(t, d, d, true)
	})
	t.Run("loopback between devices", func(t *testing.T) {
		d := neighbours(t, 2, mem.DeviceOptions{Queues: 2})
		strand(t, d[0], d[1], true)
	})
}

const (
	posters     = 8
	sharedPairs = 3
)

// lane is a connection whose sending end several goroutines post to.
type lane struct {
	a, b     *end
	waits    bool // completions are waited for, not polled
	credits  chan struct{}
	posted   atomic.Uint64
	done     atomic.Uint64
	received atomic.Uint64
}

func strand(t *testing.T, a, b *verbs.Device, loopback bool) {
	const depth = 32
	var lanes []*lane
	for i := range sharedPairs + posters {
		l := &lane{waits: i%2 == 0, credits: make(chan struct{}, depth)}
		l.a = newEnd(t, a, make([]byte, 4096), verbs.QPCap{MaxSendWR: depth})
		l.b = newEnd(t, b, make([]byte, 4096), verbs.QPCap{MaxRecvWR: 2 * depth})
		oa, ob := verbs.ConnectOptions{Timeout: roce.AckTimeout(16)}, verbs.ConnectOptions{Timeout: roce.AckTimeout(16)}
		if loopback { // the homes of the ends are one shard for some, two for others
			oa.FlowLabel, ob.FlowLabel = uint32(1+i%5), uint32(1+i%3)
		}
		meet(t, l.a, l.b, oa, ob)
		for range 2 * depth {
			require.NoError(t, l.b.qp.PostRecv(verbs.RecvWR{SGList: []verbs.SGE{l.b.mr.SGE(0, 64)}}))
		}
		lanes = append(lanes, l)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var consumers, producers sync.WaitGroup
	for _, l := range lanes {
		consumers.Go(func() { l.consumeSends(t, ctx) })
		consumers.Go(func() { l.consumeReceives(t, ctx) })
	}
	stop := time.Now().Add(*strandTime)
	for p := range posters {
		producers.Go(func() {
			for n := uint64(0); time.Now().Before(stop); n++ {
				l := lanes[(int(n)*7+p)%sharedPairs]
				if n%3 == 0 {
					l = lanes[sharedPairs+p]
				}
				if !l.post(t, uint64(p)<<32|n, n) {
					return
				}
			}
		})
	}
	producers.Wait()
	deadline := time.Now().Add(20 * time.Second)
	total := uint64(0)
	for i, l := range lanes {
		for l.done.Load() != l.posted.Load() && time.Now().Before(deadline) && !t.Failed() {
			time.Sleep(time.Millisecond)
		}
		require.Equal(t, l.posted.Load(), l.done.Load(), "lane %d: requests posted and completed; outstanding %d, %+v",
			i, l.a.qp.Outstanding(), opener.Counters(a))
		total += l.done.Load()
	}
	cancel()
	consumers.Wait()
	require.NotZero(t, total)
	t.Logf("%d requests", total)
}

// post posts a request as soon as there is room.
func (l *lane) post(t *testing.T, id, n uint64) bool {
	select {
	case l.credits <- struct{}{}:
	case <-time.After(20 * time.Second):
		t.Errorf("no completion within 20 s: %d posted, %d done", l.posted.Load(), l.done.Load())
		return false
	}
	wr := verbs.SendWR{WRID: id, Opcode: verbs.WRSend, Flags: verbs.SendSignaled, SGList: []verbs.SGE{l.a.mr.SGE(0, 64)}}
	switch n % 4 {
	case 1:
		wr.Opcode, wr.RemoteAddr, wr.RKey = verbs.WRRDMAWrite, l.b.mr.Addr()+1024, l.b.mr.RKey()
		wr.SGList = []verbs.SGE{l.a.mr.SGE(0, 3000)}
	case 2:
		wr.Opcode, wr.RemoteAddr, wr.RKey = verbs.WRRDMARead, l.b.mr.Addr(), l.b.mr.RKey()
		wr.SGList = []verbs.SGE{l.a.mr.SGE(3072, 1024)}
	}
	l.posted.Add(1)
	if err := l.a.qp.PostSend(wr); err != nil {
		t.Errorf("post: %v", err)
		return false
	}
	return true
}

// next returns some completions, or none when ctx has ended.
func next(t *testing.T, ctx context.Context, cq *verbs.CQ, waits bool, wcs []verbs.WC) []verbs.WC {
	for ctx.Err() == nil {
		n, err := cq.Poll(wcs)
		if err != nil {
			t.Errorf("poll: %v", err)
			return nil
		}
		if n > 0 {
			return wcs[:n]
		}
		if waits {
			if err := cq.Wait(ctx); err != nil && !errors.Is(err, context.Canceled) {
				t.Errorf("wait: %v", err)
				return nil
			}
		} else {
			time.Sleep(10 * time.Microsecond)
		}
	}
	return nil
}

func (l *lane) consumeSends(t *testing.T, ctx context.Context) {
	var buffer [16]verbs.WC
	var last [posters]uint64
	for {
		wcs := next(t, ctx, l.a.sends, l.waits, buffer[:])
		if wcs == nil {
			return
		}
		for _, wc := range wcs {
			poster, n := wc.WRID>>32, wc.WRID&0xFFFFFFFF+1
			if wc.Status != verbs.WCSuccess || n <= last[poster] {
				t.Errorf("completion %+v of poster %d after its %d", wc, poster, last[poster])
				return
			}
			last[poster] = n
			l.done.Add(1)
			<-l.credits
		}
	}
}

func (l *lane) consumeReceives(t *testing.T, ctx context.Context) {
	var buffer [16]verbs.WC
	for {
		wcs := next(t, ctx, l.b.recvs, !l.waits, buffer[:])
		if wcs == nil {
			return
		}
		for range wcs {
			l.received.Add(1)
			if err := l.b.qp.PostRecv(verbs.RecvWR{SGList: []verbs.SGE{l.b.mr.SGE(0, 64)}}); err != nil {
				t.Errorf("post receive: %v", err)
				return
			}
		}
	}
}
