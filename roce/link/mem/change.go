package mem

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/xroce/xroce/roce"
	"github.com/xroce/xroce/roce/link"
)

// Watch implements link.Device.
func (d *Device) Watch(changed func(link.Change)) {
	d.network.mu.Lock()
	defer d.network.mu.Unlock()
	d.changed = changed
}

// SetDown takes the device down or brings it up again. While it is down it receives nothing, and what it shall send
// waits.
func (d *Device) SetDown(down bool) {
	change := link.ChangedPort
	if down {
		change |= link.ChangedDown
	}
	d.change(change, func() { d.down = down })
}

// SetMTU changes the MTU, in bytes without the Ethernet header.
func (d *Device) SetMTU(mtu int) { d.change(link.ChangedPort, func() { d.options.MTU = mtu }) }

// SetAddresses replaces the IP addresses.
func (d *Device) SetAddresses(addresses ...netip.Addr) {
	d.change(link.ChangedPort, func() { d.options.Addresses = slices.Clone(addresses) })
}

// SetHardwareAddr changes the Ethernet address, which nobody else may have.
func (d *Device) SetHardwareAddr(mac roce.MAC) {
	d.change(link.ChangedPort, func() {
		n := d.network
		if n.devices[mac] != nil {
			panic(fmt.Sprintf("mem: address %v is in use", mac))
		}
		delete(n.devices, d.options.MAC)
		n.devices[mac], d.options.MAC = d, mac
	})
}

// state says why the device carries nothing. It is called under the network's lock.
func (d *Device) state() error {
	if d.down {
		return fmt.Errorf("%w: %s", link.ErrDown, d.options.Name)
	}
	return nil
}

// change makes a change and tells the device about it, and the others that their ways may be different.
func (d *Device) change(what link.Change, make func()) {
	n := d.network
	n.mu.Lock()
	make()
	var calls []func()
	for _, other := range n.devices {
		if tell := other.changed; tell != nil && other == d {
			calls = append(calls, func() { tell(what) })
		} else if tell != nil {
			calls = append(calls, func() { tell(link.ChangedWays) })
		}
	}
	n.mu.Unlock()
	for _, call := range calls {
		call()
	}
}
