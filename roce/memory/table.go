package memory

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
)

const (
	pageBits  = 12
	pageSize  = 1 << pageBits
	pageCount = 1 << (24 - pageBits) // a key has 24 bits of index

	// resting is how many indices that were given back lie idle before the first one of them is used again. The one
	// that has rested longest comes first, with its low byte counted on by one. So the key of a region that was given
	// up fits again after resting * 256 = 2^24 further registrations at the earliest: each of the 256 uses that lie
	// between needs the index to pass the whole queue. Only a table with so many keys in use that no fresh index is
	// left reuses them sooner. More would cost memory, 13 bytes for each index: 8 in the page, 4 in the queue and the
	// low byte.
	resting = 1 << 16
)

type page [pageSize]atomic.Pointer[Region]

// Table maps keys to regions. Lookups take no lock.
type Table struct {
	pages [pageCount]atomic.Pointer[page]

	mu          sync.Mutex
	random      *rand.Rand
	free        []uint32               // indices given back, the one that has rested longest first
	low         []byte                 // by index: the low byte of its last key
	size        uint32                 // indices handed out so far; 0 is never used, so that key 0 is always wrong
	count       int                    // indices in use
	allocations map[uint32]*Allocation // by index; the regions made by Register have none
	users       []*User                // never changed in place: retire reads it without the lock
}

// NewTable makes an empty table. The seed decides the keys.
func NewTable(seed uint64) *Table {
	return &Table{
		random:      rand.New(rand.NewPCG(seed, 0x6b65797320 /* "keys " */)),
		low:         make([]byte, 1),
		size:        1,
		allocations: make(map[uint32]*Allocation),
	}
}

// Register makes buffer accessible to domain under the region's key. Address is how the first byte is
// called by work requests and peers: usually BufferAddress, but any will do that does not make the region wrap. With
// ZeroBased it is 0, whatever was given. The buffer is kept reachable, and belongs to the peers that access
// permits, until Deregister returns.
func (t *Table) Register(domain *Domain, buffer []byte, address uint64, access Access) (*Region, error) {
	r, err := newRegion(domain, buffer, address, access)
	if err != nil {
		return nil, err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if r.key, err = t.takeKey(); err != nil {
		return nil, err
	}
	t.slot(r.key >> 8).Store(r)
	return r, nil
}

// Reregistration is what Reregister changes. The zero value changes nothing.
type Reregistration struct {
	Domain  *Domain // nil: as before
	Buffer  []byte  // nil: the buffer and its address as before
	Address uint64  // of Buffer's first byte; see Register
	Access  *Access // nil: as before
}

// Reregister changes a region made by Register and returns the new one, with the same key; the old one is of no use any
// more, not even for Deregister. An access that is made meanwhile meets either the old region or the new one. When
// Reregister returns, no access is under way that only the old one permits. After an error the old one is as it was:
// ErrBound if windows are bound to it.
func (t *Table) Reregister(r *Region, change Reregistration) (*Region, error) {
	domain, buffer, address, access := r.domain, r.buffer, r.start, r.access
	if change.Domain != nil {
		domain = change.Domain
	}
	if change.Buffer != nil {
		buffer, address = change.Buffer, change.Address
	}
	if change.Access != nil {
		access = *change.Access
	}
	next, err := newRegion(domain, buffer, address, access)
	if err != nil {
		return nil, err
	}
	next.key = r.key
	t.mu.Lock()
	defer t.mu.Unlock()
	if err := t.mayEnd(r); err != nil {
		return nil, err
	}
	t.retire(r, next)
	return next, nil
}

// Deregister ends a registration made by Register. When it returns, no access to the buffer is under way and none will
// begin. While windows are bound to the region, or a binding is only just ending, it fails with ErrBound.
func (t *Table) Deregister(r *Region) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if err := t.mayEnd(r); err != nil {
		return err
	}
	t.retire(r, nil)
	t.giveBack(r.key)
	return nil
}

