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

// expectedFrame is a frame that the kernel's end delivers.
type expectedFrame struct {
	payload []byte
	segment int
	dropped bool
}

// socketModel is a socket with the kernel's end, and what must come out of it.
type socketModel struct {
	options    Options
	s          *Socket
	k          *kernel
	sequence   uint64
	arriving   []expectedFrame // delivered in full
	partial    *expectedFrame  // the kernel is within this frame
	held       []Frame
	heldWant   [][]byte
	committed  [][]byte
	published  [][]byte
	toComplete []uint64
}

// check holds after each action.
func (m *socketModel) check(t *rapid.T) {
	require.NoError(t, m.s.CheckOwners())
	for i, frame := range m.held {
		require.Equal(t, m.heldWant[i], joined(frame), "a held frame has changed")
	}
}

func (m *socketModel) deliverSegment(t *rapid.T) {
	if m.k.filled() == 0 {
		t.Skip("no chunk")
	}
	if m.partial == nil {
		m.partial = &expectedFrame{}
	}
	segment := make([]byte, rapid.SampledFrom([]int{0, 1, 64, 500, 1792}).Draw(t, "length"))
	binary.BigEndian.AppendUint64(segment[:0], m.sequence)
	m.sequence++
	more := m.options.MultiBuffer && rapid.IntRange(0, 2).Draw(t, "more") > 0
	m.k.put(t, segment, more)
	p := m.partial
	p.payload = append(p.payload, segment...)
	p.segment++
	p.dropped = p.dropped || len(segment) == 0 || p.segment > MaxSegments
	if !more {
		m.arriving = append(m.arriving, *p)
		m.partial = nil
	}
}

func (m *socketModel) receive(t *rapid.T) {
	frames := make([]Frame, rapid.IntRange(0, 6).Draw(t, "batch"))
	for i := range m.s.Receive(frames) {
		for m.arriving[0].dropped {
			m.arriving = m.arriving[1:]
		}
		require.Equal(t, m.arriving[0].payload, joined(frames[i]))
		require.Len(t, frames[i].Segments, m.arriving[0].segment)
		m.held, m.heldWant = append(m.held, frames[i]), append(m.heldWant, m.arriving[0].payload)
		m.arriving = m.arriving[1:]
	}
}

func (m *socketModel) release(*rapid.T) {
	m.s.Release()
	m.held, m.heldWant = nil, nil
}

func (m *socketModel) send(t *rapid.T) {
	buffer := m.s.Buffer()
	if buffer == nil {
		require.Equal(t, m.s.Info().TransmitBuffers(), m.s.transmit.inFlight)
		return
	}
	frame := make([]byte, rapid.IntRange(1, m.s.Info().TransmitFrameSize()).Draw(t, "length"))
	testFrame(frame, m.sequence)
	m.sequence++
	copy(buffer, frame)
	if rapid.Bool().Draw(t, "commit") {
		require.NoError(t, m.s.Commit(len(frame)))
		m.committed = append(m.committed, frame)
	}
}

func (m *socketModel) publish(*rapid.T) {
	m.s.Publish()
	m.published, m.committed = append(m.published, m.committed...), nil
}

func (m *socketModel) transmit(t *rapid.T) {
	frames, addresses := m.k.send()
	require.True(t, len(frames) == len(m.published))
	for i, frame := range frames {
		require.True(t, bytes.Equal(m.published[i], frame))
		m.toComplete = append(m.toComplete, addresses[i]...)
	}
	m.published = nil
}

func (m *socketModel) complete(t *rapid.T) {
	if len(m.toComplete) == 0 {
		t.Skip("nothing in flight")
	}
	i := rapid.IntRange(0, len(m.toComplete)-1).Draw(t, "which")
	m.k.complete(t, m.toComplete[i])
	m.toComplete = append(m.toComplete[:i], m.toComplete[i+1:]...)
}

// comeHome ends everything: every buffer must be where it was at the beginning.
func (m *socketModel) comeHome(t *rapid.T) {
	m.k.receive.submit()
	frames := make([]Frame, 100)
	m.s.Receive(frames)
	m.s.Release()
	if m.partial == nil {
		require.Equal(t, m.options.ReceiveFrames, m.k.filled())
	}
	m.s.Publish()
	_, addresses := m.k.send()
	for _, chain := range addresses {
		m.toComplete = append(m.toComplete, chain...)
	}
	m.k.complete(t, m.toComplete...)
	m.s.Reap()
	require.Equal(t, m.s.Info().TransmitBuffers(), m.s.FreeBuffers())
	require.NoError(t, m.s.CheckOwners())
	require.Zero(t, m.s.Counters().InvalidReceive+m.s.Counters().InvalidCompletions)
}

// Any order of calls against any behaviour of the kernel: frames arrive whole, in
// order and with the right bytes, held frames do not change, no chunk is lost, and
// each has one owner at all times.
func TestSocketModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := &socketModel{options: Options{
			ReceiveFrames: rapid.IntRange(1, 20).Draw(t, "receive"), TransmitFrames: 2 * rapid.IntRange(1, 5).Draw(t, "transmit"),
			MultiBuffer: rapid.Bool().Draw(t, "multi-buffer"), CheckOwners: true, ChunkSize: 2048,
		}}
		m.s, m.k = newMemorySocket(t, m.options, startIndex().Draw(t, "start"))
		t.Repeat(map[string]func(*rapid.T){
			"":                m.check,
			"deliver segment": m.deliverSegment,
			"deliver":         func(*rapid.T) { m.k.receive.submit() },
			"receive":         m.receive,
			"release":         m.release,
			"send":            m.send,
			"publish":         m.publish,
			"transmit":        m.transmit,
			"complete":        m.complete,
			"reap":            func(*rapid.T) { m.s.Reap() },
		})
		m.comeHome(t)
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
