package xdp

import (
	"encoding/binary"
	"net"
	"net/netip"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/xroce/xroce/bpf"
	"github.com/xroce/xroce/internal/netlab"
	"github.com/xroce/xroce/internal/support"
	"github.com/xroce/xroce/roce/link"
	"github.com/xroce/xroce/xsk"
)

// rungQueue is a queue of a veth end with the program attached on a rung of the test's choice; Open takes the best one
// only.
func rungQueue(t *testing.T, e netlab.End, rung Rung) link.Queue {
	t.Helper()
	mode := ModeGeneric
	if rung.Native() {
		mode = ModeNative
	}
	var q *queue
	require.NoError(t, e.Namespace.Do(func() error {
		p, err := bpf.Load(bpf.Options{
			MAC: macOf(e.HardwareAddr), QPNBase: uint32(steering.QPNBase), QPNBits: steering.QPNBits, NoFrags: !rung.Frags(),
		})
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, p.Close()) })
		require.NoError(t, p.SetAddresses([]netip.Addr{e.IPv4()}))
		s, err := xsk.Open(xsk.Options{Interface: e.Index, MultiBuffer: rung.Frags(), CheckOwners: true})
		require.NoError(t, err)
		var name atomic.Pointer[string]
		name.Store(&e.Name)
		q = newQueue(s, &name, new(atomic.Bool))
		t.Cleanup(func() { require.NoError(t, q.close()) })
		require.NoError(t, p.RegisterSocket(0, s.FD()))
		attached, err := bpf.Attach(p, e.Index, mode)
		require.NoError(t, err)
		require.Equal(t, rung, attached.Rung())
		return nil
	}))
	return q
}

// TestCase_F1: with a program at one end only and nothing but the kernel's stack at the other, frames go both ways, and
// all of them, in every mode. The rule of veth that both ends need a program (or NAPI) is about frames that a program
// redirects *to a device* (drivers/net/veth.c, veth_xdp_xmit); one to a socket goes past it, and what a socket sends
// takes the way of any other packet (net/core/dev.c, __dev_direct_xmit). So there is nothing that a test of itself
// after attaching could find.
func TestCase_F1(t *testing.T) {
	for _, rung := range []Rung{bpf.RungNativeFrags, bpf.RungNative, bpf.RungGenericFrags, bpf.RungGeneric} {
		t.Run(rung.String(), func(t *testing.T) {
			p := newPair(t, netlab.PairOptions{})
			q := rungQueue(t, p.A, rung)
			kernel := kernelSocket(t, p.B)
			require.NoError(t, kernel.SetReadBuffer(8<<20))
			kernel.SetDeadline(time.Now().Add(20 * time.Second))
			inside(t, p.B, func(h *netlink.Handle, device netlink.Link) {
				require.False(t, hasProgram(device.Attrs()))
			})
			const total, batch = 4096, 32
			answer, datagram := make([]byte, 64), make([]byte, 2048)
			for sent := 0; sent < total; sent += batch {
				for i := range batch {
					frame := frameTo(macOf(p.A.HardwareAddr), macOf(p.B.HardwareAddr), p.A.IPv4(), p.B.IPv4(), qpn, 1000, byte(sent+i))
					q.Commit(copy(q.Buffer(), frame))
				}
				q.Publish()
				kick(t, q)
				for i := range batch {
					n, from, err := kernel.ReadFromUDP(datagram)
					require.NoError(t, err, "frame %d to the kernel", sent+i)
					require.Equal(t, 12+1000+4, n)
					require.Equal(t, byte(sent+i), datagram[n-1])
					require.Equal(t, p.A.IPv4().String(), from.IP.String())
				}
				for i := range batch {
					binary.BigEndian.PutUint32(answer[4:], qpn)
					answer[63] = byte(sent + i)
					_, err := kernel.WriteToUDP(answer, &net.UDPAddr{IP: p.A.IPv4().AsSlice(), Port: 4791})
					require.NoError(t, err)
				}
				for i := range batch {
					frame := receive(t, q, soon)
					require.Len(t, frame, 14+20+8+len(answer), "frame %d from the kernel", sent+i)
					require.Equal(t, byte(sent+i), frame[len(frame)-1])
				}
			}
			c := q.Counters()
			require.Equal(t, [4]uint64{total, total, 0, 0}, [4]uint64{c.Received, c.Transmitted, c.ReceiveDropped, c.TransmitDropped})
			support.Object(t, "Device", "XDP program at one end of a veth pair only, "+rung.String(), "frames go both ways")
		})
	}
}

// TestCase_F12: frames to another Ethernet address than the device's are not processed, whatever else they say; those
// to its own are, and nobody has to make the device promiscuous for that.
func TestCase_F12(t *testing.T) {
	for _, mode := range []Mode{ModeNative, ModeGeneric} {
		t.Run(mode.String(), func(t *testing.T) {
			p := newPair(t, netlab.PairOptions{})
			o := Options{Mode: mode}
			sender, d := openEnd(t, p.A, o), openEnd(t, p.B, o)
			require.NoError(t, steer(d, steering))
			kernel := packetSocket(t, p.B)
			right := d.HardwareAddr()
			foreign := func() uint64 {
				counters, err := d.SteeringCounters()
				require.NoError(t, err)
				return counters[bpf.PassForeignMAC].Packets
			}
			for bit := range 48 {
				wrong := right
				wrong[bit/8] ^= 1 << (bit % 8)
				before := foreign()
				frame := frameTo(sender.HardwareAddr(), wrong, p.A.IPv4(), p.B.IPv4(), qpn, 64, byte(bit))
				send(t, sender.Queues()[0], frame)
				require.Equal(t, frame, packet(t, kernel, soon), "it is the kernel's")
				require.Nil(t, receive(t, d.Queues()[0], 0))
				require.Equal(t, before+1, foreign())

				frame = frameTo(sender.HardwareAddr(), right, p.A.IPv4(), p.B.IPv4(), qpn, 64, byte(bit))
				send(t, sender.Queues()[0], frame)
				require.Equal(t, frame, receive(t, d.Queues()[0], soon))
			}
			inside(t, p.B, func(_ *netlink.Handle, device netlink.Link) {
				require.Zero(t, device.Attrs().Promisc)
				require.Zero(t, device.Attrs().RawFlags&unix.IFF_PROMISC)
			})
			require.Nil(t, packet(t, kernel, 0), "the kernel saw nothing of what was processed")
		})
	}
}

// packetSocket sees the IPv4 packets that the kernel's stack gets, whatever Ethernet address they are for.
func packetSocket(t *testing.T, e netlab.End) int {
	t.Helper()
	protocol := binary.NativeEndian.Uint16([]byte{0x08, 0x00}) // in network byte order
	fd := -1
	require.NoError(t, e.Namespace.Do(func() (err error) {
		fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, int(protocol))
		require.NoError(t, err)
		return unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: protocol, Ifindex: e.Index})
	}))
	t.Cleanup(func() { require.NoError(t, unix.Close(fd)) })
	return fd
}

// packet waits for a packet at a packet socket, nil if none comes in time.
func packet(t *testing.T, fd int, patience time.Duration) []byte {
	t.Helper()
	n, err := pollIn(fd, patience)
	if n == 0 {
		return nil
	}
	require.NoError(t, os.NewSyscallError("poll", err))
	buffer := make([]byte, 2048)
	n, _, err = unix.Recvfrom(fd, buffer, 0)
	require.NoError(t, err)
	return buffer[:n]
}
