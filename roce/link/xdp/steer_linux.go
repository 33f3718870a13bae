package xdp

import (
	"errors"
	"fmt"

	"github.com/xroce/xroce/bpf"
	"github.com/xroce/xroce/roce/link"
)

// Steer has the packets for the QPNs of s, and for QP1 if asked for, delivered to the queues instead of to the
// kernel. The QPNs must lie in [2, 0xFFFFFE]; base and bits both 0 mean none. A packet that arrives during the
// change is judged by either steering.
func (d *Device) Steer(s link.Steering) (link.Steering, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closing.Load() {
		return s, link.ErrClosed
	}
	err := d.program.SetQPNs(uint32(s.QPNBase), s.QPNBits, s.OwnGSI)
	switch {
	case errors.Is(err, bpf.ErrInvalid):
		return s, fmt.Errorf("%w: steer %s: %w", ErrInvalidOptions, d.netdev.name, err)
	case err != nil:
		return s, fmt.Errorf("steer %s: %w", d.netdev.name, err)
	}
	return s, nil
}
