package xdp

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/xroce/xroce/internal/lockorder"
	"github.com/xroce/xroce/roce"
	"github.com/xroce/xroce/roce/link"
)

const (
	// defaultHopLimit is what Linux uses for routes that name none (net.ipv4.ip_default_ttl).
	defaultHopLimit = 64
	// A neighbour on the same segment answers in well under a millisecond; one that does not is
	// asked by the kernel once a second.
	firstPause, longestPause = 200 * time.Microsecond, 5 * time.Millisecond
)

// nextHop is the way to an address over one device.
type nextHop struct {
	address   netip.Addr // of the gateway, or the destination itself
	multicast bool
	hopLimit  uint8
	mtu       int        // 0 if the route names none
	source    netip.Addr // that the route chooses
}

// resolver finds next hops and neighbours over one device.
type resolver struct {
	*netlinkSockets
	index int
	name  string
	hops  *hops
}

// hops are the neighbours that were asked for, with the Ethernet address that was answered last; zero is none. Peers
// name them, so their number is bounded. Changes of one that has been forgotten are not noticed: a queue pair that it
// concerns has it asked for again when it has been silent for two ACK timeouts.
type hops struct {
	mu   lockorder.Mutex[lockorder.Hops]
	macs map[netip.Addr]roce.MAC
	// order has the addresses in macs, the one that came in first at the front.
	order []netip.Addr
}

// mostHops is how many next hops are kept, as many as a device has QPs, at some 100 bytes each.
const mostHops = 1 << 14

func newHops() *hops { return &hops{macs: make(map[netip.Addr]roce.MAC)} }

func (h *hops) answered(neighbour netip.Addr, mac roce.MAC) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.keep(neighbour)
	h.macs[neighbour] = mac
}

// asked has changes of a neighbour noticed from now on.
func (h *hops) asked(neighbour netip.Addr) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.keep(neighbour)
}

// keep makes a neighbour one of those that are kept.
func (h *hops) keep(neighbour netip.Addr) {
	if _, known := h.macs[neighbour]; known {
		return
	}
	if len(h.order) == mostHops {
		delete(h.macs, h.order[0])
		h.order = h.order[1:]
	}
	h.macs[neighbour] = roce.MAC{}
	h.order = append(h.order, neighbour)
}

func addressOfNeighbour(entry *netlink.Neigh) netip.Addr {
	address, _ := netip.AddrFromSlice(entry.IP)
	return address.Unmap()
}

// resolve returns the Ethernet address and the hop limit for packets from source to destination.
func (r resolver) resolve(ctx context.Context, source, destination netip.Addr) (link.Neighbour, error) {
	source, destination, err := r.normalize(source, destination)
	if err != nil {
		return link.Neighbour{}, err
	}
	if err := r.serves(source, destination); err != nil {
		return link.Neighbour{}, err
	}
	hop, err := r.route(source, destination)
	if err != nil {
		return link.Neighbour{}, err
	}
	neighbour := link.Neighbour{HopLimit: hop.hopLimit, MTU: hop.mtu, Source: hop.source}
	if hop.multicast {
		neighbour.HardwareAddr = roce.MulticastMAC(roce.GIDFromAddr(destination))
		return neighbour, nil
	}
	neighbour.HardwareAddr, err = r.await(ctx, hop.address)
	if ctx.Err() != nil && errors.Is(err, ctx.Err()) {
		what := hop.address.String()
		if hop.address != destination {
			what = fmt.Sprintf("%v, the gateway to %v,", hop.address, destination)
		}
		err = fmt.Errorf("%w: no answer from %s on %s: %w", link.ErrNoNeighbour, what, r.name, err)
	}
	return neighbour, err
}

// normalize checks the addresses and takes their zones off, which must mean this device.
func (r resolver) normalize(source, destination netip.Addr) (netip.Addr, netip.Addr, error) {
	source, destination = source.Unmap(), destination.Unmap()
	for _, a := range []netip.Addr{source, destination} {
		if zone := a.Zone(); zone != "" && zone != r.name && zone != strconv.Itoa(r.index) {
			return source, destination, fmt.Errorf("%w: %v is in the zone of another device than %s",
				link.ErrNoNeighbour, a, r.name)
		}
	}
	source, destination = source.WithZone(""), destination.WithZone("")
	switch {
	case !destination.IsValid() || destination.IsUnspecified():
		return source, destination, fmt.Errorf("%w: %v is no destination", link.ErrNoNeighbour, destination)
	case named(source) && source.Is4() != destination.Is4():
		return source, destination, fmt.Errorf("%w: %v and %v are of different families",
			link.ErrNoNeighbour, source, destination)
	}
	return source, destination, nil
}

