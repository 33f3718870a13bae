package driver

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/xroce/xroce/internal/support"
	"github.com/xroce/xroce/roce/queue"
	"github.com/xroce/xroce/roce/transport"
)

// TestBacklog compares the list with a slice; the channel is readable exactly while something is in it, or was received by
// somebody who has not come to take yet.
func TestBacklog(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var b backlog[int]
		b.init()
		var model []int
		next, received := 0, false
		t.Repeat(map[string]func(*rapid.T){
			"put": func(*rapid.T) { b.put(next); model = append(model, next); next++; received = false },
			"take": func(t *rapid.T) {
				item, found := b.take()
				require.Equal(t, len(model) > 0, found)
				if found {
					require.Equal(t, model[0], item)
					model = model[1:]
				}
				received = false
			},
			"remove": func(t *rapid.T) {
				n := rapid.IntRange(1, 4).Draw(t, "n")
				b.remove(func(i int) bool { return i%n == 0 })
				kept := model[:0:0]
				for _, i := range model {
					if i%n != 0 {
						kept = append(kept, i)
					}
				}
				model, received = kept, false
			},
			"receive": func(*rapid.T) {
				select {
				case <-b.ready:
					received = true
				default:
				}
			},
			"": func(t *rapid.T) {
				require.Equal(t, len(model) == 0, b.empty())
				require.Equal(t, len(model) > 0 && !received, len(b.ready) == 1)
			},
		})
	})
}

// TestEventsCoalesce: the same event of the same object waits once, another one or that of another object beside it.
func TestEventsCoalesce(t *testing.T) {
	d, q := newManual(t, 1)
	cq := q.config.SendCQ
	for range 3 {
		(*qpEvents)(q).Event(transport.EventCommEst)
		(*qpEvents)(q).Event(transport.EventQPFatal)
		d.raise(AsyncEvent{Type: transport.EventCQErr, CQ: cq})
		d.raise(AsyncEvent{Type: transport.EventPortErr})
	}
	require.Len(t, d.AsyncReady(), 1)
	for _, want := range []AsyncEvent{
		{Type: transport.EventCommEst, QP: q}, {Type: transport.EventQPFatal, QP: q},
		{Type: transport.EventCQErr, CQ: cq}, {Type: transport.EventPortErr},
	} {
		e, found := d.PollAsyncEvent()
		require.True(t, found)
		require.Equal(t, want, e)
	}
	_, found := d.PollAsyncEvent()
	require.False(t, found)
	require.Empty(t, d.AsyncReady())

	// Once taken, it may come again; but a QP dies once per life.
	(*qpEvents)(q).Event(transport.EventQPFatal)
	(*qpEvents)(q).Event(transport.EventCommEst)
	e, _ := d.PollAsyncEvent()
	require.Equal(t, transport.EventCommEst, e.Type)
	require.NoError(t, q.modify(&transport.Attributes{State: transport.StateReset}, transport.MaskState, nil))
	(*qpEvents)(q).Event(transport.EventQPFatal)
	e, _ = d.PollAsyncEvent()
	require.Equal(t, transport.EventQPFatal, e.Type)
	support.Object(t, "Event", "the same of the same object, again", "waits once")
}

// TestForgottenEvents: with an object its events go, those that come late as well.
func TestForgottenEvents(t *testing.T) {
	d, q := newManual(t, 1)
	cq, err := d.CreateCQ(1, nil)
	require.NoError(t, err)
	d.raise(AsyncEvent{Type: transport.EventCQErr, CQ: cq})
	(*qpEvents)(q).Event(transport.EventCommEst)
	require.NoError(t, cq.Close())
	d.raise(AsyncEvent{Type: transport.EventCQErr, CQ: cq})
	e, _ := d.PollAsyncEvent()
	require.Equal(t, AsyncEvent{Type: transport.EventCommEst, QP: q}, e)
	_, found := d.PollAsyncEvent()
	require.False(t, found)
	support.Object(t, "Event", "of objects that are destroyed", "gone")
}

