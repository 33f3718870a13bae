package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
	"syscall"
	"time"

	"github.com/xroce/xroce/internal/netns"
)

// netnsFlag chooses the network namespace of the device.
type netnsFlag struct {
	NetNS string `name:"netns" placeholder:"NAME" help:"Network namespace of the device, by its name as for ip netns or by a path (default: ${netns_default})."`
}

// path of the namespace; empty for that of the process.
func (n netnsFlag) path() string { return namespacePath(n.NetNS) }

// do runs f on a thread in the namespace. What f starts elsewhere runs outside of it.
func (n netnsFlag) do(f func() error) error {
	if n.NetNS == "" {
		return f()
	}
	namespace, err := netns.Open(n.path())
	if err != nil {
		return usage("network namespace: %w", err)
	}
	defer namespace.Close()
	return namespace.Do(f)
}

// network is the name of the namespace as a device tells it (verbs.Snapshot): "net:[4026531833]"; empty without the
// flag.
func (n netnsFlag) network() (name string, err error) {
	if n.NetNS == "" {
		return "", nil
	}
	return name, n.do(func() (err error) {
		name, err = os.Readlink("/proc/thread-self/ns/net")
		return err
	})
}

// namespacePath returns the path of a network namespace that is given by name or path (ip-netns(8)).
func namespacePath(name string) string {
	if name == "" || strings.Contains(name, "/") {
		return name
	}
	return "/run/netns/" + name
}

// addressesOf finds the addresses of a host, as the process's own namespace knows it.
func addressesOf(ctx context.Context, host string) ([]netip.Addr, error) {
	if address, err := netip.ParseAddr(host); err == nil {
		return []netip.Addr{address}, nil
	}
	found, err := net.DefaultResolver.LookupNetIP(ctx, "ip", host)
	if err != nil {
		return nil, usage("%w", err)
	}
	return found, nil
}

// dial connects to one of the addresses of a host, from the namespace. The socket of an address is made by the
// calling thread.
func (n netnsFlag) dial(ctx context.Context, dialer *net.Dialer, network, host string,
	port uint16) (connection net.Conn, err error) {
	addresses, err := addressesOf(ctx, host)
	if err != nil {
		return nil, err
	}
	err = n.do(func() error {
		var failures []error
		for _, address := range addresses {
			c, err := dialer.DialContext(ctx, network, net.JoinHostPort(address.String(), fmt.Sprint(port)))
			if err == nil {
				connection = c
				return nil
			}
			failures = append(failures, err)
		}
		return errors.Join(failures...)
	})
	return connection, err
}

// listen waits on IPv6 and IPv4, in the namespace. Left to itself Go listens on IPv4 only where it cannot bind to ::1,
// as where lo has never been up (net/ipsock_posix.go, ipStackCapabilities.probe).
func (n netnsFlag) listen(ctx context.Context, port uint16) (listener net.Listener, err error) {
	both := net.ListenConfig{Control: bothFamilies}
	err = n.do(func() (err error) {
		if listener, err = both.Listen(ctx, "tcp6", fmt.Sprint("[::]:", port)); noIPv6(err) {
			listener, err = new(net.ListenConfig).Listen(ctx, "tcp4", fmt.Sprint(":", port))
		}
		return err
	})
	return listener, err
}

// noIPv6 says whether an error comes from a kernel or a namespace without IPv6.
func noIPv6(err error) bool {
	return errors.Is(err, syscall.EAFNOSUPPORT) || errors.Is(err, syscall.EADDRNOTAVAIL)
}

// reach connects to where another end of a command waits.
func (n netnsFlag) reach(ctx context.Context, host string, port uint16, command string) (net.Conn, error) {
	at := net.JoinHostPort(host, fmt.Sprint(port))
	connection, err := n.dial(ctx, &net.Dialer{Timeout: 10 * time.Second}, "tcp", host, port)
	switch {
	case errors.Is(err, syscall.ECONNREFUSED):
		return nil, fmt.Errorf("no %s waits at %s: %w", command, at, err)
	case err != nil:
		return nil, fmt.Errorf("cannot reach %s: %w", at, err)
	}
	return connection, nil
}
