package memory

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestBindRefuses(t *testing.T) {
	b := newBench(t)
	const start = 1<<64 - 64 // to the very end of the address space
	all := BindWindow | LocalWrite
	region := b.register(64, start, all)
	noBind := b.register(64, start, LocalWrite)
	noWrite := b.register(64, start, BindWindow)
	zero := b.register(64, start, all|ZeroBased)
	require.Zero(t, zero.Address())
	foreign, err := b.table.Register(b.stranger.Domain, make([]byte, 64), start, all)
	require.NoError(t, err)
	bound := b.allocate(KindWindow1)
	require.Equal(t, FaultNone, b.user.Bind(b.p, Bind{bound.Key(), region.Key(), start, 64, RemoteWrite}))

	for _, kind := range []Kind{KindWindow1, KindWindow2} {
		w := b.allocate(kind)
		good := Bind{Window: w.Key(), Region: region.Key(), Address: start, Length: 64, Access: RemoteWrite}
		with := func(change func(*Bind)) Bind {
			bind := good
			change(&bind)
			return bind
		}
		for name, c := range map[string]struct {
			bind Bind
			want Fault
		}{
			"no such window":             {with(func(b *Bind) { b.Window = 0 }), FaultKey},
			"region as window":           {with(func(b *Bind) { b.Window = region.Key() }), FaultState},
			"fast as window":             {with(func(x *Bind) { x.Window = b.allocate(KindFast).Key() }), FaultState},
			"no such region":             {with(func(b *Bind) { b.Region ^= 1 }), FaultKey},
			"window as region":           {with(func(b *Bind) { b.Region = bound.Key() }), FaultKey},
			"region of another domain":   {with(func(b *Bind) { b.Region = foreign.Key() }), FaultDomain},
			"region without bind":        {with(func(b *Bind) { b.Region = noBind.Key() }), FaultAccess},
			"region without local write": {with(func(b *Bind) { b.Region = noWrite.Key() }), FaultAccess},
			"the same, atomic":           {with(func(b *Bind) { b.Region, b.Access = noWrite.Key(), RemoteAtomic }), FaultAccess},
			"zero based region":          {with(func(b *Bind) { b.Region, b.Address = zero.Key(), 0 }), FaultAccess},
			"local write":                {with(func(b *Bind) { b.Access |= LocalWrite }), FaultAccess},
			"bind right":                 {with(func(b *Bind) { b.Access |= BindWindow }), FaultAccess},
			"flush to persistence":       {with(func(b *Bind) { b.Access |= FlushPersistent }), FaultAccess},
			"unknown right":              {with(func(b *Bind) { b.Access |= 1 << 19 }), FaultAccess},
			"too long":                   {with(func(b *Bind) { b.Length++ }), FaultBounds},
			"wraps":                      {with(func(b *Bind) { b.Address, b.Length = 1<<64-8, 16 }), FaultBounds},
			"wraps to the same":          {with(func(b *Bind) { b.Length = 1<<64 - 1 }), FaultBounds},
			"before":                     {with(func(b *Bind) { b.Address--; b.Length = 1 }), FaultBounds},
			"at 0":                       {with(func(b *Bind) { b.Address, b.Length = 0, 1 }), FaultBounds},
		} {
			require.Equal(t, c.want, b.user.Bind(b.p, c.bind), "%s: %s", kind, name)
			require.Nil(t, w.Region(), "%s: %s", kind, name)
		}
		require.Equal(t, FaultDomain, b.user.Bind(b.stranger, good))

		zeroBased := with(func(b *Bind) { b.Access |= ZeroBased })
		empty := with(func(b *Bind) { b.Length = 0 })
		if kind == KindWindow1 {
			require.Equal(t, FaultAccess, b.user.Bind(b.p, zeroBased))
			require.Equal(t, FaultNone, b.user.Bind(b.p, empty), "it is unbound already")
		} else {
			require.Equal(t, FaultBounds, b.user.Bind(b.p, empty))
			require.Equal(t, FaultNone, b.user.Bind(b.p, zeroBased))
			require.Equal(t, FaultState, b.user.Bind(b.p, good), "bound already")
			require.Equal(t, FaultState, b.user.Bind(b.p, empty), "bound already")
			require.Equal(t, FaultNone, b.user.Invalidate(b.p, w.Key()))
		}
		require.Equal(t, FaultNone, b.user.Bind(b.p, with(func(b *Bind) { b.Region, b.Access = noWrite.Key(), RemoteRead|FlushGlobal|1<<20 })),
			"the region needs no right for remote reads, and the optional bit is ignored")
		require.Equal(t, RemoteRead|FlushGlobal, w.Region().Access())
		require.NoError(t, w.Free())
	}
	for _, r := range []*Region{noBind, noWrite, zero, foreign} {
		require.NoError(t, b.table.Deregister(r), "no refused binding counts")
	}
	require.ErrorIs(t, b.table.Deregister(region), ErrBound)
	require.NoError(t, bound.Free())
	require.NoError(t, b.table.Deregister(region))
}

