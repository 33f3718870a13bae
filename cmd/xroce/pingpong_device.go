package main

import (
	"context"
	"net"
	"net/netip"
	"slices"
	"strings"

	"github.com/xroce/xroce/roce/link/xdp"
)

// chooseDevice returns the name of the device to use: the one that is named or, without a name, the one that carries
// the route to the peer or, without a peer, the only one that can serve.
func chooseDevice(ctx context.Context, namespace netnsFlag, name, peer string) (string, error) {
	options := xdp.ProbeOptions{NetNS: namespace.path(), Look: true}
	if name != "" {
		port, err := xdp.Probe(name, options)
		if err == nil {
			err = port.Obstacle
		}
		return port.Name, err
	}
	ports, err := xdp.List(ctx, options)
	if err != nil {
		return "", err
	}
	if peer != "" {
		return deviceTowards(ctx, namespace, peer, ports)
	}
	return onlyDevice(ports)
}

// checkHost tells apart what the kernel answers with "invalid argument" only: every network device has link-local
// addresses of its own, so one without a device leads nowhere.
func checkHost(host, device string) error {
	address, err := netip.ParseAddr(host)
	if err != nil || !address.Is6() || !address.IsLinkLocalUnicast() || address.Zone() != "" {
		return nil
	}
	if device == "" {
		device = "DEV"
	}
	return usage("%s is a link-local address: add the network device towards it, %s%%%s", host, host, device)
}

// deviceTowards asks the kernel for the route to the peer: a UDP socket that is connected gets the local address, and
// nothing is sent.
func deviceTowards(ctx context.Context, namespace netnsFlag, peer string, ports []xdp.Port) (string, error) {
	connection, err := namespace.dial(ctx, &net.Dialer{}, "udp", peer, rocePort)
	if err != nil {
		return "", usage("no way to %s: %w", peer, err)
	}
	local := connection.LocalAddr().(*net.UDPAddr).AddrPort().Addr()
	if err := connection.Close(); err != nil {
		return "", err
	}
	address := local.Unmap().WithZone("")
	for _, p := range ports {
		if slices.Contains(p.Addresses, address) && (local.Zone() == "" || local.Zone() == p.Name) {
			if p.Obstacle != nil {
				return "", usage("%s carries the route to %s, but cannot serve: %w", p.Name, peer, p.Obstacle)
			}
			return p.Name, nil
		}
	}
	return "", usage("no network device has %v, from which the route to %s starts: name one with -d", local, peer)
}

func onlyDevice(ports []xdp.Port) (string, error) {
	var able, obstacles []string
	for _, p := range ports {
		if p.Obstacle == nil {
			able = append(able, p.Name)
		} else {
			obstacles = append(obstacles, oneLine(p.Obstacle))
		}
	}
	switch len(able) {
	case 1:
		return able[0], nil
	case 0:
		return "", usage("no network device can serve: %s", strings.Join(obstacles, "; "))
	}
	return "", usage("several network devices can serve: name one of %s with -d", strings.Join(able, ", "))
}
