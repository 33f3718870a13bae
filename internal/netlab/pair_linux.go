package netlab

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// carrierDeadline bounds the wait for both ends to be running, which takes well under a millisecond.
const carrierDeadline = 5 * time.Second

// NewPair makes two namespaces and joins them by a veth pair. Closing the pair closes the namespaces.
func NewPair(o PairOptions) (*Pair, error) {
	if err := o.validate(); err != nil {
		return nil, err
	}
	a, err := NewNamespace()
	if err != nil {
		return nil, err
	}
	b, err := NewNamespace()
	if err != nil {
		return nil, errors.Join(err, a.Close())
	}
	p, err := Join(a, b, o)
	if err != nil {
		return nil, errors.Join(err, a.Close(), b.Close())
	}
	p.ownsNamespaces = true
	return p, nil
}

// Join joins two namespaces by a veth pair; there may be any number of them between the same two. The loopback
// devices are brought up too. Closing the pair deletes the devices and leaves the namespaces open.
func Join(a, b *Namespace, o PairOptions) (*Pair, error) {
	if err := o.validate(); err != nil {
		return nil, err
	}
	handleA, err := open(a)
	if err != nil {
		return nil, err
	}
	defer handleA.Close()
	handleB, err := open(b)
	if err != nil {
		return nil, err
	}
	defer handleB.Close()

	number, err := firstFree(handleA, handleB)
	if err != nil {
		return nil, err
	}
	p := &Pair{MTU: o.MTU, A: End{Namespace: a}, B: End{Namespace: b}}
	if p.MTU == 0 {
		p.MTU = 1500
	}
	queues := max(o.Queues, 1)
	if err := p.A.choose(o.A, number, 1); err != nil {
		return nil, err
	}
	if err := p.B.choose(o.B, number, 2); err != nil {
		return nil, err
	}

	attributes := netlink.NewLinkAttrs()
	attributes.Name = p.A.Name
	attributes.MTU = p.MTU
	attributes.HardwareAddr = p.A.HardwareAddr
	attributes.NumTxQueues = queues
	attributes.NumRxQueues = queues
	veth := netlink.NewVeth(attributes)
	veth.PeerName = p.B.Name
	veth.PeerHardwareAddr = p.B.HardwareAddr
	veth.PeerNamespace = netlink.NsFd(b.FD())
	if err := handleA.LinkAdd(veth); err != nil {
		return nil, fmt.Errorf("netlab: make veth pair %s, %s: %w", p.A.Name, p.B.Name, err)
	}
	if err := errors.Join(p.A.setUp(handleA, o.A), p.B.setUp(handleB, o.B)); err != nil {
		return nil, errors.Join(err, p.Close())
	}
	ctx, cancel := context.WithTimeout(context.Background(), carrierDeadline)
	defer cancel()
	if err := errors.Join(p.A.awaitCarrier(ctx, handleA), p.B.awaitCarrier(ctx, handleB)); err != nil {
		return nil, errors.Join(err, p.Close())
	}
	return p, nil
}

// Close closes the namespaces of a pair that NewPair has made, and with them goes the pair; it deletes the
// devices of a pair that Join has made.
func (p *Pair) Close() error {
	if p.ownsNamespaces {
		return errors.Join(p.A.Namespace.Close(), p.B.Namespace.Close())
	}
	h, err := open(p.A.Namespace)
	if err != nil {
		return err
	}
	defer h.Close()
	link, err := h.LinkByName(p.A.Name)
	if errors.As(err, &netlink.LinkNotFoundError{}) {
		return nil
	} else if err != nil {
		return fmt.Errorf("netlab: find %s: %w", p.A.Name, err)
	}
	if err := h.LinkDel(link); err != nil {
		return fmt.Errorf("netlab: delete %s: %w", p.A.Name, err)
	}
	return nil
}

