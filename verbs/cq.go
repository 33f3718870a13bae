package verbs

import (
	"context"

	"github.com/xroce/xroce/roce/driver"
)

// CQ is a completion queue. All methods may be called concurrently.
type CQ struct {
	driver *driver.CQ
}

// CreateCQ makes a completion queue that holds cqe completions. One that finds no room brings its queue pair into
// the error state, so size it for all requests that may be in flight.
func (d *Device) CreateCQ(cqe int) (*CQ, error) {
	c, err := d.driver.CreateCQ(cqe)
	if err != nil {
		return nil, err
	}
	return &CQ{driver: c}, nil
}

// CQE is how many completions the queue holds.
func (c *CQ) CQE() int { return c.driver.Capacity() }

// Poll takes up to len(wcs) completions and returns their number, without blocking. It also drives the engine: a program
// that polls needs no other thread to make progress.
func (c *CQ) Poll(wcs []WC) (int, error) { return c.driver.Poll(wcs) }

// Wait blocks until the queue is not empty. It returns the error of ctx when that ends first, and ErrClosed when
// the queue is destroyed meanwhile.
func (c *CQ) Wait(ctx context.Context) error { return c.driver.Wait(ctx) }

// Destroy destroys the queue. It fails with ErrInUse while queue pairs use it.
func (c *CQ) Destroy() error { return c.driver.Close() }
