package xdp

import (
	"bytes"
	"fmt"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/xroce/xroce/internal/netlab"
	"github.com/xroce/xroce/roce/link"
)

func TestFramesBothWays(t *testing.T) {
	for _, mode := range []Mode{ModeNative, ModeGeneric} {
		t.Run(mode.String(), func(t *testing.T) {
			p := newPair(t, netlab.PairOptions{})
			a, b := openEnd(t, p.A, Options{Mode: mode}), openEnd(t, p.B, Options{Mode: mode})
			require.NoError(t, steer(a, steering))
			require.NoError(t, steer(b, steering))

			information := a.Information()
			require.Len(t, information.NotTaken, 1)
			require.Contains(t, information.NotTaken[0], "zero copy: ")
			why := "the driver has no zero copy"
			if mode == ModeGeneric {
				why = "it needs an XDP program in native mode"
			}
			require.Contains(t, information.NotTaken[0], why)
			information.NotTaken = nil
			require.Equal(t, link.Information{
				Name: "veth0", Driver: "veth", Mode: mode.String() + "+frags", MultiBuffer: true,
			}, information)
			require.Equal(t, 7680, a.MaximumFrame())
			require.Equal(t, p.A.HardwareAddr.String(), a.HardwareAddr().String())

			for _, way := range []struct {
				from, to            *Device
				source, destination netip.Addr
			}{
				{a, b, p.A.IPv4(), p.B.IPv4()},
				{b, a, p.B.IPv4(), p.A.IPv4()},
				{a, b, p.A.IPv6(), p.B.IPv6()},
				{b, a, p.B.LinkLocal.Addr(), p.A.LinkLocal.Addr()},
			} {
				for i, payload := range []int{0, 1, 1024} {
					frame := frameTo(way.from.HardwareAddr(), way.to.HardwareAddr(), way.source, way.destination, qpn, payload, byte(i+1))
					send(t, way.from.Queues()[0], frame)
					require.Equal(t, frame, receive(t, way.to.Queues()[0], soon))
				}
			}
			for _, d := range []*Device{a, b} {
				got := d.Queues()[0].Counters()
				require.Equal(t, link.Counters{Received: 6, Transmitted: 6, Kicks: 6}, got)
			}
		})
	}
}

// Many frames in batches, so that every ring wraps and every buffer is used again.
func TestManyFrames(t *testing.T) {
	p := newPair(t, netlab.PairOptions{})
	o := Options{ReceiveFrames: 128, TransmitFrames: 256} // two for each frame to send
	a, b := openEnd(t, p.A, o), openEnd(t, p.B, o)
	require.NoError(t, steer(b, steering))
	from, to := a.Queues()[0], b.Queues()[0]
	const batches, size = 200, 100
	frames := make([]link.Frame, 2*receiveBatch)
	for batch := range batches {
		for i := range size {
			buffer := from.Buffer()
			require.NotNil(t, buffer)
			frame := frameTo(a.HardwareAddr(), b.HardwareAddr(), p.A.IPv4(), p.B.IPv4(), qpn, 64, byte(batch+i))
			from.Commit(copy(buffer, frame))
		}
		from.Publish()
		kick(t, from)
		require.Equal(t, size, to.Receive(frames), "more than one batch of the socket at once")
		for i := range size {
			segment := frames[i].Segments[0]
			require.Equal(t, byte(batch+i), segment[len(segment)-1])
		}
		to.Release()
	}
	require.Equal(t, uint64(batches*size), to.Counters().Received)
	require.Zero(t, to.Counters().ReceiveDropped)
	require.Zero(t, from.Counters().InvalidDescriptors)
}

func TestDataPathDoesNotAllocate(t *testing.T) {
	p := newPair(t, netlab.PairOptions{})
	a, b := openEnd(t, p.A, Options{}), openEnd(t, p.B, Options{})
	require.NoError(t, steer(b, steering))
	from, to := a.Queues()[0], b.Queues()[0]
	frame := frameTo(a.HardwareAddr(), b.HardwareAddr(), p.A.IPv4(), p.B.IPv4(), qpn, 1024, 1)
	frames := make([]link.Frame, 8)
	received := 0
	allocations := testing.AllocsPerRun(100, func() {
		for range len(frames) {
			from.Commit(copy(from.Buffer(), frame))
		}
		from.Publish()
		for from.Pending() {
			_ = from.Kick()
		}
		received += to.Receive(frames)
		to.Release()
	})
	require.Zero(t, allocations)
	require.Equal(t, 101*len(frames), received)
}

