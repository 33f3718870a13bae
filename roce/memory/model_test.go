package memory

import (
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// modelKey is what the model knows of one index: a plain region, a fast registration or a window.
type modelKey struct {
	kind       Kind
	region     *Region     // of KindRegion
	allocation *Allocation // of all others
	domain     *Domain
	key        uint32
	valid      bool
	owner      *Principal
	start      uint64
	bytes      []byte // what the key shows, or for a fast registration what the next one will
	mapped     uint64 // address of the next fast registration
	access     Access
	parent     *modelKey
}

// world is the model beside the table.
type world struct {
	table      *Table
	user       *User
	principals []*Principal
	keys       []*modelKey
}

// windows counts those bound to a region.
func (w *world) windows(region *modelKey) (n int) {
	for _, k := range w.keys {
		if k.valid && k.parent == region {
			n++
		}
	}
	return n
}

// named is the key's owner, whatever its low byte.
func (w *world) named(key uint32) *modelKey {
	for _, k := range w.keys {
		if k.key>>8 == key>>8 {
			return k
		}
	}
	return nil
}

const modelStart = 1<<64 - 32 // the regions' addresses end with the address space

// access is what an access of one byte must give.
func (w *world) access(p *Principal, k *modelKey, key uint32, need Access, address uint64) Fault {
	window := k.kind == KindWindow1 || k.kind == KindWindow2
	switch {
	case !k.valid, key != k.key, window && need&(RemoteRead|RemoteWrite) == 0:
		return FaultKey
	case p.Domain != k.domain:
		return FaultDomain
	case k.kind == KindWindow2 && k.owner != p:
		return FaultOwner
	case need&^k.access != 0:
		return FaultAccess
	case address-k.start >= uint64(len(k.bytes)): // modulo 2^64: an address before it is far behind it
		return FaultBounds
	}
	return FaultNone
}

// pick draws one of the keys, seldom none.
func (w *world) pick(t *rapid.T, label string) *modelKey {
	if len(w.keys) == 0 {
		t.Skip("no keys")
	}
	return rapid.SampledFrom(w.keys).Draw(t, label)
}

func (w *world) principal(t *rapid.T) *Principal {
	return rapid.SampledFrom(w.principals).Draw(t, "principal")
}

var anyAccess = rapid.Custom(func(t *rapid.T) Access {
	right := func(a Access, label string) Access {
		if rapid.Bool().Draw(t, label) {
			return a
		}
		return 0
	}
	return right(LocalWrite, "local write") | right(RemoteWrite, "remote write") | right(RemoteRead, "remote read")
})

func (w *world) register(t *rapid.T) {
	p := w.principal(t)
	access := LocalWrite&anyAccess.Draw(t, "access") | BindWindow&Access(rapid.SampledFrom([]int{0, 16, 16, 16}).Draw(t, "bind"))
	buffer := numbered(t)
	r, err := w.table.Register(p.Domain, buffer, modelStart, access)
	require.NoError(t, err)
	w.keys = append(w.keys, &modelKey{
		kind: KindRegion, region: r, domain: p.Domain, key: r.Key(), valid: true, start: modelStart, bytes: buffer, access: access,
	})
}

// numbered makes a buffer whose content nobody else has.
func numbered(t *rapid.T) []byte {
	return rapid.SliceOfN(rapid.Byte(), 32, 32).Draw(t, "buffer")
}

func (w *world) allocate(t *rapid.T) {
	p := w.principal(t)
	kind := rapid.SampledFrom([]Kind{KindFast, KindWindow1, KindWindow2, KindWindow2}).Draw(t, "kind")
	a, err := w.table.Allocate(p.Domain, kind, 32)
	require.NoError(t, err)
	w.keys = append(w.keys, &modelKey{kind: kind, allocation: a, domain: p.Domain, key: a.Key()})
}

func (w *world) mapBuffer(t *rapid.T) {
	k := w.pick(t, "allocation")
	if k.kind != KindFast {
		t.Skip("not a fast registration")
	}
	buffer := numbered(t)
	err := k.allocation.Map(buffer, modelStart)
	if k.valid {
		require.ErrorIs(t, err, ErrNotFree)
		return
	}
	require.NoError(t, err)
	k.bytes, k.mapped = buffer, modelStart
}

func (w *world) fastRegister(t *rapid.T) {
	p, k := w.principal(t), w.pick(t, "key")
	key := k.key&^0xff | uint32(rapid.Byte().Draw(t, "low byte"))
	access := anyAccess.Draw(t, "access") | BindWindow
	want := FaultNone
	switch {
	case k.kind == KindRegion && key != k.key:
		want = FaultKey
	case k.kind == KindRegion:
		want = FaultState
	case k.domain != p.Domain:
		want = FaultDomain
	case k.kind != KindFast, k.valid, k.bytes == nil:
		want = FaultState
	case access&RemoteWrite != 0 && access&LocalWrite == 0:
		want = FaultAccess
	}
	require.Equal(t, want, w.user.FastRegister(p, key, access))
	if want == FaultNone {
		k.valid, k.key, k.access, k.start = true, key, access, k.mapped
	}
}

func (w *world) bind(t *rapid.T) {
	p, k, parent := w.principal(t), w.pick(t, "window"), w.pick(t, "region")
	offset := rapid.Uint64Range(0, 33).Draw(t, "offset")
	b := Bind{
		Window: k.key&^0xff | uint32(rapid.Byte().Draw(t, "low byte")), Region: parent.key,
		Address: modelStart + offset, Length: rapid.Uint64Range(0, 34-offset).Draw(t, "length"),
		Access: anyAccess.Draw(t, "access") & (RemoteRead | RemoteWrite),
	}
	if rapid.IntRange(0, 3).Draw(t, "zero based") == 0 {
		b.Access |= ZeroBased
	}
	unbind := k.kind == KindWindow1 && b.Length == 0
	isRegion := parent.kind == KindRegion || parent.kind == KindFast
	want := FaultNone
	switch {
	case k.kind == KindRegion && b.Window != k.key:
		want = FaultKey
	case k.kind == KindRegion:
		want = FaultState
	case k.domain != p.Domain:
		want = FaultDomain
	case k.kind == KindFast, k.kind == KindWindow2 && k.valid:
		want = FaultState
	case unbind:
	case !isRegion, !parent.valid:
		want = FaultKey
	case parent.domain != p.Domain:
		want = FaultDomain
	case parent.access&BindWindow == 0, b.Access&RemoteWrite != 0 && parent.access&LocalWrite == 0:
		want = FaultAccess
	case offset+b.Length > 32:
		want = FaultBounds
	case b.Access&ZeroBased != 0 && k.kind == KindWindow1:
		want = FaultAccess
	case b.Length == 0:
		want = FaultBounds
	}
	require.Equal(t, want, w.user.Bind(p, b), "%+v of %s to %s", b, k.kind, parent.kind)
	switch {
	case want != FaultNone:
	case unbind:
		k.valid = false
	default:
		k.valid, k.key, k.access, k.owner, k.parent, k.start = true, b.Window, b.Access, p, parent, b.Address
		k.bytes = parent.bytes[offset : offset+b.Length]
		if b.Access&ZeroBased != 0 {
			k.start = 0
		}
	}
}

func (w *world) invalidate(t *rapid.T) {
	p, k := w.principal(t), w.pick(t, "key")
	key := k.key
	if rapid.IntRange(0, 4).Draw(t, "other key") == 0 {
		key ^= 1
	}
	want := FaultNone
	switch {
	case k.kind == KindRegion && key != k.key:
		want = FaultKey
	case k.kind == KindRegion:
		want = FaultState
	case k.domain != p.Domain:
		want = FaultDomain
	case k.kind == KindWindow1, !k.valid:
		want = FaultState
	case key != k.key:
		want = FaultKey
	case k.kind == KindWindow2 && k.owner != p:
		want = FaultOwner
	case w.windows(k) > 0:
		want = FaultBound
	}
	require.Equal(t, want, w.user.Invalidate(p, key))
	if want == FaultNone {
		k.valid = false
	}
}

func (w *world) reregister(t *rapid.T) {
	k := w.pick(t, "region")
	if k.kind != KindRegion {
		t.Skip("not a plain region")
	}
	buffer := numbered(t)
	next, err := w.table.Reregister(k.region, Reregistration{Buffer: buffer, Address: modelStart})
	if w.windows(k) > 0 {
		require.ErrorIs(t, err, ErrBound)
		return
	}
	require.NoError(t, err)
	k.region, k.bytes = next, buffer
}

func (w *world) end(t *rapid.T) {
	i := rapid.IntRange(0, max(0, len(w.keys)-1)).Draw(t, "i")
	if len(w.keys) == 0 {
		t.Skip("no keys")
	}
	k := w.keys[i]
	var err error
	if k.kind == KindRegion {
		err = w.table.Deregister(k.region)
	} else {
		err = k.allocation.Free()
	}
	if w.windows(k) > 0 {
		require.ErrorIs(t, err, ErrBound)
		return
	}
	require.NoError(t, err)
	for _, p := range w.principals {
		require.Equal(t, FaultKey, w.user.Check(p, RemoteRead, Range{k.key, k.start, 1}))
	}
	w.keys = append(w.keys[:i], w.keys[i+1:]...)
}

// compare makes accesses at the edges of everything, for everybody.
func (w *world) compare(t *rapid.T) {
	require.Equal(t, len(w.keys), w.table.Count())
	for _, k := range w.keys {
		require.Same(t, k, w.named(k.key), "no two have the same index")
		if k.allocation != nil {
			require.Equal(t, k.valid, k.allocation.Region() != nil)
			require.Equal(t, k.key, k.allocation.Key())
		}
		for _, p := range w.principals {
			for _, need := range []Access{0, LocalWrite, RemoteRead, RemoteWrite} {
				require.Equal(t, FaultKey, w.user.Check(p, need, Range{k.key ^ 0x80, k.start, 1}))
				size := uint64(len(k.bytes))
				for _, offset := range []uint64{0, size - 1, size, 1<<64 - 1} {
					var into [1]byte
					want := w.access(p, k, k.key, need, k.start+offset)
					got := w.user.Read(p, need, Range{k.key, k.start + offset, 1}, into[:])
					require.Equal(t, want, got, "%s, need %#x, offset %#x of %d", k.kind, uint32(need), offset, size)
					if want == FaultNone {
						require.Equal(t, k.bytes[offset], into[0])
					}
				}
			}
		}
	}
}

// TestKeyModel compares any sequence of operations on regions, fast registrations and windows with a model.
func TestKeyModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		table, one, two := NewTable(rapid.Uint64().Draw(t, "seed")), new(Domain), new(Domain)
		p := &Principal{Domain: one}
		w := &world{
			table: table, user: table.NewUser(),
			principals: []*Principal{p, p, p, {Domain: one}, {Domain: two}},
		}
		t.Repeat(map[string]func(*rapid.T){
			"register": w.register, "allocate": w.allocate, "map": w.mapBuffer, "fast register": w.fastRegister,
			"bind": w.bind, "bind again": w.bind, "invalidate": w.invalidate, "reregister": w.reregister, "end": w.end,
			"": w.compare,
		})
	})
}
