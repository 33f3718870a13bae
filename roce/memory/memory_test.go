package memory

import (
	"errors"
	"math/big"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/xroce/xroce/internal/support"
)

// near draws numbers of which many are close to the ends of the address space or to others of interest.
func near(points ...uint64) *rapid.Generator[uint64] {
	return rapid.Custom(func(t *rapid.T) uint64 {
		if rapid.IntRange(0, 4).Draw(t, "far") == 0 {
			return rapid.Uint64().Draw(t, "value")
		}
		point := rapid.SampledFrom(append(points, 0, 1<<64-1, 1<<63, 1<<32, 1<<31)).Draw(t, "point")
		return point + uint64(rapid.Int64Range(-3, 3).Draw(t, "distance"))
	})
}

// TestCheckModel compares the check with numbers that do not wrap.
func TestCheckModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		size := uint64(rapid.IntRange(1, 5000).Draw(t, "size"))
		// Anywhere, and often at the very end of the address space.
		start := min(near(-size, -size/2).Draw(t, "start"), -size)
		domain := new(Domain)
		granted := LocalWrite | Access(rapid.IntRange(0, 15).Draw(t, "granted"))
		table := NewTable(1)
		region, err := table.Register(domain, make([]byte, size), start, granted)
		require.NoError(t, err)
		user := table.NewUser()
		defer table.CloseUser(user)

		asks := domain
		if rapid.IntRange(0, 9).Draw(t, "stranger") == 0 {
			asks = new(Domain)
		}
		need := Access(rapid.IntRange(0, 15).Draw(t, "need"))
		r := Range{
			Key:     region.Key(),
			Address: near(start, start+size, start+size/2).Draw(t, "address"),
			Length:  near(size, size/2, -start).Draw(t, "length"),
		}
		got := user.Check(&Principal{Domain: asks}, need, r)

		number := func(v uint64) *big.Int { return new(big.Int).SetUint64(v) }
		end := new(big.Int).Add(number(r.Address), number(r.Length))
		inside := number(start).Cmp(number(r.Address)) <= 0 && end.Cmp(new(big.Int).Add(number(start), number(size))) <= 0
		want := FaultNone
		switch {
		case asks != domain:
			want = FaultDomain
		case need&^granted != 0:
			want = FaultAccess
		case !inside:
			want = FaultBounds
		}
		require.Equal(t, want, got, "%#x + %#x in %#x + %#x", r.Address, r.Length, start, size)
	})
}

// TestLookup: only the whole key opens a region.
func TestLookup(t *testing.T) {
	table, domain := NewTable(1), new(Domain)
	user := table.NewUser()
	region, err := table.Register(domain, make([]byte, 8), 0, LocalWrite)
	require.NoError(t, err)
	require.NotZero(t, region.Key()>>8, "index 0 is never used, so that key 0 is always wrong")
	check := func(key uint32) Fault {
		return user.Check(&Principal{Domain: domain}, LocalWrite, Range{Key: key, Length: 8})
	}
	require.Equal(t, FaultNone, check(region.Key()))
	for bit := range 32 {
		require.Equal(t, FaultKey, check(region.Key()^1<<bit))
	}
	require.Equal(t, FaultKey, check(0))
	require.Equal(t, FaultKey, check(1<<32-1))
	require.NoError(t, table.Deregister(region))
	require.Equal(t, FaultKey, check(region.Key()))
	require.ErrorIs(t, table.Deregister(region), ErrNotFound)
	require.Zero(t, table.Count())
}

func TestRegisterRefuses(t *testing.T) {
	table, domain := NewTable(1), new(Domain)
	_, err := table.Register(domain, nil, 0, LocalWrite)
	require.ErrorIs(t, err, ErrEmptyBuffer)
	for _, bad := range []Access{RemoteWrite, RemoteAtomic, RemoteWrite | RemoteRead, FlushPersistent | LocalWrite, 1 << 10, 1 << 19, 1 << 30, 1 << 31} {
		_, err = table.Register(domain, make([]byte, 1), 0, bad)
		require.ErrorIs(t, err, ErrAccess, "%#x", uint32(bad))
	}
	_, err = table.Register(domain, make([]byte, 1), 0, FlushPersistent)
	require.ErrorIs(t, err, errors.ErrUnsupported)
	_, err = table.Register(domain, make([]byte, 17), 1<<64-16, LocalWrite)
	require.ErrorIs(t, err, ErrAddress)
	require.Zero(t, table.Count())
	top, err := table.Register(domain, make([]byte, 16), 1<<64-16, LocalWrite)
	require.NoError(t, err, "the last bytes of the address space")
	require.Equal(t, uint64(1<<64-16), top.Address())
	for _, good := range []Access{0, RemoteRead, LocalWrite | RemoteWrite, LocalWrite | RemoteAtomic, BindWindow, ZeroBased,
		OnDemand | HugeTLB, FlushGlobal, 1<<20 | LocalWrite, 1 << 29} {
		region, err := table.Register(domain, make([]byte, 1), 0, good)
		require.NoError(t, err, "%#x", uint32(good))
		require.Equal(t, good&knownAccess, region.Access(), "unknown optional bits mean nothing")
	}
}