// serves says why nothing can be sent from source to destination over this device. The kernel would take an address of
// another device too, and the answers would go there. An own address of IPv6 may have no route yet that says so: the
// kernel makes it a moment after the address (addrconf_dad_work in net/ipv6/addrconf.c).
func (r resolver) serves(source, destination netip.Addr) error {
	state, err := r.state(r.index, r.name)
	switch {
	case err != nil:
		return err
	case state.down != nil:
		return state.down
	case named(source) && !slices.Contains(state.addresses, source):
		return fmt.Errorf("%w: source address %v is not on %s", link.ErrNoNeighbour, source, r.name)
	case slices.Contains(state.addresses, destination):
		return r.explainOwn(destination)
	}
	return nil
}

// named says that the caller has chosen the address.
func named(source netip.Addr) bool { return source.IsValid() && !source.IsUnspecified() }

// route asks the kernel for the next hop over this device.
//
// The first question names the device and asks for the entry of the routing table, since otherwise IPv4 takes
// every address to be on the link of a device that has no route to it (net/ipv4/route.c,
// ip_route_output_key_hash_rcu).
func (r resolver) route(source, destination netip.Addr) (nextHop, error) {
	if destination.IsMulticast() {
		return nextHop{address: destination, multicast: true, hopLimit: defaultHopLimit}, nil
	}
	options := netlink.RouteGetOptions{OifIndex: r.index, FIBMatch: true}
	if named(source) {
		options.SrcAddr = source.AsSlice()
	}
	_, err := r.askRoute(destination, options)
	var found netlink.Route
	if err == nil {
		options.FIBMatch = false // the next hop of one flow, of several that an entry may have
		found, err = r.askRoute(destination, options)
	}
	if errors.Is(err, link.ErrClosed) {
		return nextHop{}, err
	}
	if err != nil || found.LinkIndex != r.index {
		return nextHop{}, r.explainRoute(source, destination, options)
	}
	if found.Type != unix.RTN_UNICAST {
		return nextHop{}, fmt.Errorf("%w: route to %v over %s is not unicast", link.ErrNoNeighbour, destination, r.name)
	}
	hop := nextHop{address: destination, hopLimit: defaultHopLimit, mtu: found.MTU}
	chosen, _ := netip.AddrFromSlice(found.Src)
	hop.source = chosen.Unmap()
	gateway, _ := netip.AddrFromSlice(found.Gw)
	if via, ok := found.Via.(*netlink.Via); ok {
		gateway, _ = netip.AddrFromSlice(via.Addr)
	}
	if gateway = gateway.Unmap(); gateway.IsValid() && !gateway.IsUnspecified() {
		hop.address = gateway
	}
	if found.Hoplimit > 0 && found.Hoplimit <= 255 {
		hop.hopLimit = uint8(found.Hoplimit)
	}
	return hop, nil
}

func (r resolver) askRoute(destination netip.Addr, options netlink.RouteGetOptions) (found netlink.Route, err error) {
	err = r.do(func(h *netlink.Handle) error {
		routes, err := h.RouteGetWithOptions(destination.AsSlice(), &options)
		if err == nil && len(routes) == 0 {
			err = unix.ENETUNREACH
		}
		if err == nil {
			found = routes[0]
		}
		return err
	})
	return found, err
}

// explainRoute says why there is no route over this device.
func (r resolver) explainRoute(source, destination netip.Addr, options netlink.RouteGetOptions) error {
	from := ""
	if options.SrcAddr != nil {
		from = fmt.Sprintf(" from %v", source)
	}
	options.OifIndex, options.FIBMatch = 0, false
	other, err := r.askRoute(destination, options)
	if err != nil {
		return fmt.Errorf("%w: no route%s to %v on %s: %w", link.ErrNoNeighbour, from, destination, r.name, err)
	}
	if other.Type == unix.RTN_LOCAL {
		return r.explainOwn(destination)
	}
	through := "device " + strconv.Itoa(other.LinkIndex)
	_ = r.do(func(h *netlink.Handle) error {
		device, err := h.LinkByIndex(other.LinkIndex)
		if err == nil {
			through = device.Attrs().Name
		}
		return err
	})
	return fmt.Errorf("%w: the route%s to %v leaves through %s, not %s",
		link.ErrNoNeighbour, from, destination, through, r.name)
}

