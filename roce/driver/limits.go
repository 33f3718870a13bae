package driver

import "fmt"

// Limits of a device, objects of a kind that exist at once. Nothing in the engine grows faster than with their number;
// the bounds for CQs and SRQs only keep a program that forgets to destroy them from taking all memory.
const (
	MaxQP  = 1 << qpnBits
	MaxCQ  = 1 << 16
	MaxSRQ = 1 << 14
)

// limitCheck is a number that a program asks for.
type limitCheck struct {
	name       string
	value, max int
}

func checkLimits(checks []limitCheck) error {
	for _, c := range checks {
		if c.value < 1 || c.value > c.max {
			return fmt.Errorf("%w: %s is %d, the limit is 1 to %d", ErrLimit, c.name, c.value, c.max)
		}
	}
	return nil
}
