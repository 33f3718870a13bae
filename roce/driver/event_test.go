package driver

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/xroce/xroce/internal/support"
	"github.com/xroce/xroce/roce/queue"
	"github.com/xroce/xroce/roce/transport"
)

// TestEventsCoalesce: the same event of the same object waits once, another one or that of another object beside it.
func TestEventsCoalesce(t *testing.T) {
	d, q := newManual(t, 1)
	c, cq := clientOf(t, d), q.config.SendCQ
	for range 3 {
		(*qpEvents)(q).Event(transport.EventCommEst)
		(*qpEvents)(q).Event(transport.EventQPFatal)
		c.events.raise(AsyncEvent{Type: transport.EventCQErr, CQ: cq})
		d.raise(transport.EventPortErr)
	}
	require.Len(t, c.AsyncReady(), 1)
	for _, want := range []AsyncEvent{
		{Type: transport.EventCommEst, QP: q}, {Type: transport.EventQPFatal, QP: q},
		{Type: transport.EventCQErr, CQ: cq}, {Type: transport.EventPortErr},
	} {
		e, found := c.PollAsyncEvent()
		require.True(t, found)
		require.Equal(t, want, e)
	}
	_, found := c.PollAsyncEvent()
	require.False(t, found)
	require.Empty(t, c.AsyncReady())

	// Once taken, it may come again; but a QP dies once per life.
	(*qpEvents)(q).Event(transport.EventQPFatal)
	(*qpEvents)(q).Event(transport.EventCommEst)
	e, _ := c.PollAsyncEvent()
	require.Equal(t, transport.EventCommEst, e.Type)
	require.NoError(t, q.modify(&transport.Attributes{State: transport.StateReset}, transport.MaskState, nil))
	(*qpEvents)(q).Event(transport.EventQPFatal)
	e, _ = c.PollAsyncEvent()
	require.Equal(t, transport.EventQPFatal, e.Type)
	support.Object(t, "Event", "the same of the same object, again", "waits once")
}

// TestForgottenEvents: with an object its events go, those that come late as well.
func TestForgottenEvents(t *testing.T) {
	d, q := newManual(t, 1)
	c, cq := clientOf(t, d), newCQ(t, d, CQConfig{Capacity: 1})
	c.events.raise(AsyncEvent{Type: transport.EventCQErr, CQ: cq})
	(*qpEvents)(q).Event(transport.EventCommEst)
	require.NoError(t, cq.Close())
	c.events.raise(AsyncEvent{Type: transport.EventCQErr, CQ: cq})
	e, _ := c.PollAsyncEvent()
	require.Equal(t, AsyncEvent{Type: transport.EventCommEst, QP: q}, e)
	_, found := c.PollAsyncEvent()
	require.False(t, found)
	support.Object(t, "Event", "of objects that are destroyed", "gone")
}

// TestGetAsyncEvent: each of many waiting goroutines gets one of as many events; a context and the device's end end it.
func TestGetAsyncEvent(t *testing.T) {
	d, q := newManual(t, 1)
	c := clientOf(t, d)
	types := []transport.EventType{0, 1, 2, 3, 4, 5, 8, 9, 10, 14, 15, 16, 18}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	for range 100 {
		var g sync.WaitGroup
		var mu sync.Mutex
		seen := make(map[transport.EventType]int)
		for range types {
			g.Go(func() {
				e, err := c.GetAsyncEvent(ctx)
				mu.Lock()
				defer mu.Unlock()
				if err == nil {
					seen[e.Type]++
				}
			})
		}
		for _, event := range types {
			c.events.raise(AsyncEvent{Type: event, QP: q})
		}
		g.Wait()
		require.Len(t, seen, len(types))
	}
	ended, end := context.WithCancel(context.Background())
	end()
	_, err := c.GetAsyncEvent(ended)
	require.ErrorIs(t, err, context.Canceled)

	other, err := Open(d.link, Options{Manual: true})
	require.NoError(t, err)
	ofOther := clientOf(t, other)
	done := make(chan error)
	go func() { _, err := ofOther.GetAsyncEvent(ctx); done <- err }()
	close(other.done)
	require.ErrorIs(t, <-done, ErrClosed)
	support.Object(t, "Event", "GetAsyncEvent by several goroutines", "one event for each")
}

