package queue

import (
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func newDoorbells(t require.TestingT) (client, engine *Doorbells) {
	memory := make([]byte, DoorbellSize)
	require.NoError(t, CreateDoorbells(memory))
	client, err := NewDoorbells(memory)
	require.NoError(t, err)
	engine, err = NewDoorbells(memory)
	require.NoError(t, err)
	return client, engine
}

// TestDoorbellsModel: what was rung is taken, once however often it was rung.
func TestDoorbellsModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		client, engine := newDoorbells(t)
		rung := map[uint32]bool{}
		asleep := false
		t.Repeat(map[string]func(*rapid.T){
			"ring": func(t *rapid.T) {
				slot := rapid.OneOf(rapid.Uint32Range(0, DoorbellSlots-1), rapid.SampledFrom([]uint32{0, 63, 64, 4095, 4096, DoorbellSlots - 1})).
					Draw(t, "slot")
				require.Equal(t, asleep, client.Ring(slot))
				rung[slot] = true
			},
			"take": func(t *rapid.T) {
				count := 0
				any := engine.Take(func(slot uint32) {
					require.True(t, rung[slot], slot)
					delete(rung, slot)
					count++
				})
				require.Equal(t, count > 0, any)
				require.LessOrEqual(t, count, 64)
				require.True(t, any || len(rung) == 0)
			},
			"sleep": func(t *rapid.T) {
				asleep = engine.Sleep()
				require.Equal(t, len(rung) == 0, asleep)
			},
			"awake": func(*rapid.T) { engine.Awake(); asleep = false },
		})
	})
}

// TestDoorbellsTakeTurns: whoever rings a low slot all the time does not hold up the others.
func TestDoorbellsTakeTurns(t *testing.T) {
	client, engine := newDoorbells(t)
	slots := []uint32{3, 70, 5000, DoorbellSlots - 1}
	for _, slot := range slots {
		client.Ring(slot)
	}
	var taken []uint32
	for range slots {
		engine.Take(func(slot uint32) { taken = append(taken, slot) })
		client.Ring(3)
	}
	require.Equal(t, slots, taken)
}

// TestDoorbellsHostile: whatever the memory holds, slots are within bounds, and an end comes to an end.
func TestDoorbellsHostile(t *testing.T) {
	require.Error(t, CreateDoorbells(make([]byte, DoorbellSize-1)))
	require.Error(t, CreateDoorbells(make([]byte, DoorbellSize+8)[1:]))
	_, err := NewDoorbells(make([]byte, DoorbellSize))
	require.ErrorIs(t, err, ErrLayout)
	client, engine := newDoorbells(t)
	for word := range client.bits {
		client.bits[word].Store(^uint64(0))
	}
	require.False(t, engine.Sleep(), "bits without a summary are seen before it sleeps")
	count := 0
	for engine.Take(func(slot uint32) { require.Less(t, slot, uint32(DoorbellSlots)); count++ }) {
	}
	require.Equal(t, DoorbellSlots, count)
	for i := range client.summary {
		client.summary[i].Store(^uint64(0)) // without bits
	}
	for range doorbellBitsCount {
		require.True(t, engine.Take(func(uint32) { require.Fail(t, "taken") }))
	}
	require.False(t, engine.Take(func(uint32) {}))
}

// TestDoorbellsRace: no ring is lost. Each ringer waits until its last ring has been answered, so one that is lost ends
// the test.
func TestDoorbellsRace(t *testing.T) {
	const ringers, rings = 2, 200_000
	client, engine := newDoorbells(t)
	wake := make(chan struct{}, ringers)
	slots := []uint32{7, 8000}
	var posted, answered [ringers]atomic.Uint32
	var finished sync.WaitGroup
	for i := range ringers {
		finished.Go(func() {
			for n := uint32(1); n <= rings; n++ {
				posted[i].Store(n)
				if client.Ring(slots[i]) {
					select {
					case wake <- struct{}{}:
					default:
					}
				}
				for answered[i].Load() != n {
					runtime.Gosched()
				}
			}
		})
	}
	done := make(chan struct{})
	go func() { finished.Wait(); close(done) }()
	for spin := 0; ; spin++ {
		if engine.Take(func(slot uint32) {
			i := slices.Index(slots, slot)
			answered[i].Store(posted[i].Load())
		}) {
			continue
		}
		select {
		case <-done:
			return
		default:
		}
		if spin%4 != 0 || !engine.Sleep() {
			runtime.Gosched()
			continue
		}
		select {
		case <-wake:
		case <-done:
			return
		case <-time.After(20 * time.Second):
			require.Fail(t, "a ring was lost")
		}
		engine.Awake()
	}
}
