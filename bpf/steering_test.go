//go:build linux

package bpf

import (
	"encoding/binary"
	"net/netip"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

func TestOptionsInvalid(t *testing.T) {
	for _, options := range []Options{
		{Queues: -1},
		{Queues: maxQueues + 1},
		{MAC: group4MAC},
		{QPNBase: 1},
		{QPNBase: 1, QPNBits: 4},
		{QPNBase: 0, QPNBits: 4},
		{QPNBase: 0xFFFFFF},
		{QPNBase: 0xFFFFF0, QPNBits: 4},
		{QPNBase: 2, QPNBits: 24},
		{QPNBase: 2, QPNBits: 25},
		{QPNBase: 0xFFFFFFFF},
		{QPNBase: 0xFFFFFFFF, QPNBits: 24},
		{QPNBase: 1 << 24},
	} {
		_, err := Load(options) // needs no privilege to fail
		require.ErrorIs(t, err, ErrInvalid, "%+v", options)
	}
}

// listed returns the addresses that are in the map.
func listed(t testing.TB, p *Program) map[key]bool {
	t.Helper()
	addresses := map[key]bool{}
	var address key
	var value uint8
	iterator := p.maps.Addresses.Iterate()
	for iterator.Next(&address, &value) {
		addresses[address] = true
	}
	require.NoError(t, iterator.Err())
	return addresses
}

func TestSetAddresses(t *testing.T) {
	requireRoot(t)
	p := load(t, ownOptions)
	linkLocal := netip.MustParseAddr("fe80::1")
	require.NoError(t, p.SetAddresses([]netip.Addr{
		own4, own6, own4, netip.AddrFrom16(own4.As16()), linkLocal.WithZone("device"), linkLocal.WithZone("2"),
	}))
	mapped := key{10: 0xFF, 11: 0xFF, 12: 192, 13: 0, 14: 2, 15: 1}
	require.Equal(t, map[key]bool{mapped: true, key(own6.As16()): true, key(linkLocal.As16()): true}, listed(t, p))

	require.NoError(t, p.SetAddresses([]netip.Addr{foreign6, own6}))
	require.Equal(t, map[key]bool{key(foreign6.As16()): true, key(own6.As16()): true}, listed(t, p))

	for _, wrong := range []netip.Addr{{}, group4, group6, netip.AddrFrom16(group4.As16()),
		netip.IPv4Unspecified(), netip.IPv6Unspecified()} {
		require.ErrorIs(t, p.SetAddresses([]netip.Addr{own4, wrong}), ErrInvalid, "%v", wrong)
		require.Len(t, listed(t, p), 2, "nothing has changed")
	}

	require.NoError(t, p.SetAddresses(nil))
	require.Empty(t, listed(t, p))
}

// A full list can be replaced by another full list, although both are in the map
// for a moment.
func TestSetAddressesMax(t *testing.T) {
	requireRoot(t)
	p := load(t, ownOptions)
	list := func(first, length int) []netip.Addr {
		addresses := make([]netip.Addr, length)
		for i := range addresses {
			var address [4]byte
			binary.BigEndian.PutUint32(address[:], uint32(10<<24+first+i))
			addresses[i] = netip.AddrFrom4(address)
		}
		return addresses
	}
	for _, first := range []int{0, MaxAddresses, 1} {
		require.NoError(t, p.SetAddresses(list(first, MaxAddresses)))
		require.Len(t, listed(t, p), MaxAddresses)
	}
	require.ErrorIs(t, p.SetAddresses(list(0, MaxAddresses+1)), ErrInvalid)
}

// While lists change, an address that is in both is never missing.
func TestSetAddressesKeepsCommonAddress(t *testing.T) {
	p := ownProgram(t, ownOptions)
	var done sync.WaitGroup
	done.Go(func() {
		for i := range 200 {
			other := netip.AddrFrom4([4]byte{10, 0, 0, byte(i)})
			if err := p.SetAddresses([]netip.Addr{other, own4}); err != nil {
				t.Errorf("set addresses: %v", err)
			}
		}
	})
	frame := testFrame{mac: ownMAC, destination: own4, qpn: ownQPNBase}.bytes()
	for range 400 {
		_, _, err := p.plain.Test(frame)
		require.NoError(t, err)
	}
	done.Wait()
	require.Zero(t, counters(t, p)[PassForeignAddress].Packets)
	require.EqualValues(t, 400, counters(t, p)[PassNoSocket].Packets)
}

func TestGroups(t *testing.T) {
	p := ownProgram(t, ownOptions)
	frame4 := testFrame{mac: group4MAC, destination: group4, qpn: 0xFFFFFF}.bytes()
	frame6 := testFrame{mac: group6MAC, destination: group6, qpn: 0xFFFFFF}.bytes()
	expect := func(frame []byte, want Reason) {
		t.Helper()
		_, reason := testRun(t, p, p.plain, frame)
		require.Equal(t, want, reason)
	}
	require.NoError(t, p.JoinGroup(group4)) // the second time
	expect(frame4, PassNoSocket)
	require.NoError(t, p.LeaveGroup(group4))
	expect(frame4, PassForeignMulticast)
	expect(frame6, PassNoSocket)
	require.NoError(t, p.LeaveGroup(group4))
	require.NoError(t, p.JoinGroup(netip.AddrFrom16(group4.As16()))) // the same group in IPv6 form
	expect(frame4, PassNoSocket)
	require.NoError(t, p.LeaveGroup(group6))
	expect(frame6, PassForeignMulticast)

	for _, wrong := range []netip.Addr{{}, own4, own6} {
		require.ErrorIs(t, p.JoinGroup(wrong), ErrInvalid)
		require.ErrorIs(t, p.LeaveGroup(wrong), ErrInvalid)
	}
}

func TestGroupMAC(t *testing.T) {
	for _, test := range []struct {
		group string
		mac   [6]byte
	}{
		{"224.0.0.1", [6]byte{1, 0, 0x5E, 0, 0, 1}},
		{"239.255.255.255", [6]byte{1, 0, 0x5E, 0x7F, 0xFF, 0xFF}}, // the low 23 bits only
		{"::ffff:239.129.2.3", group4MAC},
		{"ff02::1", [6]byte{0x33, 0x33, 0, 0, 0, 1}},
		{"ff0e::1234:5678", group6MAC},
	} {
		mac, err := groupMAC(netip.MustParseAddr(test.group))
		require.NoError(t, err)
		require.Equal(t, test.mac, mac, test.group)
	}
}

func TestSetMAC(t *testing.T) {
	p := ownProgram(t, ownOptions)
	other := [6]byte{0x02, 0x99, 0x88, 0x77, 0x66, 0x55}
	require.NoError(t, p.SetMAC(other))
	for _, test := range []struct {
		mac  [6]byte
		qpn  uint32
		want Reason
	}{
		{ownMAC, ownQPNBase, PassForeignMAC},
		{other, ownQPNBase, PassNoSocket},
		{other, 1, PassNoSocket}, // the rest of the configuration has not changed
		{other, ownQPNBase - 1, PassForeignQPN},
	} {
		_, reason := testRun(t, p, p.plain, testFrame{mac: test.mac, destination: own4, qpn: test.qpn}.bytes())
		require.Equal(t, test.want, reason, "%+v", test)
	}
	require.ErrorIs(t, p.SetMAC(group4MAC), ErrInvalid)
}

// Sockets that would swallow frames are refused, bound ones are redirected to,
// and the slot is empty after either way of leaving it.
func TestRegisterSocket(t *testing.T) {
	v := newVeth(t, vethOptions{})
	options := ownOptions
	options.Queues = 2
	p := ownProgram(t, options)
	require.Equal(t, 2, p.Queues())
	frame := testFrame{mac: ownMAC, destination: own4, qpn: ownQPNBase, payload: 64}.bytes()
	expect := func(wantVerdict uint32, want Reason) {
		t.Helper()
		for _, program := range p.variants() {
			verdict, reason := testRun(t, p, program, frame)
			require.Equal(t, wantVerdict, verdict)
			require.Equal(t, want, reason)
		}
	}

	bare, err := unix.Socket(unix.AF_XDP, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
	require.NoError(t, err)
	defer unix.Close(bare)
	datagram, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	require.NoError(t, err)
	defer unix.Close(datagram)
	socket := newTestSocket(t)
	for _, fd := range []int{-1, 1 << 20, datagram, bare, socket.fd} {
		require.ErrorIs(t, p.RegisterSocket(0, fd), ErrInvalid, "descriptor %d", fd)
		expect(xdpPass, PassNoSocket)
	}

	socket.bind(t, v.device.Index, 0)
	for _, queue := range []int{-1, 2, 1 << 32} {
		require.ErrorIs(t, p.RegisterSocket(queue, socket.fd), ErrInvalid)
		require.ErrorIs(t, p.UnregisterSocket(queue), ErrInvalid)
	}
	require.NoError(t, p.RegisterSocket(1, socket.fd))
	expect(xdpPass, PassNoSocket) // a test run comes in on queue 0

	require.NoError(t, p.RegisterSocket(0, socket.fd))
	expect(xdpRedirect, Redirected)
	require.NoError(t, p.UnregisterSocket(0))
	require.NoError(t, p.UnregisterSocket(0))
	expect(xdpPass, PassNoSocket)

	require.NoError(t, p.RegisterSocket(0, socket.fd))
	expect(xdpRedirect, Redirected)
	socket.close(t)
	expect(xdpPass, PassNoSocket)
}

// Calls from several goroutines do not disturb each other, and a closed program
// says so.
func TestConcurrentUseAndClose(t *testing.T) {
	requireRoot(t)
	p, err := Load(ownOptions)
	require.NoError(t, err)
	calls := map[string]func() error{
		"SetAddresses":     func() error { return p.SetAddresses([]netip.Addr{own4, own6}) },
		"JoinGroup":        func() error { return p.JoinGroup(group4) },
		"LeaveGroup":       func() error { return p.LeaveGroup(group4) },
		"SetMAC":           func() error { return p.SetMAC(ownMAC) },
		"UnregisterSocket": func() error { return p.UnregisterSocket(0) },
		"Counters":         func() error { _, err := p.Counters(); return err },
		"FDs":              func() error { _, err := p.FDs(); return err },
	}
	var done sync.WaitGroup
	for name, call := range calls {
		done.Go(func() {
			for range 20 {
				if err := call(); err != nil {
					t.Errorf("%s: %v", name, err)
				}
			}
		})
	}
	done.Wait()
	require.NoError(t, p.Close())
	require.NoError(t, p.Close())
	for name, call := range calls {
		require.ErrorIs(t, call(), ErrClosed, name)
	}
	require.ErrorIs(t, p.RegisterSocket(0, 0), ErrClosed)
	_, err = Attach(p, 1, ModeAuto)
	require.ErrorIs(t, err, ErrClosed)
}
