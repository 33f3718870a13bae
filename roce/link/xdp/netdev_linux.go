package xdp

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/xroce/xroce/internal/lockorder"
	"github.com/xroce/xroce/roce"
	"github.com/xroce/xroce/roce/link"
)

// netlinkSockets ask the kernel about the network devices of one namespace: that of the thread which opened
// them. Its methods may be called concurrently.
type netlinkSockets struct {
	// life is held for reading by every request: a closed Handle would silently ask the namespace of the
	// thread instead.
	life   lockorder.RWMutex[lockorder.NetlinkSockets]
	closed bool

	handle *netlink.Handle
	raw    map[int]*nl.SocketHandle // by protocol, for requests that Handle does not know

	control int // for ethtool

	program *error // what loading the XDP program gave, if it was tried (see try)
}

func openNetlink() (*netlinkSockets, error) {
	n := &netlinkSockets{raw: map[int]*nl.SocketHandle{}, control: -1}
	var err error
	if n.handle, err = netlink.NewHandle(unix.NETLINK_ROUTE); err != nil {
		return nil, fmt.Errorf("open netlink socket: %w", err)
	}
	for _, protocol := range []int{unix.NETLINK_ROUTE, unix.NETLINK_GENERIC} {
		socket, err := nl.Subscribe(protocol)
		if err != nil {
			n.close()
			return nil, fmt.Errorf("open netlink socket: %w", err)
		}
		n.raw[protocol] = &nl.SocketHandle{Socket: socket}
	}
	n.control, err = unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		n.control = -1
		n.close()
		return nil, fmt.Errorf("open socket for ethtool: %w", err)
	}
	return n, nil
}

// driverName asks for the name of the driver (ethtool -i). It is empty for a driver that does not tell.
func (n *netlinkSockets) driverName(device string) string {
	information, err := unix.IoctlGetEthtoolDrvinfo(n.control, device)
	if err != nil {
		return ""
	}
	return unix.ByteSliceToString(information.Driver[:])
}

// do makes a request, unless the sockets are closed. A dump that the kernel says was interrupted by a change
// is made again.
func (n *netlinkSockets) do(request func(*netlink.Handle) error) error {
	n.life.RLock()
	defer n.life.RUnlock()
	for attempt := 0; ; attempt++ {
		if n.closed {
			return link.ErrClosed
		}
		err := request(n.handle)
		if errors.Is(err, netlink.ErrDumpInterrupted) && attempt < 10 {
			continue
		}
		return err
	}
}

// execute makes a request that Handle does not know, and returns the payloads of the answer.
func (n *netlinkSockets) execute(protocol int, request *nl.NetlinkRequest) (answers [][]byte, err error) {
	err = n.do(func(*netlink.Handle) error {
		request.Sockets = n.raw
		answers, err = request.Execute(protocol, 0)
		return err
	})
	return answers, err
}

func (n *netlinkSockets) close() {
	n.life.Lock()
	defer n.life.Unlock()
	if n.closed {
		return
	}
	n.closed = true
	n.handle.Close()
	for _, socket := range n.raw {
		socket.Close()
	}
	if n.control >= 0 {
		_ = unix.Close(n.control)
	}
}

// find returns the attributes of a device by its name.
func (n *netlinkSockets) find(name string) (attributes *netlink.LinkAttrs, err error) {
	err = n.do(func(h *netlink.Handle) error {
		device, err := h.LinkByName(name)
		if err == nil {
			attributes = device.Attrs()
		}
		return err
	})
	if errors.As(err, &netlink.LinkNotFoundError{}) {
		return nil, ErrNoDevice
	} else if err != nil {
		return nil, fmt.Errorf("find network device %s: %w", name, err)
	}
	return attributes, nil
}

// all returns the attributes of all devices, in the order of their index.
func (n *netlinkSockets) all() (list []*netlink.LinkAttrs, err error) {
	err = n.do(func(h *netlink.Handle) error {
		devices, err := h.LinkList()
		list = list[:0]
		for _, d := range devices {
			list = append(list, d.Attrs())
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("list network devices: %w", err)
	}
	slices.SortFunc(list, func(a, b *netlink.LinkAttrs) int { return a.Index - b.Index })
	return list, nil
}

// netdevState is what the kernel said about a network device at one moment.
type netdevState struct {
	name      string
	mac       roce.MAC
	mtu       int          // bytes, without the Ethernet header
	down      error        // why it carries nothing, see down; nil if it is up and has carrier
	addresses []netip.Addr // see addresses
}

// state asks for the present state of a device. A device that is gone gives link.ErrDown.
func (n *netlinkSockets) state(index int, name string) (netdevState, error) {
	var device netlink.Link
	err := n.do(func(h *netlink.Handle) (err error) {
		device, err = h.LinkByIndex(index)
		return err
	})
	if errors.As(err, &netlink.LinkNotFoundError{}) {
		return netdevState{}, errGone(name)
	} else if err != nil {
		return netdevState{}, fmt.Errorf("ask for %s: %w", name, err)
	}
	addresses, err := n.addresses(device)
	if err != nil {
		return netdevState{}, err
	}
	a := device.Attrs()
	return netdevState{
		name: a.Name, mac: macOf(a.HardwareAddr), mtu: a.MTU, down: down(a), addresses: addresses,
	}, nil
}

func errGone(name string) error {
	return fmt.Errorf("%w: %s was deleted or has left its namespace", link.ErrDown, name)
}

// down says, with link.ErrDown, why a device carries nothing; nil if it is up and has carrier.
func down(a *netlink.LinkAttrs) error {
	switch {
	case a.RawFlags&unix.IFF_UP == 0:
		return fmt.Errorf("%w: %s (ip link set %[2]s up)", link.ErrDown, a.Name)
	case a.RawFlags&unix.IFF_LOWER_UP == 0:
		return &classified{error: fmt.Errorf("network device %s is up but has no carrier", a.Name), kind: link.ErrDown}
	}
	return nil
}

func isRunning(a *netlink.LinkAttrs) bool { return down(a) == nil }

// macOf returns an Ethernet address, or the zero MAC for what is none.
func macOf(a net.HardwareAddr) (mac roce.MAC) {
	if len(a) == len(mac) {
		copy(mac[:], a)
	}
	return mac
}

// addresses returns the unicast addresses of a device without zones, in ascending order: IPv4 first,
// link-local IPv6 last. An IPv6 address counts from the moment it is added, as in the GID tables of Linux
// (drivers/infiniband/core/roce_gid_mgmt.c), unless it was found to be a duplicate.
func (n *netlinkSockets) addresses(device netlink.Link) (found []netip.Addr, err error) {
	err = n.do(func(h *netlink.Handle) error {
		list, err := h.AddrList(device, netlink.FAMILY_ALL)
		if err != nil {
			return err
		}
		found = found[:0]
		for _, entry := range list {
			if entry.Flags&unix.IFA_F_DADFAILED != 0 || entry.IPNet == nil {
				continue
			}
			address, ok := netip.AddrFromSlice(entry.IP)
			if ok && !address.IsUnspecified() {
				found = append(found, address.Unmap())
			}
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("list addresses of %s: %w", device.Attrs().Name, err)
	}
	slices.SortFunc(found, netip.Addr.Compare)
	return slices.Compact(found), nil
}