// TestArmsAreIndependent: a client's request for a notification and a blocked wait ask for the same completion; each is
// served, whoever asked first.
func TestArmsAreIndependent(t *testing.T) {
	d, q := newManual(t, 1)
	told := notifications{}
	cq := newCQ(t, d, CQConfig{Capacity: 8, Notifier: &told})
	notify := func() { poller(cq).Notify(false) }
	w, err := newWaiter()
	require.NoError(t, err)
	defer w.close()
	cq.sleepers.add(w)
	c := completions{cq, q}
	add := func() {
		require.True(t, c.Complete(&queue.WC{}, false))
		d.Drive()
		require.Equal(t, 1, poller(cq).Take(make([]queue.WC, 1)))
	}
	for i, order := range [][]func(){{notify, cq.Arm}, {cq.Arm, notify}} {
		for _, arm := range order {
			arm()
		}
		add()
		require.True(t, w.woken.Swap(false), "%d: the wait", i)
		require.EqualValues(t, i+1, told.Load(), "%d: the event", i)
	}
	// The wait is woken first, by one completion; the event comes with the same one, and is not used up by another
	// wait.
	poller(cq).Notify(true)
	cq.Arm()
	add()
	require.True(t, w.woken.Swap(false))
	require.EqualValues(t, 2, told.Load(), "not solicited")
	cq.Arm()
	require.True(t, c.Complete(&queue.WC{}, true))
	d.Drive()
	require.True(t, w.woken.Swap(false))
	require.EqualValues(t, 3, told.Load())
	cq.sleepers.remove(w)
	require.NoError(t, cq.Close())
	support.Object(t, "CompChannel", "ReqNotify beside a blocked Wait", "both are served")
}

// notifications counts them.
type notifications struct{ atomic.Int64 }

func (n *notifications) Notify() { n.Add(1) }

// TestNewQPIsComplete: a queue pair that a CQ knows, and may end, has its transport.
func TestNewQPIsComplete(t *testing.T) {
	d, q := newManual(t, 1)
	client, cq := clientOf(t, d), q.config.SendCQ
	var done atomic.Bool
	var creator sync.WaitGroup
	creator.Go(func() {
		defer done.Store(true)
		for range 2000 {
			config := q.config
			err := config.MakeRings()
			var made *QP
			if err == nil {
				made, err = client.CreateQP(config)
			}
			if err == nil {
				err = made.Close()
			}
			if err != nil {
				t.Error(err)
				return
			}
		}
	})
	seen, incomplete := 0, 0
	for !done.Load() {
		cq.mu.Lock()
		for _, entry := range cq.qps.entries {
			q := entry.qp
			seen++
			if q.transport == nil {
				incomplete++
			}
		}
		cq.mu.Unlock()
	}
	creator.Wait()
	require.Greater(t, seen, 100)
	require.Zero(t, incomplete)
}

// TestEndOfMovedQP: a CQ overruns at one shard while its other QP moves to a third; the doorbell follows it.
func TestEndOfMovedQP(t *testing.T) {
	d, q := newManual(t, 3)
	a := transport.Attributes{State: transport.StateInit, Port: 1}
	require.NoError(t, q.modify(&a, transport.MaskState|transport.MaskPKeyIndex|transport.MaskPort|transport.MaskAccess, nil))
	q.end()
	q.settle(d.shards[2])
	d.shards[0].drive(driveBriefly)
	require.Equal(t, transport.StateError, q.State())
	e, found := clientOf(t, d).PollAsyncEvent()
	require.True(t, found)
	require.Equal(t, AsyncEvent{Type: transport.EventQPFatal, QP: q}, e)
	support.Object(t, "Event", transport.EventQPFatal.String(), nil)
}
