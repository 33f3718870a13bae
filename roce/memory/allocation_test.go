package memory

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/xroce/xroce/internal/support"
)

// bench is a table with a domain, a stranger to it, and two queue pairs of the domain.
type bench struct {
	*testing.T
	table    *Table
	user     *User
	domain   *Domain
	p        *Principal
	sibling  *Principal // another queue pair of the domain
	stranger *Principal // of another domain
}

func newBench(t *testing.T) *bench {
	table, domain := NewTable(1), new(Domain)
	return &bench{
		T: t, table: table, user: table.NewUser(), domain: domain,
		p: &Principal{Domain: domain}, sibling: &Principal{Domain: domain}, stranger: &Principal{Domain: new(Domain)},
	}
}

func (b *bench) register(size int, address uint64, access Access) *Region {
	b.Helper()
	r, err := b.table.Register(b.domain, aligned(size, 0), address, access)
	require.NoError(b, err)
	return r
}

func (b *bench) allocate(kind Kind) *Allocation {
	b.Helper()
	a, err := b.table.Allocate(b.domain, kind, 64)
	require.NoError(b, err)
	require.Equal(b, kind, a.Kind())
	require.Nil(b, a.Region())
	require.Equal(b, FaultKey, b.user.Check(b.p, 0, Range{Key: a.Key(), Length: 1}), "the key of a free allocation opens nothing")
	return a
}

// fast allocates, maps and registers.
func (b *bench) fast(buffer []byte, access Access) *Allocation {
	b.Helper()
	a := b.allocate(KindFast)
	require.NoError(b, a.Map(buffer, 1000))
	require.Equal(b, FaultNone, b.user.FastRegister(b.p, a.Key(), access))
	return a
}

func TestFastRegister(t *testing.T) {
	b := newBench(t)
	a := b.allocate(KindFast)
	key := a.Key() ^ 0xff
	require.Equal(t, FaultState, b.user.FastRegister(b.p, key, 0), "not mapped")
	first, second := []byte("first.."), []byte("second.")
	require.NoError(t, a.Map(first, 1000))

	require.Equal(t, FaultKey, b.user.FastRegister(b.p, 0, 0))
	require.Equal(t, FaultKey, b.user.FastRegister(b.p, 1<<32-1, 0))
	require.Equal(t, FaultState, b.user.FastRegister(b.p, b.register(1, 0, 0).Key(), 0), "plain region")
	require.Equal(t, FaultState, b.user.FastRegister(b.p, b.allocate(KindWindow1).Key(), 0))
	require.Equal(t, FaultState, b.user.FastRegister(b.p, b.allocate(KindWindow2).Key(), 0))
	require.Equal(t, FaultDomain, b.user.FastRegister(b.stranger, key, 0))
	for _, bad := range []Access{RemoteWrite, RemoteAtomic, FlushPersistent, 1 << 19, 1 << 31} {
		require.Equal(t, FaultAccess, b.user.FastRegister(b.p, key, bad), "%#x", uint32(bad))
	}
	require.Nil(t, a.Region(), "none of this did anything")

	require.Equal(t, FaultNone, b.user.FastRegister(b.p, key, RemoteRead|1<<20))
	require.Equal(t, key, a.Key())
	region := a.Region()
	require.Equal(t, KindFast, region.Kind())
	require.Equal(t, RemoteRead, region.Access())
	into := make([]byte, 5)
	require.Equal(t, FaultNone, b.user.Read(b.sibling, RemoteRead, Range{key, 1000, 5}, into))
	require.Equal(t, "first", string(into))
	require.Equal(t, FaultNone, b.user.Check(b.p, 0, Range{key, 1000, 7}), "it has an lkey")
	require.Equal(t, FaultKey, b.user.Check(b.p, 0, Range{key ^ 1, 1000, 7}))
	require.Equal(t, FaultDomain, b.user.Check(b.stranger, 0, Range{key, 1000, 7}))

	require.Equal(t, FaultState, b.user.FastRegister(b.p, key^1, 0), "not free")
	require.ErrorIs(t, a.Map(second, 0), ErrNotFree)
	require.ErrorIs(t, b.table.Deregister(region), ErrKind)
	_, err := b.table.Reregister(region, Reregistration{})
	require.ErrorIs(t, err, ErrKind)

	require.Equal(t, FaultKey, b.user.Invalidate(b.p, key^1))
	require.Equal(t, FaultDomain, b.user.Invalidate(b.stranger, key))
	require.Equal(t, FaultNone, b.user.Invalidate(b.sibling, key), "any queue pair of the domain")
	require.Equal(t, key, a.Key())
	require.Equal(t, FaultState, b.user.Invalidate(b.p, key), "free")
	require.Equal(t, FaultKey, b.user.Check(b.p, 0, Range{key, 1000, 1}))

	require.Equal(t, FaultNone, b.user.FastRegister(b.p, key^2, ZeroBased), "the mapping is still there")
	require.Equal(t, FaultNone, b.user.Read(b.p, 0, Range{key ^ 2, 0, 5}, into))
	require.Equal(t, "first", string(into))
	require.Equal(t, FaultNone, b.user.Invalidate(b.p, key^2))
	require.NoError(t, a.Map(second, 1))
	require.Equal(t, FaultNone, b.user.FastRegister(b.p, key, 0))
	require.Equal(t, FaultNone, b.user.Read(b.p, 0, Range{key, 1, 5}, into))
	require.Equal(t, "secon", string(into))

	require.NoError(t, a.Free())
	require.Equal(t, FaultKey, b.user.Check(b.p, 0, Range{key, 1, 1}))
	require.Equal(t, FaultKey, b.user.FastRegister(b.p, key, 0))
	require.Nil(t, a.Region())
	require.ErrorIs(t, a.Free(), ErrNotFound)
	require.ErrorIs(t, a.Map(first, 0), ErrNotFound)
}

