package verbs

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/xroce/xroce/roce/driver"
)

// ErrOverrun says that a completion queue had no room for a completion. That completion is lost, the queue takes no
// further one, and all its queue pairs are in StateError. Destroy them and the queue, and make larger ones.
var ErrOverrun = driver.ErrOverrun

// AsyncEvent tells what no completion does. It names the object that it is about, or none if it is about the device.
//
// Unlike in libibverbs nothing is acknowledged: Go frees nothing that is referenced, so an object may be destroyed
// while its event is being looked at. Events that wait when their object is destroyed vanish. The same event of the
// same object waits at most once.
type AsyncEvent struct {
	Type EventType
	QP   *QP
	CQ   *CQ
	SRQ  *SRQ
	// Fault says why an access to the memory of this end failed, if that is what brought the queue pair into
	// StateError.
	Fault AccessFault
}

func (e AsyncEvent) String() string {
	switch {
	case e.QP != nil && e.Fault != FaultNone:
		return fmt.Sprintf("%v of QP %v: %v", e.Type, e.QP.QPN(), e.Fault)
	case e.QP != nil:
		return fmt.Sprintf("%v of QP %v", e.Type, e.QP.QPN())
	case e.CQ != nil:
		return fmt.Sprintf("%v of a CQ of %d entries", e.Type, e.CQ.CQE())
	case e.SRQ != nil:
		return fmt.Sprintf("%v of an SRQ of %d requests", e.Type, e.SRQ.Query().MaxWR)
	}
	return e.Type.String()
}

// MarshalText returns the text of String, for logs and JSON.
func (e AsyncEvent) MarshalText() ([]byte, error) { return []byte(e.String()), nil }

func newAsyncEvent(d driver.AsyncEvent) AsyncEvent {
	e := AsyncEvent{Type: EventType(d.Type), Fault: AccessFault(d.Fault)}
	switch {
	case d.QP != nil:
		e.QP, _ = d.QP.Owner().(*QP)
	case d.CQ != nil:
		e.CQ, _ = d.CQ.Owner().(*CQ)
	case d.SRQ != nil:
		e.SRQ, _ = d.SRQ.Owner().(*SRQ)
	}
	return e
}

// AsyncReady is readable while events wait, for programs that select. Whoever receives from it calls PollAsyncEvent
// until there is none, and must not be surprised if another goroutine was faster. It is never closed.
func (d *Device) AsyncReady() <-chan struct{} {
	must(d.check())
	return d.client.AsyncReady()
}

// PollAsyncEvent takes the oldest event, if there is one, without blocking.
func (d *Device) PollAsyncEvent() (AsyncEvent, bool) {
	must(d.check())
	e, found := d.client.PollAsyncEvent()
	return newAsyncEvent(e), found
}

// GetAsyncEvent blocks until there is an event. It returns the error of ctx when that ends first, and ErrClosed when
// the device is closed meanwhile.
func (d *Device) GetAsyncEvent(ctx context.Context) (AsyncEvent, error) {
	if err := d.check(); err != nil {
		return AsyncEvent{}, err
	}
	if ctx == nil {
		return AsyncEvent{}, errNoContext
	}
	e, err := d.client.GetAsyncEvent(ctx)
	if err != nil {
		if errors.Is(err, ErrClosed) {
			err = fmt.Errorf("device %s: %w", d.Name(), err)
		}
		return AsyncEvent{}, err
	}
	return newAsyncEvent(e), nil
}

// Clock is the reading of the device's clock, the time since it was opened: what WC.Timestamp is a reading of, in
// nanoseconds.
func (d *Device) Clock() time.Duration {
	must(d.check())
	return d.driver.Clock()
}
