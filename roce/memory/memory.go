// Package memory holds protection domains and memory regions, and does every access to user memory: there is
// one check (Region.check) and one way to copy in and out (User). Whatever a peer or a work request names, it
// goes through them.
//
// Life of an access: a shard's User looks the key up, announces the region as in use, makes sure that it
// is still alive, checks domain, rights and bounds, copies, and takes the announcement back. Deregister marks
// the region dead and waits until no User announces it: after that no byte of the buffer is touched.
package memory

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
)

// Access is what may be done with a region; the values are those of enum ibv_access_flags. Local read is
// always allowed.
type Access uint32

// Access rights.
const (
	LocalWrite   Access = 1
	RemoteWrite  Access = 2
	RemoteRead   Access = 4
	RemoteAtomic Access = 8

	// Bits 20-29 are optional by definition of the verbs (bit 20 is relaxed ordering): unknown ones
	// are ignored.
	optionalAccess Access = 0x3FF00000
	knownAccess           = LocalWrite | RemoteWrite | RemoteRead | RemoteAtomic
)

// Fault says why an access was refused.
type Fault uint8

// Faults of an access, in the order of the checks.
const (
	FaultNone   Fault = iota
	FaultKey          // no region has this key
	FaultDomain       // the region belongs to another protection domain
	FaultAccess       // the region does not grant the right
	FaultBounds       // the range is not within the region
	FaultBuffer       // the buffer itself cannot be accessed (unmapped, read-only, truncated file)
)

var faultNames = [...]string{
	"none", "no region has this key", "region of another protection domain",
	"region does not grant the access", "range is not within the region", "buffer cannot be accessed",
}

func (f Fault) String() string {
	if int(f) < len(faultNames) {
		return faultNames[f]
	}
	return fmt.Sprintf("fault %d", uint8(f))
}

// Errors of registration.
var (
	ErrEmptyBuffer = errors.New("buffer is empty")
	ErrAddress     = errors.New("region would reach beyond the end of the address space")
	ErrAccess      = errors.New("access rights do not fit")
	ErrNoKeys      = errors.New("all keys are in use")
	ErrNotFound    = errors.New("region is not registered here")
)

// Domain is a protection domain: keys work only for users of the same one. Domains are compared by pointer.
type Domain struct{ _ byte }

// Region is registered memory.
type Region struct {
	key    uint32
	domain *Domain
	access Access
	start  uint64 // address of the first byte, as peers and work requests name it
	buffer []byte
	dead   atomic.Bool
}

// Key is both lkey and rkey of the region.
func (r *Region) Key() uint32 { return r.key }

// Address is the address of the region's first byte, as work requests and peers name it.
func (r *Region) Address() uint64 { return r.start }

// Length is the region's length in bytes.
func (r *Region) Length() uint64 { return uint64(len(r.buffer)) }

// Access returns the rights that the region grants.
func (r *Region) Access() Access { return r.access }

// check is the one check of rights and bounds. Subtraction instead of addition: address + length may wrap.
func (r *Region) check(domain *Domain, need Access, address, length uint64) Fault {
	switch {
	case r.domain != domain:
		return FaultDomain
	case need&^r.access != 0:
		return FaultAccess
	case address < r.start, length > r.Length(), address-r.start > r.Length()-length:
		return FaultBounds
	}
	return FaultNone
}

const (
	pageBits  = 12
	pageSize  = 1 << pageBits
	pageCount = 1 << (24 - pageBits) // a key has 24 bits of index
)

type page [pageSize]atomic.Pointer[Region]

// Table maps keys to regions. Lookups take no lock.
type Table struct {
	pages [pageCount]atomic.Pointer[page]

	mu     sync.Mutex
	random *rand.Rand
	free   []uint32        // indices of deregistered regions
	last   map[uint32]byte // the low byte that a free index had last
	size   uint32          // indices handed out so far; 0 is never used, so that key 0 is always wrong
	count  int
	users  []*User
}

// NewTable makes an empty table. The seed decides the keys.
func NewTable(seed uint64) *Table {
	return &Table{
		random: rand.New(rand.NewPCG(seed, 0x6b65797320 /* "keys " */)),
		last:   make(map[uint32]byte),
		size:   1,
	}
}

