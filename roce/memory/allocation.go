package memory

import (
	"fmt"
	"runtime"
)

// Life of a key that work requests change: Allocate reserves an index, which is free: the key opens nothing.
// FastRegister or Bind, executed by the engine of the queue pair that posted the request, puts a Region in the index's
// slot, from where the data path takes it like any other. Invalidate, or another Bind of a type 1 window, takes it out
// and waits for its users. Free gives the index back. All of this happens under the table's mutex, except the wait.

// Allocation is a key for fast registrations or for a window. Its methods may be called at any time, also while engines
// work on the key.
type Allocation struct {
	table     *Table
	domain    *Domain
	kind      Kind
	index     uint32
	maxLength uint64

	// Guarded by the table's mutex.
	key      uint32
	region   *Region // nil while free
	changing bool    // somebody waits for the users of the region that was here; whoever else wants to change it waits too
	buffer   []byte  // for the next fast registration
	address  uint64
}

// Allocate reserves a key of the given kind, any but KindRegion. MaxLength, in bytes, bounds the buffer of a KindFast;
// it means nothing for windows.
func (t *Table) Allocate(domain *Domain, kind Kind, maxLength uint64) (*Allocation, error) {
	if kind < KindFast || kind > KindWindow2 {
		return nil, fmt.Errorf("%w: a %s cannot be allocated", ErrKind, kind)
	}
	if kind == KindFast && maxLength == 0 {
		return nil, fmt.Errorf("%w: at most 0 bytes", ErrLength)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	key, err := t.takeKey()
	if err != nil {
		return nil, err
	}
	t.slot(key >> 8) // makes the page
	a := &Allocation{table: t, domain: domain, kind: kind, index: key >> 8, maxLength: maxLength, key: key}
	t.allocations[a.index] = a
	return a, nil
}

// Key is the key of the region that is valid now, or, while it is free, of the last one; before the first one it is
// what Allocate drew. Its upper 24 bits, the index, never change.
func (a *Allocation) Key() uint32 {
	a.table.mu.Lock()
	defer a.table.mu.Unlock()
	return a.key
}

// Kind is what the key was allocated for.
func (a *Allocation) Kind() Kind { return a.kind }

// Region is what the key opens now, or nil while it is free.
func (a *Allocation) Region() *Region {
	a.table.mu.Lock()
	defer a.table.mu.Unlock()
	return a.region
}

// Map sets the buffer that the next fast registrations expose and the address of its first byte, as in Register. It is
// possible for a KindFast that is free; the mapping stays until another one or Free.
func (a *Allocation) Map(buffer []byte, address uint64) error {
	if a.kind != KindFast {
		return fmt.Errorf("%w: a %s has no mapping", ErrKind, a.kind)
	}
	if err := validatePlace(buffer, address); err != nil {
		return err
	}
	if uint64(len(buffer)) > a.maxLength {
		return fmt.Errorf("%w: %d bytes, at most %d", ErrLength, len(buffer), a.maxLength)
	}
	t := a.table
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.settled(a.index) != a {
		return fmt.Errorf("%w: allocation of index %#x", ErrNotFound, a.index)
	}
	if a.region != nil {
		return fmt.Errorf("%w: %#x, invalidate it first", ErrNotFree, a.key)
	}
	a.buffer, a.address = buffer, address
	return nil
}

// Free gives the key back, whether it is free or not. When it returns, no access through the key is under way and none
// will begin. It fails with ErrBound while windows are bound to the region, or a binding is only just ending.
func (a *Allocation) Free() error {
	t := a.table
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.settled(a.index) != a {
		return fmt.Errorf("%w: allocation of index %#x", ErrNotFound, a.index)
	}
	if a.region != nil && a.region.bound > 0 {
		return fmt.Errorf("%w: %d to key %#x", ErrBound, a.region.bound, a.key)
	}
	a.set(nil)
	a.buffer = nil
	delete(t.allocations, a.index)
	t.giveBack(a.key)
	return nil
}

// settled returns the allocation of an index, or nil, when nobody is in the middle of changing it. The caller holds the
// mutex, which may be released meanwhile.
func (t *Table) settled(index uint32) *Allocation {
	for {
		a := t.allocations[index]
		if a == nil || !a.changing {
			return a
		}
		t.mu.Unlock()
		runtime.Gosched()
		t.mu.Lock()
	}
}

// set puts next, which may be nil, in place of the allocation's region, and returns when nobody uses that any more. The
// caller holds the mutex, which is released while waiting, and has checked that the allocation is settled.
func (a *Allocation) set(next *Region) {
	old := a.region
	a.region = next
	if old != nil && old.owner != nil {
		delete(old.owner.windows, a)
	}
	if next != nil && next.owner != nil {
		next.owner.add(a)
	}
	if next != nil {
		a.key = next.key
	}
	if old == nil {
		a.table.slot(a.index).Store(next)
		return
	}
	a.changing = true
	a.table.retire(old, next)
	a.changing = false
}

// find returns the allocation that a work request names by the upper 24 bits of a key. The caller holds the mutex.
func (t *Table) find(p *Principal, key uint32) (*Allocation, Fault) {
	a := t.settled(key >> 8)
	switch {
	case a == nil && t.lookup(key) != nil:
		return nil, FaultState // a region made by Register
	case a == nil:
		return nil, FaultKey
	case a.domain != p.Domain:
		return nil, FaultDomain
	}
	return a, FaultNone
}

// FastRegister makes the mapped buffer of a free KindFast allocation accessible under key, whose upper 24 bits name the
// allocation and whose low 8 bits are free to choose. The rights follow the rules of Register, otherwise FaultAccess.
func (u *User) FastRegister(p *Principal, key uint32, access Access) Fault {
	t := u.table
	t.mu.Lock()
	defer t.mu.Unlock()
	a, fault := t.find(p, key)
	if fault != FaultNone {
		return fault
	}
	if a.kind != KindFast || a.region != nil || a.buffer == nil {
		return FaultState
	}
	// A new Region every time: a user that is late may still look at an old one.
	region, err := newRegion(a.domain, a.buffer, a.address, access)
	if err != nil {
		return FaultAccess // Map has checked the rest
	}
	region.key, region.kind = key, KindFast
	a.set(region)
	return FaultNone
}

// InvalidateWindows makes the type 2 windows free that p's queue pair has bound, because that begins a new life: what
// it granted to a peer of this life is not for the peer of the next one.
func (u *User) InvalidateWindows(p *Principal) {
	t := u.table
	t.mu.Lock()
	defer t.mu.Unlock()
	for {
		// One after the other, since the mutex is released while somebody still uses a window.
		var window *Allocation
		for window = range p.windows {
			break
		}
		if window == nil {
			return
		}
		if t.settled(window.index) == window && window.region != nil && window.region.owner == p {
			window.set(nil)
		}
	}
}

// add notes that a window was bound.
func (p *Principal) add(window *Allocation) {
	if p.windows == nil {
		p.windows = make(map[*Allocation]struct{})
	}
	p.windows[window] = struct{}{}
}

// Invalidate makes a valid KindFast region without windows, or a type 2 window that p's queue pair has bound, free. The
// whole key must match. When it returns, no access through the key is under way and none will begin. Regions made by
// Register and type 1 windows cannot be invalidated (drivers/infiniband/sw/rxe/rxe_mr.c and rxe_mw.c).
func (u *User) Invalidate(p *Principal, key uint32) Fault {
	t := u.table
	t.mu.Lock()
	defer t.mu.Unlock()
	a, fault := t.find(p, key)
	switch {
	case fault != FaultNone:
		return fault
	case a.kind == KindWindow1 || a.region == nil:
		return FaultState
	case a.region.key != key:
		return FaultKey
	case a.kind == KindWindow2 && a.region.owner != p:
		return FaultOwner
	case a.region.bound > 0:
		return FaultBound
	}
	a.set(nil)
	return FaultNone
}
