// Package queue holds the work queues and completion queues: rings of fixed layout without pointers, in
// ordinary memory or in memory shared between processes. They are the only door into the engine: the Go API,
// a C library and the clients of a broker all write the same bytes.
//
// Life of a work request: the application encodes it into the next slot of a ring and publishes the slot
// (Producer); the engine copies it once, validates the copy, executes it, frees the slot (Consumer) and then
// encodes a completion into a ring of the opposite direction, where the application decodes it.
//
// Every ring has one producer and one consumer at a time. Neither trusts the other: indices that the peer owns are
// clamped, slots are copied before they are looked at, and no word of the other end is waited for or looked at more
// than a few times in a row.
//
// The layout is in hack/ringgen/table.go, which the constants and accessors here and the C header xroce_ring.h are made
// from. Indices run freely over 2^32 and are masked on use.
//
// It is the engine's own and changes as that needs; programs use package verbs.
package queue

//go:generate go run ../../hack/ringgen

import (
	"encoding/binary"
	"errors"
	"fmt"
	"sync/atomic"
)

// MaxCapacity is the largest capacity of a ring.
const MaxCapacity = 1 << 20

// ErrFull is returned when a queue has no free slot (ENOMEM in libibverbs).
var ErrFull = errors.New("queue is full")

// ErrLayout is returned when a ring has another version or geometry than its end expects.
var ErrLayout = errors.New("ring of another layout")

// Layout is the geometry of a ring.
type Layout struct {
	// Capacity is how many slots may be in use at once; the ring itself has the next power of two.
	Capacity int
	// Stride is the number of bytes of a slot, a multiple of 16.
	Stride int
}

func (l Layout) slots() int {
	n := 1
	for n < l.Capacity {
		n <<= 1
	}
	return n
}

// Size is the number of bytes of memory that the ring takes.
func (l Layout) Size() int { return ringSize + l.slots()*l.Stride }

// valid says what is wrong with the geometry.
func (l Layout) valid() error {
	if l.Capacity < 1 || l.Capacity > MaxCapacity {
		return fmt.Errorf("queue: capacity %d is not within 1..%d", l.Capacity, MaxCapacity)
	}
	if l.Stride < 16 || l.Stride%16 != 0 {
		return fmt.Errorf("queue: stride %d is not a positive multiple of 16", l.Stride)
	}
	return nil
}

// check says why the ring cannot lie in memory.
func (l Layout) check(memory []byte) error {
	if err := l.valid(); err != nil {
		return err
	}
	if !aligned(memory) {
		return fmt.Errorf("queue: memory at %p is not aligned to 8 bytes", memory)
	}
	if len(memory) < l.Size() {
		return fmt.Errorf("queue: %d bytes of memory, the ring needs %d", len(memory), l.Size())
	}
	return nil
}

// Create makes a ring in memory, which must be zero: it writes what NewProducer and NewConsumer compare.
func Create(memory []byte, l Layout) error {
	if err := l.check(memory); err != nil {
		return err
	}
	binary.NativeEndian.PutUint32(memory[ringVersion:], Version)
	binary.NativeEndian.PutUint32(memory[ringCapacity:], uint32(l.Capacity))
	binary.NativeEndian.PutUint32(memory[ringStride:], uint32(l.Stride))
	return nil
}

// New makes a ring in ordinary memory and returns that.
func New(l Layout) ([]byte, error) {
	if err := l.valid(); err != nil {
		return nil, err
	}
	memory := make([]byte, l.Size())
	return memory, Create(memory, l)
}

// ring is what both ends share.
type ring struct {
	words
	slots    []byte
	stride   uint32
	mask     uint32
	capacity uint32
}

// words are those that the ends touch at the same time. The slots are ordered by the first two (release on store,
// acquire on load: both are what sync/atomic gives). Where an end stores one word and then has to see what the other
// end stored in another (Publish before Disarm, Arm before the last look, Doorbells.Sleep), it swaps: a Store is
// sequentially consistent as well, but not under the race detector, which makes a plain move of it in memory that is
// not Go's (compiler-rt, tsan_interface_atomic.cpp: __tsan_go_atomic32_store is mo_release). TestDoorbellsRaceInC lost
// a ring there in 9 of 25 runs.
type words struct {
	producer *atomic.Uint32
	consumer *atomic.Uint32
	arm      *atomic.Uint32
	state    *atomic.Uint32
}

