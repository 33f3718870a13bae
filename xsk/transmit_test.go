//go:build linux

package xsk

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

func send(t testing.TB, s *Socket, sequence uint64, length int) {
	t.Helper()
	buffer := s.Buffer()
	require.NotNil(t, buffer)
	testFrame(buffer[:length], sequence)
	require.NoError(t, s.Commit(length))
}

// One descriptor up to a chunk, two beyond, with the flag on the first.
func TestCommitDescriptors(t *testing.T) {
	for _, c := range []struct {
		length int
		want   []descriptor
	}{
		{1, []descriptor{{Addr: 16 * 4096, Len: 1}}},
		{4096, []descriptor{{Addr: 16 * 4096, Len: 4096}}},
		{4097, []descriptor{{Addr: 16 * 4096, Len: 4096, Options: unix.XDP_PKT_CONTD}, {Addr: 17 * 4096, Len: 1}}},
		{8192, []descriptor{{Addr: 16 * 4096, Len: 4096, Options: unix.XDP_PKT_CONTD}, {Addr: 17 * 4096, Len: 4096}}},
	} {
		s, k := newMemorySocket(t, smallOptions, math.MaxUint32)
		buffer := s.Buffer()
		require.Len(t, buffer, 8192)
		require.Equal(t, 8192, cap(buffer))
		require.NoError(t, s.Commit(c.length))
		require.False(t, s.KickPending())
		require.Zero(t, k.transmit.peek(1), "invisible until Publish")
		s.Publish()
		require.True(t, s.KickPending())
		require.EqualValues(t, len(c.want), k.transmit.peek(9))
		for _, want := range c.want {
			require.Equal(t, want, k.transmit.read())
		}
		k.transmit.release()
		require.False(t, s.KickPending())
		require.NoError(t, s.CheckOwners())
		for _, d := range c.want {
			require.Equal(t, 3, s.FreeBuffers(), "taken until the last descriptor is complete")
			k.complete(t, d.Addr)
			s.Reap()
		}
		require.Equal(t, 4, s.FreeBuffers())
		require.NoError(t, s.CheckOwners())
	}
}

func TestCommitMisuse(t *testing.T) {
	s, k := newMemorySocket(t, smallOptions, 0)
	require.ErrorContains(t, s.Commit(64), "call Buffer first")
	buffer := s.Buffer()
	for _, length := range []int{0, -1, 8193, math.MaxInt} {
		err := s.Commit(length)
		require.ErrorIs(t, err, unix.EINVAL)
		require.ErrorContains(t, err, "must be from 1 to 8192")
	}
	again := s.Buffer()
	require.Same(t, &buffer[0], &again[0])
	require.NoError(t, s.Commit(64))
	require.ErrorContains(t, s.Commit(64), "call Buffer first")
	s.Publish()
	frames, _ := k.send()
	require.Len(t, frames, 1)
	require.NoError(t, s.CheckOwners())
}

// A buffer that is not committed comes back; all of them can be in flight; the one
// that became free last is taken first.
func TestBufferOrder(t *testing.T) {
	s, k := newMemorySocket(t, smallOptions, 0)
	require.Equal(t, 4, s.FreeBuffers())
	var started []*byte
	for range 4 {
		buffer, again := s.Buffer(), s.Buffer()
		require.Same(t, &buffer[0], &again[0])
		started = append(started, &buffer[0])
		require.Equal(t, 4, s.FreeBuffers()+s.transmit.inFlight)
		require.NoError(t, s.Commit(100))
		require.NoError(t, s.CheckOwners())
	}
	require.Nil(t, s.Buffer())
	require.Zero(t, s.FreeBuffers())
	s.Publish()
	_, addresses := k.send()
	require.Nil(t, s.Buffer())
	k.complete(t, addresses[2]...)
	k.complete(t, addresses[0]...)
	// Buffer reaps by itself when it runs out.
	require.Same(t, started[0], &s.Buffer()[0])
	require.Equal(t, 2, s.FreeBuffers())
	require.NoError(t, s.CheckOwners())
}

// Completions in any order, and those that cannot be.
func TestReap(t *testing.T) {
	s, k := newMemorySocket(t, smallOptions, math.MaxUint32-2)
	require.Zero(t, s.Reap())
	for i := range 4 {
		send(t, s, uint64(i), 4097)
	}
	s.Publish()
	_, addresses := k.send()
	k.complete(t, addresses[3][1], addresses[0][0], addresses[3][0])
	require.Equal(t, 1, s.Reap())
	require.Equal(t, 1, s.FreeBuffers())
	// Of a free buffer, of the receive side, behind the UMEM, below zero.
	k.complete(t, addresses[3][0], 0, 24*4096, math.MaxUint64)
	require.Zero(t, s.Reap())
	require.EqualValues(t, 4, s.Counters().InvalidCompletions)
	k.complete(t, addresses[0][1], addresses[1][0], addresses[1][1], addresses[2][0])
	require.Equal(t, 2, s.Reap())
	k.complete(t, addresses[2][1])
	require.Equal(t, 1, s.Reap())
	require.Equal(t, 4, s.FreeBuffers())
	require.NoError(t, s.CheckOwners())
	require.EqualValues(t, 4, s.Counters().TransmittedFrames)
}

// TX and COMPLETION of different sizes, many rounds, across the wrap.
func TestTransmitRings(t *testing.T) {
	options := smallOptions
	options.TransmitRing, options.CompletionRing = 16, 64
	s, k := newMemorySocket(t, options, math.MaxUint32-300)
	want := make([]byte, 8192)
	for sequence := uint64(0); sequence < 1000; {
		first := sequence
		for range 1 + sequence%4 {
			send(t, s, sequence, 14+int(sequence*37%8000))
			sequence++
		}
		s.Publish()
		frames, addresses := k.send()
		require.Len(t, frames, int(sequence-first))
		for i, frame := range frames {
			number := first + uint64(i)
			requireFrame(t, want[:14+number*37%8000], Frame{Segments: [][]byte{frame}}, number)
			k.complete(t, addresses[i]...)
		}
		require.Equal(t, len(frames), s.Reap())
		require.NoError(t, s.CheckOwners())
	}
}