func TestAllocateRefuses(t *testing.T) {
	b := newBench(t)
	for _, kind := range []Kind{KindRegion, KindWindow2 + 1, 255} {
		_, err := b.table.Allocate(b.domain, kind, 1)
		require.ErrorIs(t, err, ErrKind)
	}
	_, err := b.table.Allocate(b.domain, KindFast, 0)
	require.ErrorIs(t, err, ErrLength)
	require.Zero(t, b.table.Count())

	a := b.allocate(KindFast)
	require.Equal(t, 1, b.table.Count())
	require.ErrorIs(t, a.Map(nil, 0), ErrEmptyBuffer)
	require.ErrorIs(t, a.Map(make([]byte, 65), 0), ErrLength)
	require.ErrorIs(t, a.Map(make([]byte, 2), 1<<64-1), ErrAddress)
	require.NoError(t, a.Map(make([]byte, 64), 1<<64-64))
	require.ErrorIs(t, b.allocate(KindWindow1).Map(make([]byte, 1), 0), ErrKind)
}

// TestInvalidateRefuses: neither plain regions nor type 1 windows, nor anything that does not exist.
func TestInvalidateRefuses(t *testing.T) {
	b := newBench(t)
	region := b.register(16, 0, BindWindow)
	require.Equal(t, FaultState, b.user.Invalidate(b.p, region.Key()))
	require.Equal(t, FaultKey, b.user.Invalidate(b.p, region.Key()^1))
	require.Equal(t, FaultKey, b.user.Invalidate(b.p, 0))
	require.Equal(t, FaultKey, b.user.Invalidate(b.p, 1<<32-1))
	window := b.allocate(KindWindow1)
	require.Equal(t, FaultState, b.user.Invalidate(b.p, window.Key()))
	require.Equal(t, FaultNone, b.user.Bind(b.p, Bind{window.Key(), region.Key(), 0, 1, RemoteRead}))
	require.Equal(t, FaultState, b.user.Invalidate(b.p, window.Key()))
	require.Equal(t, FaultNone, b.user.Check(b.p, RemoteRead, Range{window.Key(), 0, 1}))
	require.Equal(t, FaultState, b.user.Invalidate(b.p, b.allocate(KindWindow2).Key()), "not bound")
}

