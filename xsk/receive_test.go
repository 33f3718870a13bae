//go:build linux

package xsk

import (
	"bytes"
	"math"
	"testing"

	"github.com/stretchr/testify/require"
)

func segment(b byte, n int) []byte { return bytes.Repeat([]byte{b}, n) }

// smallOptions has few chunks, so that everything goes round often.
var smallOptions = Options{ReceiveFrames: 16, TransmitFrames: 8, MultiBuffer: true, CheckOwners: true}

// FILL and RX of different sizes, across the wrap of the indices: masking one with the
// other's mask would mix chunks up within a few rounds.
func TestReceiveRings(t *testing.T) {
	options := smallOptions
	options.FillRing, options.ReceiveRing, options.ReceiveFrames = 64, 16, 13
	s, k := newMemorySocket(t, options, math.MaxUint32-500)
	frames := make([]Frame, 5)
	for sequence := range 2000 {
		k.deliver(t, segment(byte(sequence), 64+sequence%1000))
		require.Equal(t, 1, s.Receive(frames))
		require.Equal(t, segment(byte(sequence), 64+sequence%1000), joined(frames[0]))
		if sequence%7 == 0 {
			s.Release()
			require.Equal(t, 13, k.filled())
		}
		require.NoError(t, s.CheckOwners())
	}
	require.EqualValues(t, 2000, s.Counters().ReceivedFrames)
}

// Frames stay valid over several Receive calls, and one Release gives all back.
func TestReceiveHoldsUntilRelease(t *testing.T) {
	s, k := newMemorySocket(t, smallOptions, 0)
	var held []Frame
	for i := range 16 {
		k.deliver(t, segment(byte(i), 100))
		batch := make([]Frame, 3)
		require.Equal(t, 1, s.Receive(batch))
		held = append(held, batch[0])
	}
	require.Zero(t, k.filled())
	for i, frame := range held {
		require.Equal(t, segment(byte(i), 100), joined(frame))
		require.Equal(t, 100, cap(frame.Segments[0]), "appending must not reach the rest of the chunk")
		require.Equal(t, 1, cap(frame.Segments))
	}
	s.Release()
	require.Equal(t, 16, k.filled())
	s.Release()
	require.Equal(t, 16, k.filled())
	require.NoError(t, s.CheckOwners())
}

// A batch may end within a chain: the segments wait for the rest, also over a Release
// of the frames before.
func TestReceiveChainAcrossBatches(t *testing.T) {
	s, k := newMemorySocket(t, smallOptions, math.MaxUint32-7)
	frames := make([]Frame, 8)
	for round := range byte(20) {
		k.deliver(t, segment(round, 64))
		k.put(t, segment(1, 3840), true)
		k.receive.submit()
		require.Equal(t, 1, s.Receive(frames))
		first := frames[0]
		require.Zero(t, s.Receive(frames))

		k.put(t, segment(2, 3840), true)
		k.receive.submit()
		require.Zero(t, s.Receive(frames))
		require.Equal(t, segment(round, 64), joined(first))
		s.Release()
		require.Equal(t, 14, k.filled(), "the unfinished chain is not given back")
		require.NoError(t, s.CheckOwners())

		k.deliver(t, segment(3, 10))
		k.deliver(t, segment(4, 70))
		require.Equal(t, 2, s.Receive(frames))
		require.Equal(t, bytes.Join([][]byte{segment(1, 3840), segment(2, 3840), segment(3, 10)}, nil), joined(frames[0]))
		require.Len(t, frames[0].Segments, 3)
		require.Equal(t, 7690, frames[0].Len())
		require.Equal(t, segment(4, 70), joined(frames[1]))
		s.Release()
		require.Equal(t, 16, k.filled())
		require.NoError(t, s.CheckOwners())
	}
}

// len(frames) bounds the batch; the rest comes with the next call.
func TestReceiveBatchBound(t *testing.T) {
	s, k := newMemorySocket(t, smallOptions, 0)
	for i := range byte(7) {
		k.deliver(t, segment(i, 60), segment(i, 1))
	}
	require.Zero(t, s.Receive(nil))
	frames := make([]Frame, 4)
	require.Equal(t, 4, s.Receive(frames))
	require.Equal(t, segment(3, 61), joined(frames[3]))
	require.Equal(t, 3, s.Receive(frames))
	require.Equal(t, segment(6, 61), joined(frames[2]))
	require.Zero(t, s.Receive(frames))
}

