//go:build linux

package bpf

import (
	"bytes"
	"encoding/binary"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

const ethPAll = 0x0003

// packetSocket opens an AF_PACKET socket on a device.
func packetSocket(t testing.TB, device *net.Interface) int {
	t.Helper()
	protocol := binary.NativeEndian.Uint16(binary.BigEndian.AppendUint16(nil, ethPAll))
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, int(protocol))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, unix.Close(fd)) })
	require.NoError(t, unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: protocol, Ifindex: device.Index}))
	return fd
}

// kernelReceived reads from a packet socket until a frame came, and reports
// whether it is the wanted one.
func kernelReceived(t testing.TB, fd int, want []byte) bool {
	t.Helper()
	buffer := make([]byte, 1<<16)
	for {
		n, _, err := unix.Recvfrom(fd, buffer, 0)
		if err != nil {
			require.ErrorIs(t, err, unix.EAGAIN)
			return false
		}
		if bytes.Equal(buffer[:n], want) {
			return true
		}
	}
}

// Over a real pair of devices, on each rung: frames of the process come out of
// the socket, all others reach the kernel, both unchanged.
func TestLive(t *testing.T) {
	for _, test := range []struct {
		mode    Mode
		noFrags bool
	}{
		{ModeNative, false}, {ModeNative, true}, {ModeGeneric, false}, {ModeGeneric, true},
	} {
		v := newVeth(t, vethOptions{})
		options := ownOptions
		options.MAC, options.NoFrags = v.mac(), test.noFrags
		p := ownProgram(t, options)
		socket := newTestSocket(t)
		socket.bind(t, v.device.Index, 0)
		require.NoError(t, p.RegisterSocket(0, socket.fd))
		rung := attach(t, p, v.device, test.mode).Rung()
		require.Equal(t, test.noFrags, !rung.Frags())
		in, kernel := packetSocket(t, v.peer), packetSocket(t, v.device)

		redirected := 0
		for _, c := range verdictTests {
			frame := c.frame
			if frame.mac == ownMAC {
				frame.mac = v.mac()
			}
			frame.payload = min(frame.payload, 1024)
			sent := frame.bytes()
			before := counters(t, p)
			_, err := unix.Write(in, sent)
			require.NoError(t, err)
			if frame.tags != nil { // the kernel takes the tag out before a packet socket sees the frame
				eventually(t, c.name, func() bool { return counters(t, p)[PassVLAN].Packets > before[PassVLAN].Packets })
				continue
			}
			if c.want == PassNoSocket {
				var received []byte
				eventually(t, c.name, func() bool { received = socket.receive(); return received != nil })
				require.Equal(t, sent, received, "%v: %s", rung, c.name)
				require.False(t, kernelReceived(t, kernel, sent), "%v: %s: the kernel got it too", rung, c.name)
				require.Equal(t, before[Redirected].Packets+1, counters(t, p)[Redirected].Packets)
				redirected++
				continue
			}
			eventually(t, c.name, func() bool { return kernelReceived(t, kernel, sent) })
			after := counters(t, p)
			require.Equal(t, before[c.want].Packets+1, after[c.want].Packets, "%v: %s", rung, c.name)
			require.Equal(t, before[c.want].Bytes+uint64(len(sent)), after[c.want].Bytes)
			require.Equal(t, before[Redirected], after[Redirected])
		}
		require.Greater(t, redirected, 5)
		require.Nil(t, socket.receive())

		// With the socket gone the same frames are the kernel's.
		socket.close(t)
		sent := testFrame{mac: v.mac(), destination: own4, qpn: ownQPNBase}.bytes()
		_, err := unix.Write(in, sent)
		require.NoError(t, err)
		eventually(t, "kernel gets it", func() bool { return kernelReceived(t, kernel, sent) })
		require.EqualValues(t, 1, counters(t, p)[PassNoSocket].Packets)
	}
}

// Each receive queue has its own socket; a queue without one is the kernel's.
func TestLiveQueues(t *testing.T) {
	v := newVeth(t, vethOptions{queues: 2})
	options := ownOptions
	options.MAC, options.Queues = v.mac(), 2
	p := ownProgram(t, options)
	socket := newTestSocket(t)
	socket.bind(t, v.device.Index, 1)
	require.NoError(t, p.RegisterSocket(1, socket.fd))
	attach(t, p, v.device, ModeNative)
	in, kernel := packetSocket(t, v.peer), packetSocket(t, v.device)

	// The stack of the peer spreads flows over its two transmit queues.
	var sockets, kernels int
	for port := range 32 {
		sent := testFrame{mac: v.mac(), destination: own4, qpn: ownQPNBase}.bytes()
		binary.BigEndian.PutUint16(sent[34:], uint16(0xC000+port))
		_, err := unix.Write(in, sent)
		require.NoError(t, err)
		eventually(t, "it arrives", func() bool {
			if received := socket.receive(); received != nil {
				require.Equal(t, sent, received)
				sockets++
				return true
			}
			if kernelReceived(t, kernel, sent) {
				kernels++
				return true
			}
			return false
		})
	}
	require.Positive(t, sockets)
	require.Positive(t, kernels)
	after := counters(t, p)
	require.EqualValues(t, sockets, after[Redirected].Packets)
	require.EqualValues(t, kernels, after[PassNoSocket].Packets)
}

