package xdp

import (
	"bytes"
	"encoding/binary"
	"net"
	"net/netip"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/xroce/xroce/internal/netlab"
	"github.com/xroce/xroce/roce"
	"github.com/xroce/xroce/roce/link"
)

func TestMain(m *testing.M) {
	if role := os.Getenv("XDP_TEST_CHILD"); role != "" {
		child(role)
		return
	}
	goleak.VerifyTestMain(m)
}

// qpn is the queue pair number that the tests steer.
const qpn = 0x1234

// steer sets the steering of a device, which assigns what it was asked for.
func steer(d link.Device, s link.Steering) error {
	_, err := d.Steer(s)
	return err
}

var steering = link.Steering{QPNBase: 0x1000, QPNBits: 12}

func newPair(t *testing.T, o netlab.PairOptions) *netlab.Pair {
	t.Helper()
	netlab.RequireRoot(t)
	p, err := netlab.NewPair(o)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, p.Close()) })
	return p
}

// openEnd opens the device at one end of a pair. After the test each chunk must have had one owner at a time, and the
// kernel must have accepted every descriptor.
func openEnd(t *testing.T, e netlab.End, o Options) *Device {
	t.Helper()
	d := openUnchecked(t, e, o)
	t.Cleanup(func() {
		for number, q := range d.Queues() {
			require.Zero(t, q.Counters().InvalidDescriptors, "queue %d of %s", number, e.Name)
		}
	})
	return d
}

// openUnchecked is openEnd for tests that use descriptors wrongly.
func openUnchecked(t *testing.T, e netlab.End, o Options) *Device {
	t.Helper()
	o.NetNS, o.CheckOwners = e.Namespace.Path(), true
	d, err := Open(t.Context(), e.Name, o)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, d.Close()) })
	return d
}

// inside runs f with a netlink handle and the device of an end.
func inside(t *testing.T, e netlab.End, f func(h *netlink.Handle, device netlink.Link)) {
	t.Helper()
	require.NoError(t, e.Namespace.Do(func() error {
		h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
		require.NoError(t, err)
		defer h.Close()
		device, err := h.LinkByName(e.Name)
		require.NoError(t, err)
		f(h, device)
		return nil
	}))
}

func addressOf(t *testing.T, prefix string) *netlink.Addr {
	t.Helper()
	a, err := netlink.ParseAddr(prefix)
	require.NoError(t, err)
	a.Flags = unix.IFA_F_NODAD
	return a
}

// frameTo builds a RoCEv2 frame whose payload is filled with one byte. Nothing here checks the ICRC.
func frameTo(from, to roce.MAC, source, destination netip.Addr, qpn uint32, payload int, fill byte) []byte {
	udp := 8 + 12 + payload + 4
	frame := append(append([]byte{}, to[:]...), from[:]...)
	if destination.Is4() {
		header := make([]byte, 20)
		header[0], header[8], header[9] = 0x45, 64, unix.IPPROTO_UDP
		binary.BigEndian.PutUint16(header[2:], uint16(20+udp))
		copy(header[12:], source.AsSlice())
		copy(header[16:], destination.AsSlice())
		binary.BigEndian.PutUint16(header[10:], checksum(header))
		frame = append(append(frame, 0x08, 0x00), header...)
	} else {
		header := make([]byte, 40)
		header[0], header[6], header[7] = 0x60, unix.IPPROTO_UDP, 64
		binary.BigEndian.PutUint16(header[4:], uint16(udp))
		copy(header[8:], source.AsSlice())
		copy(header[24:], destination.AsSlice())
		frame = append(append(frame, 0x86, 0xDD), header...)
	}
	rest := bytes.Repeat([]byte{fill}, udp)
	binary.BigEndian.PutUint16(rest, 0xC000)
	binary.BigEndian.PutUint16(rest[2:], 4791)
	binary.BigEndian.PutUint16(rest[4:], uint16(udp))
	copy(rest[6:], []byte{0, 0, 4, 0, 0xFF, 0xFF}) // no checksum; SEND only, P_Key
	binary.BigEndian.PutUint32(rest[12:], qpn)
	return append(frame, rest...)
}

// checksum is the Internet checksum of RFC 1071.
func checksum(header []byte) uint16 {
	sum := uint32(0)
	for i := 0; i < len(header); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(header[i:]))
	}
	return ^uint16(sum + sum>>16)
}

// send sends one frame over a queue, as the driver would.
func send(t *testing.T, q link.Queue, frame []byte) {
	t.Helper()
	buffer := q.Buffer()
	require.GreaterOrEqual(t, len(buffer), len(frame))
	q.Commit(copy(buffer, frame))
	require.False(t, q.Pending())
	q.Publish()
	require.True(t, q.Pending())
	kick(t, q)
}

func kick(t *testing.T, q link.Queue) {
	t.Helper()
	for range 100 {
		require.NoError(t, q.Kick())
		if !q.Pending() {
			return
		}
	}
	t.Fatal("kick never ends")
}

// receive waits for one frame and returns a copy of it, nil if none comes in time.
func receive(t *testing.T, q link.Queue, patience time.Duration) []byte {
	t.Helper()
	segments := receiveSegments(t, q, patience)
	if segments == nil {
		return nil
	}
	return bytes.Join(segments, nil)
}

// pollIn waits until a descriptor is readable. The runtime's signals do not end it.
func pollIn(fd int, patience time.Duration) (n int, err error) {
	for limit := time.Now().Add(patience); ; {
		n, err = unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, int(max(0, time.Until(limit).Milliseconds())))
		if err != unix.EINTR {
			return n, err
		}
	}
}

// receiveSegments is receive for who wants to see how the frame lay in the buffers.
func receiveSegments(t *testing.T, q link.Queue, patience time.Duration) (segments [][]byte) {
	t.Helper()
	_, err := pollIn(q.FD(), patience)
	require.NoError(t, err)
	var frames [1]link.Frame
	if q.Receive(frames[:]) == 0 {
		return nil
	}
	for _, s := range frames[0].Segments {
		segments = append(segments, bytes.Clone(s))
	}
	require.Len(t, bytes.Join(segments, nil), frames[0].Length())
	q.Release()
	return segments
}

const (
	soon  = 2 * time.Second
	never = 50 * time.Millisecond // what does not come in this time does not come
)

// kernelSocket is a UDP socket on the RoCE port, which gets what the program passes to the kernel.
func kernelSocket(t *testing.T, e netlab.End) (c *net.UDPConn) {
	t.Helper()
	require.NoError(t, e.Namespace.Do(func() (err error) {
		c, err = net.ListenUDP("udp", &net.UDPAddr{Port: 4791})
		return err
	}))
	t.Cleanup(func() { c.Close() })
	return c
}

// kernelGets says whether a datagram reaches the socket.
func kernelGets(t *testing.T, c *net.UDPConn, patience time.Duration) bool {
	t.Helper()
	require.NoError(t, c.SetReadDeadline(time.Now().Add(patience)))
	_, _, err := c.ReadFromUDP(make([]byte, 65536))
	if err != nil {
		require.ErrorIs(t, err, os.ErrDeadlineExceeded)
	}
	return err == nil
}

func descriptors(t *testing.T) int {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	require.NoError(t, err)
	return len(entries)
}
