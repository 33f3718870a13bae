package verbs

import (
	"fmt"

	"github.com/xroce/xroce/internal/lockorder"
	"github.com/xroce/xroce/roce/memory"
)

// PD is a protection domain: memory regions work only with queue pairs of the same one.
type PD struct {
	device *Device
	domain memory.Domain

	mu    lockorder.Mutex[lockorder.PD]
	users int // regions, windows, SRQs and queue pairs
	dead  bool
}

// AllocPD makes a protection domain.
func (d *Device) AllocPD() (*PD, error) {
	if err := d.check(); err != nil {
		return nil, err
	}
	p := &PD{device: d}
	if err := d.make(kindPD, p, func() error { return nil }); err != nil {
		return nil, err
	}
	return p, nil
}

// Dealloc destroys the protection domain. It fails with ErrInUse while regions, windows, SRQs or queue pairs of it
// exist.
func (p *PD) Dealloc() error {
	if err := p.check(); err != nil {
		return err
	}
	return p.device.end(p)
}

func (p *PD) destroy() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.dead {
		return fmt.Errorf("PD: %w", ErrClosed)
	}
	if p.users > 0 {
		return fmt.Errorf("PD: %w by %d regions, windows, SRQs and queue pairs", ErrInUse, p.users)
	}
	p.dead = true
	p.device.belongings.remove(kindPD, p)
	return nil
}

// check tells a protection domain that was allocated from nil and from a zero value.
func (p *PD) check() error {
	if p == nil || p.device == nil {
		return fmt.Errorf("PD: %w: nil, or not made by AllocPD", ErrInvalid)
	}
	return nil
}

// make makes an object of the domain, unless that or its device is closed.
func (p *PD) make(k kind, o object, create func() error) error {
	if err := p.check(); err != nil {
		return err
	}
	return p.device.make(k, o, func() error {
		if err := p.addUser(); err != nil {
			return err
		}
		err := create()
		if err != nil {
			p.removeUser()
		}
		return err
	})
}

// remove forgets an object of the domain that is destroyed.
func (p *PD) remove(k kind, o object) {
	p.device.belongings.remove(k, o)
	p.removeUser()
}

func (p *PD) addUser() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.dead {
		return fmt.Errorf("PD: %w", ErrClosed)
	}
	p.users++
	return nil
}

func (p *PD) removeUser() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.users--
}
