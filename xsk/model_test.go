//go:build linux

package xsk

import (
	"bytes"
	"encoding/binary"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// Any order of calls against any behaviour of the kernel: frames arrive whole, in
// order and with the right bytes, held frames do not change, no chunk is lost, and
// each has one owner at all times.
func TestSocketModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		options := Options{
			ReceiveFrames: rapid.IntRange(1, 20).Draw(t, "receive"), TransmitFrames: 2 * rapid.IntRange(1, 5).Draw(t, "transmit"),
			MultiBuffer: rapid.Bool().Draw(t, "multi-buffer"), CheckOwners: true, ChunkSize: 2048,
		}
		s, k := newMemorySocket(t, options, startIndex().Draw(t, "start"))
		size, buffers := s.Info().TransmitFrameSize(), s.Info().TransmitBuffers()
		type expected struct {
			payload []byte
			segment int
			dropped bool
		}
		var (
			sequence   uint64
			arriving   []expected // delivered in full
			partial    *expected  // the kernel is within this frame
			held       []Frame
			heldWant   [][]byte
			committed  [][]byte
			published  [][]byte
			toComplete []uint64
		)
		t.Repeat(map[string]func(*rapid.T){
			"": func(t *rapid.T) {
				require.NoError(t, s.CheckOwners())
				for i, frame := range held {
					require.Equal(t, heldWant[i], joined(frame), "a held frame has changed")
				}
			},
			"deliver segment": func(t *rapid.T) {
				if k.filled() == 0 {
					t.Skip("no chunk")
				}
				if partial == nil {
					partial = &expected{}
				}
				segment := make([]byte, rapid.SampledFrom([]int{0, 1, 64, 500, 1792}).Draw(t, "length"))
				binary.BigEndian.AppendUint64(segment[:0], sequence)
				sequence++
				more := options.MultiBuffer && rapid.IntRange(0, 2).Draw(t, "more") > 0
				k.put(t, segment, more)
				partial.payload = append(partial.payload, segment...)
				partial.segment++
				partial.dropped = partial.dropped || len(segment) == 0 || partial.segment > MaxSegments
				if !more {
					arriving = append(arriving, *partial)
					partial = nil
				}
			},
			"deliver": func(*rapid.T) { k.receive.submit() },
			"receive": func(t *rapid.T) {
				frames := make([]Frame, rapid.IntRange(0, 6).Draw(t, "batch"))
				for i := range s.Receive(frames) {
					for arriving[0].dropped {
						arriving = arriving[1:]
					}
					require.Equal(t, arriving[0].payload, joined(frames[i]))
					require.Len(t, frames[i].Segments, arriving[0].segment)
					held, heldWant = append(held, frames[i]), append(heldWant, arriving[0].payload)
					arriving = arriving[1:]
				}
			},
			"release": func(*rapid.T) {
				s.Release()
				held, heldWant = nil, nil
			},
			"send": func(t *rapid.T) {
				buffer := s.Buffer()
				if buffer == nil {
					require.Equal(t, buffers, s.transmit.inFlight)
					return
				}
				frame := make([]byte, rapid.IntRange(1, size).Draw(t, "length"))
				testFrame(frame, sequence)
				sequence++
				copy(buffer, frame)
				if rapid.Bool().Draw(t, "commit") {
					require.NoError(t, s.Commit(len(frame)))
					committed = append(committed, frame)
				}
			},
			"publish": func(*rapid.T) {
				s.Publish()
				published, committed = append(published, committed...), nil
			},
			"transmit": func(t *rapid.T) {
				frames, addresses := k.send()
				require.True(t, len(frames) == len(published))
				for i, frame := range frames {
					require.True(t, bytes.Equal(published[i], frame))
					toComplete = append(toComplete, addresses[i]...)
				}
				published = nil
			},
			"complete": func(t *rapid.T) {
				if len(toComplete) == 0 {
					t.Skip("nothing in flight")
				}
				i := rapid.IntRange(0, len(toComplete)-1).Draw(t, "which")
				k.complete(t, toComplete[i])
				toComplete = append(toComplete[:i], toComplete[i+1:]...)
			},
			"reap": func(*rapid.T) { s.Reap() },
		})

		// Everything comes home.
		k.receive.submit()
		frames := make([]Frame, 100)
		s.Receive(frames)
		s.Release()
		if partial == nil {
			require.Equal(t, options.ReceiveFrames, k.filled())
		}
		s.Publish()
		_, addresses := k.send()
		for _, chain := range addresses {
			toComplete = append(toComplete, chain...)
		}
		k.complete(t, toComplete...)
		s.Reap()
		require.Equal(t, buffers, s.FreeBuffers())
		require.NoError(t, s.CheckOwners())
		require.Zero(t, s.Counters().InvalidReceive+s.Counters().InvalidCompletions)
	})
}

// A kernel on another goroutine sends every frame back. Under the race detector this
// shows that the rings order the accesses to the frames themselves, in both
// directions, while others look at the counters.
func TestSocketConcurrentLoopback(t *testing.T) {
	const total = 10_000
	options := Options{ReceiveFrames: 64, TransmitFrames: 32, MultiBuffer: true, ChunkSize: 2048, CheckOwners: true}
	s, k := newMemorySocket(t, options, 1<<32-5000)
	var stop atomic.Bool
	kernelDone, watcherDone := newDone(), newDone()
	go func() {
		defer close(kernelDone)
		for !stop.Load() {
			for k.transmit.peek(1) == 1 {
				d := k.transmit.read()
				for k.fill.peek(1) == 0 {
					yield()
				}
				chunk := k.fill.read()
				// The frame goes back as it came, in segments of at most a chunk less the
				// headroom: here the test sends no more than that in a descriptor.
				copy(k.memory[chunk:chunk+k.chunkSize], k.memory[d.Addr:d.Addr+uint64(d.Len)])
				k.receive.write(descriptor{Addr: chunk, Len: d.Len, Options: d.Options})
				k.completion.write(d.Addr)
			}
			k.transmit.release()
			k.fill.release()
			k.receive.submit()
			k.completion.submit()
			yield()
		}
	}()
	go func() {
		defer close(watcherDone)
		for !stop.Load() {
			s.Counters()
			s.KickPending()
			yield()
		}
	}()
	frames := make([]Frame, 16)
	want := make([]byte, 4096)
	length := func(sequence uint64) int { return 14 + int(sequence*7919%4000) }
	var sent, received uint64
	for received < total {
		for sent < total && sent-received < 24 {
			buffer := s.Buffer()
			if buffer == nil {
				break
			}
			testFrame(buffer[:length(sent)], sent)
			require.NoError(t, s.Commit(length(sent)))
			sent++
		}
		s.Publish()
		n := s.Receive(frames)
		for _, frame := range frames[:n] {
			requireFrame(t, want[:length(received)], frame, received)
			received++
		}
		s.Release()
		if n == 0 {
			yield()
		}
	}
	stop.Store(true)
	<-kernelDone
	<-watcherDone
	s.Reap()
	require.Equal(t, 16, s.FreeBuffers())
	require.NoError(t, s.CheckOwners())
	require.EqualValues(t, total, s.Counters().ReceivedFrames)
}
