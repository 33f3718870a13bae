package verbs_test

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/xroce/xroce/internal/support"
	"github.com/xroce/xroce/roce"
	"github.com/xroce/xroce/roce/link/mem"
	"github.com/xroce/xroce/verbs"
)

// newQP makes a queue pair that is destroyed with the test.
func newQP(t *testing.T, pd *verbs.PD, a verbs.QPInitAttr) *verbs.QP {
	t.Helper()
	q, err := pd.CreateQP(a)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, q.Destroy()) })
	return q
}

// connectAt connects a queue pair with one of the peer, both at home at the shard of their devices that the flow label
// says.
func connectAt(t *testing.T, a, b *verbs.QP, label uint32) {
	t.Helper()
	connect(t, &end{qp: a}, &end{qp: b}, verbs.ConnectOptions{FlowLabel: label, Timeout: roce.AckTimeout(15)})
}

// collectEvents returns the next count events, which must be all there are.
func collectEvents(t *testing.T, d *verbs.Device, count int) map[verbs.AsyncEvent]int {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	events := make(map[verbs.AsyncEvent]int)
	for range count {
		e, err := d.GetAsyncEvent(ctx)
		require.NoError(t, err, "after %v", events)
		events[e]++
	}
	time.Sleep(20 * time.Millisecond)
	e, found := d.PollAsyncEvent()
	require.False(t, found, "%v after %v", e, events)
	return events
}

// TestCase_D3_Overrun: 16 completions into a queue of 4. The first 4 are there, then it says that it overran; its queue
// pairs are in the error state on every shard, and the program is told of each of them once.
func TestCase_D3_Overrun(t *testing.T) {
	o := newOverrun(t)
	for _, q := range o.qps[1:] {
		require.NoError(t, q.PostRecv(verbs.RecvWR{WRID: 77})) // flushed into a queue that works
	}
	for i := range 16 {
		err := o.qps[0].PostSend(verbs.SendWR{
			WRID: uint64(i), Opcode: verbs.WRRDMAWrite, Flags: verbs.SendSignaled,
			SGList: []verbs.SGE{o.a.mr.SGE(0, 8)}, RemoteAddr: o.b.mr.Addr(), RKey: o.b.mr.RKey(),
		})
		require.NoError(t, err) // a queue pair in the error state takes requests and flushes them
	}
	events := collectEvents(t, o.a.device, 5)
	want := map[verbs.AsyncEvent]int{{Type: verbs.EventCQErr, CQ: o.cq}: 1, {Type: verbs.EventQPFatal, QP: o.starting}: 1}
	for _, q := range o.qps {
		want[verbs.AsyncEvent{Type: verbs.EventQPFatal, QP: q}] = 1
		require.Equal(t, verbs.StateError, q.State())
	}
	require.Equal(t, want, events)
	for e := range events {
		support.Object(t, "Event", e.Type.String(), "completion without room in its CQ")
	}
	require.Equal(t, verbs.StateError, o.starting.State())
	require.Equal(t, verbs.StateReset, o.unused.State())
	require.Equal(t, verbs.StateInit, o.bystander.State())
	require.Equal(t, verbs.WCFatalErr, o.qps[0].Failure().Status)
	for range o.qps[1:] {
		wc := poll(t, o.a.recvs)
		require.EqualValues(t, 77, wc.WRID)
		require.Equal(t, verbs.WCWRFlushErr, wc.Status)
	}
	o.takeRest(t)
	o.useLater(t)
}

// overrun is a CQ of four completions on a device of three queues, and the queue pairs that complete there.
type overrun struct {
	a, b      *end
	cq        *verbs.CQ
	qps       [3]*verbs.QP // connected
	starting  *verbs.QP    // in INIT
	unused    *verbs.QP    // in RESET
	bystander *verbs.QP    // of another CQ
}

