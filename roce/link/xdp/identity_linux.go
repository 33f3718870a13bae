package xdp

// Which network device is the one that was opened: as long as it lives, the one with its index, whatever its name
// becomes. What is found after it went, under the name that it had last, is the same one if it is of the same kind and
// has the same Ethernet address: the permanent one where there is one, since the other may have been changed, and the
// other one where there is none (veth, macvlan). Names are handed on to strangers, and so are indexes, which every
// namespace counts for itself.

import (
	"errors"
	"fmt"

	"github.com/vishvananda/netlink"

	"github.com/xroce/xroce/roce"
)

// errStranger: the network device is not the one that was opened.
var errStranger = errors.New("what has its name now is another network device")

// identity is what a network device is recognised by.
type identity struct {
	driver         string // empty if it does not tell
	mac, permanent roce.MAC
}

func (n *netlinkSockets) identify(a *netlink.LinkAttrs) identity {
	return identity{driver: n.driverName(a.Name), mac: macOf(a.HardwareAddr), permanent: macOf(a.PermHWAddr)}
}

// recognises says, with errStranger, why a network device is another one; nil if it is the same.
func (was identity) recognises(is identity) error {
	switch {
	case is.driver != was.driver:
		return fmt.Errorf("%w: its driver is %q and was %q", errStranger, is.driver, was.driver)
	case is.permanent != was.permanent:
		return fmt.Errorf("%w: its permanent Ethernet address is %v and was %v", errStranger, is.permanent, was.permanent)
	case was.permanent == roce.MAC{} && is.mac != was.mac:
		return fmt.Errorf("%w: its Ethernet address is %v and was %v (ip link set address, if it is the same one; otherwise open it anew)",
			errStranger, is.mac, was.mac)
	}
	return nil
}

// name is the present name of the network device. It takes no lock: queues use it in their errors.
func (d *Device) name() string { return *d.label.Load() }

// setName runs under mu, or before anybody else knows the device.
func (d *Device) setName(name string) {
	if d.netdev.name != name || d.label.Load() == nil {
		d.netdev.name = name
		d.label.Store(&name)
	}
}
