package driver

// A route is the way from an address of the device to one of a peer over the wire. Address handles are its users; as
// long as it has one, a change of the network has the link find the next hop again, once for all of them (follow.go),
// and the silence of a peer has the link ask whether the next hop is still there (confirm.go).

import (
	"context"
	"fmt"
	"net/netip"
	"slices"

	"github.com/xroce/xroce/internal/lockorder"
	"github.com/xroce/xroce/roce"
	"github.com/xroce/xroce/roce/link"
)

// way names a route.
type way struct{ source, destination netip.Addr }

// routes are those that have users.
type routes struct {
	mu    lockorder.Mutex[lockorder.Routes]
	table map[way][]*AddressHandle
}

// join makes a handle a user of its route.
func (r *routes) join(h *AddressHandle) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.table == nil {
		r.table = make(map[way][]*AddressHandle)
	}
	h.place = len(r.table[h.way()])
	r.table[h.way()] = append(r.table[h.way()], h)
}

// leave undoes join.
func (r *routes) leave(h *AddressHandle) {
	r.mu.Lock()
	defer r.mu.Unlock()
	users := r.table[h.way()]
	last := users[len(users)-1]
	users[h.place], last.place = last, h.place
	users[len(users)-1] = nil
	if users = users[:len(users)-1]; len(users) == 0 {
		delete(r.table, h.way())
		return
	}
	r.table[h.way()] = users
}

// all returns a copy of the table.
func (r *routes) all() map[way][]*AddressHandle {
	r.mu.Lock()
	defer r.mu.Unlock()
	all := make(map[way][]*AddressHandle, len(r.table))
	for w, users := range r.table {
		all[w] = slices.Clone(users)
	}
	return all
}

// checkWay says whether a route whose MTU is known (bytes; 0 is none) carries a path MTU.
func (d *Device) checkWay(m roce.MTU, mtu int, destination roce.GID) error {
	if need := m.Bytes() + roce.MTUOverhead; m != 0 && mtu != 0 && mtu < need {
		return fmt.Errorf("%w: path MTU %v needs MTU %d on the way, the route to %v over %s has %d",
			ErrPathMTU, m, need, destination, d.link.Information().Name, mtu)
	}
	return nil
}

// CheckWay says, with ErrPathMTU, that the route from source to destination has too small an MTU for a path MTU.
func (d *Device) CheckWay(m roce.MTU, source, destination roce.GID) error {
	return d.checkWay(m, d.routeMTU(source, destination), destination)
}

// WayMTU is the largest path MTU that the route from source to destination carries, at most m. If it carries none, it
// is m.
func (d *Device) WayMTU(m roce.MTU, source, destination roce.GID) roce.MTU {
	if active, ok := roce.ActiveMTU(d.routeMTU(source, destination)); ok {
		return min(m, active)
	}
	return m
}

// routeMTU is the MTU of the route from source to destination in bytes; 0 if it names none, or is not known.
func (d *Device) routeMTU(source, destination roce.GID) int {
	if within, err := d.within(destination.Addr()); within != nil || err != nil {
		return 0
	}
	return d.knownRoute(source.Addr(), destination).MTU
}

// knownRoute is what the kernel knows at once of the route from source, or where that is invalid from the address that
// it chooses.
func (d *Device) knownRoute(source netip.Addr, destination roce.GID) link.Neighbour {
	ctx, cancel := context.WithCancel(context.Background())
	cancel() // nothing depends on whether the neighbour is known
	neighbour, _ := d.link.Resolve(ctx, source, destination.Addr())
	return neighbour
}

// SourceTowards is the address from which the kernel would send to a peer over this device; the zero GID if that is not
// known.
func (d *Device) SourceTowards(peer roce.GID) roce.GID {
	source := d.knownRoute(netip.Addr{}, peer).Source
	if !source.IsValid() {
		return roce.GID{}
	}
	return roce.GIDFromAddr(source)
}
