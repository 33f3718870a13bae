package driver

// A completion channel collects the events of armed CQs. Life of an event: a program arms a CQ (CQ.ReqNotify); the shard that
// adds a completion finds the arm word set, clears it and notes the CQ; after the shard's lock is released the CQ is added
// to its channel's list, and whoever is blocked in Get or selects on Ready is woken. The completion is visible
// before the arm word is looked at, so a program that arms and then polls until the CQ is empty misses none.

import (
	"context"
	"fmt"
	"sync/atomic"
)

// CompChannel is a completion channel. Its methods may be called concurrently.
type CompChannel struct {
	device *Device
	closed atomic.Bool
	cqs    int // guarded by Device.mu

	shards   shardSet
	sleepers sleepers
	selected atomic.Bool   // Ready was called: who asks for an event may select on it
	misses   atomic.Uint32 // empty polls in a row
	list     backlog[*CQ]
}

// CreateCompChannel makes a completion channel.
func (d *Device) CreateCompChannel() (*CompChannel, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return nil, ErrClosed
	}
	d.channelCount++
	ch := &CompChannel{device: d}
	ch.list.init()
	return ch, nil
}

// add puts a CQ at the end of the list, unless it is there already.
func (ch *CompChannel) add(c *CQ) {
	ch.list.mu.Lock()
	if !c.listed && !c.closed.Load() {
		c.listed = true
		ch.list.put(c)
	}
	ch.list.mu.Unlock()
	ch.sleepers.wake()
}

// remove takes a CQ that was closed out of the list.
func (ch *CompChannel) remove(c *CQ) {
	ch.list.mu.Lock()
	defer ch.list.mu.Unlock()
	if c.listed {
		c.listed = false
		ch.list.remove(func(other *CQ) bool { return other == c })
	}
}

func (ch *CompChannel) take() (*CQ, bool) {
	ch.list.mu.Lock()
	defer ch.list.mu.Unlock()
	c, found := ch.list.take()
	if found {
		c.listed = false
	}
	return c, found
}

// Ready is readable while events wait. Whoever receives from it calls Poll until there is none, and must not be surprised
// if another goroutine was faster. It is never closed. While a program does nothing but select on it, the background of the
// shards makes the progress.
func (ch *CompChannel) Ready() <-chan struct{} {
	if !ch.selected.Load() {
		ch.selected.Store(true)
	}
	ch.device.giveBack(&ch.shards)
	return ch.list.ready
}

// Poll takes the CQ whose event is the oldest. If there is none it drives the shards of the channel's CQs first. A poller that
// finds nothing gives its CPU away as one of a CQ does.
func (ch *CompChannel) Poll() (*CQ, bool) {
	c, found := ch.take()
	if !found && !ch.closed.Load() {
		ch.device.drivePolled(&ch.shards)
		c, found = ch.take()
	}
	if found {
		ch.misses.Store(0)
	} else {
		ch.device.pause(ch.misses.Add(1), ch)
	}
	return c, found
}

// Get waits for the next event and returns its CQ. It returns the error of ctx when that ends first, and ErrClosed
// when the channel is destroyed meanwhile.
func (ch *CompChannel) Get(ctx context.Context) (*CQ, error) {
	for {
		if c, found := ch.take(); found {
			return c, nil
		}
		if err := ch.device.wait(ctx, ch); err != nil {
			return nil, err
		}
	}
}

// Close destroys the channel. It fails while CQs use it; blocked calls of Get return ErrClosed.
func (ch *CompChannel) Close() error {
	d := ch.device
	d.mu.Lock()
	defer d.mu.Unlock()
	if ch.closed.Load() {
		return fmt.Errorf("completion channel: %w", ErrClosed)
	}
	if ch.cqs > 0 {
		return fmt.Errorf("completion channel: %w by %d CQs", ErrInUse, ch.cqs)
	}
	ch.closed.Store(true)
	d.channelCount--
	ch.sleepers.wake()
	return nil
}

func (ch *CompChannel) shardSet() *shardSet { return &ch.shards }
func (ch *CompChannel) asleep() *sleepers   { return &ch.sleepers }
func (ch *CompChannel) arm()                {} // the list wakes without being asked

func (ch *CompChannel) ready() bool {
	ch.list.mu.Lock()
	defer ch.list.mu.Unlock()
	return !ch.list.empty()
}

func (ch *CompChannel) over() error {
	if ch.closed.Load() {
		return ErrClosed
	}
	return nil
}
