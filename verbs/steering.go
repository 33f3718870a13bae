package verbs

import (
	"fmt"

	"github.com/xroce/xroce/roce/link/xdp"
)

// SteeringCounters count the frames that the network device has received since it was opened, by what the XDP program
// did with them.
type SteeringCounters struct {
	// Redirected frames went to this process and were never seen by the kernel's network stack.
	Redirected uint64
	// Kernel frames were for UDP port 4791 too, and were left to the kernel: they are for other queue pairs or
	// addresses, or malformed.
	Kernel uint64
	// Reasons splits all frames up, without the reasons that never occurred.
	Reasons map[string]uint64
}

// SteeringCounters returns the counts of the device's XDP program, or ErrNotSupported if it has none.
func (d *Device) SteeringCounters() (SteeringCounters, error) {
	if err := d.check(); err != nil {
		return SteeringCounters{}, err
	}
	l, ok := d.driver.Link().(*xdp.Device)
	if !ok {
		return SteeringCounters{}, fmt.Errorf("steering counters of %s: %w: no XDP program", d.Name(), ErrNotSupported)
	}
	counters, err := l.SteeringCounters()
	if err != nil {
		return SteeringCounters{}, err
	}
	s := SteeringCounters{Reasons: make(map[string]uint64)}
	for _, c := range counters {
		name := c.Reason.String()
		if c.Packets > 0 {
			s.Reasons[name] = c.Packets
		}
		switch {
		case c.Reason.TakesFrame():
			s.Redirected = c.Packets
		case c.Reason.ReachesKernelOnRoCEPort():
			s.Kernel += c.Packets
		}
	}
	return s, nil
}
