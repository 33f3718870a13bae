//go:build linux

package xsk

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
)

// BenchmarkOneWay sends frames from one end of a veth pair to the other, both ends
// driven by one goroutine, 32 frames per kick. It measures this package and the
// kernel's copies; the frames are neither written nor read. One op is one frame.
func BenchmarkOneWay(b *testing.B) {
	for _, generic := range []bool{false, true} {
		for _, length := range []int{74, 1098, 2106, 4170} {
			b.Run(fmt.Sprintf("%s/%d", modeName(generic), length), func(b *testing.B) {
				oneWay(b, generic, length, 32, Options{MultiBuffer: length > 3840})
			})
		}
	}
}

// BenchmarkTransmitLimits is the same with what bounds a kick in copy mode, for batches that reach these bounds: the
// transmit budget of old kernels and the one asked for, the send buffer of the system and the one asked for, and for
// short frames whether multi-buffer costs anything.
func BenchmarkTransmitLimits(b *testing.B) {
	for _, length := range []int{1098, 4170} {
		for _, c := range []struct {
			name    string
			options Options
		}{
			{"defaults", Options{MultiBuffer: true}},
			{"budget=32", Options{MultiBuffer: true, TransmitBudget: 32}},
			{"sndbuf=system", Options{MultiBuffer: true, SendBuffer: -1}},
			{"budget=32,sndbuf=system", Options{MultiBuffer: true, TransmitBudget: 32, SendBuffer: -1}},
			{"single buffer", Options{}},
		} {
			if length > 3840 && !c.options.MultiBuffer {
				continue
			}
			b.Run(fmt.Sprintf("%d/%s", length, c.name), func(b *testing.B) { oneWay(b, false, length, 128, c.options) })
		}
	}
}

// oneWay sends frames of a length in batches, each with one kick or as many as it takes.
func oneWay(b *testing.B, generic bool, length, batch int, options Options) {
	near, far := newPair(b, 1, 9000)
	from, to := near.mustOpen(b, options), far.receiver(b, generic, options)
	size := from.Info().TransmitFrameSize()
	for start := 0; start < len(from.transmit.memory); start += size {
		testFrame(from.transmit.memory[start:start+length], 0)
	}
	frames := make([]Frame, 2*batch)
	b.SetBytes(int64(length))
	b.ReportAllocs()
	sent, received := 0, 0
	for ; b.Loop(); sent++ {
		if sent%batch != 0 {
			continue
		}
		for range batch {
			from.Buffer()
			_ = from.Commit(length)
		}
		from.Publish()
		for from.KickPending() {
			_, _ = from.Kick()
		}
		// More than one turn only where ksoftirqd has taken over.
		for turns := 0; received < sent+batch || from.FreeBuffers() < from.Info().TransmitBuffers(); turns++ {
			if turns == 10_000_000 {
				b.Fatalf("%d of %d frames arrived", received, sent+batch)
			}
			from.Reap()
			received += to.Receive(frames)
			to.Release()
		}
	}
	b.ReportMetric(float64(from.Counters().Kicks)/float64(sent)*float64(batch), "kicks/batch")
	require.GreaterOrEqual(b, received, sent)
	requireNoLoss(b, to)
}

// BenchmarkUserSide is this package alone, against a kernel played in memory that only
// moves indices: Buffer, Commit, Publish, Reap, Receive and Release of one frame.
func BenchmarkUserSide(b *testing.B) {
	const batch = 32
	for _, check := range []bool{false, true} {
		b.Run(fmt.Sprintf("owners checked=%t", check), func(b *testing.B) {
			s, k := newMemorySocket(b, Options{CheckOwners: check}, 0)
			frames := make([]Frame, batch)
			for sent := 0; b.Loop(); sent++ {
				if sent%batch != 0 {
					continue
				}
				for range batch {
					s.Buffer()
					_ = s.Commit(64)
				}
				s.Publish()
				k.fill.peek(batch)
				k.receive.reserve(batch)
				k.completion.reserve(batch)
				for range k.transmit.peek(batch) {
					k.completion.write(k.transmit.read().Addr)
					k.receive.write(descriptor{Addr: k.fill.read() + headroom, Len: 64})
				}
				k.transmit.release()
				k.fill.release()
				k.completion.submit()
				k.receive.submit()
				s.Reap()
				s.Receive(frames)
				s.Release()
			}
			require.NoError(b, s.CheckOwners())
		})
	}
}
