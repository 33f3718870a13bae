// Package loop carries frames within a process: a ring of frames between one producer and one consumer, without a lock.
//
// Life of a frame: Buffer lends the next free slot, the producer writes one whole frame into it and Commits its length,
// or Put copies a frame that lies elsewhere; Waiting says how many frames there are, Front lends the oldest one to the
// consumer, and Release gives its slot back. The ring never waits, never loses what it has taken and keeps its order.
// What does not fit is the producer's to keep or to drop: one that keeps it is told by Starved, through the consumer,
// when to go on.
//
// It is the engine's own and changes as that needs; programs use package verbs.
package loop

import "sync/atomic"

const (
	// Slots is how many frames a Ring holds: the window of a queue pair, 64, is at most three quarters of it, which is
	// what one queue pair may hold of an inbox (roce/driver). It is not measured.
	Slots = 128
	// FrameSize is the longest frame in bytes: path MTU 4096 and all headers are less than 4200.
	FrameSize = 4352
)

// Ring is a bounded queue of frames; the zero value is empty and ready. Its memory, 560 KiB, is made when first used.
//
// One goroutine at a time is the producer and may call Buffer, Commit and Put; one at a time, another or the same, is
// the consumer and may call Front, Copied, Release and Starved. Waiting may be called by anybody.
type Ring struct {
	slots    atomic.Pointer[[Slots]slot]
	produced atomic.Uint32
	consumed atomic.Uint32
	starved  atomic.Bool
}

type slot struct {
	length   int
	copied   bool      // it came by Put
	segments [1][]byte // the consumer's
	bytes    [FrameSize]byte
}

// next is the slot to be filled next, or nil if all are taken.
func (r *Ring) next() *slot {
	slots := r.slots.Load()
	if slots == nil {
		slots = new([Slots]slot)
		r.slots.Store(slots)
	}
	at := r.produced.Load()
	if at-r.consumed.Load() == Slots {
		return nil
	}
	return &slots[at%Slots]
}

// Buffer returns the next free slot, FrameSize bytes, or nil if none is free: then Starved will say so. Without a
// Commit or Put in between it returns the same slot again.
func (r *Ring) Buffer() []byte {
	free := r.next()
	if free == nil {
		r.starved.Store(true)
		// The consumer may have given the last slots back just before it could see that.
		if free = r.next(); free == nil {
			return nil
		}
	}
	return free.bytes[:]
}

// Commit hands over the first length bytes of the slot that Buffer returned last.
func (r *Ring) Commit(length int) {
	r.commit(length, false)
}

func (r *Ring) commit(length int, copied bool) {
	at := r.produced.Load()
	slot := &r.slots.Load()[at%Slots]
	slot.length, slot.copied = length, copied
	r.produced.Store(at + 1)
}

// Put copies a frame into the ring. It returns false if the ring is full or the frame longer than FrameSize.
func (r *Ring) Put(segments [][]byte) bool {
	free := r.next()
	if free == nil {
		return false
	}
	length := 0
	for _, piece := range segments {
		if len(piece) > FrameSize-length {
			return false
		}
		length += copy(free.bytes[length:], piece)
	}
	r.commit(length, true)
	return true
}

// Waiting is how many frames are in the ring. To others than the consumer it may look as if it were more.
func (r *Ring) Waiting() int {
	consumed := r.consumed.Load()
	return int(r.produced.Load() - consumed)
}

// Front lends the oldest frame, as a list of one segment, until Release. The ring must not be empty.
func (r *Ring) Front() [][]byte {
	oldest := &r.slots.Load()[r.consumed.Load()%Slots]
	oldest.segments[0] = oldest.bytes[:oldest.length]
	return oldest.segments[:]
}

// Copied says whether the oldest frame came by Put. The ring must not be empty.
func (r *Ring) Copied() bool { return r.slots.Load()[r.consumed.Load()%Slots].copied }

// Release gives the slot of the oldest frame back. The ring must not be empty.
func (r *Ring) Release() { r.consumed.Add(1) }

// Starved says whether Buffer has found no free slot since Starved was last asked. A consumer asks after it has
// released slots, and then has the producer try again.
func (r *Ring) Starved() bool { return r.starved.Load() && r.starved.Swap(false) }
