package memory

import (
	"bytes"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
)

// writers write to one key until stop is called; each has its part of the buffer, as they would race with each other.
type writers struct {
	key              atomic.Uint32
	written, refused atomic.Uint64
	stopped          atomic.Bool
	running          sync.WaitGroup
}

const (
	writerCount = 2
	writerPart  = 16 << 10 // bytes, many enough to be in the middle of
)

// startWriters starts them. Faults other than FaultKey end the test.
func startWriters(table *Table, p *Principal, key uint32) *writers {
	w := new(writers)
	w.key.Store(key)
	for i := range writerCount {
		user := table.NewUser()
		w.running.Go(func() {
			defer table.CloseUser(user)
			data := [][]byte{make([]byte, writerPart/2+3), make([]byte, writerPart/2-3)}
			for n := 0; !w.stopped.Load(); n++ {
				if n%4 == 0 {
					runtime.Gosched() // there may be fewer CPUs than goroutines
				}
				data[0][n%100]++
				r := Range{Key: w.key.Load(), Address: uint64(i) * writerPart, Length: writerPart}
				switch fault := user.Write(p, RemoteWrite, r, data, n%2 == 0); fault {
				case FaultNone:
					w.written.Add(1)
				case FaultKey:
					w.refused.Add(1)
				default:
					panic(fault.String())
				}
			}
		})
	}
	return w
}

// some waits until something was written.
func (w *writers) some() {
	for before := w.written.Load(); w.written.Load() < before+2; {
		runtime.Gosched()
	}
}

func (w *writers) stop() {
	w.stopped.Store(true)
	w.running.Wait()
}

// TestInvalidateUnderTraffic: after a key was invalidated, unbound, bound again or freed, no byte changes through it.
// The plain accesses to the buffer that follow are what the race detector looks at.
func TestInvalidateUnderTraffic(t *testing.T) {
	for _, kind := range []Kind{KindFast, KindWindow1, KindWindow2} {
		t.Run(kind.String(), func(t *testing.T) {
			b := newBench(t)
			w := startWriters(b.table, b.p, 0)
			defer w.stop()
			untouched := bytes.Repeat([]byte{0xA5}, writerCount*writerPart)
			elsewhere := b.register(len(untouched), 0, BindWindow|LocalWrite)
			a, err := b.table.Allocate(b.domain, kind, 1<<20)
			require.NoError(t, err)
			for round := range 500 {
				buffer := make([]byte, len(untouched))
				var region *Region
				key := a.Key()&^0xff | uint32(byte(round))
				if kind == KindFast {
					require.NoError(t, a.Map(buffer, 0))
					require.Equal(t, FaultNone, b.user.FastRegister(b.p, key, LocalWrite|RemoteWrite))
				} else {
					region, err = b.table.Register(b.domain, buffer, 0, BindWindow|LocalWrite)
					require.NoError(t, err)
					require.Equal(t, FaultNone, b.user.Bind(b.p, Bind{key, region.Key(), 0, region.Length(), RemoteWrite}))
				}
				w.key.Store(key)
				w.some()
				switch {
				case round%10 == 9:
					require.NoError(t, a.Free())
					a, err = b.table.Allocate(b.domain, kind, 1<<20)
					require.NoError(t, err)
				case kind != KindWindow1:
					require.Equal(t, FaultNone, b.user.Invalidate(b.p, key))
				case round%2 == 0:
					require.Equal(t, FaultNone, b.user.Bind(b.p, Bind{Window: key}))
				default: // the same key goes on elsewhere
					require.Equal(t, FaultNone, b.user.Bind(b.p, Bind{key, elsewhere.Key(), 0, elsewhere.Length(), RemoteWrite}))
				}
				copy(buffer, untouched)
				runtime.Gosched()
				require.True(t, bytes.Equal(untouched, buffer), "written afterwards")
				if region != nil {
					require.NoError(t, b.table.Deregister(region), "nothing is bound to it")
				}
			}
			require.NotZero(t, w.refused.Load(), "nobody tried at the right moment")
		})
	}
}

// TestReregisterUnderTraffic: no access fails, and none reaches the old buffer afterwards.
func TestReregisterUnderTraffic(t *testing.T) {
	b := newBench(t)
	untouched := bytes.Repeat([]byte{0xA5}, writerCount*writerPart)
	buffer := make([]byte, len(untouched))
	region, err := b.table.Register(b.domain, buffer, 0, LocalWrite|RemoteWrite)
	require.NoError(t, err)
	w := startWriters(b.table, b.p, region.Key())
	defer w.stop()
	for range 500 {
		w.some()
		next := make([]byte, len(untouched))
		region, err = b.table.Reregister(region, Reregistration{Buffer: next})
		require.NoError(t, err)
		copy(buffer, untouched)
		runtime.Gosched()
		require.True(t, bytes.Equal(untouched, buffer), "written afterwards")
		buffer = next
	}
	require.Zero(t, w.refused.Load())
}