// TestWindowRange: a window opens its own range, no byte more of the region, also at the end of the address space.
func TestWindowRange(t *testing.T) {
	b := newBench(t)
	const size = 64
	for _, start := range []uint64{0, 4096, 1<<63 - 32, 1<<64 - size} {
		region := b.register(size, start, BindWindow|LocalWrite)
		for i := range region.buffer {
			region.buffer[i] = byte(i)
		}
		for _, part := range [][2]uint64{{0, size}, {0, 8}, {8, 16}, {size - 8, 8}, {size - 1, 1}} {
			for _, zero := range []bool{false, true} {
				w := b.allocate(KindWindow2)
				bind := Bind{w.Key(), region.Key(), start + part[0], part[1], RemoteRead | RemoteWrite}
				first := start + part[0]
				if zero {
					bind.Access |= ZeroBased
					first = 0
				}
				require.Equal(t, FaultNone, b.user.Bind(b.p, bind))
				require.Equal(t, first, w.Region().Address())
				require.Equal(t, part[1], w.Region().Length())
				check := func(address, length uint64, want Fault) {
					t.Helper()
					require.Equal(t, want, b.user.Check(b.p, RemoteRead, Range{w.Key(), address, length}), "%#x + %#x in %#x + %#x", address, length, first, part[1])
				}
				check(first, part[1], FaultNone)
				check(first+part[1]-1, 1, FaultNone)
				check(first, part[1]+1, FaultBounds)
				check(first-1, 1, FaultBounds)
				check(first-1, 2, FaultBounds)
				check(first+part[1], 1, FaultBounds)
				check(first+part[1]-1, 2, FaultBounds)
				check(first, 1<<64-1, FaultBounds)
				check(first+1, 1<<64-1, FaultBounds)
				check(first, -first, map[bool]Fault{true: FaultNone, false: FaultBounds}[-first <= part[1]])
				into := make([]byte, part[1])
				require.Equal(t, FaultNone, b.user.Read(b.p, RemoteRead, Range{w.Key(), first, part[1]}, into))
				require.Equal(t, region.buffer[part[0]:part[0]+part[1]], into)
				require.Equal(t, int(part[1]), cap(w.Region().buffer), "nothing behind it is within reach")
				require.NoError(t, w.Free())
			}
		}
		require.NoError(t, b.table.Deregister(region))
	}
}