func newOverrun(t *testing.T) *overrun {
	da, db := memDevices(t, mem.Options{}, mem.DeviceOptions{Queues: 3})
	o := &overrun{a: newEnd(t, da, make([]byte, 64), verbs.QPCap{}), b: newEnd(t, db, make([]byte, 64), verbs.QPCap{})}
	a, b := o.a, o.b
	ch, err := da.CreateCompChannel()
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, ch.Destroy()) })
	o.cq, err = da.CreateCQ(verbs.CQInitAttr{CQE: 4, Channel: ch})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, o.cq.Destroy()) })
	for i := range o.qps {
		o.qps[i] = newQP(t, a.pd, verbs.QPInitAttr{SendCQ: o.cq, RecvCQ: a.recvs})
		peer := newQP(t, b.pd, verbs.QPInitAttr{SendCQ: b.sends, RecvCQ: b.recvs})
		connectAt(t, o.qps[i], peer, uint32(i+1))
	}
	initialize := func(q *verbs.QP) *verbs.QP {
		require.NoError(t, q.Modify(t.Context(), verbs.QPAttr{State: verbs.StateInit, PortNum: 1},
			verbs.QPStateMask|verbs.QPPKeyIndex|verbs.QPPort|verbs.QPAccessFlags))
		return q
	}
	o.starting = initialize(newQP(t, a.pd, verbs.QPInitAttr{SendCQ: a.sends, RecvCQ: o.cq}))
	o.unused = newQP(t, a.pd, verbs.QPInitAttr{SendCQ: o.cq, RecvCQ: o.cq})
	o.bystander = initialize(newQP(t, a.pd, verbs.QPInitAttr{SendCQ: a.sends, RecvCQ: a.recvs}))
	return o
}

// takeRest takes the completions that were there before, and is refused everything else.
func (o *overrun) takeRest(t *testing.T) {
	wcs := make([]verbs.WC, 3)
	got := []uint64{}
	for len(got) < 4 {
		require.NoError(t, o.cq.Wait(context.Background()))
		n, err := o.cq.Poll(wcs)
		require.NoError(t, err)
		for _, wc := range wcs[:n] {
			require.Equal(t, verbs.WCSuccess, wc.Status)
			got = append(got, wc.WRID)
		}
	}
	require.Equal(t, []uint64{0, 1, 2, 3}, got)
	_, err := o.a.pd.CreateQP(verbs.QPInitAttr{SendCQ: o.a.sends, RecvCQ: o.cq})
	_, polled := o.cq.Poll(wcs)
	for name, err := range map[string]error{
		"Poll": polled, "Wait": o.cq.Wait(context.Background()), "ReqNotify": o.cq.ReqNotify(false), "Resize": o.cq.Resize(100), "CreateQP": err,
	} {
		require.ErrorIs(t, err, verbs.ErrOverrun, name)
		require.ErrorContains(t, err, "4", name)
		support.Object(t, "CQ", name+" of one that overran", verbs.ErrOverrun)
	}
}

// useLater: a queue pair that comes to life later dies of its first completion, and says so.
func (o *overrun) useLater(t *testing.T) {
	peer := newQP(t, o.b.pd, verbs.QPInitAttr{SendCQ: o.b.sends, RecvCQ: o.b.recvs})
	connectAt(t, o.unused, peer, 9)
	require.NoError(t, o.unused.PostSend(verbs.SendWR{
		Opcode: verbs.WRRDMAWrite, Flags: verbs.SendSignaled, RemoteAddr: o.b.mr.Addr(), RKey: o.b.mr.RKey(),
	}))
	require.Equal(t, map[verbs.AsyncEvent]int{{Type: verbs.EventQPFatal, QP: o.unused}: 1}, collectEvents(t, o.a.device, 1))
	require.Equal(t, verbs.StateError, o.unused.State())
	require.Empty(t, collectEvents(t, o.b.device, 0))
}

// TestOverrunWakes: who waits for an event of the queue learns that none will come.
func TestOverrunWakes(t *testing.T) {
	a, b := pair(t, mem.Options{})
	ch, err := a.device.CreateCompChannel()
	require.NoError(t, err)
	cq, err := a.device.CreateCQ(verbs.CQInitAttr{CQE: 1, Channel: ch})
	require.NoError(t, err)
	q, err := a.pd.CreateQP(verbs.QPInitAttr{SendCQ: cq, RecvCQ: cq})
	require.NoError(t, err)
	peer := newQP(t, b.pd, verbs.QPInitAttr{SendCQ: b.sends, RecvCQ: b.recvs})
	connectAt(t, q, peer, 0)
	require.NoError(t, cq.ReqNotify(true)) // sends are never solicited
	wr := verbs.SendWR{Opcode: verbs.WRRDMAWrite, Flags: verbs.SendSignaled, RemoteAddr: b.mr.Addr(), RKey: b.mr.RKey()}
	require.NoError(t, q.PostSend(wr, wr))
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	got, err := ch.Get(ctx)
	require.NoError(t, err)
	require.Same(t, cq, got)
	require.Equal(t, verbs.WCSuccess, poll(t, cq).Status)
	_, err = cq.Poll(make([]verbs.WC, 1))
	require.ErrorIs(t, err, verbs.ErrOverrun)
	require.NoError(t, q.Destroy())
	require.NoError(t, cq.Destroy())
	require.NoError(t, ch.Destroy())
	e, _ := a.device.PollAsyncEvent()
	require.Equal(t, verbs.AsyncEvent{}, e, "with the objects their events are gone")
	support.Object(t, "CompChannel", "overrun of a CQ while its event is waited for", "an event")
	support.Object(t, "Event", "of objects that are destroyed", "gone")
}