// TestWaitHoldsNobodyUp: while one waits for the users of a region, all work on other keys goes on, and whoever wants
// to change the same key waits too.
func TestWaitHoldsNobodyUp(t *testing.T) {
	b := newBench(t)
	fast := b.fast(make([]byte, 8), BindWindow)
	busy := b.table.NewUser()
	busy.region.Store(fast.Region()) // in the middle of a copy
	var invalidated atomic.Bool
	var running sync.WaitGroup
	running.Go(func() {
		if b.table.NewUser().Invalidate(b.p, fast.Key()) != FaultNone {
			panic("invalidate")
		}
		invalidated.Store(true)
	})
	for fast.Region() != nil {
		runtime.Gosched()
	}
	var freed atomic.Bool
	running.Go(func() {
		if fast.Free() != nil {
			panic("free")
		}
		freed.Store(true)
	})
	region := b.register(8, 0, BindWindow)
	w := b.allocate(KindWindow2)
	require.Equal(t, FaultNone, b.user.Bind(b.p, Bind{w.Key(), region.Key(), 0, 8, RemoteRead}))
	require.Equal(t, FaultNone, b.user.Invalidate(b.p, w.Key()))
	require.NoError(t, b.table.Deregister(region))
	for range 100 {
		runtime.Gosched()
	}
	require.False(t, invalidated.Load())
	require.False(t, freed.Load())
	require.Equal(t, 2, b.table.Count())
	busy.release()
	running.Wait()
	require.Equal(t, 1, b.table.Count())
}

// TestManyChangers: several engines and the program change the same keys at once. Afterwards everything can be given
// back.
func TestManyChangers(t *testing.T) {
	b := newBench(t)
	region := b.register(64, 0, BindWindow|LocalWrite)
	fast := b.allocate(KindFast)
	require.NoError(t, fast.Map(make([]byte, 64), 1000))
	windows := []*Allocation{b.allocate(KindWindow1), b.allocate(KindWindow2), b.allocate(KindWindow1)}
	keys := []uint32{fast.Key()}
	for _, w := range windows {
		keys = append(keys, w.Key())
	}
	var running sync.WaitGroup
	var count [FaultBound + 1]atomic.Uint64
	for i := range 4 {
		user, random := b.table.NewUser(), rand.New(rand.NewPCG(1, uint64(i)))
		running.Go(func() {
			defer b.table.CloseUser(user)
			for range 20000 {
				key := keys[random.IntN(len(keys))]&^0xff | uint32(random.IntN(2))
				parent := []uint32{region.Key(), fast.Key()}[random.IntN(2)]
				address := uint64(random.IntN(2)) * 1000
				switch random.IntN(5) {
				case 0:
					count[user.Invalidate(b.p, key)].Add(1)
				case 1:
					count[user.FastRegister(b.p, key, BindWindow|LocalWrite)].Add(1)
				case 2:
					count[user.Bind(b.p, Bind{key, parent, address, 64, RemoteWrite})].Add(1)
				case 3:
					count[user.Bind(b.p, Bind{Window: key})].Add(1)
				case 4:
					_, fault := user.CompareSwap(b.p, Range{key, address, 8}, 0, 0)
					count[fault].Add(1)
				}
			}
		})
	}
	running.Wait()
	for _, fault := range []Fault{FaultNone, FaultKey, FaultBounds, FaultState, FaultBound} {
		require.NotZero(t, count[fault].Load(), "%s", fault)
	}
	for _, w := range windows {
		require.NoError(t, w.Free())
	}
	require.Zero(t, region.bound)
	require.NoError(t, fast.Free())
	require.NoError(t, b.table.Deregister(region))
	require.Zero(t, b.table.Count())
	require.Len(t, b.table.users, 1)
}

// TestLateUser: a user that found a region just before it was replaced touches nothing of it, and takes the new one.
func TestLateUser(t *testing.T) {
	b := newBench(t)
	old := b.register(8, 0, LocalWrite|RemoteWrite)
	old.dead.Store(true) // as if it had been replaced behind the back of the lookup
	done := make(chan Fault)
	user := b.table.NewUser()
	go func() {
		done <- user.Write(b.p, RemoteWrite, Range{old.Key(), 0, 8}, [][]byte{[]byte("new data")}, true)
	}()
	for range 100 {
		runtime.Gosched()
	}
	next := &Region{key: old.key, domain: old.domain, access: old.access, buffer: aligned(8, 0)}
	b.table.slot(old.key >> 8).Store(next)
	require.Equal(t, FaultNone, <-done)
	require.Equal(t, "new data", string(next.buffer))
	require.Equal(t, make([]byte, 8), old.buffer)

	next.dead.Store(true)
	go func() { done <- user.Read(b.p, RemoteWrite, Range{old.Key(), 0, 8}, make([]byte, 8)) }()
	for range 100 {
		runtime.Gosched()
	}
	b.table.slot(old.key >> 8).Store(nil)
	require.Equal(t, FaultKey, <-done)
	require.Nil(t, user.region.Load())
}
