package verbs

import (
	"fmt"
	"sync"

	"github.com/xroce/xroce/roce/memory"
)

// PD is a protection domain: memory regions work only with queue pairs of the same one.
type PD struct {
	device *Device
	domain memory.Domain

	mu    sync.Mutex
	users int // regions, windows, SRQs and queue pairs
	dead  bool
}

// AllocPD makes a protection domain.
func (d *Device) AllocPD() (*PD, error) {
	if err := d.check(); err != nil {
		return nil, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return nil, fmt.Errorf("device %s: %w", d.Name(), ErrClosed)
	}
	if d.domains == MaxPD {
		return nil, fmt.Errorf("%w: protection domain number %d, the device has %d", ErrLimit, d.domains+1, MaxPD)
	}
	d.domains++
	return &PD{device: d}, nil
}

// Dealloc destroys the protection domain. It fails with ErrInUse while regions, windows, SRQs or queue pairs of it exist.
func (p *PD) Dealloc() error {
	if err := p.check(); err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.dead {
		return fmt.Errorf("PD: %w", ErrClosed)
	}
	if p.users > 0 {
		return fmt.Errorf("PD: %w by %d regions, windows, SRQs and queue pairs", ErrInUse, p.users)
	}
	p.dead = true
	p.device.mu.Lock()
	defer p.device.mu.Unlock()
	p.device.domains--
	return nil
}

// check tells a protection domain that was allocated from nil and from a zero value.
func (p *PD) check() error {
	if p == nil || p.device == nil {
		return fmt.Errorf("PD: %w: nil, or not made by AllocPD", ErrInvalid)
	}
	return nil
}

func (p *PD) enter() error {
	if err := p.check(); err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.dead {
		return fmt.Errorf("PD: %w", ErrClosed)
	}
	p.users++
	return nil
}

func (p *PD) leave() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.users--
}
