// Package opener is the way from a verbs.Device to the engine behind it, for the tools and tests of this module. What
// they need is no part of the public API, which so is free of the engine's words. Package verbs sets the hooks; the
// type parameter is verbs.Device, which this package cannot name.
package opener

import (
	"github.com/xroce/xroce/roce/driver"
	"github.com/xroce/xroce/roce/link"
	"github.com/xroce/xroce/roce/transport"
)

// Hooks are the functions of package verbs.
type Hooks struct {
	Open        func(l link.Device, o driver.Options) (device any, err error)
	Driver      func(device any) *driver.Device
	InUse       func(device any) error
	CheckOwners func(options any)
}

var hooks Hooks

// Set is called by package verbs when the program starts.
func Set(h Hooks) { hooks = h }

// Open opens a device on any link, which belongs to the device from then on. It has no control socket.
func Open[Device any](l link.Device, o driver.Options) (*Device, error) {
	device, err := hooks.Open(l, o)
	if err != nil {
		return nil, err
	}
	return device.(*Device), nil
}

// Driver is the engine of a verbs.Device.
func Driver[Device any](d *Device) *driver.Device { return hooks.Driver(d) }

// InUse says with verbs.ErrInUse what exists on a verbs.Device, if anything does: Close would destroy it.
func InUse[Device any](d *Device) error { return hooks.InUse(d) }

// CheckOwners returns verbs.Options with which the device keeps track of who owns each buffer of a frame. Close then
// fails if one ever had no owner or two.
func CheckOwners[Options any](o Options) Options {
	hooks.CheckOwners(&o)
	return o
}

// EngineCounters are what the engine of a device has counted, in its own words.
type EngineCounters struct {
	Transport transport.Counters
	Link      link.Counters
}

// Counters returns the counts of a verbs.Device.
func Counters[Device any](d *Device) EngineCounters {
	t, l := Driver(d).Counters()
	return EngineCounters{t, l}
}

// DropReasons returns how many packets were dropped for which reason, without the reasons that never occurred.
func (c EngineCounters) DropReasons() map[string]uint64 { return c.Transport.Dropped() }
