package driver

// Asynchronous events tell what no completion does: a CQ overran, a shared receive queue runs low, a queue pair broke.
// Life of an event: whoever sees the cause, usually under a shard's lock, adds it to the device's list, where the same
// event of the same object waits at most once; a program takes it from there when it likes. An event of an object that is
// destroyed vanishes with it.

import (
	"context"
	"sync"

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

// object is the one that the event is about.
func (e *AsyncEvent) object(d *Device) *eventState {
	switch {
	case e.QP != nil:
		return &e.QP.events
	case e.CQ != nil:
		return &e.CQ.events
	case e.SRQ != nil:
		return &e.SRQ.events
	}
	return &d.ownEvents
}

// eventState is what an object knows of its events; guarded by the lock of the device's list.
type eventState struct {
	waiting uint32 // types that are in the list, a bit each
	gone    bool   // the object was destroyed
}

// raise adds an event to the list unless it waits there already. It may be called under a shard's lock.
func (d *Device) raise(e AsyncEvent) {
	state, bit := e.object(d), uint32(1)<<e.Type
	d.events.mu.Lock()
	defer d.events.mu.Unlock()
	if state.gone || state.waiting&bit != 0 {
		return
	}
	state.waiting |= bit
	d.events.put(e)
}

// forget drops the events of an object that is destroyed, and those that would come. It takes an event of the object.
func (d *Device) forget(e AsyncEvent) {
	state := e.object(d)
	d.events.mu.Lock()
	defer d.events.mu.Unlock()
	state.gone = true
	if state.waiting != 0 {
		d.events.remove(func(other AsyncEvent) bool { return other.object(d) == state })
	}
}

// AsyncReady is readable while events wait. Whoever receives from it calls PollAsyncEvent until there is none, and must
// not be surprised if another goroutine was faster. It is never closed.
func (d *Device) AsyncReady() <-chan struct{} { return d.events.ready }

// PollAsyncEvent takes the oldest event. It never blocks.
func (d *Device) PollAsyncEvent() (AsyncEvent, bool) {
	d.events.mu.Lock()
	defer d.events.mu.Unlock()
	e, found := d.events.take()
	if found {
		e.object(d).waiting &^= 1 << e.Type
	}
	return e, found
}

// GetAsyncEvent waits for the next event. It returns the error of ctx if that ends first, and ErrClosed when the device
// is closed meanwhile.
func (d *Device) GetAsyncEvent(ctx context.Context) (AsyncEvent, error) {
	for {
		if e, found := d.PollAsyncEvent(); found {
			return e, nil
		}
		select {
		case <-d.events.ready:
		case <-ctx.Done():
			return AsyncEvent{}, ctx.Err()
		case <-d.done:
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
	q.device.raise(AsyncEvent{Type: t, QP: (*QP)(q), Fault: memory.Fault(q.transport.Failure().VendorErr)})
}

// backlog is a list that one side adds to and the other takes from, with a channel to select on. Its methods are called
// under mu, which is a leaf: nothing else is locked meanwhile.
type backlog[T any] struct {
	mu    sync.Mutex
	items []T // from head on
	head  int
	// ready holds a token whenever the list is not empty, unless somebody has received it and not come to take yet.
	ready chan struct{}
}

func (b *backlog[T]) init() { b.ready = make(chan struct{}, 1) }

func (b *backlog[T]) empty() bool { return b.head == len(b.items) }

func (b *backlog[T]) put(item T) {
	if b.head > 0 && len(b.items) == cap(b.items) {
		kept := copy(b.items, b.items[b.head:])
		clear(b.items[kept:])
		b.items, b.head = b.items[:kept], 0
	}
	b.items = append(b.items, item)
	b.signal()
}

// take removes the oldest item. What is left is signalled again: the token that brought the caller was for everything.
func (b *backlog[T]) take() (item T, found bool) {
	if !b.empty() {
		var none T
		item, found = b.items[b.head], true
		b.items[b.head] = none
		b.head++
	}
	b.signal()
	return item, found
}

func (b *backlog[T]) remove(match func(T) bool) {
	kept := b.items[:0]
	for _, item := range b.items[b.head:] {
		if !match(item) {
			kept = append(kept, item)
		}
	}
	clear(b.items[len(kept):])
	b.items, b.head = kept, 0
	b.signal()
}

// signal makes the token agree with the list.
func (b *backlog[T]) signal() {
	if b.empty() {
		b.items, b.head = b.items[:0], 0
		select {
		case <-b.ready:
		default:
		}
		return
	}
	select {
	case b.ready <- struct{}{}:
	default:
	}
}
