package queue

import (
	"encoding/binary"
	"flag"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// newMemory makes memory for a ring whose indices stand at start.
func newMemory(l Layout, start uint32) []byte {
	memory := make([]byte, l.Size())
	if err := Create(memory, l); err != nil {
		panic(err)
	}
	binary.NativeEndian.PutUint32(memory[ringProducer:], start)
	binary.NativeEndian.PutUint32(memory[ringConsumer:], start)
	return memory
}

func ends(t require.TestingT, memory []byte, l Layout) (*Producer, *Consumer) {
	p, err := NewProducer(memory, l)
	require.NoError(t, err)
	c, err := NewConsumer(memory, l)
	require.NoError(t, err)
	return p, c
}

// TestRingModel compares a ring with a queue of numbers, from any index on, the wrap at 2^32 among them.
func TestRingModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l := Layout{Capacity: rapid.IntRange(1, 40).Draw(t, "capacity"), Stride: 16 * rapid.IntRange(1, 3).Draw(t, "stride")}
		start := rapid.OneOf(rapid.Uint32(), rapid.Uint32Range(1<<32-50, 1<<32-1)).Draw(t, "start")
		memory := newMemory(l, start)
		p, c := ends(t, memory, l)
		var model []uint64
		next := uint64(1)
		t.Repeat(map[string]func(*rapid.T){
			"publish": func(t *rapid.T) {
				free := p.Free()
				require.LessOrEqual(t, free, l.Capacity-len(model))
				n := rapid.IntRange(0, free).Draw(t, "n")
				for i := range n {
					s := p.Slot(i)
					require.Len(t, s, l.Stride)
					require.Equal(t, l.Stride, cap(s), "a slot does not reach into the next one")
					binary.NativeEndian.PutUint64(s[l.Stride-8:], next)
					model = append(model, next)
					next++
				}
				p.Publish(n)
			},
			"fill": func(t *rapid.T) {
				for p.Free() > 0 {
					binary.NativeEndian.PutUint64(p.Slot(0)[l.Stride-8:], next)
					p.Publish(1)
					model = append(model, next)
					next++
				}
				require.Len(t, model, l.Capacity)
			},
			"release": func(t *rapid.T) {
				after := rapid.IntRange(0, l.Capacity).Draw(t, "after")
				n := c.Available(after)
				require.LessOrEqual(t, n, len(model))
				if after < len(model) {
					require.Greater(t, n, after)
				} else {
					require.Equal(t, len(model), n)
				}
				for i := range n {
					require.Equal(t, model[i], binary.NativeEndian.Uint64(c.Slot(i)[l.Stride-8:]))
				}
				k := rapid.IntRange(0, n).Draw(t, "k")
				c.Release(k)
				model = model[k:]
			},
			"new ends": func(t *rapid.T) { p, c = ends(t, memory, l) },
			"": func(t *rapid.T) {
				require.Equal(t, len(model), p.Used())
				require.Equal(t, l.Capacity, p.Capacity())
				require.Equal(t, l.Capacity, c.Capacity())
			},
		})
	})
}