func TestReceiveDropsAreCounted(t *testing.T) {
	p := newPair(t, netlab.PairOptions{})
	a, b := openEnd(t, p.A, Options{}), openEnd(t, p.B, Options{ReceiveFrames: 16})
	require.NoError(t, steer(b, steering))
	for range 20 {
		send(t, a.Queues()[0], frameTo(a.HardwareAddr(), b.HardwareAddr(), p.A.IPv4(), p.B.IPv4(), qpn, 64, 1))
	}
	require.Equal(t, uint64(4), b.Queues()[0].Counters().ReceiveDropped)
	require.NoError(t, b.Close())
	require.Equal(t, uint64(4), b.Queues()[0].Counters().ReceiveDropped, "the last counters stay")
}

// A frame longer than the peer takes is dropped by veth, one by one.
func TestTransmitDropsAreCounted(t *testing.T) {
	p := newPair(t, netlab.PairOptions{})
	a := openEnd(t, p.A, Options{})
	q := a.Queues()[0]
	for range 3 {
		q.Commit(len(q.Buffer()))
	}
	q.Publish()
	kick(t, q)
	counters := q.Counters()
	require.Equal(t, uint64(3), counters.TransmitDropped)
	require.Equal(t, uint64(3), counters.Transmitted)
	require.GreaterOrEqual(t, counters.KickRetries, uint64(3))
}

func TestWrongLengthsAreRefused(t *testing.T) {
	p := newPair(t, netlab.PairOptions{})
	q := openUnchecked(t, p.A, Options{}).Queues()[0]
	buffer := q.Buffer()
	for _, length := range []int{0, -1, len(buffer) + 1} {
		q.Commit(length)
	}
	q.Publish()
	require.False(t, q.Pending())
	require.Equal(t, uint64(3), q.Counters().InvalidDescriptors)
	require.Equal(t, &buffer[0], &q.Buffer()[0], "the buffer stays with the caller")
}

func TestMultiBuffer(t *testing.T) {
	for _, mode := range []Mode{ModeNative, ModeGeneric} {
		t.Run(mode.String(), func(t *testing.T) {
			p := newPair(t, netlab.PairOptions{MTU: 9000})
			o := Options{Mode: mode, MultiBuffer: MultiBufferOn}
			a, b := openEnd(t, p.A, o), openEnd(t, p.B, o)
			require.Equal(t, 7680, a.MaximumFrame())
			require.NoError(t, steer(b, steering))
			// The largest packet of path MTU 4096, and the largest frame.
			for _, payload := range []int{100, 4096 + 16, a.MaximumFrame() - 14 - 20 - 8 - 12 - 4} {
				frame := frameTo(a.HardwareAddr(), b.HardwareAddr(), p.A.IPv4(), p.B.IPv4(), qpn, payload, 7)
				send(t, a.Queues()[0], frame)
				segments := receiveSegments(t, b.Queues()[0], soon)
				require.Equal(t, frame, bytes.Join(segments, nil))
				// The kernel fills one chunk before it begins another (net/xdp/xsk.c, xsk_copy_xdp), however the
				// driver has cut the frame: all headers lie in the first.
				require.Len(t, segments[0], min(len(frame), chunkSize-receiveReserve))
				require.Len(t, segments, (len(frame)+chunkSize-receiveReserve-1)/(chunkSize-receiveReserve))
			}
		})
	}
}

func TestOneChunkBoundsTheFrame(t *testing.T) {
	p := newPair(t, netlab.PairOptions{MTU: 9000})
	o := Options{MultiBuffer: MultiBufferOff}
	a, b := openEnd(t, p.A, o), openEnd(t, p.B, o)
	require.NoError(t, steer(b, steering))
	require.Equal(t, 3840, a.MaximumFrame())
	information := a.Information()
	require.False(t, information.MultiBuffer)
	require.Equal(t, "multi-buffer: not wanted", information.NotTaken[1])
	headers := 14 + 20 + 8 + 12 + 4
	longest := frameTo(a.HardwareAddr(), b.HardwareAddr(), p.A.IPv4(), p.B.IPv4(), qpn, 3840-headers, 7)
	send(t, a.Queues()[0], longest)
	require.Equal(t, longest, receive(t, b.Queues()[0], soon))
	tooLong := frameTo(a.HardwareAddr(), b.HardwareAddr(), p.A.IPv4(), p.B.IPv4(), qpn, 3841-headers, 7)
	send(t, a.Queues()[0], tooLong)
	require.Nil(t, receive(t, b.Queues()[0], never))
	require.Equal(t, uint64(1), b.Queues()[0].Counters().ReceiveDropped)
}