// TestCase_D3_Resize: entries inside survive a resize up and down, in order; a queue is not made smaller than what is
// inside.
func TestCase_D3_Resize(t *testing.T) {
	a, b := pair(t, mem.Options{})
	cq := newCQ(t, a.device, 16)
	q := newQP(t, a.pd, verbs.QPInitAttr{SendCQ: cq, RecvCQ: cq})
	peer := newQP(t, b.pd, verbs.QPInitAttr{SendCQ: b.sends, RecvCQ: b.recvs})
	connectAt(t, q, peer, 0)
	next := uint64(0)
	fill := func(n int) {
		t.Helper()
		for range n {
			require.NoError(t, q.PostSend(verbs.SendWR{
				WRID: next, Opcode: verbs.WRRDMAWrite, Flags: verbs.SendSignaled, RemoteAddr: b.mr.Addr(), RKey: b.mr.RKey(),
			}))
			next++
		}
		require.Eventually(t, func() bool { return q.Outstanding() == 0 }, 5*time.Second, time.Millisecond)
	}
	fill(10)
	err := cq.Resize(9)
	require.ErrorIs(t, err, verbs.ErrInvalid)
	require.ErrorContains(t, err, "9")
	require.ErrorContains(t, err, "10")
	require.Equal(t, 16, cq.CQE())
	require.NoError(t, cq.Resize(10))
	require.Equal(t, 10, cq.CQE())
	require.NoError(t, cq.Resize(40))
	fill(30)
	for _, bad := range []int{0, -1, verbs.MaxCQE + 1} {
		require.ErrorIs(t, cq.Resize(bad), verbs.ErrLimit)
	}
	require.NoError(t, cq.Resize(40))
	for i := range next {
		require.Equal(t, i, poll(t, cq).WRID)
	}
	require.Equal(t, verbs.StateRTS, q.State())
	support.Object(t, "CQ", "Resize with completions inside", "keeps them in order")
	support.Object(t, "CQ", "Resize to fewer than are inside", verbs.ErrInvalid)
}

// TestCase_D3_ResizeUnderLoad: nothing is lost, doubled or reordered while the queue is resized, and nobody who waits
// or polls is left behind.
func TestCase_D3_ResizeUnderLoad(t *testing.T) {
	const depth, count = 32, 4000
	a, b := pair(t, mem.Options{})
	cq := newCQ(t, a.device, depth)
	q := newQP(t, a.pd, verbs.QPInitAttr{SendCQ: cq, RecvCQ: a.recvs})
	peer := newQP(t, b.pd, verbs.QPInitAttr{SendCQ: b.sends, RecvCQ: b.recvs})
	connectAt(t, q, peer, 0)
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	credits := make(chan struct{}, depth)
	var stop atomic.Bool
	var up, down int
	var g sync.WaitGroup
	g.Go(func() {
		for i := 0; !stop.Load(); i++ {
			switch err := cq.Resize([]int{depth, 5 * depth, depth + i%17}[i%3]); {
			case err != nil:
				t.Errorf("resize: %v", err)
				return
			case i%3 == 1:
				up++
			default:
				down++
			}
		}
	})
	g.Go(func() {
		for i := range count {
			credits <- struct{}{}
			if err := q.PostSend(verbs.SendWR{
				WRID: uint64(i), Opcode: verbs.WRRDMAWrite, Flags: verbs.SendSignaled, RemoteAddr: b.mr.Addr(), RKey: b.mr.RKey(),
			}); err != nil {
				t.Errorf("post: %v", err)
				return
			}
		}
	})
	wcs := make([]verbs.WC, 7)
	for next := uint64(0); next < count; {
		require.NoError(t, cq.Wait(ctx))
		n, err := cq.Poll(wcs)
		require.NoError(t, err)
		for _, wc := range wcs[:n] {
			require.Equal(t, next, wc.WRID)
			require.Equal(t, verbs.WCSuccess, wc.Status)
			next++
			<-credits
		}
	}
	stop.Store(true)
	g.Wait()
	t.Logf("%d times up, %d down", up, down)
	support.Object(t, "CQ", "Resize under load", "nothing lost, doubled or reordered")
}