// attach looks at a ring as the other end may have made it. Afterwards only the private copy of the geometry counts.
func attach(memory []byte, l Layout) (ring, error) {
	if err := l.check(memory); err != nil {
		return ring{}, err
	}
	version := binary.NativeEndian.Uint32(memory[ringVersion:])
	capacity := binary.NativeEndian.Uint32(memory[ringCapacity:])
	stride := binary.NativeEndian.Uint32(memory[ringStride:])
	if version != Version || capacity != uint32(l.Capacity) || stride != uint32(l.Stride) {
		return ring{}, fmt.Errorf("%w: version %d, capacity %d, stride %d instead of %d, %d, %d",
			ErrLayout, version, capacity, stride, Version, l.Capacity, l.Stride)
	}
	return ring{
		words:    wordsOf(memory),
		slots:    memory[ringSize : ringSize+l.slots()*l.Stride],
		stride:   stride,
		mask:     uint32(l.slots() - 1),
		capacity: capacity,
	}, nil
}

func (r *ring) slot(index uint32) []byte {
	start := int(index&r.mask) * int(r.stride)
	return r.slots[start : start+int(r.stride) : start+int(r.stride)]
}

// used is the distance between the indices. A peer that wrote a wild index into shared memory can claim at
// most a full ring.
func (r *ring) used(producer, consumer uint32) uint32 { return min(producer-consumer, r.capacity) }

// Producer is the writing end of a ring. Its methods belong to one goroutine at a time.
type Producer struct {
	ring
	next     uint32 // one past the last published slot; the shared word is a copy for the consumer
	consumed uint32 // the consumer's index when it was last looked at
}

// NewProducer makes the writing end of the ring in memory, which Create or the other end has made. It returns ErrLayout
// if that is of another version or geometry. The memory belongs to the ring until both ends are dropped.
func NewProducer(memory []byte, l Layout) (*Producer, error) {
	r, err := attach(memory, l)
	if err != nil {
		return nil, err
	}
	return &Producer{ring: r, next: r.producer.Load(), consumed: r.consumer.Load()}, nil
}

// Capacity is the number of slots that may be in use at once.
func (p *Producer) Capacity() int { return int(p.capacity) }

// Free is the number of slots that may be written now.
func (p *Producer) Free() int {
	if p.used(p.next, p.consumed) == p.capacity {
		p.consumed = p.ring.consumer.Load()
	}
	return int(p.capacity - p.used(p.next, p.consumed))
}

// Used is the number of slots that were published and not yet released.
func (p *Producer) Used() int {
	p.consumed = p.ring.consumer.Load()
	return int(p.used(p.next, p.consumed))
}

// SetState tells the consumer, who may be elsewhere, what has become of the engine's object (the state word).
func (p *Producer) SetState(s uint32) { p.state.Store(s) }

// Slot returns the i-th slot after the last published one; i is below Free.
func (p *Producer) Slot(i int) []byte { return p.slot(p.next + uint32(i)) }

// Publish hands the next n slots to the consumer.
func (p *Producer) Publish(n int) {
	p.next += uint32(n)
	p.producer.Swap(p.next)
}

// Consumer is the reading end of a ring. Its methods belong to one goroutine at a time.
type Consumer struct {
	ring
	next     uint32 // the oldest slot that was not released
	produced uint32 // the producer's index when it was last looked at
}

// NewConsumer makes the reading end; see NewProducer.
func NewConsumer(memory []byte, l Layout) (*Consumer, error) {
	r, err := attach(memory, l)
	if err != nil {
		return nil, err
	}
	return &Consumer{ring: r, next: r.consumer.Load(), produced: r.producer.Load()}, nil
}

// Capacity is the number of slots that may be in use at once.
func (c *Consumer) Capacity() int { return int(c.capacity) }

// Available is the number of published slots that were not released, at least after of them unless there are
// fewer: the producer's index is read again only when the copy of it does not show more than after.
func (c *Consumer) Available(after int) int {
	if n := int(c.used(c.produced, c.next)); n > after {
		return n
	}
	c.produced = c.ring.producer.Load()
	return int(c.used(c.produced, c.next))
}

// SetState tells the producer, who may be elsewhere, what has become of the engine's object (the state word).
func (c *Consumer) SetState(s uint32) { c.state.Store(s) }

// Slot returns the i-th slot that was not released; i is below Available. In shared memory the producer may
// still write it: copy, then look.
func (c *Consumer) Slot(i int) []byte { return c.slot(c.next + uint32(i)) }

// Release gives the n oldest slots back to the producer.
func (c *Consumer) Release(n int) {
	c.next += uint32(n)
	c.consumer.Store(c.next)
}

// Discard gives all published slots back to the producer without a look at them.
func (c *Consumer) Discard() {
	c.produced = c.ring.producer.Load()
	c.next = c.produced
	c.consumer.Store(c.next)
}