// TestRingHostile: whatever the peer writes into its index and the slots, an end stays inside its memory.
func TestRingHostile(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const maxSGE = 3
		capacity := rapid.IntRange(1, 20).Draw(t, "capacity")
		layout := rapid.SampledFrom([]Layout{
			SendLayout(capacity, maxSGE, 20), RecvLayout(capacity, maxSGE), CompletionLayout(capacity),
		}).Draw(t, "layout")
		// The ring lies in the middle of memory that must not change.
		all := make([]byte, 64+layout.Size()+64)
		for i := range all {
			all[i] = 0xA5
		}
		memory := all[64 : 64+layout.Size()]
		clear(memory)
		require.NoError(t, Create(memory, layout))
		p, c := ends(t, memory, layout)
		send := SendWR{SGList: make([]SGE, 0, maxSGE), Inline: make([]byte, 0, 20)}
		receive := RecvWR{SGList: make([]SGE, 0, maxSGE)}
		completions := make([]WC, 2*capacity)
		t.Repeat(map[string]func(*rapid.T){
			"write": func(t *rapid.T) {
				offset := rapid.OneOf(
					rapid.SampledFrom([]int{ringProducer, ringConsumer, ringArm}), rapid.IntRange(0, len(memory)-4),
				).Draw(t, "offset")
				binary.NativeEndian.PutUint32(memory[offset:], rapid.Uint32().Draw(t, "value"))
			},
			"produce": func(t *rapid.T) {
				free := p.Free()
				require.GreaterOrEqual(t, free, 0)
				require.LessOrEqual(t, free, capacity)
				require.LessOrEqual(t, p.Used(), capacity)
				switch layout {
				case SendLayout(capacity, maxSGE, 20):
					_ = p.PostSend(&SendWR{SGList: make([]SGE, maxSGE)}, SendLimits{MaxSGE: maxSGE}, nil)
				case RecvLayout(capacity, maxSGE):
					_ = p.PostRecv(&RecvWR{SGList: make([]SGE, maxSGE)})
				default:
					p.WriteCompletion(&WC{})
					p.Disarm(false)
				}
			},
			"consume": func(t *rapid.T) {
				n := c.Available(rapid.IntRange(0, capacity).Draw(t, "after"))
				require.GreaterOrEqual(t, n, 0)
				require.LessOrEqual(t, n, capacity)
				if layout == CompletionLayout(capacity) {
					require.LessOrEqual(t, c.ReadCompletions(completions), capacity)
					return
				}
				for i := range n {
					valid := false
					if layout == SendLayout(capacity, maxSGE, 20) {
						valid = c.ReadSend(i, &send)
						require.False(t, valid && !send.Opcode.Known())
					} else {
						c.ReadRecv(i, &receive)
					}
					require.LessOrEqual(t, len(send.SGList), maxSGE)
					require.LessOrEqual(t, len(receive.SGList), maxSGE)
				}
				c.Release(n)
			},
			"": func(t *rapid.T) {
				for i := range 64 {
					require.Equal(t, byte(0xA5), all[i])
					require.Equal(t, byte(0xA5), all[len(all)-1-i])
				}
			},
		})
	})
}

// moves is how many TestCase_D15 moves; a weakly ordered CPU deserves 100,000,000.
var moves = flag.Uint64("d15", 100_000, "operations of TestCase_D15")

// TestCase_D15 moves numbers from one goroutine to another, over the wrap of the indices: a slot is seen only after
// what was written into it, whatever order the CPU gives to its stores. The race detector looks on where it is used.
func TestCase_D15(t *testing.T) {
	l := Layout{Capacity: 5, Stride: 16}
	p, c := ends(t, newMemory(l, 1<<32-1000), l)
	count := *moves
	go func() {
		for i := uint64(0); i < count; {
			n := p.Free()
			for k := range n {
				binary.NativeEndian.PutUint64(p.Slot(k), i+uint64(k))
			}
			p.Publish(n)
			i += uint64(n)
			if n == 0 {
				runtime.Gosched()
			}
		}
	}()
	for i := uint64(0); i < count; {
		n := c.Available(0)
		for k := range n {
			require.Equal(t, i+uint64(k), binary.NativeEndian.Uint64(c.Slot(k)))
			if i+uint64(k) == count-1 {
				return // the producer may have published too many
			}
		}
		c.Release(n)
		i += uint64(n)
		if n == 0 {
			runtime.Gosched()
		}
	}
}

// TestNotificationConcurrent: a consumer that arms and then looks once more misses no completion.
func TestNotificationConcurrent(t *testing.T) {
	l := CompletionLayout(4)
	p, c := ends(t, newMemory(l, 0), l)
	const count = 20_000
	wake := make(chan struct{}, 1)
	go func() {
		for id := uint64(0); id < count; {
			if !p.WriteCompletion(&WC{WRID: id}) {
				runtime.Gosched()
				continue
			}
			id++
			if p.Disarm(false) {
				wake <- struct{}{}
			}
		}
	}()
	var wcs [4]WC
	for next := uint64(0); next < count; {
		n := c.ReadCompletions(wcs[:])
		for _, wc := range wcs[:n] {
			require.Equal(t, next, wc.WRID)
			next++
		}
		if n > 0 {
			continue
		}
		c.Arm(false)
		if c.Available(0) == 0 {
			<-wake // for ever, if a completion in between was missed
			continue
		}
		if !p.Disarm(false) {
			<-wake // it is on its way
		}
	}
}