func TestQueues(t *testing.T) {
	p := newPair(t, netlab.PairOptions{Queues: 3})
	a := openEnd(t, p.A, Options{})
	require.Len(t, a.Queues(), 3)
	b := openEnd(t, p.B, Options{Queues: 2})
	require.Len(t, b.Queues(), 2)
	require.NoError(t, steer(b, steering))
	kernel := kernelSocket(t, p.B)
	for number, q := range a.Queues() {
		frame := frameTo(a.HardwareAddr(), b.HardwareAddr(), p.A.IPv4(), p.B.IPv4(), qpn, 64, byte(number))
		send(t, q, frame)
		if number < 2 {
			require.Equal(t, frame, receive(t, b.Queues()[number], soon))
		} else {
			require.True(t, kernelGets(t, kernel, soon), "a queue without socket passes to the kernel")
		}
	}
}

func TestSteering(t *testing.T) {
	p := newPair(t, netlab.PairOptions{})
	a, b := openEnd(t, p.A, Options{}), openEnd(t, p.B, Options{})
	kernel := kernelSocket(t, p.B)
	q := b.Queues()[0]
	arrives := func(number uint32) string {
		send(t, a.Queues()[0], frameTo(a.HardwareAddr(), b.HardwareAddr(), p.A.IPv4(), p.B.IPv4(), number, 64, 1))
		if frame := receive(t, q, 0); frame != nil {
			require.False(t, kernelGets(t, kernel, never))
			return "queue"
		}
		require.True(t, kernelGets(t, kernel, soon))
		return "kernel"
	}
	require.Equal(t, "kernel", arrives(qpn), "before Steer")
	require.Equal(t, "kernel", arrives(1), "before Steer")

	require.NoError(t, steer(b, link.Steering{QPNBase: 0x1000, QPNBits: 4, OwnGSI: true}))
	for number, want := range map[uint32]string{0xFFF: "kernel", 0x1000: "queue", 0x100F: "queue", 0x1010: "kernel", 1: "queue"} {
		require.Equal(t, want, arrives(number), "QPN %#x", number)
	}
	require.NoError(t, steer(b, link.Steering{QPNBase: 0x2000, QPNBits: 0}))
	for number, want := range map[uint32]string{0x1000: "kernel", 0x2000: "queue", 0x2001: "kernel", 1: "kernel"} {
		require.Equal(t, want, arrives(number), "QPN %#x after the second Steer", number)
	}
	for _, wrong := range []link.Steering{
		{QPNBase: 1, QPNBits: 4}, {QPNBase: 0x1000, QPNBits: 25}, {QPNBase: 0x1000, QPNBits: 255},
		{QPNBase: 0xFFFFFF}, {QPNBase: 0xFFFFF0, QPNBits: 4}, {QPNBase: 0xFFFFFFFF, QPNBits: 24},
	} {
		err := steer(b, wrong)
		require.ErrorIs(t, err, ErrInvalidOptions, fmt.Sprintf("%+v", wrong))
		require.True(t, IsEnvironment(err))
	}
	require.NoError(t, steer(b, link.Steering{QPNBase: 0xFFFFEF, QPNBits: 4}), "up to 0xFFFFFE")
	require.Equal(t, "queue", arrives(0xFFFFFE))
	require.NoError(t, steer(b, link.Steering{}))
	require.Equal(t, "kernel", arrives(0x2000))

	counters, err := b.SteeringCounters()
	require.NoError(t, err)
	require.Equal(t, "redirected", counters[0].Reason.String())
	require.Equal(t, uint64(5), counters[0].Packets)
	require.NoError(t, b.Close())
	require.ErrorIs(t, steer(b, steering), link.ErrClosed)
}