// Chains that cannot be handed out are counted, their chunks go back, and the frames
// around them are not touched.
func TestReceiveDroppedChains(t *testing.T) {
	long := [][]byte{segment(1, 60), segment(2, 60), segment(3, 60), segment(4, 60), segment(5, 60), segment(6, 60)}
	for name, c := range map[string]struct {
		bad  [][]byte
		want Counters
	}{
		"five segments":      {long[:5], Counters{ChainsDropped: 1}},
		"six segments":       {long, Counters{ChainsDropped: 1}},
		"zero length":        {[][]byte{nil}, Counters{ZeroLength: 1}},
		"zero length first":  {[][]byte{nil, segment(1, 9)}, Counters{ZeroLength: 1}},
		"zero length middle": {[][]byte{segment(1, 9), nil, segment(1, 9)}, Counters{ZeroLength: 1}},
		"zero length last":   {[][]byte{segment(1, 9), nil}, Counters{ZeroLength: 1}},
		"two zero lengths":   {[][]byte{nil, nil}, Counters{ZeroLength: 2}},
	} {
		t.Run(name, func(t *testing.T) {
			s, k := newMemorySocket(t, smallOptions, math.MaxUint32-20)
			frames := make([]Frame, 8)
			for range 10 {
				// Alone: nobody calls Release for no frame, yet the chunks go back.
				k.deliver(t, c.bad...)
				require.Zero(t, s.Receive(frames))
				require.Equal(t, 16, k.filled())

				k.deliver(t, segment(7, 70))
				k.deliver(t, c.bad...)
				k.deliver(t, long[:4]...)
				require.Equal(t, 2, s.Receive(frames))
				require.Equal(t, segment(7, 70), joined(frames[0]))
				require.Equal(t, bytes.Join(long[:4], nil), joined(frames[1]))
				s.Release()
				require.Equal(t, 16, k.filled())
				require.NoError(t, s.CheckOwners())
			}
			c.want.ChainsDropped *= 20
			c.want.ZeroLength *= 20
			c.want.ReceivedFrames = 20
			require.Equal(t, c.want, s.Counters())
		})
	}
}

// Descriptors that a kernel never writes: counted, and no panic.
func TestReceiveInvalid(t *testing.T) {
	for name, d := range map[string]descriptor{
		"transmit chunk":  {Addr: 16*4096 + 256, Len: 64},
		"behind the UMEM": {Addr: 1 << 40, Len: 64},
		"huge address":    {Addr: math.MaxUint64 - 10, Len: 64},
		"over the end":    {Addr: 256, Len: 3841},
		"huge length":     {Addr: 256, Len: math.MaxUint32},
	} {
		t.Run(name, func(t *testing.T) {
			s, k := newMemorySocket(t, smallOptions, 0)
			k.receive.write(d)
			k.deliver(t, segment(1, 64))
			frames := make([]Frame, 4)
			require.Equal(t, 1, s.Receive(frames))
			require.Equal(t, segment(1, 64), joined(frames[0]))
			require.EqualValues(t, 1, s.Counters().InvalidReceive)
		})
	}
}

// The kernel shows received frames before it shows that it has taken their chunks from the FILL ring (net/xdp/xsk.c,
// xsk_flush): a caller that receives and gives back between the two must not lose a chunk because there is no room.
func TestReceiveBeforeFillIsReleased(t *testing.T) {
	s, k := newMemorySocket(t, smallOptions, math.MaxUint32-20)
	frames := make([]Frame, 16)
	for round := range 40 {
		taken := round%16 + 1
		require.EqualValues(t, taken, k.fill.peek(uint32(taken)))
		for range taken {
			k.receive.write(descriptor{Addr: k.fill.read() + headroom, Len: 60})
		}
		k.receive.submit()
		require.Equal(t, taken, s.Receive(frames))
		s.Release()
		k.fill.release()
		require.NoError(t, s.CheckOwners())
		require.Equal(t, 16, k.filled(), "round %d", round)
	}
}

// The same chunk twice from the kernel: with CheckOwners the second frame is dropped
// and its chunk is not given back twice; without it nothing breaks in here.
func TestReceiveChunkTwice(t *testing.T) {
	for _, check := range []bool{true, false} {
		options := smallOptions
		options.CheckOwners = check
		s, k := newMemorySocket(t, options, 0)
		k.deliver(t, segment(1, 64))
		k.receive.write(k.receive.entries[0])
		k.receive.submit()
		frames := make([]Frame, 4)
		received := s.Receive(frames)
		s.Release()
		if check {
			require.Equal(t, 1, received)
			require.EqualValues(t, 1, s.Counters().InvalidReceive)
			require.Equal(t, 16, k.filled())
			require.EqualError(t, s.CheckOwners(),
				`xsk: chunk 0 goes from "kernel for receiving" to "application, received", but its owner is "application, received"`)
			continue
		}
		require.Equal(t, 2, received)
		require.Equal(t, 17, k.filled(), "without the owners nobody can tell")
		require.NoError(t, s.CheckOwners())
		for range 60 { // more descriptors than chunks
			k.receive.write(k.receive.entries[0])
			k.receive.submit()
			s.Receive(frames)
		}
		require.NotZero(t, s.Counters().InvalidReceive)
	}
}