func TestReregister(t *testing.T) {
	b := newBench(t)
	old := b.register(16, 1000, LocalWrite|RemoteWrite)
	key := old.Key()
	change := func(c Reregistration) *Region {
		t.Helper()
		next, err := b.table.Reregister(old, c)
		require.NoError(t, err)
		require.Equal(t, key, next.Key())
		require.ErrorIs(t, b.table.Deregister(old), ErrNotFound, "it was replaced")
		_, err = b.table.Reregister(old, c)
		require.ErrorIs(t, err, ErrNotFound)
		old = next
		return next
	}
	access := func(a Access) *Access { return &a }
	whole := func(address, length uint64) Range { return Range{key, address, length} }

	next := change(Reregistration{})
	require.Equal(t, FaultNone, b.user.Check(b.p, RemoteWrite, whole(1000, 16)))
	require.Equal(t, LocalWrite|RemoteWrite, next.Access())

	change(Reregistration{Access: access(0)})
	require.Equal(t, FaultAccess, b.user.Check(b.p, RemoteWrite, whole(1000, 16)))
	require.Equal(t, FaultNone, b.user.Check(b.p, 0, whole(1000, 16)))

	change(Reregistration{Domain: b.stranger.Domain})
	require.Equal(t, FaultDomain, b.user.Check(b.p, 0, whole(1000, 16)))
	require.Equal(t, FaultNone, b.user.Check(b.stranger, 0, whole(1000, 16)))

	change(Reregistration{Domain: b.domain, Buffer: []byte("other"), Address: 5})
	require.Equal(t, FaultBounds, b.user.Check(b.p, 0, whole(1000, 16)))
	into := make([]byte, 5)
	require.Equal(t, FaultNone, b.user.Read(b.p, 0, whole(5, 5), into))
	require.Equal(t, "other", string(into))

	change(Reregistration{Access: access(ZeroBased)})
	require.Equal(t, FaultNone, b.user.Read(b.p, 0, whole(0, 5), into))

	for want, c := range map[error]Reregistration{
		ErrEmptyBuffer:        {Buffer: []byte{}},
		ErrAccess:             {Access: access(RemoteWrite)},
		errors.ErrUnsupported: {Access: access(FlushPersistent)},
		ErrAddress:            {Buffer: make([]byte, 2), Address: 1<<64 - 1, Access: access(0)},
	} {
		_, err := b.table.Reregister(old, c)
		require.ErrorIs(t, err, want)
	}
	require.Equal(t, FaultNone, b.user.Read(b.p, 0, whole(0, 5), into), "as it was")
	require.Equal(t, 1, b.table.Count())
	require.NoError(t, b.table.Deregister(old))
	require.Zero(t, b.table.Count())
	support.Object(t, "MR", "Rereg of rights, PD, buffer or address", "the key stays, what was changed counts")
}

// TestKeysOfAllocations: an index that comes back has the low byte after the one that opened something last, whoever
// chose that.
func TestKeysOfAllocations(t *testing.T) {
	b := newBench(t)
	wearIn(t, b.table)
	last := make(map[uint32]uint32)
	for i := range 2*resting + 100 {
		a := b.allocate(KindFast)
		key := a.Key()
		index := key >> 8
		if old, used := last[index]; used != (i >= resting) || used && byte(old+1) != byte(key) {
			t.Fatalf("allocation %d: %#x after %#x", i, key, old)
		}
		if i%2 == 0 {
			require.NoError(t, a.Map(make([]byte, 1), 0))
			key ^= uint32(i>>1) & 0xff
			require.Equal(t, FaultNone, b.user.FastRegister(b.p, key, 0))
		}
		last[index] = key
		if i%100 == 0 {
			require.Equal(t, key, a.Key())
		}
		require.NoError(t, a.Free())
	}
	require.Len(t, last, resting)
	require.NotContains(t, last, uint32(0))
}
