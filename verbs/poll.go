package verbs

// Life of a completion here: the engine writes it into the ring of the CQ; whoever polls takes it out, and drives the
// engine if there is none. Who waits is woken by the engine, or by the queue's channel.

import (
	"context"
	"fmt"

	"github.com/xroce/xroce/internal/lockorder"
	"github.com/xroce/xroce/roce/driver"
	"github.com/xroce/xroce/roce/queue"
)

// taker is the program's end of a completion queue.
type taker struct {
	mu     lockorder.Mutex[lockorder.Taker]
	ring   *queue.Consumer
	misses uint32 // empty polls in a row
}

// Poll takes up to len(wcs) completions and returns their number, without blocking. Fewer than len(wcs) means that the
// queue was empty then. Poll also drives the engine: a program that polls needs no other thread to make progress. The
// acknowledgement of a message that was just received may wait for the next post or poll, a millisecond at most: so
// close the device before the program ends, else the peer may not learn that its last message has arrived. After an
// overrun it returns what is inside, then ErrOverrun. On a machine with more runnable threads than CPUs a Poll that
// finds nothing may sleep for up to a millisecond, as giving the CPU away would cost it more.
func (c *CQ) Poll(wcs []WC) (int, error) {
	if err := c.check(); err != nil {
		return 0, err
	}
	err := c.driver.Over() // asked first: what was added before the end is taken before it is told
	if n, empty := c.take(wcs); !empty {
		return n, nil
	}
	if err != nil {
		return 0, err
	}
	c.driver.DrivePolled()
	c.taker.mu.Lock()
	n := c.taker.ring.ReadCompletions(ringCompletions(wcs))
	if n > 0 {
		c.taker.misses = 0
	} else {
		c.taker.misses++
	}
	misses := c.taker.misses
	c.taker.mu.Unlock()
	c.driver.Pause(misses, (*awaited)(c))
	return n, nil
}

func (c *CQ) take(wcs []WC) (n int, empty bool) {
	c.taker.mu.Lock()
	defer c.taker.mu.Unlock()
	n = c.taker.ring.ReadCompletions(ringCompletions(wcs))
	return n, n == 0 && len(wcs) > 0
}

// Wait blocks until the queue is not empty. It returns the error of ctx when that ends first, ErrClosed when
// the queue is destroyed meanwhile, and ErrOverrun like Poll.
func (c *CQ) Wait(ctx context.Context) error {
	if err := c.check(); err != nil {
		return err
	}
	if ctx == nil {
		return errNoContext
	}
	return c.driver.Wait(ctx, (*awaited)(c))
}

var errNoContext = fmt.Errorf("%w: the context is nil", ErrInvalid)

// awaited is a CQ as driver.Waitable.
type awaited CQ

func (c *awaited) Ready() bool {
	c.taker.mu.Lock()
	defer c.taker.mu.Unlock()
	return c.taker.ring.Available(0) > 0
}

func (c *awaited) Over() error { return c.driver.Over() }
func (c *awaited) Arm()        { c.driver.Arm() }

// ReqNotify asks for one event of the queue's channel (ibv_req_notify_cq): for the next completion, or with
// solicitedOnly for the next receive of a message that its sender posted with SendSolicited, or the next completion
// with an error status. Asking twice asks for the union. A completion that is in the queue already makes no event, so
// the order is: get the event, ask for the next one, poll until the queue is empty. Spurious events are possible.
// Blocked calls of Wait neither use up the event nor need it.
func (c *CQ) ReqNotify(solicitedOnly bool) error {
	if err := c.check(); err != nil {
		return err
	}
	if c.channel == nil {
		return fmt.Errorf("CQ: %w: it was made without a completion channel", ErrInvalid)
	}
	c.taker.mu.Lock()
	c.taker.ring.Arm(solicitedOnly)
	c.taker.mu.Unlock()
	if c.channel.selected.Load() {
		c.driver.GiveBack()
	}
	// Asked afterwards: an overrun that came first has left the request unanswered.
	return c.driver.Over()
}

// Resize changes the number of completions that the queue holds. Those inside stay inside, in order; it fails with
// ErrInvalid and both numbers when cqe is below theirs.
func (c *CQ) Resize(cqe int) error {
	if err := c.check(); err != nil {
		return err
	}
	config := driver.CQConfig{Capacity: cqe}
	if err := config.MakeRing(); err != nil {
		return err
	}
	ring, err := queue.NewConsumer(config.Ring.Memory, queue.CompletionLayout(cqe))
	if err != nil {
		return err
	}
	c.taker.mu.Lock()
	defer c.taker.mu.Unlock()
	if err := c.driver.Replace(config.Ring, cqe); err != nil {
		return err
	}
	c.taker.ring = ring
	return nil
}
