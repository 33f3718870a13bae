package verbs

// A completion channel collects the events of armed CQs. Life of an event: a program arms a CQ (CQ.ReqNotify); the
// shard that adds a completion finds the arm word set, clears it and notes the CQ; after the shard's lock is released
// the engine notifies the CQ, which is added to its channel's list, and whoever is blocked in Get or selects on Ready
// is woken. The completion is visible before the arm word is looked at, so a program that arms and then polls until the
// CQ is empty misses none.

import (
	"context"
	"fmt"
	"sync/atomic"

	"github.com/xroce/xroce/internal/backlog"
	"github.com/xroce/xroce/roce/driver"
)

// CompChannel is a completion channel: it tells which of many completion queues have got something. All methods may
// be called concurrently. A queue whose event waits is not added again, and nothing need be acknowledged (there is no
// ibv_ack_cq_events): an event of a queue that is destroyed vanishes.
type CompChannel struct {
	device   *Device
	group    *driver.Group
	selected atomic.Bool   // Ready was called: who asks for an event may select on it
	misses   atomic.Uint32 // empty polls in a row
	list     backlog.List[*CQ]

	// Guarded by the list's lock.
	users  int // CQs
	closed bool
}

// CreateCompChannel makes a completion channel; CreateCQ attaches queues to it.
func (d *Device) CreateCompChannel() (*CompChannel, error) {
	if err := d.check(); err != nil {
		return nil, err
	}
	ch := &CompChannel{device: d, group: d.driver.NewGroup()}
	ch.list.Init()
	if err := d.make(kindChannel, ch, func() error { return nil }); err != nil {
		return nil, err
	}
	return ch, nil
}

// check tells a channel that was created from nil and from a zero value.
func (ch *CompChannel) check() error {
	if ch == nil || ch.group == nil {
		return fmt.Errorf("completion channel: %w: nil, or not made by CreateCompChannel", ErrInvalid)
	}
	return nil
}

// enter counts a CQ that uses the channel.
func (ch *CompChannel) enter(d *Device) error {
	if err := ch.check(); err != nil {
		return err
	}
	if ch.device != d {
		return fmt.Errorf("CQ: %w: the completion channel belongs to another device", ErrInvalid)
	}
	ch.list.Mu.Lock()
	defer ch.list.Mu.Unlock()
	if ch.closed {
		return fmt.Errorf("completion channel: %w", ErrClosed)
	}
	ch.users++
	return nil
}

// leave undoes enter; the event of a CQ that waits is dropped.
func (ch *CompChannel) leave(c *CQ) {
	ch.list.Mu.Lock()
	defer ch.list.Mu.Unlock()
	ch.users--
	c.left = true
	if c.listed {
		ch.list.Remove(func(other *CQ) bool { return other == c })
	}
}

// notifier is a CQ as driver.Notifier.
type notifier CQ

// Notify puts the CQ at the end of its channel's list, unless it is there already.
func (n *notifier) Notify() {
	c := (*CQ)(n)
	ch := c.channel
	ch.list.Mu.Lock()
	if !c.listed && !c.left {
		c.listed = true
		ch.list.Put(c)
	}
	ch.list.Mu.Unlock()
	ch.group.Wake()
}

func (ch *CompChannel) take() (*CQ, bool) {
	ch.list.Mu.Lock()
	defer ch.list.Mu.Unlock()
	c, found := ch.list.Take()
	if found {
		c.listed = false
	}
	return c, found
}

// Ready is readable while events wait, for programs that select. Whoever receives from it calls Poll until there is
// none, and must not be surprised if another goroutine was faster. It is never closed. A blocked Get is woken sooner
// than a select. While a program does nothing but select on it, the background of the engine makes the progress.
func (ch *CompChannel) Ready() <-chan struct{} {
	must(ch.check())
	if !ch.selected.Load() {
		ch.selected.Store(true)
	}
	ch.group.GiveBack()
	return ch.list.Ready()
}

// Poll returns the queue whose event is the oldest, without blocking. Like CQ.Poll it drives the engine, and gives the
// CPU away.
func (ch *CompChannel) Poll() (*CQ, bool) {
	must(ch.check())
	c, found := ch.take()
	if !found && (*pending)(ch).Over() == nil {
		ch.group.DrivePolled()
		c, found = ch.take()
	}
	if found {
		ch.misses.Store(0)
	} else {
		ch.group.Pause(ch.misses.Add(1), (*pending)(ch))
	}
	return c, found
}

// Get blocks until there is an event and returns its queue. It returns the error of ctx when that ends first, and
// ErrClosed when the channel is destroyed meanwhile.
func (ch *CompChannel) Get(ctx context.Context) (*CQ, error) {
	if err := ch.check(); err != nil {
		return nil, err
	}
	if ctx == nil {
		return nil, errNoContext
	}
	for {
		if c, found := ch.take(); found {
			return c, nil
		}
		if err := ch.group.Wait(ctx, (*pending)(ch)); err != nil {
			return nil, err
		}
	}
}

// Destroy destroys the channel. It fails with ErrInUse while queues use it.
func (ch *CompChannel) Destroy() error {
	if err := ch.check(); err != nil {
		return err
	}
	return ch.device.end(ch)
}

func (ch *CompChannel) destroy() error {
	if err := ch.close(); err != nil {
		return err
	}
	ch.device.belongings.remove(kindChannel, ch)
	ch.group.Wake()
	return nil
}

func (ch *CompChannel) close() error {
	ch.list.Mu.Lock()
	defer ch.list.Mu.Unlock()
	if ch.closed {
		return fmt.Errorf("completion channel: %w", ErrClosed)
	}
	if ch.users > 0 {
		return fmt.Errorf("completion channel: %w by %d CQs", ErrInUse, ch.users)
	}
	ch.closed = true
	return nil
}

// pending is a channel as driver.Waitable.
type pending CompChannel

// Arm has nothing to do: the list wakes without being asked.
func (*pending) Arm() {}

func (ch *pending) Ready() bool {
	ch.list.Mu.Lock()
	defer ch.list.Mu.Unlock()
	return !ch.list.Empty()
}

func (ch *pending) Over() error {
	ch.list.Mu.Lock()
	defer ch.list.Mu.Unlock()
	if ch.closed {
		return ErrClosed
	}
	return nil
}