// TestKeysModel: keys are different while they live, and an index that was freed never gets the same low byte at once.
func TestKeysModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		table, domain := NewTable(rapid.Uint64().Draw(t, "seed")), new(Domain)
		var resting []uint32
		for range 40 {
			key, err := table.takeKey()
			require.NoError(t, err)
			resting = append(resting, key)
		}
		table.size = pageCount * pageSize // no fresh one is left, so that others come back soon
		for _, key := range resting {
			table.giveBack(key)
		}
		live := make(map[uint32]*Region)
		var keys []uint32
		freed := make(map[uint32]uint32) // by index: the last key of it
		t.Repeat(map[string]func(*rapid.T){
			"register": func(t *rapid.T) {
				r, err := table.Register(domain, make([]byte, 1), 0, 0)
				if len(live) == len(resting) {
					require.ErrorIs(t, err, ErrNoKeys)
					return
				}
				require.NoError(t, err)
				require.NotContains(t, live, r.Key())
				index := r.Key() >> 8
				require.NotZero(t, index)
				if last, used := freed[index]; used {
					require.NotEqual(t, last, r.Key())
				}
				for key := range live {
					require.NotEqual(t, index, key>>8)
				}
				live[r.Key()] = r
				keys = append(keys, r.Key())
			},
			"deregister": func(t *rapid.T) {
				if len(keys) == 0 {
					t.Skip("nothing is registered")
				}
				i := rapid.IntRange(0, len(keys)-1).Draw(t, "i")
				key := keys[i]
				require.NoError(t, table.Deregister(live[key]))
				freed[key>>8] = key
				delete(live, key)
				keys = append(keys[:i], keys[i+1:]...)
			},
			"": func(t *rapid.T) { require.Equal(t, len(live), table.Count()) },
		})
	})
}

// TestKeysDiffer: another seed, other keys.
func TestKeysDiffer(t *testing.T) {
	keys := make(map[uint32]bool)
	for seed := range uint64(200) {
		r, err := NewTable(seed).Register(new(Domain), make([]byte, 1), 0, 0)
		require.NoError(t, err)
		keys[r.Key()] = true
	}
	require.Greater(t, len(keys), 100)
}

// TestManyRegions: keys beyond the first page of the table.
func TestManyRegions(t *testing.T) {
	table, domain := NewTable(1), new(Domain)
	user := table.NewUser()
	buffer := make([]byte, 1)
	var regions []*Region
	for range 3*pageSize + 7 {
		r, err := table.Register(domain, buffer, 0, 0)
		require.NoError(t, err)
		regions = append(regions, r)
	}
	for _, r := range regions {
		require.Equal(t, FaultNone, user.Check(&Principal{Domain: domain}, 0, Range{Key: r.Key(), Length: 1}))
	}
	for _, r := range regions {
		require.NoError(t, table.Deregister(r))
		require.Equal(t, FaultKey, user.Check(&Principal{Domain: domain}, 0, Range{Key: r.Key(), Length: 1}))
	}
	require.Zero(t, table.Count())
}

// TestRegionAtTheEnd: a region that ends with the address space is reachable up to there, no farther.
func TestRegionAtTheEnd(t *testing.T) {
	table, domain := NewTable(1), new(Domain)
	user := table.NewUser()
	region, err := table.Register(domain, make([]byte, 16), 1<<64-16, LocalWrite)
	require.NoError(t, err)
	for _, c := range []struct {
		address, length uint64
		want            Fault
	}{
		{1<<64 - 16, 16, FaultNone}, {1<<64 - 1, 1, FaultNone}, {0, 1, FaultBounds}, {15, 1, FaultBounds}, {1<<64 - 17, 1, FaultBounds},
	} {
		r := Range{Key: region.Key(), Address: c.address, Length: c.length}
		require.Equal(t, c.want, user.Check(&Principal{Domain: domain}, 0, r), "%#x", c.address)
		require.Equal(t, c.want, user.Read(&Principal{Domain: domain}, 0, r, make([]byte, c.length)))
	}
}

func TestFaultNames(t *testing.T) {
	seen := make(map[string]bool)
	for f := FaultNone; f <= FaultBound; f++ {
		seen[f.String()] = true
	}
	require.Len(t, seen, 10)
	require.Equal(t, "fault 10", Fault(10).String())
}

// TestZeroBased: addresses start at 0, whatever was given, even one that makes no sense.
func TestZeroBased(t *testing.T) {
	table, p := NewTable(1), &Principal{Domain: new(Domain)}
	user := table.NewUser()
	region, err := table.Register(p.Domain, make([]byte, 16), 1<<64-1, ZeroBased)
	require.NoError(t, err)
	require.Zero(t, region.Address())
	require.Equal(t, FaultNone, user.Check(p, 0, Range{region.Key(), 0, 16}))
	require.Equal(t, FaultBounds, user.Check(p, 0, Range{region.Key(), 1<<64 - 1, 1}))
	support.Object(t, "MR", "with AccessZeroBased", "addresses from 0 on")
}

// TestCheckRegion: everything but the range.
func TestCheckRegion(t *testing.T) {
	table, p := NewTable(1), &Principal{Domain: new(Domain)}
	user := table.NewUser()
	region, err := table.Register(p.Domain, make([]byte, 16), 0, FlushGlobal)
	require.NoError(t, err)
	require.Equal(t, FaultNone, user.CheckRegion(p, FlushGlobal, region.Key()))
	require.Equal(t, FaultKey, user.CheckRegion(p, FlushGlobal, region.Key()^1))
	require.Equal(t, FaultAccess, user.CheckRegion(p, FlushPersistent, region.Key()))
	require.Equal(t, FaultAccess, user.CheckRegion(p, RemoteRead, region.Key()))
	require.Equal(t, FaultDomain, user.CheckRegion(&Principal{Domain: new(Domain)}, FlushGlobal, region.Key()))
	require.NoError(t, table.Deregister(region))
	require.Equal(t, FaultKey, user.CheckRegion(p, FlushGlobal, region.Key()))
}

func TestKindNames(t *testing.T) {
	seen := make(map[string]bool)
	for k := KindRegion; k <= KindWindow2; k++ {
		seen[k.String()] = true
	}
	require.Len(t, seen, 4)
	require.Equal(t, "kind 4", Kind(4).String())
}
