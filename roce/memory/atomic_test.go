package memory

import (
	"encoding/binary"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestAtomics(t *testing.T) {
	b := newBench(t)
	const start = 1<<64 - 24 // addresses that are multiples of 8 in memory too
	region := b.register(24, start, LocalWrite|RemoteWrite|RemoteAtomic)
	r := Range{region.Key(), start + 8, 8}
	word := region.buffer[8:16]
	get := func() uint64 { return binary.NativeEndian.Uint64(word) }
	for i := range region.buffer {
		region.buffer[i] = 0xEE
	}
	require.Equal(t, FaultNone, b.user.StoreWord(b.p, r, 0x0102030405060708))
	require.Equal(t, uint64(0x0102030405060708), get())

	original, fault := b.user.CompareSwap(b.p, r, 1, 2)
	require.Equal(t, FaultNone, fault)
	require.Equal(t, uint64(0x0102030405060708), original)
	require.Equal(t, original, get(), "not equal, so not swapped")
	original, fault = b.user.CompareSwap(b.p, r, original, 1<<64-5)
	require.Equal(t, FaultNone, fault)
	require.Equal(t, uint64(0x0102030405060708), original)
	require.Equal(t, uint64(1<<64-5), get())

	original, fault = b.user.FetchAdd(b.p, r, 7)
	require.Equal(t, FaultNone, fault)
	require.Equal(t, uint64(1<<64-5), original)
	require.Equal(t, uint64(2), get(), "modulo 2^64")
	original, fault = b.user.FetchAdd(b.p, r, 0)
	require.Equal(t, FaultNone, fault)
	require.Equal(t, uint64(2), original)
	for i, c := range region.buffer {
		require.True(t, c == 0xEE || i >= 8 && i < 16, "byte %d", i)
	}
	require.Nil(t, b.user.region.Load())
}

// atomics calls each of the three on a range.
func (b *bench) atomics(p *Principal, r Range) (compareSwap, fetchAdd, storeWord Fault) {
	_, compareSwap = b.user.CompareSwap(p, r, 0, 1)
	_, fetchAdd = b.user.FetchAdd(p, r, 1)
	storeWord = b.user.StoreWord(p, r, 1)
	require.Nil(b, b.user.region.Load(), "Deregister would wait for ever")
	return compareSwap, fetchAdd, storeWord
}

func TestAtomicsRefused(t *testing.T) {
	b := newBench(t)
	region := b.register(24, 1<<64-24, LocalWrite|RemoteWrite|RemoteAtomic)
	key := region.Key()
	expect := func(want Fault, p *Principal, r Range) {
		t.Helper()
		swap, add, store := b.atomics(p, r)
		require.Equal(t, [3]Fault{want, want, want}, [3]Fault{swap, add, store})
	}
	expect(FaultKey, b.p, Range{key ^ 1, 1<<64 - 24, 8})
	expect(FaultDomain, b.stranger, Range{key, 1<<64 - 24, 8})
	expect(FaultBounds, b.p, Range{key, 1<<64 - 32, 8})
	expect(FaultBounds, b.p, Range{key, 1<<64 - 7, 8})
	expect(FaultBounds, b.p, Range{key, 0, 8})
	for _, length := range []uint64{0, 1, 7, 9, 16, 1<<64 - 1} {
		expect(FaultBounds, b.p, Range{key, 1<<64 - 24, length})
	}
	for distance := uint64(1); distance < 8; distance++ {
		expect(FaultAlignment, b.p, Range{key, 1<<64 - 24 + distance, 8})
	}
	expect(FaultNone, b.p, Range{key, 1<<64 - 8, 8})

	// The address says nothing of where the memory is.
	crooked, err := b.table.Register(b.domain, aligned(24, 3), 0, LocalWrite|RemoteWrite|RemoteAtomic)
	require.NoError(t, err)
	expect(FaultAlignment, b.p, Range{crooked.Key(), 8, 8})
	expect(FaultNone, b.p, Range{crooked.Key(), 5, 8})

	swap, add, store := b.atomics(b.p, Range{b.register(8, 0, LocalWrite|RemoteWrite).Key(), 0, 8})
	require.Equal(t, [3]Fault{FaultAccess, FaultAccess, FaultNone}, [3]Fault{swap, add, store})
	swap, add, store = b.atomics(b.p, Range{b.register(8, 0, LocalWrite|RemoteAtomic).Key(), 0, 8})
	require.Equal(t, [3]Fault{FaultNone, FaultNone, FaultAccess}, [3]Fault{swap, add, store})
}

// TestAtomicsOfSeveralUsers: no addition is lost, whether made by FetchAdd or by CompareSwap, or by the program itself.
func TestAtomicsOfSeveralUsers(t *testing.T) {
	b := newBench(t)
	region := b.register(8, 0, LocalWrite|RemoteAtomic)
	r := Range{region.Key(), 0, 8}
	const rounds = 20000
	var running sync.WaitGroup
	var seen [2][]uint64 // what FetchAdd returned
	for i := range 2 {
		user := b.table.NewUser()
		running.Go(func() {
			for range rounds {
				original, fault := user.FetchAdd(b.p, r, 3)
				if fault != FaultNone {
					panic("fetch and add")
				}
				seen[i] = append(seen[i], original)
				for {
					old, fault := user.CompareSwap(b.p, r, original, original+5)
					if fault != FaultNone {
						panic("compare and swap")
					}
					if old == original {
						break
					}
					original = old
				}
			}
		})
	}
	running.Go(func() {
		for range rounds {
			sum, fault := region.AddUint64(0, 7)
			for swapped := false; fault == FaultNone && !swapped; {
				if swapped, fault = region.CompareAndSwapUint64(0, sum, sum+11); !swapped && fault == FaultNone {
					sum, fault = region.LoadUint64(0)
				}
			}
			if fault != FaultNone {
				panic("the program's own")
			}
		}
	})
	running.Wait()
	sum, fault := region.LoadUint64(0)
	require.Equal(t, FaultNone, fault)
	require.Equal(t, uint64(2*rounds*(3+5)+rounds*(7+11)), sum)
	distinct := make(map[uint64]bool)
	for _, list := range seen {
		for _, v := range list {
			distinct[v] = true
		}
	}
	require.Len(t, distinct, 2*rounds, "no two additions found the same value")
}

// TestCompareSwapIsHonest: an answer that says "swapped" is never given without a swap, also if the value comes and
// goes meanwhile.
func TestCompareSwapIsHonest(t *testing.T) {
	b := newBench(t)
	region := b.register(8, 0, LocalWrite|RemoteAtomic)
	r := Range{region.Key(), 0, 8}
	word := wordOf(region.buffer)
	var stop atomic.Bool
	var running sync.WaitGroup
	running.Go(func() {
		for !stop.Load() {
			for range 100 {
				atomic.CompareAndSwapUint64(word, 0, 1)
				atomic.CompareAndSwapUint64(word, 1, 0)
			}
			runtime.Gosched()
		}
	})
	swapped, refused := 0, 0
	// On a busy machine it takes a while until both have a CPU at once.
	for i, start := 0, time.Now(); i < 500000 || refused == 0 && time.Since(start) < 10*time.Second; i++ {
		was, fault := b.user.CompareSwap(b.p, r, 0, 2)
		if fault != FaultNone || was > 1 {
			require.Equal(t, FaultNone, fault)
			require.LessOrEqual(t, was, uint64(1))
		}
		if was == 1 {
			refused++
			continue
		}
		swapped++
		if now := atomic.LoadUint64(word); now != 2 { // nobody else touches a 2
			require.Equal(t, uint64(2), now, "it said that it had swapped")
		}
		atomic.StoreUint64(word, 0)
	}
	stop.Store(true)
	running.Wait()
	require.NotZero(t, swapped)
	if runtime.GOMAXPROCS(0) > 1 {
		require.NotZero(t, refused)
	}
}