// mayEnd says whether a region can be deregistered or replaced.
func (t *Table) mayEnd(r *Region) error {
	switch {
	case r.kind != KindRegion:
		return fmt.Errorf("%w: key %#x is a %s, which belongs to an allocation", ErrKind, r.key, r.kind)
	case t.lookup(r.key) != r:
		return fmt.Errorf("%w: key %#x", ErrNotFound, r.key)
	case r.bound > 0:
		return fmt.Errorf("%w: %d to key %#x", ErrBound, r.bound, r.key)
	}
	return nil
}

// retire puts next, which may be nil, in old's place and returns when nobody uses old any more. The caller holds the
// mutex, which is released while waiting: a wait for one region must not hold up the work on others.
func (t *Table) retire(old, next *Region) {
	// The mark comes after the change of the slot: whoever sees the mark looks again and finds something else.
	t.slot(old.key >> 8).Store(next)
	old.dead.Store(true)
	users := t.users // a user that comes later cannot find old
	t.mu.Unlock()
	for _, u := range users {
		// An access lasts as long as one copy of at most a path MTU.
		for u.region.Load() == old {
			runtime.Gosched()
		}
	}
	for old.pins.Load() > 0 {
		runtime.Gosched()
	}
	t.mu.Lock()
	if old.parent != nil {
		old.parent.bound--
	}
}

// takeKey reserves an index and makes a key for it. The low byte of a fresh index is drawn, so that who knows some keys
// of a table does not know the others. That of one used before is the next one: a stale key must not fit another region
// for as long as possible, and a drawn byte would fit one time in 256 (drivers/infiniband/sw/rxe/rxe_mr.c draws it).
func (t *Table) takeKey() (uint32, error) {
	var index uint32
	switch fresh := t.size < pageCount*pageSize; {
	case len(t.free) >= resting, len(t.free) > 0 && !fresh:
		index = t.free[0]
		t.free = t.free[1:]
		t.low[index]++
	case fresh:
		index = t.size
		t.size++
		t.low = append(t.low, byte(t.random.Uint32()))
	default:
		return 0, fmt.Errorf("%w: %d", ErrNoKeys, t.count)
	}
	t.count++
	return index<<8 | uint32(t.low[index]), nil
}

// giveBack frees the index of a key.
func (t *Table) giveBack(key uint32) {
	t.low[key>>8] = byte(key)
	t.free = append(t.free, key>>8)
	t.count--
}

// Count is the number of keys in use now: of regions, and of allocations, free ones included.
func (t *Table) Count() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.count
}

// Regions returns what the keys open now: registered regions, valid fast registrations and bound windows, in the order
// of their indices.
func (t *Table) Regions() []*Region {
	t.mu.Lock()
	defer t.mu.Unlock()
	var list []*Region
	for index := uint32(1); index < t.size; index++ {
		if r := t.slot(index).Load(); r != nil {
			list = append(list, r)
		}
	}
	return list
}

// slot is where the region of an index is. The caller holds the mutex.
func (t *Table) slot(index uint32) *atomic.Pointer[Region] {
	p := t.pages[index>>pageBits].Load()
	if p == nil {
		p = new(page)
		t.pages[index>>pageBits].Store(p)
	}
	return &p[index%pageSize]
}

func (t *Table) lookup(key uint32) *Region {
	index := key >> 8
	p := t.pages[index>>pageBits].Load()
	if p == nil {
		return nil
	}
	if r := p[index%pageSize].Load(); r != nil && r.key == key {
		return r
	}
	return nil
}

// NewUser adds a user to the table.
func (t *Table) NewUser() *User {
	u := &User{table: t}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.users = append(slices.Clip(t.users), u)
	return u
}

// CloseUser removes a user; it must not be used afterwards.
func (t *Table) CloseUser(u *User) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.users = slices.DeleteFunc(slices.Clone(t.users), func(v *User) bool { return v == u })
}