// TestDisarmHostile: Disarm comes back, and the request is served, whatever the other end does to the arm word
// meanwhile.
func TestDisarmHostile(t *testing.T) {
	p, c := ends(t, newMemory(CompletionLayout(1), 0), CompletionLayout(1))
	var stop atomic.Bool
	var other sync.WaitGroup
	defer other.Wait()
	defer stop.Store(true)
	c.arm.Store(armNext)
	other.Go(func() {
		for i := uint32(0); !stop.Load(); i++ {
			c.arm.Store(armNext + i%3)
		}
	})
	told := 0
	for range 200_000 {
		if p.Disarm(false) {
			told++
		}
	}
	require.Positive(t, told)
}

func TestLayouts(t *testing.T) {
	for _, bad := range []Layout{{}, {Capacity: 0, Stride: 16}, {Capacity: -1, Stride: 16}, {Capacity: MaxCapacity + 1, Stride: 16},
		{Capacity: 1}, {Capacity: 1, Stride: 8}, {Capacity: 1, Stride: 17}, {Capacity: 1, Stride: -16}} {
		_, err := NewProducer(make([]byte, 1<<16), bad)
		require.Error(t, err, "%+v", bad)
		_, err = NewConsumer(make([]byte, 1<<16), bad)
		require.Error(t, err, "%+v", bad)
	}
	l := Layout{Capacity: 5, Stride: 32}
	require.Equal(t, 256+8*32, l.Size(), "the next power of two")
	_, err := NewProducer(make([]byte, l.Size()-1), l)
	require.ErrorContains(t, err, "511")
	require.ErrorContains(t, err, "512")
	_, err = NewProducer(make([]byte, l.Size()+8)[1:], l)
	require.ErrorContains(t, err, "aligned")
}

// TestAttach: an end refuses a ring of another version or geometry than it was told, and afterwards does not look at
// them again.
func TestAttach(t *testing.T) {
	l := Layout{Capacity: 5, Stride: 32}
	memory, err := New(l)
	require.NoError(t, err)
	for _, offset := range []int{ringVersion, ringCapacity, ringStride} {
		memory[offset] ^= 0x10
		_, err := NewProducer(memory, l)
		require.ErrorIs(t, err, ErrLayout)
		_, err = NewConsumer(memory, l)
		require.ErrorIs(t, err, ErrLayout)
		memory[offset] ^= 0x10
	}
	_, err = NewConsumer(make([]byte, l.Size()), l)
	require.ErrorIs(t, err, ErrLayout, "nobody has made a ring here")
	p, c := ends(t, memory, l)
	clear(memory[ringVersion:ringSize])
	p.Publish(5)
	require.Equal(t, 5, c.Available(0))
	require.Len(t, c.Slot(4), 32)
	require.Zero(t, p.Free())
	c.SetState(7)
	require.EqualValues(t, 7, binary.NativeEndian.Uint32(memory[ringState:]))
	p.SetState(9)
	require.EqualValues(t, 9, binary.NativeEndian.Uint32(memory[ringState:]))
	_, err = New(Layout{Capacity: -1, Stride: 16})
	require.Error(t, err)
}

// TestDiscard: all that is published is given back at once, also what a peer claims with a wild index.
func TestDiscard(t *testing.T) {
	layout := RecvLayout(8, 1)
	memory, err := New(layout)
	require.NoError(t, err)
	producer, err := NewProducer(memory, layout)
	require.NoError(t, err)
	consumer, err := NewConsumer(memory, layout)
	require.NoError(t, err)
	producer.Publish(5)
	require.Equal(t, 5, consumer.Available(0))
	consumer.Discard()
	require.Zero(t, consumer.Available(0))
	require.Zero(t, producer.Used())

	producer.producer.Store(50_000_000)
	consumer.Discard()
	require.Zero(t, consumer.Available(0))
	require.EqualValues(t, 50_000_000, producer.consumer.Load())
}
