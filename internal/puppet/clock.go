package puppet

import (
	"time"

	"github.com/xroce/xroce/internal/opener"
	"github.com/xroce/xroce/roce/link/mem"
	"github.com/xroce/xroce/verbs"
)

// Clock lets time pass for those who wait for something to happen.
type Clock interface {
	// Now is the reading of the clock.
	Now() time.Duration
	// Run lets the world go on until done returns true, but no longer than limit, and returns what done said last.
	Run(limit time.Duration, done func() bool) bool
}

// Virtual is the clock of a network that has a manual one. It also drives the devices on it.
type Virtual struct {
	network *mem.Network
	devices []*verbs.Device
	now     time.Duration
}

// NewVirtual makes the clock. It drives devices, which are all the Manual devices of the network.
func NewVirtual(network *mem.Network, devices ...*verbs.Device) *Virtual {
	return &Virtual{network: network, devices: devices, now: network.Now()}
}

// Add adds a device that is to be driven.
func (v *Virtual) Add(d *verbs.Device) { v.devices = append(v.devices, d) }

// Now implements Clock.
func (v *Virtual) Now() time.Duration { return v.now }

// Run implements Clock. The clock jumps from event to event, and to the limit if nothing happens before.
func (v *Virtual) Run(limit time.Duration, done func() bool) bool {
	for end := v.now + limit; ; {
		v.settle()
		if done() {
			return true
		}
		next, found := v.next()
		if !found || next > end {
			v.advance(end)
			v.settle()
			return done()
		}
		v.advance(next)
	}
}

func (v *Virtual) advance(to time.Duration) {
	v.now = max(v.now, to)
	v.network.AdvanceTo(v.now)
}

// settle drives the devices until none has anything to do at this time.
func (v *Virtual) settle() {
	for again := true; again; {
		again = false
		for _, d := range v.devices {
			again = opener.Driver(d).Drive() || again
		}
	}
}

// next is the time of the next event.
func (v *Virtual) next() (at time.Duration, found bool) {
	at, found = v.network.NextArrival()
	for _, d := range v.devices {
		if t, ok := opener.Driver(d).NextDeadline(); ok && (!found || time.Duration(t) < at) {
			at, found = time.Duration(t), true
		}
	}
	return at, found
}

// Real is the time of day, for links that carry frames by themselves.
type Real struct{ start time.Time }

// NewReal makes a clock that begins now.
func NewReal() *Real { return &Real{start: time.Now()} }

// Now implements Clock.
func (r *Real) Now() time.Duration { return time.Since(r.start) }

// realPause is how long Run sleeps between two looks at done.
const realPause = 50 * time.Microsecond

// Run implements Clock.
func (r *Real) Run(limit time.Duration, done func() bool) bool {
	for end := r.Now() + limit; ; time.Sleep(realPause) {
		if done() {
			return true
		}
		if r.Now() > end {
			return false
		}
	}
}
