package driver

// Asynchronous events tell what no completion does: a CQ overran, a shared receive queue runs low, a queue pair broke.
// Life of an event: whoever sees the cause, usually under a shard's lock, adds it to the list of the object's client,
// or an event of the device to those of all clients. The same event of the same object waits there at most once; a
// program takes it when it likes. An event of an object that is destroyed vanishes with it.

import (
	"context"

	"github.com/xroce/xroce/internal/backlog"
	"github.com/xroce/xroce/roce/memory"
	"github.com/xroce/xroce/roce/transport"
)

// AsyncEvent is something that happened to an object, or to the device if it names none.
type AsyncEvent struct {
	Type transport.EventType
	QP   *QP
	CQ   *CQ
	SRQ  *SRQ
	// Fault is the one that brought the QP into the error state, if it was one.
	Fault memory.Fault
}

// events are those of a client that it has not taken yet.
type events struct {
	list backlog.List[AsyncEvent]
	own  eventState // of the device, guarded by the list's lock as those of the objects are
}

// state is that of the object that the event is about.
func (l *events) state(e *AsyncEvent) *eventState {
	switch {
	case e.QP != nil:
		return &e.QP.events
	case e.CQ != nil:
		return &e.CQ.events
	case e.SRQ != nil:
		return &e.SRQ.events
	}
	return &l.own
}

// eventState is what an object knows of its events; guarded by the lock of its client's list.
type eventState struct {
	waiting uint32 // types that are in the list, a bit each
	gone    bool   // the object was destroyed
}

// raise adds an event to the list unless it waits there already. It may be called under a shard's lock.
func (l *events) raise(e AsyncEvent) {
	state, bit := l.state(&e), uint32(1)<<e.Type
	l.list.Mu.Lock()
	defer l.list.Mu.Unlock()
	if state.gone || state.waiting&bit != 0 {
		return
	}
	state.waiting |= bit
	l.list.Put(e)
}

// forget drops the events of an object that is destroyed, and those that would come. It takes an event of the object.
func (l *events) forget(e AsyncEvent) {
	state := l.state(&e)
	l.list.Mu.Lock()
	defer l.list.Mu.Unlock()
	state.gone = true
	if state.waiting != 0 {
		l.list.Remove(func(other AsyncEvent) bool { return l.state(&other) == state })
	}
}

// raise tells all clients of an event of the device.
func (d *Device) raise(t transport.EventType) {
	for _, c := range *d.clients.Load() {
		c.events.raise(AsyncEvent{Type: t})
	}
}

// AsyncReady is readable while events wait. Whoever receives from it calls PollAsyncEvent until there is none, and must
// not be surprised if another goroutine was faster. It is never closed.
func (c *Client) AsyncReady() <-chan struct{} { return c.events.list.Ready() }

// PollAsyncEvent takes the oldest event. It never blocks.
func (c *Client) PollAsyncEvent() (AsyncEvent, bool) {
	l := &c.events
	l.list.Mu.Lock()
	defer l.list.Mu.Unlock()
	e, found := l.list.Take()
	if found {
		l.state(&e).waiting &^= 1 << e.Type
	}
	return e, found
}

// GetAsyncEvent waits for the next event. It returns the error of ctx if that ends first, and ErrClosed when the device
// or the client is closed meanwhile.
func (c *Client) GetAsyncEvent(ctx context.Context) (AsyncEvent, error) {
	for {
		if e, found := c.PollAsyncEvent(); found {
			return e, nil
		}
		select {
		case <-c.events.list.Ready():
		case <-ctx.Done():
			return AsyncEvent{}, ctx.Err()
		case <-c.device.done:
			return AsyncEvent{}, ErrClosed
		case <-c.ctx.Done():
			return AsyncEvent{}, ErrClosed
		}
	}
}

// qpEvents is a QP as it takes events from the transport.
type qpEvents QP

// Event implements transport.Events. It runs under the lock of the QP's shard.
func (q *qpEvents) Event(t transport.EventType) {
	if t == transport.EventQPFatal {
		if q.fatal {
			return // one per life is enough
		}
		q.fatal = true
	}
	q.client.events.raise(AsyncEvent{Type: t, QP: (*QP)(q), Fault: memory.Fault(q.transport.Failure().VendorErr)})
}
