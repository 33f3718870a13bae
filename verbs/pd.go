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
	users int // regions and queue pairs
	dead  bool
}

// AllocPD makes a protection domain.
func (d *Device) AllocPD() (*PD, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return nil, fmt.Errorf("device %s: %w", d.Name(), ErrClosed)
	}
	d.domains++
	return &PD{device: d}, nil
}

// Dealloc destroys the protection domain. It fails with ErrInUse while regions or queue pairs of it exist.
func (p *PD) Dealloc() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.dead {
		return fmt.Errorf("PD: %w", ErrClosed)
	}
	if p.users > 0 {
		return fmt.Errorf("PD: %w by %d regions and queue pairs", ErrInUse, p.users)
	}
	p.dead = true
	p.device.mu.Lock()
	defer p.device.mu.Unlock()
	p.device.domains--
	return nil
}

func (p *PD) enter() error {
	if p == nil {
		return fmt.Errorf("PD: %w: nil", ErrInvalid)
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
