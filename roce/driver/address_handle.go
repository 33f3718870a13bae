package driver

// An address handle is what a device knows of a peer's address: the GID that packets come from, what their IP headers
// say, and whether the peer is within the process or over the wire, and then its next hop. A connected queue pair holds
// one.
//
// Life of a handle: it is made of an address vector, holds the index of the GID table that this names, and becomes a
// user of its route. The link finds the next hop. Whatever the link finds later, the handle has from then on, and tells
// the queue pair that holds it. Close gives the index back and leaves the route.

import (
	"context"
	"fmt"
	"sync/atomic"

	"github.com/xroce/xroce/roce"
	"github.com/xroce/xroce/roce/link"
)

// AddressVector names the peer of a connected QP.
type AddressVector struct {
	DGID         roce.GID
	SGIDIndex    int
	TrafficClass uint8  // DSCP in bits 7:2, ECN in bits 1:0
	FlowLabel    uint32 // 0 derives one from the QPNs
}

// AddressHandle is an address vector that is in use.
type AddressHandle struct {
	device *Device
	vector AddressVector
	source roce.GID
	within *Device // where the peer is, if that is in the process
	place  int     // among the users of the route; guarded by routes.mu

	neighbour atomic.Pointer[link.Neighbour]
	holder    atomic.Pointer[QP] // who is told of another neighbour
}

// newAddressHandle makes a handle. The search for the neighbour may take until ctx ends. The way has to carry a path
// MTU, if one is given.
func (d *Device) newAddressHandle(ctx context.Context, av *AddressVector, need roce.MTU) (*AddressHandle, error) {
	source, err := d.source(av)
	if err != nil {
		return nil, err
	}
	h := &AddressHandle{device: d, vector: *av, source: source}
	if h.within, err = d.within(av.DGID.Addr()); err != nil {
		return nil, err
	}
	if need != 0 {
		if err := d.checkPathMTU(need, h.within != nil); err != nil {
			return nil, err
		}
	}
	if !d.gids.hold(av.SGIDIndex, source) {
		return nil, fmt.Errorf("%w: the address of index %d, %v, has just gone", ErrNoGID, av.SGIDIndex, source)
	}
	// Nobody looks at the Ethernet addresses of frames on loopback.
	neighbour := link.Neighbour{HardwareAddr: d.link.HardwareAddr()}
	if h.within == nil {
		d.routes.join(h) // first, so that no change is missed
		neighbour, err = d.link.Resolve(ctx, source.Addr(), av.DGID.Addr())
		if err == nil {
			err = d.checkWay(need, neighbour.MTU, av.DGID)
		}
		if err != nil {
			h.close()
			return nil, err
		}
	}
	h.neighbour.CompareAndSwap(nil, &neighbour) // unless a change has brought a newer one
	return h, nil
}

// source checks an address vector and returns the GID that packets come from.
func (d *Device) source(av *AddressVector) (roce.GID, error) {
	source, err := d.GID(av.SGIDIndex)
	if err != nil {
		return source, err
	}
	if source.Is4() != av.DGID.Is4() {
		return source, fmt.Errorf("%w: GID %d of %s is %v, the peer's is %v: not of the same family",
			ErrInvalid, av.SGIDIndex, d.link.Information().Name, source, av.DGID)
	}
	if av.DGID.IsZero() || av.DGID.IsMulticast() {
		return source, fmt.Errorf("%w: destination GID %v is not the address of a peer", ErrInvalid, av.DGID)
	}
	return source, nil
}

func (h *AddressHandle) way() way { return way{h.source.Addr(), h.vector.DGID.Addr()} }

// path is all that stands in front of the BTH of packets, with the next hop as it is known now. The label decides the
// UDP source port.
func (h *AddressHandle) path(label uint32) roce.Path {
	n := h.neighbour.Load()
	return roce.Path{
		SourceMAC: h.device.link.HardwareAddr(), DestinationMAC: n.HardwareAddr,
		Tagged: n.Tagged, VLAN: n.VLAN, Priority: n.Priority,
		Source: h.source, Destination: h.vector.DGID,
		TrafficClass: h.vector.TrafficClass, HopLimit: n.HopLimit,
		// The flow label of the IP header stays 0 unless the user asked for one, as rdma_rxe sends it.
		FlowLabel: h.vector.FlowLabel & 0xFFFFF, SourcePort: roce.UDPSourcePort(label),
	}
}

// label is the flow label of the connection between two QPs: that of the vector, or one that both ends compute.
func (h *AddressHandle) label(own, peer roce.QPN) uint32 {
	if label := h.vector.FlowLabel & 0xFFFFF; label != 0 {
		return label
	}
	return roce.FlowLabel(own, peer)
}

// reroute takes another next hop. Who has stored himself as the holder and looks at the path afterwards misses none.
func (h *AddressHandle) reroute(n *link.Neighbour) {
	h.neighbour.Store(n)
	if q := h.holder.Load(); q != nil {
		q.reroute(h)
	}
}

// close ends the handle.
func (h *AddressHandle) close() {
	if h.within == nil {
		h.device.routes.leave(h)
	}
	h.device.gids.release(h.vector.SGIDIndex)
}
