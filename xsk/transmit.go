//go:build linux

// Life of a sent frame.
//
//	free -> application -> TX -> kernel -> COMPLETION -> free
//
// Buffer takes the buffer that became free last, which is the one most likely still
// in the CPU's cache. The application writes the frame into it; Commit makes one
// descriptor of it, or two where the frame is longer than a chunk; Publish shows all
// of them to the kernel with one store, and Kick (kick.go) makes the kernel look. In
// copy mode the kernel copies the frame within the Kick, but the buffer stays taken
// until the driver has freed that copy: then its address appears in the COMPLETION
// ring, one entry per descriptor, and Reap puts the buffer back into the free list.
//
// The TX and COMPLETION rings have a place for every transmit chunk, so neither can
// be full. The kernel never completes a descriptor that it finds invalid
// (net/xdp/xsk_queue.h): such a buffer would be lost, hence the checks in Commit.

package xsk

import (
	"fmt"
	"math/bits"

	"golang.org/x/sys/unix"
)

const noBuffer = -1

// transmitter is the send side. One goroutine at a time.
type transmitter struct {
	ring       producer[descriptor]
	completion consumer[uint64]
	memory     []byte // the transmit buffers
	base       uint64 // UMEM address of the first
	chunkSize  uint64
	bufferSize uint64
	shift      uint // log2 of bufferSize

	free      []uint32 // buffers, the last one is taken first
	pending   []uint8  // per buffer: descriptors not completed
	current   int      // the buffer that Buffer handed out, or noBuffer
	committed int      // frames since the last Publish
	inFlight  int      // buffers between Commit and Reap
}

func newTransmitter(info Info, memory []byte, ring ring[descriptor], completion ring[uint64]) transmitter {
	base := info.ReceiveFrames * info.ChunkSize
	t := transmitter{
		ring:       newProducer(ring),
		completion: newConsumer(completion),
		memory:     memory[base:info.umemSize()],
		base:       uint64(base),
		chunkSize:  uint64(info.ChunkSize),
		bufferSize: uint64(info.TransmitFrameSize()),
		shift:      uint(bits.TrailingZeros(uint(info.TransmitFrameSize()))),
		free:       make([]uint32, info.TransmitBuffers()),
		pending:    make([]uint8, info.TransmitBuffers()),
		current:    noBuffer,
	}
	for i := range t.free {
		t.free[i] = uint32(len(t.free) - 1 - i)
	}
	return t
}

// Buffer returns a free transmit buffer of Info.TransmitFrameSize bytes, with old
// contents, for a frame that starts at its first byte. It returns nil when all are in
// flight, even after a Reap: then Kick and try again. Until Commit the same buffer
// comes back at each call, so a frame that is not to be sent after all needs nothing.
func (s *Socket) Buffer() []byte {
	if s.closed.Load() {
		return nil
	}
	t := &s.transmit
	if t.current == noBuffer {
		if len(t.free) == 0 && s.Reap() == 0 {
			return nil
		}
		last := len(t.free) - 1
		t.current = int(t.free[last])
		t.free = t.free[:last]
		if s.owners != nil {
			s.moveBuffer(t.current, ownerFree, ownerWritten)
		}
	}
	start := uint64(t.current) << t.shift
	return t.memory[start : start+t.bufferSize : start+t.bufferSize]
}

// Commit queues the first length bytes of the buffer that Buffer returned last. The
// kernel sees them after Publish; the buffer must not be touched any more. The only
// errors are a length that is not from 1 to Info.TransmitFrameSize (the buffer stays
// with the caller) and a Commit without a Buffer.
func (s *Socket) Commit(length int) error {
	if s.closed.Load() {
		return s.closedError("commit")
	}
	t := &s.transmit
	if t.current == noBuffer {
		return s.misuse("commit", "there is no buffer to commit: call Buffer first")
	}
	if length < 1 || uint64(length) > t.bufferSize {
		return s.misuse("commit", fmt.Sprintf("frame of %d bytes: must be from 1 to %d", length, t.bufferSize))
	}
	d := descriptor{Addr: t.base + uint64(t.current)<<t.shift, Len: uint32(length)}
	t.pending[t.current] = 1
	if uint64(length) > t.chunkSize {
		t.ring.write(descriptor{Addr: d.Addr, Len: uint32(t.chunkSize), Options: unix.XDP_PKT_CONTD})
		d.Addr += t.chunkSize
		d.Len -= uint32(t.chunkSize)
		t.pending[t.current] = 2
	}
	t.ring.write(d)
	if s.owners != nil {
		s.moveBuffer(t.current, ownerWritten, ownerKernelTransmit)
	}
	t.current = noBuffer
	t.committed++
	t.inFlight++
	return nil
}

// Publish shows all committed frames to the kernel. It makes no system call: the
// kernel looks when Kick says so.
func (s *Socket) Publish() {
	t := &s.transmit
	if t.committed == 0 || s.closed.Load() {
		return
	}
	t.ring.submit()
	s.counters.transmittedFrames.Add(uint64(t.committed))
	t.committed = 0
}

// Reap takes the buffers of sent frames back and returns their number. Buffer does
// it when it runs out, but calling it once per batch keeps the same few buffers in
// use and in the CPU's cache.
func (s *Socket) Reap() int {
	if s.closed.Load() {
		return 0
	}
	t := &s.transmit
	reaped := 0
	for range t.completion.peek(uint32(len(t.completion.entries))) {
		buffer := (t.completion.read() - t.base) >> t.shift // below base: wraps to a huge number
		if buffer >= uint64(len(t.pending)) || t.pending[buffer] == 0 {
			s.counters.invalidCompletions.Add(1)
			continue
		}
		t.pending[buffer]--
		if t.pending[buffer] > 0 {
			continue
		}
		t.free = append(t.free, uint32(buffer))
		t.inFlight--
		reaped++
		if s.owners != nil {
			s.moveBuffer(int(buffer), ownerKernelTransmit, ownerFree)
		}
	}
	t.completion.release()
	return reaped
}

// FreeBuffers returns how many transmit buffers Buffer could hand out without a Reap.
func (s *Socket) FreeBuffers() int {
	t := &s.transmit
	if t.current != noBuffer {
		return len(t.free) + 1
	}
	return len(t.free)
}

// moveBuffer passes all chunks of a transmit buffer on.
func (s *Socket) moveBuffer(buffer int, from, to owner) {
	t := &s.transmit
	start := t.base + uint64(buffer)<<t.shift
	for address := start; address < start+t.bufferSize; address += t.chunkSize {
		s.owners.move(address, from, to)
	}
}
