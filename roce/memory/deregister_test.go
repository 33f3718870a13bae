package memory

import (
	"bytes"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestCase_C3 deregisters regions under traffic: after Deregister has returned, no byte changes. The plain accesses to
// the buffer that follow it are what the race detector looks at.
func TestCase_C3(t *testing.T) {
	table, domain := NewTable(1), new(Domain)
	const writers = 2
	const part = 16 << 10 // bytes of each writer, many enough to be in the middle of
	const rounds = 5000
	var current atomic.Pointer[Region]
	var stop atomic.Bool
	var running sync.WaitGroup
	var written, refused atomic.Uint64
	for i := range writers {
		user := table.NewUser()
		running.Go(func() {
			defer table.CloseUser(user)
			data := [][]byte{make([]byte, part/2+3), make([]byte, part/2-3)}
			for n := 0; !stop.Load(); n++ {
				region := current.Load()
				if n%4 == 0 {
					runtime.Gosched() // there may be fewer CPUs than goroutines
				}
				if region == nil {
					continue
				}
				// Each writer has its part of the buffer, as they would race with each other.
				r := Range{Key: region.Key(), Address: uint64(i) * part, Length: part}
				data[0][n%100]++
				switch user.Write(&Principal{Domain: domain}, RemoteWrite, r, data, n%2 == 0) {
				case FaultNone:
					written.Add(1)
				case FaultKey:
					refused.Add(1)
				default:
					panic("unexpected fault")
				}
			}
		})
	}
	untouched := bytes.Repeat([]byte{0xA5}, writers*part)
	for range rounds {
		buffer := make([]byte, writers*part)
		region, err := table.Register(domain, buffer, 0, LocalWrite|RemoteWrite)
		require.NoError(t, err)
		current.Store(region)
		for before := written.Load(); written.Load() < before+2; {
			runtime.Gosched()
		}
		require.NoError(t, table.Deregister(region))
		copy(buffer, untouched)
		runtime.Gosched()
		require.True(t, bytes.Equal(untouched, buffer), "written after Deregister had returned")
	}
	stop.Store(true)
	running.Wait()
	require.NotZero(t, refused.Load(), "nobody tried at the right moment")
	require.Zero(t, table.Count())
	require.Empty(t, table.users)
}

// TestDeregisterWaitsForTheProgram: the same for the program's own accesses, made on other goroutines.
func TestDeregisterWaitsForTheProgram(t *testing.T) {
	table := NewTable(1)
	var current atomic.Pointer[Region]
	var stop atomic.Bool
	var running sync.WaitGroup
	var stored, refused atomic.Uint64
	for range 2 {
		running.Go(func() {
			for n := 0; !stop.Load(); n++ {
				region := current.Load()
				if n%4 == 0 {
					runtime.Gosched()
				}
				if region == nil {
					continue
				}
				switch region.StoreUint64(0, 1) {
				case FaultNone:
					stored.Add(1)
				case FaultKey:
					refused.Add(1)
				default:
					panic("unexpected fault")
				}
			}
		})
	}
	for range 5000 {
		buffer := aligned(8, 0)
		region, err := table.Register(new(Domain), buffer, 0, LocalWrite)
		require.NoError(t, err)
		current.Store(region)
		for before := stored.Load(); stored.Load() < before+2; {
			runtime.Gosched()
		}
		require.NoError(t, table.Deregister(region))
		clear(buffer)
		runtime.Gosched()
		require.Equal(t, make([]byte, 8), buffer, "written after Deregister had returned")
	}
	stop.Store(true)
	running.Wait()
	require.NotZero(t, refused.Load(), "nobody tried at the right moment")
}