// open returns a netlink handle that works inside n, from any thread.
func open(n *Namespace) (h *netlink.Handle, err error) {
	err = n.Do(func() error {
		h, err = netlink.NewHandle(unix.NETLINK_ROUTE)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("netlab: %w", err)
	}
	return h, nil
}

// firstFree returns the lowest N for which neither namespace has a device vethN.
func firstFree(handles ...*netlink.Handle) (int, error) {
	taken := map[string]bool{}
	for _, h := range handles {
		links, err := h.LinkList()
		if err != nil {
			return 0, fmt.Errorf("netlab: list devices: %w", err)
		}
		for _, l := range links {
			taken[l.Attrs().Name] = true
		}
	}
	for n := 0; ; n++ {
		if !taken[deviceName(n)] {
			return n, nil
		}
	}
}

func deviceName(number int) string { return fmt.Sprintf("veth%d", number) }

// choose fills in name and addresses. host is the last part of the addresses.
func (e *End) choose(o EndOptions, number int, host byte) error {
	e.Name, e.HardwareAddr, e.Addresses = o.Name, o.HardwareAddr, o.Addresses
	if e.Name == "" {
		e.Name = deviceName(number)
	}
	if e.HardwareAddr == nil {
		e.HardwareAddr = make(net.HardwareAddr, 6)
		if _, err := rand.Read(e.HardwareAddr); err != nil {
			return err
		}
		// Unicast, locally administered (IEEE 802).
		e.HardwareAddr[0] = e.HardwareAddr[0]&^1 | 2
	}
	if e.Addresses == nil {
		if number > 255 {
			return fmt.Errorf("netlab: no default addresses for device %d, name them", number)
		}
		v4 := netip.AddrFrom4([4]byte{10, 9, byte(number), host})
		v6 := netip.AddrFrom16([16]byte{0: 0xfd, 3: 9, 7: byte(number), 15: host})
		e.Addresses = []netip.Prefix{netip.PrefixFrom(v4, 24), netip.PrefixFrom(v6, 64)}
	}
	e.LinkLocal = netip.PrefixFrom(linkLocal(e.HardwareAddr), 64)
	return nil
}

// linkLocal returns the link-local address that is made of an Ethernet address (RFC 4291, appendix A).
func linkLocal(mac net.HardwareAddr) netip.Addr {
	return netip.AddrFrom16([16]byte{0xfe, 0x80, 8: mac[0] ^ 2, 9: mac[1], 10: mac[2], 11: 0xff, 12: 0xfe,
		13: mac[3], 14: mac[4], 15: mac[5]})
}

// setUp gives the device its addresses and brings it and the loopback device up.
func (e *End) setUp(h *netlink.Handle, o EndOptions) error {
	loopback, err := h.LinkByName("lo")
	if err != nil {
		return fmt.Errorf("netlab: find lo: %w", err)
	}
	if err := h.LinkSetUp(loopback); err != nil {
		return fmt.Errorf("netlab: bring lo up: %w", err)
	}
	link, err := h.LinkByName(e.Name)
	if err != nil {
		return fmt.Errorf("netlab: find %s: %w", e.Name, err)
	}
	e.Index = link.Attrs().Index

	// The kernel's own link-local address would not be usable before its duplicate check is over, a second or
	// more. So it makes none, and one is added like the other addresses.
	const generateNone = 1 // IN6_ADDR_GEN_MODE_NONE, include/uapi/linux/if_link.h
	if err := h.LinkSetIP6AddrGenMode(link, generateNone); errors.Is(err, unix.EAFNOSUPPORT) {
		if err := e.withoutIPv6(o); err != nil {
			return err
		}
	} else if err != nil {
		return fmt.Errorf("netlab: switch off generated addresses of %s: %w", e.Name, err)
	}
	if err := h.LinkSetUp(link); err != nil {
		return fmt.Errorf("netlab: bring %s up: %w", e.Name, err)
	}
	addresses := e.Addresses
	if e.LinkLocal.IsValid() {
		addresses = append([]netip.Prefix{e.LinkLocal}, addresses...)
	}
	for _, p := range addresses {
		if err := h.AddrAdd(link, address(p)); err != nil {
			return fmt.Errorf("netlab: add %v to %s: %w", p, e.Name, err)
		}
	}
	return nil
}

// withoutIPv6 drops the IPv6 addresses that nobody asked for, on a system that has no IPv6.
func (e *End) withoutIPv6(o EndOptions) error {
	for _, p := range o.Addresses {
		if p.Addr().Is6() {
			return fmt.Errorf("netlab: add %v to %s: this system has no IPv6", p, e.Name)
		}
	}
	if o.Addresses == nil {
		e.Addresses = e.Addresses[:1]
	}
	e.LinkLocal = netip.Prefix{}
	return nil
}

func address(p netip.Prefix) *netlink.Addr {
	a := &netlink.Addr{IPNet: &net.IPNet{
		IP:   p.Addr().AsSlice(),
		Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen()),
	}}
	if p.Addr().Is6() {
		a.Flags = unix.IFA_F_NODAD
	}
	return a
}

// awaitCarrier waits until the device is running. Until the kernel's link watch has seen the carrier, the
// device drops what is sent (net/core/link_watch.c).
func (e *End) awaitCarrier(ctx context.Context, h *netlink.Handle) error {
	for {
		link, err := h.LinkByIndex(e.Index)
		if err != nil {
			return fmt.Errorf("netlab: find %s: %w", e.Name, err)
		}
		const running = unix.IFF_RUNNING | unix.IFF_LOWER_UP
		if link.Attrs().RawFlags&running == running {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("netlab: %s has no carrier: %w", e.Name, ctx.Err())
		case <-time.After(200 * time.Microsecond):
		}
	}
}
