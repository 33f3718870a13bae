//go:build linux

// Life of a received frame.
//
//	FILL -> kernel -> RX -> application -> FILL
//
// The kernel takes an empty chunk from the FILL ring, copies the frame into it (in
// zero copy the NIC writes it there) and puts its address and length into the RX
// ring. Receive turns the descriptor into a slice of the UMEM and, in the same
// step, writes the chunk into the FILL ring without showing it yet. Release shows
// it: one store gives all frames handed out back. The FILL ring has two places
// for every receive chunk, so there is always room: the kernel shows a frame in the RX
// ring before it shows that it has taken the chunk from the FILL ring.
//
// With multi-buffer a frame is a chain of descriptors, all but the last marked with
// XDP_PKT_CONTD. A batch may end within one; its segments then wait here for the
// rest and are not given back. A chain that cannot be handed out (too long, or with
// a descriptor that makes no sense) is counted and its chunks go back at once.

package xsk

import (
	"math/bits"

	"golang.org/x/sys/unix"
)

// receiver is the receive side. One goroutine at a time.
type receiver struct {
	ring   consumer[descriptor]
	fill   producer[uint64]
	memory []byte // the receive chunks
	shift  uint   // log2 of the chunk size

	segments [][]byte            // what the handed out frames point into
	held     int                 // segments handed out
	chain    int                 // segments of the unfinished chain, behind the held ones
	chunks   [MaxSegments]uint64 // their chunks
	skip     bool                // the rest of the chain is dropped
}

func newReceiver(info Info, memory []byte, ring ring[descriptor], fill ring[uint64]) receiver {
	return receiver{
		ring:     newConsumer(ring),
		fill:     newProducer(fill),
		memory:   memory[:info.ReceiveFrames*info.ChunkSize],
		shift:    uint(bits.TrailingZeros(uint(info.ChunkSize))),
		segments: make([][]byte, info.ReceiveFrames),
	}
}

// fillUp puts all receive chunks into the FILL ring.
func (r *receiver) fillUp() {
	for chunk := range len(r.memory) >> r.shift {
		r.give(uint64(chunk) << r.shift)
	}
	r.fill.submit()
}

// give writes a chunk into the FILL ring, still invisible. There is room unless the
// kernel handed out chunks twice many times; then the chunk is better lost.
func (r *receiver) give(chunk uint64) {
	if r.fill.reserve(1) == 1 {
		r.fill.write(chunk)
	}
}

// Receive fills frames with received frames and returns their number, without
// waiting and without a system call; 0 means that there are none. The segments of a
// frame stay valid until Release. Frames that are never released are missing in the
// FILL ring: Statistics.FillRingEmpty then counts what is lost.
func (s *Socket) Receive(frames []Frame) int {
	if s.closed.Load() {
		return 0
	}
	r := &s.receive
	count := 0
	for count < len(frames) && r.ring.peek(1) == 1 {
		d := r.ring.read()
		chunk := d.Addr >> r.shift << r.shift
		problem, owned := s.checkReceived(d, chunk)
		if problem != nil {
			problem.Add(1)
		}
		if problem != nil || r.skip {
			r.dropChain()
			if owned {
				r.give(chunk)
			}
		} else {
			r.segments[r.held+r.chain] = r.memory[d.Addr : d.Addr+uint64(d.Len) : d.Addr+uint64(d.Len)]
			r.chunks[r.chain] = chunk
			r.chain++
		}
		if d.Options&unix.XDP_PKT_CONTD != 0 {
			continue
		}
		if r.skip {
			r.skip = false
			continue
		}
		for _, chunk := range r.chunks[:r.chain] {
			r.give(chunk)
		}
		end := r.held + r.chain
		frames[count].Segments = r.segments[r.held:end:end]
		r.held, r.chain = end, 0
		count++
	}
	r.ring.release()
	if r.held == 0 {
		s.submitFill() // dropped chains only: there may be no Release for them
	}
	if count > 0 {
		s.counters.receivedFrames.Add(uint64(count))
	}
	return count
}

// Release gives all frames handed out by Receive back to the kernel. Their segments
// must not be touched any more.
func (s *Socket) Release() {
	if s.closed.Load() {
		return
	}
	r := &s.receive
	s.submitFill()
	copy(r.segments, r.segments[r.held:r.held+r.chain])
	r.held = 0
}

// checkReceived returns the counter of what is wrong with a descriptor, or nil, and
// whether its chunk is ours now. A descriptor outside the receive chunks would be a
// bug in the kernel, or of a process that shares the rings; it must not become a
// panic here. Its chunk is left alone: better lost than given back twice.
func (s *Socket) checkReceived(d descriptor, chunk uint64) (problem *counter, owned bool) {
	r := &s.receive
	switch {
	case chunk >= uint64(len(r.memory)) || d.Addr-chunk+uint64(d.Len) > 1<<r.shift ||
		r.held+r.chain == len(r.segments):
		return &s.counters.invalidReceive, false
	case s.owners != nil && !s.owners.move(chunk, ownerKernelReceive, ownerReceived):
		return &s.counters.invalidReceive, false
	case d.Len == 0:
		return &s.counters.zeroLength, true
	case r.chain == MaxSegments:
		return &s.counters.chainsDropped, true
	}
	return nil, true
}

// dropChain gives back the chunks of the chain so far and has the rest skipped.
func (r *receiver) dropChain() {
	for _, chunk := range r.chunks[:r.chain] {
		r.give(chunk)
	}
	r.chain = 0
	r.skip = true
}

// submitFill shows the chunks written into the FILL ring to the kernel.
func (s *Socket) submitFill() {
	fill := &s.receive.fill
	if s.owners != nil {
		for index := fill.published; index != fill.next; index++ {
			s.owners.move(fill.entries[index&fill.mask()], ownerReceived, ownerKernelReceive)
		}
	}
	fill.submit()
}
