package queue

import (
	"encoding/binary"
	"fmt"
	"math/bits"
	"sync/atomic"
)

// Doorbells tell the engine which queue pairs of a client have new work: one bit each in memory that both share, and a
// summary of the words that the bits are in. Any number of threads ring, in any process; one takes.
//
// No ring is lost. Whoever rings sets the bit, then the summary, and then looks whether the engine sleeps; all three
// always, since whoever had set a bit before may not have come to the next step yet. The engine says that it sleeps,
// and then looks at all the bits for the last time. In the order of sequential consistency, which sync/atomic gives,
// one of them sees the other.
type Doorbells struct {
	doorbellWords
	next int // the word to look at first, so that they take turns
}

type doorbellWords struct {
	asleep  *atomic.Uint32
	summary *[doorbellSummaryCount]atomic.Uint64
	bits    *[doorbellBitsCount]atomic.Uint64
}

// DoorbellSize is how many bytes of memory the doorbells take, and DoorbellSlots how many there are.
const (
	DoorbellSize  = doorbellSize
	DoorbellSlots = 64 * doorbellBitsCount
)

// CreateDoorbells makes doorbells in memory of DoorbellSize bytes, which must be zero.
func CreateDoorbells(memory []byte) error {
	if err := checkDoorbells(memory); err != nil {
		return err
	}
	binary.NativeEndian.PutUint32(memory[doorbellVersion:], Version)
	return nil
}

// NewDoorbells makes an end over doorbells that CreateDoorbells or the other end has made. It returns ErrLayout if they
// are of another version.
func NewDoorbells(memory []byte) (*Doorbells, error) {
	if err := checkDoorbells(memory); err != nil {
		return nil, err
	}
	if version := binary.NativeEndian.Uint32(memory[doorbellVersion:]); version != Version {
		return nil, fmt.Errorf("%w: doorbells of version %d instead of %d", ErrLayout, version, Version)
	}
	return &Doorbells{doorbellWords: doorbellWordsOf(memory)}, nil
}

func checkDoorbells(memory []byte) error {
	switch {
	case len(memory) < doorbellSize:
		return fmt.Errorf("queue: %d bytes of memory, the doorbells need %d", len(memory), doorbellSize)
	case !aligned(memory):
		return fmt.Errorf("queue: memory at %p is not aligned to 8 bytes", memory)
	}
	return nil
}

// Ring tells of new work of the queue pair with a slot below DoorbellSlots, and reports whether the engine may sleep:
// then the caller wakes it.
func (d *Doorbells) Ring(slot uint32) (asleep bool) {
	d.bits[slot/64].Or(1 << (slot % 64))
	d.summarize(slot / 64)
	return d.asleep.Load() != 0
}

func (d *Doorbells) summarize(word uint32) { d.summary[word/64].Or(1 << (word % 64)) }

// Take hands out slots that were rung, of one word of bits and so at most 64, and reports whether there were any. A
// slot can come without a ring: the memory is the client's.
func (d *Doorbells) Take(rung func(slot uint32)) (any bool) {
	for range doorbellSummaryCount + 1 {
		word := d.summary[d.next/64].Load() >> (d.next % 64)
		if word == 0 {
			d.next = (d.next/64 + 1) % doorbellSummaryCount * 64
			continue
		}
		n := d.next + bits.TrailingZeros64(word)
		d.next = (n + 1) % doorbellBitsCount
		// In this order: a bit that is set after the swap brings its word back into the summary.
		d.summary[n/64].And(^(uint64(1) << (n % 64)))
		for set := d.bits[n].Swap(0); set != 0; set &= set - 1 {
			rung(uint32(n*64 + bits.TrailingZeros64(set)))
		}
		return true
	}
	return false
}

// Sleep says that the engine sleeps from now on, and is to be woken. It reports false if there is something to take
// after all; then the engine does not sleep.
func (d *Doorbells) Sleep() bool {
	d.asleep.Swap(1) // a Swap: see words
	idle := true
	for word := range d.bits {
		if d.bits[word].Load() != 0 {
			d.summarize(uint32(word)) // whoever has rung may not have come to that
			idle = false
		}
	}
	if !idle {
		d.Awake()
	}
	return idle
}

// Awake says that the engine looks by itself again.
func (d *Doorbells) Awake() { d.asleep.Store(0) }