// TestGetAsyncEvent: each of many waiting goroutines gets one of as many events; a context and the device's end end it.
func TestGetAsyncEvent(t *testing.T) {
	d, q := newManual(t, 1)
	types := []transport.EventType{0, 1, 2, 3, 4, 5, 8, 9, 10, 14, 15, 16, 18}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	for range 100 {
		var g sync.WaitGroup
		var mu sync.Mutex
		seen := make(map[transport.EventType]int)
		for range types {
			g.Go(func() {
				e, err := d.GetAsyncEvent(ctx)
				mu.Lock()
				defer mu.Unlock()
				if err == nil {
					seen[e.Type]++
				}
			})
		}
		for _, event := range types {
			d.raise(AsyncEvent{Type: event, QP: q})
		}
		g.Wait()
		require.Len(t, seen, len(types))
	}
	ended, end := context.WithCancel(context.Background())
	end()
	_, err := d.GetAsyncEvent(ended)
	require.ErrorIs(t, err, context.Canceled)

	other, err := Open(d.link, Options{Manual: true})
	require.NoError(t, err)
	done := make(chan error)
	go func() { _, err := other.GetAsyncEvent(ctx); done <- err }()
	close(other.done)
	require.ErrorIs(t, <-done, ErrClosed)
	support.Object(t, "Event", "GetAsyncEvent by several goroutines", "one event for each")
}

// TestArmsAreIndependent: a program's request for an event and a blocked wait ask for the same completion; each is served,
// whoever asked first.
func TestArmsAreIndependent(t *testing.T) {
	d, q := newManual(t, 1)
	ch, err := d.CreateCompChannel()
	require.NoError(t, err)
	cq, err := d.CreateCQ(8, ch)
	require.NoError(t, err)
	notify := func() { require.NoError(t, cq.ReqNotify(false)) }
	w, err := newWaiter()
	require.NoError(t, err)
	defer w.close()
	cq.sleepers.add(w)
	c := completions{cq, q}
	add := func() {
		require.True(t, c.Complete(&queue.WC{}, false))
		d.Drive()
	}
	for i, order := range [][]func(){{notify, cq.arm}, {cq.arm, notify}} {
		for _, arm := range order {
			arm()
		}
		add()
		require.True(t, w.woken.Swap(false), "%d: the wait", i)
		got, found := ch.Poll()
		require.True(t, found, "%d: the event", i)
		require.Same(t, cq, got)
	}
	// The wait is woken first, by one completion; the event comes with the same one, and is not used up by another wait.
	require.NoError(t, cq.ReqNotify(true))
	cq.arm()
	add()
	require.True(t, w.woken.Swap(false))
	_, found := ch.Poll()
	require.False(t, found, "not solicited")
	cq.arm()
	require.True(t, c.Complete(&queue.WC{}, true))
	d.Drive()
	require.True(t, w.woken.Swap(false))
	_, found = ch.Poll()
	require.True(t, found)
	cq.sleepers.remove(w)
	require.NoError(t, cq.Close())
	require.NoError(t, ch.Close())
	support.Object(t, "CompChannel", "ReqNotify beside a blocked Wait", "both are served")
}

// TestNewQPIsComplete: a queue pair that a CQ knows, and may end, has its transport.
func TestNewQPIsComplete(t *testing.T) {
	d, q := newManual(t, 1)
	cq := q.config.SendCQ
	var done atomic.Bool
	var creator sync.WaitGroup
	creator.Go(func() {
		defer done.Store(true)
		for range 2000 {
			made, err := d.CreateQP(q.config)
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
	e, found := d.PollAsyncEvent()
	require.True(t, found)
	require.Equal(t, AsyncEvent{Type: transport.EventQPFatal, QP: q}, e)
	support.Object(t, "Event", transport.EventQPFatal.String(), nil)
}
