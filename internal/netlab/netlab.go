// Package netlab makes small networks for demonstrations and tests: pairs of network namespaces joined by veth
// devices. It never touches a device of the namespace it is called in, and whatever happens to the process,
// nothing is left behind (see package netns).
package netlab

import (
	"fmt"
	"net"
	"net/netip"
	"os"

	"github.com/xroce/xroce/internal/netns"
)

// Namespace is a network namespace without a name, held by a descriptor.
type Namespace = netns.Namespace

// NewNamespace makes a network namespace that holds nothing but a loopback device that is down.
func NewNamespace() (*Namespace, error) { return netns.New() }

// PairOptions describes a veth pair. The zero value works.
type PairOptions struct {
	A, B EndOptions
	// MTU of both ends in bytes, without the Ethernet header; 0 means 1500.
	MTU int
	// Queues is the number of receive and of transmit queues of both ends; 0 means 1. A frame sent on queue q
	// arrives on queue q of the other end (drivers/net/veth.c).
	Queues int
}

// EndOptions describes one end of a veth pair. The zero value works.
type EndOptions struct {
	// Name of the device. Empty means vethN, N being the lowest number that is free at both ends.
	Name string
	// HardwareAddr of the device; nil means a random one.
	HardwareAddr net.HardwareAddr
	// Addresses of the device, usable at once: IPv6 addresses are not checked for duplicates. Nil means
	// 10.9.N.1/24 and fd00:9:0:N::1/64 at end A, .2 and ::2 at end B, with N as for Name (0 for devices named
	// otherwise), and without the IPv6 addresses where the system has no IPv6. An empty slice means none. A
	// link-local IPv6 address is always added, where the system has IPv6.
	Addresses []netip.Prefix
}

// End is one end of a veth pair.
type End struct {
	Namespace    *Namespace
	Name         string
	Index        int // of the device, in its namespace
	HardwareAddr net.HardwareAddr
	// Addresses of the device as they were asked for, and LinkLocal, which is the zero Prefix on a system
	// without IPv6.
	Addresses []netip.Prefix
	LinkLocal netip.Prefix
}

// IPv4 returns the first IPv4 address of the end, or the zero Addr.
func (e *End) IPv4() netip.Addr { return e.first(netip.Addr.Is4) }

// IPv6 returns the first IPv6 address of the end that is not link-local, or the zero Addr.
func (e *End) IPv6() netip.Addr { return e.first(netip.Addr.Is6) }

func (e *End) first(family func(netip.Addr) bool) netip.Addr {
	for _, p := range e.Addresses {
		if family(p.Addr()) {
			return p.Addr()
		}
	}
	return netip.Addr{}
}

// Pair is a veth pair, up and with carrier.
type Pair struct {
	A, B End
	MTU  int // bytes, without the Ethernet header
	// ownsNamespaces says that closing the pair closes them.
	ownsNamespaces bool
}

// maximumMTU is the largest MTU that veth takes (ETH_MAX_MTU, include/uapi/linux/if_ether.h).
const maximumMTU = 65535

func (o PairOptions) validate() error {
	switch {
	case o.MTU < 0 || o.MTU > maximumMTU || o.MTU > 0 && o.MTU < 68:
		return fmt.Errorf("netlab: MTU %d is not in 68..%d", o.MTU, maximumMTU)
	case o.Queues < 0 || o.Queues > 4096:
		return fmt.Errorf("netlab: number of queues %d is not in 1..4096", o.Queues)
	}
	for _, e := range []EndOptions{o.A, o.B} {
		if len(e.Name) > 15 {
			return fmt.Errorf("netlab: device name %q is longer than 15 bytes", e.Name)
		}
		if n := len(e.HardwareAddr); n != 0 && (n != 6 || e.HardwareAddr[0]&1 != 0) {
			return fmt.Errorf("netlab: %v is no unicast Ethernet address", e.HardwareAddr)
		}
		for _, p := range e.Addresses {
			if !p.IsValid() || p.Addr().Zone() != "" || p.Addr().Is4In6() {
				return fmt.Errorf("netlab: %v is no address with a prefix length", p)
			}
		}
	}
	return nil
}

// T is the part of testing.TB that RequireRoot uses.
type T interface {
	Helper()
	Skip(...any)
	Fatal(...any)
}

// RequireRoot skips the test, or fails it if the environment says CI=true, when the process may not make
// network namespaces.
func RequireRoot(t T) {
	t.Helper()
	var reason error
	if n, err := NewNamespace(); err != nil {
		reason = err
	} else {
		reason = n.Close()
	}
	switch {
	case reason == nil:
	case os.Getenv("CI") == "true":
		t.Fatal("this test must run in CI, and cannot: ", reason)
	default:
		t.Skip(reason)
	}
}
