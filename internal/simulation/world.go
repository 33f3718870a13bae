// Package simulation runs whole devices against each other in virtual time. A run is a function of its seed: packets
// are lost, doubled, damaged, delayed and reordered at the same places, and deadlines fire at the same times,
// whenever it is repeated.
//
// A Program is random: several connections live several lives each, with every operation of a send queue in both
// directions, and the lives end in every way that there is (connection.go). What must hold:
//
//   - Every request completes at most once, in the order of its queue, with the right status, opcode, length, immediate data and key;
//     without a completion only if it asked for none and succeeded, or if its queue pair went to RESET (flow.go).
//   - Requests fail only for a reason that the program knows, and those that must fail do (violations.go).
//   - Every byte is what was written there last, or, while a request's fate is unknown, what was or may have been written. Bytes
//     that belong to no message never change, nor do those of a queue pair that was stopped or of a region that was
//     deregistered (arena.go).
//   - Atomics of all queue pairs and of both devices on the same words have an order that explains every result (atomics.go).
//   - Keys open what they are to open, while they are to, and for whom (keys.go).
//   - In the end nothing is in use any more.
package simulation

import (
	"fmt"
	"time"

	"github.com/xroce/xroce/internal/opener"
	"github.com/xroce/xroce/roce/driver"
	"github.com/xroce/xroce/roce/link/mem"
	"github.com/xroce/xroce/roce/transport"
	"github.com/xroce/xroce/verbs"
)

// World is a network in virtual time with the devices on it.
type World struct {
	Network *mem.Network
	// MoveAfter is that of the engines of the devices that are added.
	MoveAfter int

	devices []*verbs.Device
	now     time.Duration // the network's clock, for those that the network calls
}

// NewWorld makes a world. The network's clock is set to manual.
func NewWorld(o mem.Options) *World {
	o.Manual = true
	w := &World{Network: mem.NewNetwork(o)}
	w.now = w.Network.Now()
	return w
}

// AddDevice adds a device whose keys and QPNs come from seed.
func (w *World) AddDevice(seed uint64, o mem.DeviceOptions, window int) (*verbs.Device, error) {
	l, err := w.Network.NewDevice(o)
	if err != nil {
		return nil, err
	}
	d, err := opener.Open[verbs.Device](l, driver.Options{
		Seed: seed, Window: window, Manual: true, MoveAfter: w.MoveAfter,
		Clock: func() transport.Time { return transport.Time(w.Network.Now()) },
	})
	if err != nil {
		return nil, err
	}
	w.devices = append(w.devices, d)
	return d, nil
}

// Step drives all devices until none has anything to do at this time, then moves the clock on to whatever comes next.
// It returns false if nothing will ever come.
func (w *World) Step() bool {
	for again := true; again; {
		again = false
		for _, d := range w.devices {
			again = opener.Driver(d).Drive() || again
		}
	}
	next, found := w.Network.NextArrival()
	for _, d := range w.devices {
		if t, ok := opener.Driver(d).NextDeadline(); ok && (!found || time.Duration(t) < next) {
			next, found = time.Duration(t), true
		}
	}
	if found {
		w.advanceTo(max(next, w.Network.Now()))
	}
	return found
}

func (w *World) advanceTo(t time.Duration) {
	w.Network.AdvanceTo(t)
	w.now = t
}

// idlePace is how far the clock moves when no frame and no deadline is to come: programs act on their own, too.
const idlePace = 100 * time.Microsecond

// Run calls turn, which acts for the programs and says whether all is done, and steps, in turn. It fails when
// limit of virtual time has passed.
func (w *World) Run(limit time.Duration, turn func() (done bool)) error {
	end := w.Network.Now() + limit
	for !turn() {
		if w.Network.Now() > end {
			return fmt.Errorf("not done after %v of virtual time", limit)
		}
		if !w.Step() {
			w.advanceTo(w.Network.Now() + idlePace)
		}
	}
	return nil
}
