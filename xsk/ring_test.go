package xsk

import (
	"math"
	"runtime"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// memoryRing makes a ring in ordinary memory whose indices stand at start.
func memoryRing[E any](size int, start uint32) ring[E] {
	r := ring[E]{
		producer: new(atomic.Uint32), consumer: new(atomic.Uint32), flags: new(atomic.Uint32),
		entries: make([]E, size),
	}
	r.producer.Store(start)
	r.consumer.Store(start)
	return r
}

// startIndex draws a start that often lies just before the wrap at 2^32.
func startIndex() *rapid.Generator[uint32] {
	return rapid.OneOf(rapid.Just(uint32(0)), rapid.Uint32Range(math.MaxUint32-300, math.MaxUint32), rapid.Uint32())
}

// Both ends against a queue: what is written is invisible until submit, what is read
// is not free until release, and nothing is granted beyond the size.
func TestRingModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		size := 1 << rapid.IntRange(0, 6).Draw(t, "log2 size")
		shared := memoryRing[uint64](size, startIndex().Draw(t, "start"))
		p, c := newProducer(shared), newConsumer(shared)
		var (
			written, visible []uint64 // not yet submitted; submitted and not yet read
			unreleased       int
			next             uint64
		)
		t.Repeat(map[string]func(*rapid.T){
			"write": func(t *rapid.T) {
				want := rapid.IntRange(0, size+2).Draw(t, "want")
				granted := int(p.reserve(uint32(want)))
				require.LessOrEqual(t, granted, want)
				require.Equal(t, min(want, size-len(written)-len(visible)-unreleased), granted)
				for range rapid.IntRange(0, granted).Draw(t, "n") {
					p.write(next)
					written = append(written, next)
					next++
				}
			},
			"submit": func(*rapid.T) {
				p.submit()
				visible = append(visible, written...)
				written = nil
			},
			"read": func(t *rapid.T) {
				want := rapid.IntRange(0, size+2).Draw(t, "want")
				promised := int(c.peek(uint32(want)))
				require.Equal(t, min(want, len(visible)), promised)
				for range rapid.IntRange(0, promised).Draw(t, "n") {
					require.Equal(t, visible[0], c.read())
					visible = visible[1:]
					unreleased++
				}
			},
			"release": func(*rapid.T) {
				c.release()
				unreleased = 0
			},
		})
	})
}

// A taken-over ring goes on where the other process stopped.
func TestRingTakeOver(t *testing.T) {
	shared := memoryRing[uint64](4, math.MaxUint32-1)
	p, c := newProducer(shared), newConsumer(shared)
	for i := range 3 {
		p.write(uint64(i))
	}
	p.submit()
	require.EqualValues(t, 3, c.peek(4))
	require.EqualValues(t, 0, c.read())
	c.release()

	p, c = newProducer(shared), newConsumer(shared)
	require.EqualValues(t, 2, p.reserve(3))
	require.EqualValues(t, 2, c.peek(9))
	require.EqualValues(t, 1, c.read())
	require.EqualValues(t, 2, c.read())
}

// One store of the index per batch: the other side sees all or nothing.
func TestRingOneStorePerBatch(t *testing.T) {
	shared := memoryRing[uint64](8, 0)
	p, c := newProducer(shared), newConsumer(shared)
	for i := range 8 {
		p.write(uint64(i))
		require.Zero(t, shared.producer.Load())
	}
	p.submit()
	require.EqualValues(t, 8, shared.producer.Load())
	for range 8 {
		require.EqualValues(t, 1, c.peek(1))
		c.read()
		require.Zero(t, shared.consumer.Load())
	}
	c.release()
	require.EqualValues(t, 8, shared.consumer.Load())
}

// A million entries through each kind of ring with one goroutine at each end, across
// the wrap of the indices. Under the race detector this also shows that the indices
// order the accesses to the entries.
func TestRingConcurrent(t *testing.T) {
	type wide struct {
		address uint64
		length  uint32
		options uint32
	}
	t.Run("addresses", func(t *testing.T) {
		passMillion(t, func(i uint64) uint64 { return i << 12 })
	})
	t.Run("descriptors", func(t *testing.T) {
		passMillion(t, func(i uint64) wide { return wide{i << 12, uint32(i), uint32(i) & 1} })
	})
}

func passMillion[E comparable](t *testing.T, make func(uint64) E) {
	const total = 1_000_000
	shared := memoryRing[E](256, math.MaxUint32-total/2)
	done := newDone()
	go func() {
		defer close(done)
		p := newProducer(shared)
		for i := uint64(0); i < total; {
			n := p.reserve(uint32(min(1+i%64, total-i)))
			if n == 0 {
				runtime.Gosched()
			}
			for range n {
				p.write(make(i))
				i++
			}
			p.submit()
		}
	}()
	c := newConsumer(shared)
	for i := uint64(0); i < total; {
		n := c.peek(uint32(1 + i%77))
		if n == 0 {
			runtime.Gosched()
		}
		for range n {
			if got, want := c.read(), make(i); got != want { // require would be most of the time
				require.Equal(t, want, got, "entry %d", i)
			}
			i++
		}
		c.release()
	}
	<-done
	require.Equal(t, shared.producer.Load(), shared.consumer.Load())
}

func newDone() chan struct{} { return make(chan struct{}) }
