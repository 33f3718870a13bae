package memory

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
)

// wearIn brings a table to where it reuses indices: as many were given back as have to rest.
func wearIn(t require.TestingT, table *Table) {
	keys := make([]uint32, resting)
	var err error
	for i := range keys {
		keys[i], err = table.takeKey()
		require.NoError(t, err)
	}
	for _, key := range keys {
		table.giveBack(key)
	}
}

// TestOldKeysFitNothing: none of the keys of a region that is registered again and again fits the region that is there
// now.
func TestOldKeysFitNothing(t *testing.T) {
	for seed := range uint64(5) {
		table, domain := NewTable(seed), new(Domain)
		user, p, buffer := table.NewUser(), &Principal{Domain: domain}, make([]byte, 8)
		var old []uint32
		for range 300 {
			r, err := table.Register(domain, buffer, 0, LocalWrite|RemoteWrite)
			require.NoError(t, err)
			for _, key := range old {
				require.Equal(t, FaultKey, user.Check(p, RemoteWrite, Range{key, 0, 8}), "seed %d: key %#x of before", seed, key)
			}
			old = append(old, r.Key())
			require.NoError(t, table.Deregister(r))
		}
	}
}

// TestDistanceOfKeys computes how many keys are made between two uses of the same one, beside any number of others that
// stay.
func TestDistanceOfKeys(t *testing.T) {
	for _, others := range []int{0, 10_000} {
		t.Run(fmt.Sprintf("%d others", others), func(t *testing.T) {
			table := NewTable(1)
			for range others {
				_, err := table.takeKey()
				require.NoError(t, err)
			}
			first, err := table.takeKey()
			require.NoError(t, err)
			table.giveBack(first)
			distance := 0
			for key := ^first; key != first; distance++ {
				if key, err = table.takeKey(); err != nil {
					t.Fatal(err)
				}
				table.giveBack(key)
			}
			require.Equal(t, 1<<24, distance)
		})
	}
}

// TestLastKeys: a table without a fresh index reuses those that were given back, and then has none left.
func TestLastKeys(t *testing.T) {
	table, domain := NewTable(1), new(Domain)
	first, err := table.Register(domain, make([]byte, 1), 0, 0)
	require.NoError(t, err)
	table.size = pageCount * pageSize
	require.NoError(t, table.Deregister(first))
	again, err := table.Register(domain, make([]byte, 1), 0, 0)
	require.NoError(t, err)
	require.Equal(t, first.Key()>>8, again.Key()>>8)
	require.Equal(t, byte(first.Key()+1), byte(again.Key()))
	_, err = table.Register(domain, make([]byte, 1), 0, 0)
	require.ErrorIs(t, err, ErrNoKeys)
}

// TestFirstKeysAreDrawn: the low byte of a fresh index does not follow from those of others.
func TestFirstKeysAreDrawn(t *testing.T) {
	table := NewTable(1)
	bytes, steps := make(map[byte]bool), make(map[byte]bool)
	last := byte(0)
	for range 1000 {
		key, err := table.takeKey()
		require.NoError(t, err)
		bytes[byte(key)], steps[byte(key)-last] = true, true
		last = byte(key)
	}
	require.Greater(t, len(bytes), 200)
	require.Greater(t, len(steps), 200)
}