// TestWindowUsers: who may use a window, with which rights.
func TestWindowUsers(t *testing.T) {
	b := newBench(t)
	region := b.register(64, 0, BindWindow|LocalWrite)
	for _, kind := range []Kind{KindWindow1, KindWindow2} {
		w := b.allocate(kind)
		require.Equal(t, FaultNone, b.user.Bind(b.p, Bind{w.Key(), region.Key(), 0, 64, RemoteRead | RemoteAtomic | FlushGlobal}))
		r := Range{w.Key(), 0, 8}
		require.Equal(t, FaultNone, b.user.Check(b.p, RemoteRead, r))
		require.Equal(t, FaultNone, b.user.CheckRegion(b.p, FlushGlobal, w.Key()))
		require.Equal(t, FaultAccess, b.user.CheckRegion(b.p, FlushPersistent, w.Key()))
		require.Equal(t, FaultAccess, b.user.Check(b.p, RemoteWrite, r))
		require.Equal(t, FaultDomain, b.user.Check(b.stranger, RemoteRead, r))
		require.Equal(t, FaultDomain, b.user.CheckRegion(b.stranger, FlushGlobal, w.Key()))
		_, fault := b.user.FetchAdd(b.p, r, 1)
		require.Equal(t, FaultNone, fault)
		want := FaultNone
		if kind == KindWindow2 {
			want = FaultOwner
			require.Equal(t, FaultOwner, b.user.Invalidate(b.sibling, w.Key()))
		}
		require.Equal(t, want, b.user.Check(b.sibling, RemoteRead, r))
		require.Equal(t, want, b.user.CheckRegion(b.sibling, FlushGlobal, w.Key()))
		for _, local := range []Access{0, LocalWrite} {
			require.Equal(t, FaultKey, b.user.Check(b.p, local, r), "a window has no lkey")
			require.Equal(t, FaultKey, b.user.Read(b.p, local, r, make([]byte, 8)))
			require.Equal(t, FaultKey, b.user.Write(b.p, local, r, [][]byte{make([]byte, 8)}, false))
		}
		require.NoError(t, w.Free())
	}
	require.NoError(t, b.table.Deregister(region))
}

// TestRebind: the old key of a type 1 window dies, whatever becomes of the region.
func TestRebind(t *testing.T) {
	b := newBench(t)
	one, two := b.register(64, 0, BindWindow), b.register(64, 0, BindWindow)
	w := b.allocate(KindWindow1)
	key := w.Key()
	bind := func(key uint32, r *Region, length uint64) Fault {
		return b.user.Bind(b.p, Bind{key, r.Key(), 0, length, RemoteRead})
	}
	opens := func(key uint32) bool { return b.user.Check(b.p, RemoteRead, Range{key, 0, 1}) == FaultNone }
	require.Equal(t, FaultNone, bind(key, one, 1))
	require.Equal(t, FaultNone, bind(key^1, one, 2))
	require.False(t, opens(key))
	require.True(t, opens(key^1))
	require.Equal(t, key^1, w.Key())
	require.Equal(t, FaultBounds, bind(key, one, 65))
	require.True(t, opens(key^1), "a binding that fails leaves the old one")
	require.Equal(t, FaultNone, bind(key^1, two, 3), "even with the same key")
	require.Equal(t, uint64(3), w.Region().Length())
	require.ErrorIs(t, b.table.Deregister(two), ErrBound)
	_, err := b.table.Reregister(two, Reregistration{})
	require.ErrorIs(t, err, ErrBound)
	require.NoError(t, b.table.Deregister(one))
	require.Equal(t, FaultNone, b.user.Bind(b.sibling, Bind{Window: key}), "unbind")
	require.Nil(t, w.Region())
	require.False(t, opens(key^1))
	require.Equal(t, key^1, w.Key())
	require.NoError(t, b.table.Deregister(two))
	require.NoError(t, w.Free())
	require.Zero(t, b.table.Count())
}

// TestWindowOnFastRegion: while windows are bound to it, it can neither be invalidated nor freed.
func TestWindowOnFastRegion(t *testing.T) {
	b := newBench(t)
	a := b.fast([]byte("0123456789"), BindWindow)
	w := b.allocate(KindWindow2)
	require.Equal(t, FaultNone, b.user.Bind(b.p, Bind{w.Key(), a.Key(), 1002, 3, RemoteRead}))
	into := make([]byte, 3)
	require.Equal(t, FaultNone, b.user.Read(b.p, RemoteRead, Range{w.Key(), 1002, 3}, into))
	require.Equal(t, "234", string(into))
	require.Equal(t, FaultBound, b.user.Invalidate(b.p, a.Key()))
	require.ErrorIs(t, a.Free(), ErrBound)
	require.Equal(t, FaultNone, b.user.Invalidate(b.p, w.Key()))
	require.Equal(t, FaultNone, b.user.Invalidate(b.p, a.Key()))
	require.Equal(t, FaultKey, b.user.Bind(b.p, Bind{w.Key(), a.Key(), 1002, 3, RemoteRead}))
	require.NoError(t, a.Free())
	require.NoError(t, w.Free())
}
