// Package queue holds the work queues and completion queues: rings of fixed layout without pointers, in
// ordinary memory or in memory shared between processes. They are the only door into the engine: the Go API,
// a C library and the clients of a broker all write the same bytes.
//
// Life of a work request: the application encodes it into the next slot of a ring and publishes the slot
// (Producer); the engine copies it once, validates the copy, executes it, frees the slot (Consumer) and then
// encodes a completion into a ring of the opposite direction, where the application decodes it.
//
// Every ring has one producer and one consumer at a time. Neither trusts the other: indices that the peer
// owns are clamped, slots are copied before they are looked at.
//
// Layout, native byte order: producer index (uint32) at offset 0, consumer index at 64, arm word at 128, each
// on a cache line of its own; slots from offset 192. Indices run freely over 2^32 and are masked on use.
//
// It is the engine's own and changes as that needs; programs use package verbs.
package queue

import (
	"errors"
	"fmt"
	"sync/atomic"
)

const (
	producerOffset = 0
	consumerOffset = 64
	armOffset      = 128
	slotsOffset    = 192
)

// MaxCapacity is the largest capacity of a ring.
const MaxCapacity = 1 << 20

// ErrFull is returned when a queue has no free slot (ENOMEM in libibverbs).
var ErrFull = errors.New("queue is full")

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
func (l Layout) Size() int { return slotsOffset + l.slots()*l.Stride }

func (l Layout) check(memory []byte) error {
	if l.Capacity < 1 || l.Capacity > MaxCapacity {
		return fmt.Errorf("queue: capacity %d is not within 1..%d", l.Capacity, MaxCapacity)
	}
	if l.Stride < 16 || l.Stride%16 != 0 {
		return fmt.Errorf("queue: stride %d is not a positive multiple of 16", l.Stride)
	}
	if len(memory) < l.Size() {
		return fmt.Errorf("queue: %d bytes of memory, the ring needs %d", len(memory), l.Size())
	}
	return nil
}

// ring is what both ends share.
type ring struct {
	producer *atomic.Uint32
	consumer *atomic.Uint32
	arm      *atomic.Uint32
	slots    []byte
	stride   uint32
	mask     uint32
	capacity uint32
}

func newRing(memory []byte, l Layout) (ring, error) {
	if err := l.check(memory); err != nil {
		return ring{}, err
	}
	producer, consumer, arm, err := indexWords(memory)
	if err != nil {
		return ring{}, err
	}
	return ring{
		producer: producer,
		consumer: consumer,
		arm:      arm,
		slots:    memory[slotsOffset : slotsOffset+l.slots()*l.Stride],
		stride:   uint32(l.Stride),
		mask:     uint32(l.slots() - 1),
		capacity: uint32(l.Capacity),
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

// NewProducer makes the writing end over memory, which must be zero or hold a ring of the same layout.
// The memory belongs to the ring until both ends are dropped.
func NewProducer(memory []byte, l Layout) (*Producer, error) {
	r, err := newRing(memory, l)
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

// Slot returns the i-th slot after the last published one; i is below Free.
func (p *Producer) Slot(i int) []byte { return p.slot(p.next + uint32(i)) }

// Publish hands the next n slots to the consumer.
func (p *Producer) Publish(n int) {
	p.next += uint32(n)
	p.producer.Store(p.next)
}

// Consumer is the reading end of a ring. Its methods belong to one goroutine at a time.
type Consumer struct {
	ring
	next     uint32 // the oldest slot that was not released
	produced uint32 // the producer's index when it was last looked at
}

// NewConsumer makes the reading end; see NewProducer.
func NewConsumer(memory []byte, l Layout) (*Consumer, error) {
	r, err := newRing(memory, l)
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