// Register makes buffer accessible to domain under the region's key. Address is how the first byte is
// called by work requests and peers: usually BufferAddress, but any will do that does not make the region wrap.
// The buffer is kept reachable, and belongs to the peers that access permits, until Deregister returns.
func (t *Table) Register(domain *Domain, buffer []byte, address uint64, access Access) (*Region, error) {
	if len(buffer) == 0 {
		return nil, ErrEmptyBuffer
	}
	if room := -address; room != 0 && uint64(len(buffer)) > room {
		return nil, fmt.Errorf("%w: %d bytes from %#x on", ErrAddress, len(buffer), address)
	}
	access &^= optionalAccess
	if unknown := access &^ knownAccess; unknown != 0 {
		return nil, fmt.Errorf("%w: unknown bits %#x", ErrAccess, uint32(unknown))
	}
	if access&(RemoteWrite|RemoteAtomic) != 0 && access&LocalWrite == 0 {
		return nil, fmt.Errorf("%w: remote write and remote atomic need local write", ErrAccess)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	index, err := t.takeIndex()
	if err != nil {
		return nil, err
	}
	r := &Region{key: index<<8 | uint32(t.keyByte(index)), domain: domain, access: access, start: address, buffer: buffer}
	p := t.pages[index>>pageBits].Load()
	if p == nil {
		p = new(page)
		t.pages[index>>pageBits].Store(p)
	}
	p[index%pageSize].Store(r)
	t.count++
	return r, nil
}

func (t *Table) takeIndex() (uint32, error) {
	if n := len(t.free); n > 0 {
		index := t.free[n-1]
		t.free = t.free[:n-1]
		return index, nil
	}
	if t.size == pageCount*pageSize {
		return 0, fmt.Errorf("%w: %d", ErrNoKeys, t.count)
	}
	t.size++
	return t.size - 1, nil
}

// keyByte draws the low byte of a key. A freed index never gets the byte that it had before: a stale key must
// not fit the next region (drivers/infiniband/sw/rxe/rxe_mr.c draws it at random for the same reason).
func (t *Table) keyByte(index uint32) byte {
	for {
		b := byte(t.random.Uint32())
		if last, used := t.last[index]; !used || last != b {
			return b
		}
	}
}

// Deregister ends a registration. When it returns, no access to the buffer is under way and none will begin.
func (t *Table) Deregister(r *Region) error {
	index := r.key >> 8
	t.mu.Lock()
	defer t.mu.Unlock()
	p := t.pages[index>>pageBits].Load()
	if p == nil || !p[index%pageSize].CompareAndSwap(r, nil) {
		return fmt.Errorf("%w: key %#x", ErrNotFound, r.key)
	}
	r.dead.Store(true)
	for _, u := range t.users {
		// An access lasts as long as one copy of at most a path MTU.
		for u.region.Load() == r {
			runtime.Gosched()
		}
	}
	t.last[index] = byte(r.key)
	t.free = append(t.free, index)
	t.count--
	return nil
}

// Count is the number of regions registered now.
func (t *Table) Count() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.count
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

// Range names bytes of a region the way work requests and peers do.
type Range struct {
	Key     uint32
	Address uint64
	Length  uint64
}

// User does the accesses of one shard, one at a time.
type User struct {
	table  *Table
	region atomic.Pointer[Region] // in use right now
	_      [48]byte               // the word above is polled by Deregister; keep neighbours off its cache line
}

// NewUser adds a user to the table.
func (t *Table) NewUser() *User {
	u := &User{table: t}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.users = append(t.users, u)
	return u
}

// CloseUser removes a user; it must not be used afterwards.
func (t *Table) CloseUser(u *User) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for i, v := range t.users {
		if v == u {
			t.users = append(t.users[:i], t.users[i+1:]...)
			return
		}
	}
}

// hold finds the region of a range, announces it and checks the access. On FaultNone the caller releases.
func (u *User) hold(domain *Domain, need Access, r Range) (*Region, Fault) {
	region := u.table.lookup(r.Key)
	if region == nil {
		return nil, FaultKey
	}
	// Announce, then look: Deregister marks dead, then looks at the announcements. Either it sees ours and
	// waits, or we see the mark. Go's atomics are sequentially consistent, which this needs.
	u.region.Store(region)
	fault := FaultNone
	if region.dead.Load() {
		fault = FaultKey
	} else {
		fault = region.check(domain, need, r.Address, r.Length)
	}
	if fault != FaultNone {
		u.release()
		return nil, fault
	}
	return region, FaultNone
}

func (u *User) release() { u.region.Store(nil) }

// Check says whether an access would be permitted now. Every copy checks again.
func (u *User) Check(domain *Domain, need Access, r Range) Fault {
	_, fault := u.hold(domain, need, r)
	if fault == FaultNone {
		u.release()
	}
	return fault
}