// await waits until the kernel knows the Ethernet address of a neighbour, and has it ask.
func (r resolver) await(ctx context.Context, neighbour netip.Addr) (roce.MAC, error) {
	r.hops.asked(neighbour)
	pause := firstPause
	var own error // what the neighbour is, if it is this machine
	var patience <-chan time.Time
	for asked := false; ; {
		entry, err := r.neighbour(neighbour)
		if err != nil {
			return roce.MAC{}, err
		}
		if mac := macOf(entry.HardwareAddr); entry.State&usable != 0 && mac != (roce.MAC{}) {
			// The kernel does not see that the entry is in use. Without being told, it would keep a
			// stale one until it is thrown away, and never ask whether it still holds.
			r.hops.answered(neighbour, mac)
			if entry.State&unix.NUD_STALE != 0 && !asked {
				err = r.ask(neighbour)
			}
			return mac, err
		}
		if !asked || entry.State&unix.NUD_FAILED != 0 {
			if err := r.ask(neighbour); err != nil {
				return roce.MAC{}, err
			}
			if own = r.own(neighbour); own != nil && patience == nil {
				patience = time.After(ownPatience)
			}
			asked = true
		}
		select {
		case <-ctx.Done():
			return roce.MAC{}, ctx.Err()
		case <-patience:
			return roce.MAC{}, own
		case <-time.After(pause):
			pause = min(2*pause, longestPause)
		}
	}
}

// usable are the states in which an entry's Ethernet address may be used (NUD_VALID in
// include/net/neighbour.h).
const usable = unix.NUD_PERMANENT | unix.NUD_NOARP | unix.NUD_REACHABLE | unix.NUD_STALE | unix.NUD_DELAY |
	unix.NUD_PROBE

// neighbour returns the kernel's entry for one neighbour, or a zero one if there is none.
func (r resolver) neighbour(address netip.Addr) (netlink.Neigh, error) {
	request := nl.NewNetlinkRequest(unix.RTM_GETNEIGH, 0)
	request.AddData(&netlink.Ndmsg{Family: uint8(family(address)), Index: uint32(r.index)})
	request.AddData(nl.NewRtAttr(netlink.NDA_DST, address.AsSlice()))
	answers, err := r.execute(unix.NETLINK_ROUTE, request)
	if errors.Is(err, unix.ENOENT) {
		return netlink.Neigh{}, nil
	} else if err == nil && len(answers) == 0 {
		err = unix.EBADMSG
	}
	if err != nil {
		return netlink.Neigh{}, r.neighbourError("look up", address, err)
	}
	entry, err := netlink.NeighDeserialize(answers[0])
	if err != nil {
		return netlink.Neigh{}, r.neighbourError("look up", address, err)
	}
	return *entry, nil
}

// ask has the kernel resolve a neighbour as if it had a packet for it (NTF_USE, net/core/neighbour.c,
// neigh_add).
func (r resolver) ask(address netip.Addr) error {
	err := r.do(func(h *netlink.Handle) error {
		return h.NeighSet(&netlink.Neigh{
			LinkIndex: r.index, Family: family(address), IP: address.AsSlice(),
			State: netlink.NUD_NONE, Flags: netlink.NTF_USE,
		})
	})
	if err != nil {
		return r.neighbourError("ask for", address, err)
	}
	return nil
}

func (r resolver) neighbourError(what string, address netip.Addr, err error) error {
	switch {
	case errors.Is(err, link.ErrClosed):
		return err
	case errors.Is(err, unix.ENODEV), errors.Is(err, unix.ENETDOWN):
		return fmt.Errorf("%w: %s neighbour %v on %s: %w", link.ErrDown, what, address, r.name, err)
	case errors.Is(err, unix.EPERM):
		return fmt.Errorf("%s neighbour %v on %s: %w: CAP_NET_ADMIN: %w", what, address, r.name, ErrPermission, err)
	}
	return fmt.Errorf("%s neighbour %v on %s: %w", what, address, r.name, err)
}

func family(a netip.Addr) int {
	if a.Is4() {
		return unix.AF_INET
	}
	return unix.AF_INET6
}
