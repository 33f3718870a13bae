package driver

// Life of a client: NewClient; it makes objects, which only its own others may be used with; Close ends what it still
// has, in the order in which the objects depend on each other. Whoever made it for a program elsewhere closes it when
// that program has ended.

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/xroce/xroce/roce/memory"
)

// Limits are how many objects of a kind a client may have at once; 0 is as many as the device can have.
type Limits struct{ QPs, CQs, SRQs, Regions int }

// ClientConfig describes a client. The zero value works.
type ClientConfig struct{ Limits Limits }

// Client is a user of a device. Its methods may be called concurrently.
type Client struct {
	device *Device
	limits Limits
	events events
	ctx    context.Context // ends with the client
	end    context.CancelFunc

	// Guarded by Device.mu.
	closed  bool
	qps     map[*QP]struct{}
	cqs     map[*CQ]struct{}
	srqs    map[*SRQ]struct{}
	regions map[*memory.Region]struct{}
}

// NewClient makes a client without objects. It ends with the device, or by its Close.
func (d *Device) NewClient(c ClientConfig) (*Client, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return nil, ErrClosed
	}
	client := &Client{
		device: d, limits: c.Limits,
		qps: make(map[*QP]struct{}), cqs: make(map[*CQ]struct{}), srqs: make(map[*SRQ]struct{}),
		regions: make(map[*memory.Region]struct{}),
	}
	client.events.list.Init()
	client.ctx, client.end = context.WithCancel(context.Background())
	list := append(slices.Clip(*d.clients.Load()), client)
	d.clients.Store(&list)
	return client, nil
}

// Device is the device that the client uses.
func (c *Client) Device() *Device { return c.device }

// Close ends the client: changes of its QPs that wait for an address are given up, and its QPs, CQs, SRQs and regions
// are closed in that order. Objects of a kind that it made are of no use any more, whoever still refers to them.
func (c *Client) Close() error {
	d := c.device
	d.mu.Lock()
	if c.closed {
		d.mu.Unlock()
		return fmt.Errorf("client: %w", ErrClosed)
	}
	c.closed = true
	c.end()
	qps, cqs, srqs, regions := keys(c.qps), keys(c.cqs), keys(c.srqs), keys(c.regions)
	list := slices.DeleteFunc(slices.Clone(*d.clients.Load()), func(other *Client) bool { return other == c })
	d.clients.Store(&list)
	d.mu.Unlock()

	var failures []error
	closed := func(err error) {
		if err != nil && !errors.Is(err, ErrClosed) { // by somebody else meanwhile
			failures = append(failures, err)
		}
	}
	for _, q := range qps {
		closed(q.Close())
	}
	for _, q := range cqs {
		closed(q.Close())
	}
	for _, s := range srqs {
		closed(s.Close())
	}
	for _, r := range regions {
		closed(c.Deregister(r))
	}
	return errors.Join(failures...)
}

// admits says whether the client may have one more object of a kind of which it has so many. The caller holds
// Device.mu.
func (c *Client) admits(kind string, has, limit int) error {
	switch {
	case c.device.closed, c.closed:
		return fmt.Errorf("device %s: %w", c.device.link.Information().Name, ErrClosed)
	case limit > 0 && has >= limit:
		return fmt.Errorf("%w: %s number %d, the client may have %d", ErrLimit, kind, has+1, limit)
	}
	return nil
}

// Register makes memory accessible to QPs of a domain until Deregister, or until the client ends; see
// memory.Table.Register.
func (c *Client) Register(
	domain *memory.Domain, buffer []byte, address uint64, access memory.Access,
) (*memory.Region, error) {
	d := c.device
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := c.admits("memory region", len(c.regions), c.limits.Regions); err != nil {
		return nil, err
	}
	r, err := d.memory.Register(domain, buffer, address, access)
	if err == nil {
		c.regions[r] = struct{}{}
	}
	return r, err
}

// Deregister ends a registration. When it returns without an error, no access to the memory is under way and none will
// begin.
func (c *Client) Deregister(r *memory.Region) error {
	d := c.device
	d.mu.Lock()
	_, own := c.regions[r]
	d.mu.Unlock()
	if !own {
		return fmt.Errorf("%w: the region is not the client's", ErrInvalid)
	}
	if err := d.memory.Deregister(r); err != nil {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(c.regions, r)
	return nil
}
