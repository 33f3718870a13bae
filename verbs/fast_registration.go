package verbs

import (
	"fmt"

	"github.com/xroce/xroce/roce/memory"
)

// IncRKey returns the key with the next low byte: the usual choice for the next registration or binding, since a stale
// key then does not fit.
func IncRKey(key uint32) uint32 { return key&^0xFF | (key+1)&0xFF }

// AllocMR makes a region for fast registration, which libibverbs does not have but the kernel's users do
// (IB_WR_REG_MR): work requests of a send queue open and close it, in order with the others. It is closed first.
// MaxLength bounds its buffers, in bytes.
//
// The way of a registration: Map a buffer, choose a key with UpdateKey, post RegWR; later post InvalidateWR, or let the
// peer SEND with invalidate.
func (p *PD) AllocMR(maxLength int) (*MR, error) {
	if maxLength < 1 {
		return nil, fmt.Errorf("MR: %w: at most %d bytes", ErrInvalid, maxLength)
	}
	r := &registration{pd: p}
	err := p.make(kindMR, r, func() (err error) {
		if err := checkRegionLength(maxLength); err != nil {
			return err
		}
		if r.allocation, err = p.device.driver.Memory().Allocate(&p.domain, memory.KindFast, uint64(maxLength)); err == nil {
			r.view.Store(&mrView{key: r.allocation.Key()})
			r.dropped = newDropped(p.device, r.allocation.Key(), uint64(maxLength))
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	return newMR(r), nil
}

// change replaces the view of a region for fast registration.
func (m *MR) change(edit func(*mrView) error) error {
	if err := m.check(); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case m.dead:
		return fmt.Errorf("MR: %w", ErrClosed)
	case m.allocation == nil:
		return fmt.Errorf("MR: %w: not made by AllocMR", ErrInvalid)
	}
	next := *m.view.Load()
	if err := edit(&next); err != nil {
		return err
	}
	m.view.Store(&next)
	return nil
}

// Map sets the buffer that the next registration opens, and the address of its first byte. The region must be closed.
func (m *MR) Map(buffer []byte, iova uint64) error {
	return m.change(func(v *mrView) error {
		allocated.enter(buffer)
		if err := m.allocation.Map(buffer, iova); err != nil {
			allocated.leave(buffer)
			return err
		}
		allocated.leave(v.buffer)
		v.buffer, v.address = buffer, iova
		return nil
	})
}

// UpdateKey sets the low byte of the key that the next registration gives, and that LKey and RKey return from now on.
func (m *MR) UpdateKey(low uint8) error {
	return m.change(func(v *mrView) error {
		v.key = v.key&^0xFF | uint32(low)
		return nil
	})
}

// RegWR makes the work request that opens the region with these rights.
func (m *MR) RegWR(access AccessFlags) SendWR {
	return SendWR{Opcode: WRRegMR, RKey: m.RKey(), Access: access}
}

// InvalidateWR makes the work request that closes the region.
func (m *MR) InvalidateWR() SendWR { return SendWR{Opcode: WRLocalInv, InvalidateRKey: m.RKey()} }