// A frame of 9000 bytes comes out of the socket in several descriptors, whole.
func TestLiveSeveralBuffers(t *testing.T) {
	for _, mode := range []Mode{ModeNative, ModeGeneric} {
		v := newVeth(t, vethOptions{mtu: 9000})
		options := ownOptions
		options.MAC = v.mac()
		p := ownProgram(t, options)
		socket := newTestSocket(t)
		socket.bind(t, v.device.Index, 0)
		require.NoError(t, p.RegisterSocket(0, socket.fd))
		require.True(t, attach(t, p, v.device, mode).Rung().Frags())
		in := packetSocket(t, v.peer)
		for _, payload := range []int{0, 4096, 8900} {
			sent := testFrame{mac: v.mac(), destination: own6, qpn: ownQPNBase, payload: payload}.bytes()
			before := counters(t, p)
			_, err := unix.Write(in, sent)
			require.NoError(t, err)
			var received []byte
			eventually(t, "it arrives", func() bool { received = socket.receive(); return received != nil })
			require.Equal(t, sent, received)
			require.Equal(t, before[Redirected].Bytes+uint64(len(sent)), counters(t, p)[Redirected].Bytes)
		}
	}
}

// What the program leaves to the kernel is whole: a UDP socket of the kernel at
// port 4791 gets packets for QPNs of others, and the kernel answers port
// unreachable when nobody listens.
func TestLiveKernelStack(t *testing.T) {
	for _, mode := range []Mode{ModeNative, ModeGeneric} {
		v := newVeth(t, vethOptions{})
		options := ownOptions
		options.MAC = v.mac()
		p := ownProgram(t, options)
		attach(t, p, v.device, mode)
		device, err := netlink.LinkByIndex(v.device.Index)
		require.NoError(t, err)
		require.NoError(t, netlink.AddrAdd(device, &netlink.Addr{IPNet: &net.IPNet{
			IP: own4.AsSlice(), Mask: net.CIDRMask(24, 32),
		}}))
		require.NoError(t, netlink.NeighAdd(&netlink.Neigh{
			LinkIndex: v.device.Index, State: netlink.NUD_PERMANENT,
			IP: net.IPv4(192, 0, 2, 200), HardwareAddr: v.peer.HardwareAddr,
		}))
		listener, err := net.ListenUDP("udp4", &net.UDPAddr{IP: own4.AsSlice(), Port: roceUDPPort})
		require.NoError(t, err)
		peer := packetSocket(t, v.peer)

		sent := testFrame{mac: v.mac(), destination: own4, qpn: 5, payload: 100}.bytes()
		setIPv4Checksum(sent)
		_, err = unix.Write(peer, sent)
		require.NoError(t, err)
		require.NoError(t, listener.SetReadDeadline(time.Now().Add(3*time.Second)))
		buffer := make([]byte, 2048)
		n, err := listener.Read(buffer)
		require.NoError(t, err)
		require.Equal(t, sent[42:], buffer[:n])
		require.EqualValues(t, 1, counters(t, p)[PassForeignQPN].Packets)

		require.NoError(t, listener.Close())
		_, err = unix.Write(peer, sent)
		require.NoError(t, err)
		eventually(t, "port unreachable", func() bool {
			n, _, err := unix.Recvfrom(peer, buffer, 0)
			const icmp, unreachable, port = 1, 3, 3
			return err == nil && n >= 42 && buffer[23] == icmp && buffer[34] == unreachable && buffer[35] == port
		})
		require.EqualValues(t, 2, counters(t, p)[PassForeignQPN].Packets)
	}
}

// setIPv4Checksum sets the checksum of a header without options (RFC 1071).
func setIPv4Checksum(frame []byte) {
	var sum uint32
	for i := 14; i < 34; i += 2 {
		sum += uint32(binary.BigEndian.Uint16(frame[i:]))
	}
	sum = sum&0xFFFF + sum>>16
	sum += sum >> 16
	binary.BigEndian.PutUint16(frame[24:], ^uint16(sum))
}
