package main

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"

	"github.com/xroce/xroce/roce/link/xdp"
	"github.com/xroce/xroce/verbs"
)

// largestPathMTU is the largest path MTU that the device carries and this program asks for.
func largestPathMTU(p *xdp.Port) verbs.MTU { return min(p.ActiveMTU, verbs.MTU2048) }

// chooseDevice returns the device to use: the one that is named or, without a name, the one that carries the route to
// the peer or, without a peer, the only one that can serve.
func chooseDevice(name, peer string) (xdp.Port, error) {
	if name != "" {
		port, err := xdp.Probe(name, xdp.ProbeOptions{})
		if err == nil {
			err = port.Obstacle
		}
		return port, err
	}
	ports, err := xdp.List(xdp.ProbeOptions{})
	if err != nil {
		return xdp.Port{}, err
	}
	if peer != "" {
		return deviceTowards(peer, ports)
	}
	return onlyDevice(ports)
}

// deviceTowards asks the kernel for the route to the peer: a UDP socket that is connected gets the local address, and
// nothing is sent.
func deviceTowards(peer string, ports []xdp.Port) (xdp.Port, error) {
	connection, err := net.Dial("udp", net.JoinHostPort(peer, fmt.Sprint(rocePort)))
	if err != nil {
		return xdp.Port{}, usage("no way to %s: %w", peer, err)
	}
	local := connection.LocalAddr().(*net.UDPAddr).AddrPort().Addr()
	if err := connection.Close(); err != nil {
		return xdp.Port{}, err
	}
	address := local.Unmap().WithZone("")
	for _, p := range ports {
		if slices.Contains(p.Addresses, address) && (local.Zone() == "" || local.Zone() == p.Name) {
			if p.Obstacle != nil {
				return xdp.Port{}, usage("%s carries the route to %s, but cannot serve: %w", p.Name, peer, p.Obstacle)
			}
			return p, nil
		}
	}
	return xdp.Port{}, usage("no network device has %v, from which the route to %s starts: name one with -d", local, peer)
}

func onlyDevice(ports []xdp.Port) (xdp.Port, error) {
	var able, obstacles []string
	var found xdp.Port
	for _, p := range ports {
		if p.Obstacle == nil {
			found = p
			able = append(able, p.Name)
		} else {
			obstacles = append(obstacles, oneLine(p.Obstacle))
		}
	}
	switch len(able) {
	case 1:
		return found, nil
	case 0:
		return xdp.Port{}, usage("no network device can serve: %s", strings.Join(obstacles, "; "))
	}
	return xdp.Port{}, usage("several network devices can serve: name one of %s with -d", strings.Join(able, ", "))
}

// commonAddress returns the device's address for the connection to the peer: the local one of the channel to it, or the
// first of the same family that is not link-local.
func commonAddress(p *xdp.Port, local netip.Addr) (netip.Addr, error) {
	local = local.Unmap().WithZone("")
	if slices.Contains(p.Addresses, local) {
		return local, nil
	}
	for _, a := range p.Addresses {
		if a.Is4() == local.Is4() && !a.IsLinkLocalUnicast() {
			return a, nil
		}
	}
	return netip.Addr{}, usage("%s has no address of the family of %v, the local end of the TCP connection: choose a GID with -g",
		p.Name, local)
}
