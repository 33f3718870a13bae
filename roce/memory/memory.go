// Package memory holds protection domains, memory regions and memory windows, and does every access to user
// memory: there is one check (Region.check) and one way to copy in and out (User). Whatever a peer or a work
// request names, it goes through them.
//
// Life of an access: a shard's User looks the key up, announces the region as in use, makes sure that it is still
// alive, checks domain, rights and bounds, copies, and takes the announcement back. Deregister, Invalidate and all
// others that end a region take it out of the table, mark it dead and wait until no User announces it: after that no
// byte of the buffer is touched through it. The program's own accesses to words (Region.LoadUint64 and its like) go the
// same way, but are counted at the region.
//
// A window and a fast registration are regions like any other while they are valid: a window's buffer is a part of
// the one of the region that it is bound to, which cannot go away before.
//
// It is the engine's own and changes as that needs; programs use package verbs.
package memory

import (
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/xroce/xroce/internal/enum"
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
	BindWindow   Access = 0x10  // windows may be bound to the region
	ZeroBased    Access = 0x20  // addresses start at 0
	OnDemand     Access = 0x40  // accepted, without meaning: nothing is pinned anyway
	HugeTLB      Access = 0x80  // accepted, without meaning: nothing is pinned anyway
	FlushGlobal  Access = 0x100 // FLUSH that makes writes visible

	// FlushPersistent is FLUSH that makes writes survive a loss of power. Registration refuses it.
	FlushPersistent Access = 0x200

	// RelaxedOrdering changes nothing: accesses keep their order.
	RelaxedOrdering Access = 1 << 20

	// Bits 20-29 are optional by definition of the verbs: unknown ones are ignored.
	optionalAccess Access = 0x3FF00000
	windowAccess          = RemoteWrite | RemoteRead | RemoteAtomic | FlushGlobal
	remoteAccess          = windowAccess | FlushPersistent
	knownAccess           = windowAccess | LocalWrite | BindWindow | ZeroBased | OnDemand | HugeTLB
)

var accessNames = []enum.Flag[Access]{
	{Bit: LocalWrite, Name: "LOCAL_WRITE"},
	{Bit: RemoteWrite, Name: "REMOTE_WRITE"},
	{Bit: RemoteRead, Name: "REMOTE_READ"},
	{Bit: RemoteAtomic, Name: "REMOTE_ATOMIC"},
	{Bit: BindWindow, Name: "MW_BIND"},
	{Bit: ZeroBased, Name: "ZERO_BASED"},
	{Bit: OnDemand, Name: "ON_DEMAND"},
	{Bit: HugeTLB, Name: "HUGETLB"},
	{Bit: FlushGlobal, Name: "FLUSH_GLOBAL"},
	{Bit: FlushPersistent, Name: "FLUSH_PERSISTENT"},
	{Bit: RelaxedOrdering, Name: "RELAXED_ORDERING"},
}

// String names the bits, such as "LOCAL_WRITE|REMOTE_WRITE"; "0" is none.
func (a Access) String() string { return enum.Flags(a, accessNames) }

// MarshalText returns the text of String, for logs and JSON.
func (a Access) MarshalText() ([]byte, error) { return []byte(a.String()), nil }

// UnmarshalText takes what MarshalText returns.
func (a *Access) UnmarshalText(text []byte) error { return enum.ParseFlags(a, text) }

// validate returns the rights without the bits that mean nothing here.
func (a Access) validate() (Access, error) {
	a &^= optionalAccess
	if a&FlushPersistent != 0 {
		return 0, fmt.Errorf("%w: flush to persistence: %w, memory here is not persistent", ErrAccess, errors.ErrUnsupported)
	}
	if unknown := a &^ knownAccess; unknown != 0 {
		return 0, fmt.Errorf("%w: unknown bits %#x", ErrAccess, uint32(unknown))
	}
	if a&(RemoteWrite|RemoteAtomic) != 0 && a&LocalWrite == 0 {
		return 0, fmt.Errorf("%w: remote write and remote atomic need local write", ErrAccess)
	}
	return a, nil
}

// Fault says why an access or an operation on a key was refused.
type Fault uint8

// Faults of an access, in the order of the checks, and then those of the operations on keys.
const (
	FaultNone      Fault = iota
	FaultKey             // nothing has this key, or an lkey names a window
	FaultDomain          // it belongs to another protection domain
	FaultOwner           // a type 2 window that another queue pair has bound
	FaultAccess          // it does not grant the right, or the rights asked for do not fit
	FaultBounds          // the range is not within the region
	FaultAlignment       // the memory of an atomic is not aligned to 8 bytes
	FaultBuffer          // the buffer itself cannot be accessed (unmapped, read-only, truncated file)
	FaultState           // it is not free, not valid, not mapped, or of a kind that this cannot be done with
	FaultBound           // windows are bound to it
)

var faultNames = [...]string{
	"none", "no region has this key", "region of another protection domain", "window of another queue pair",
	"region does not grant the access", "range is not within the region", "memory is not aligned to 8 bytes",
	"buffer cannot be accessed", "state or kind of the key does not permit it", "windows are bound to the region",
}

func (f Fault) String() string {
	if int(f) < len(faultNames) {
		return faultNames[f]
	}
	return fmt.Sprintf("fault %d", uint8(f))
}

// MarshalText returns the text of String, for logs and JSON.
func (f Fault) MarshalText() ([]byte, error) { return []byte(f.String()), nil }

// UnmarshalText takes what MarshalText returns.
func (f *Fault) UnmarshalText(text []byte) error { return enum.Parse(f, text) }

// ErrFault is FaultBuffer as an error.
var ErrFault = errors.New("memory cannot be accessed: it is not mapped, is read-only, or its file is shorter than the region")

// Errors of registration and allocation.
var (
	ErrEmptyBuffer = errors.New("buffer is empty")
	ErrAddress     = errors.New("region would reach beyond the end of the address space")
	ErrAccess      = errors.New("access rights do not fit")
	ErrNoKeys      = errors.New("all keys are in use")
	ErrNotFound    = errors.New("region is not registered here")
	ErrBound       = errors.New("windows are bound to the region")
	ErrKind        = errors.New("not possible with this kind of region")
	ErrLength      = errors.New("length does not fit the allocation")
	ErrNotFree     = errors.New("key is in use")
)

// Domain is a protection domain: keys work only for users of the same one. Domains are compared by pointer.
type Domain struct{ _ byte }

// Principal is on whose behalf an access is made: a queue pair. Principals are compared by pointer, so that a later
// queue pair with the same number is another one.
type Principal struct {
	Domain *Domain

	windows map[*Allocation]struct{} // of type 2 that it has bound; the table's mutex guards it
}

// Kind is what a key stands for.
type Kind uint8

// Kinds of regions. All but KindRegion come from Allocate.
const (
	KindRegion  Kind = iota // made by Register
	KindFast                // registered by a work request (FastRegister)
	KindWindow1             // type 1 window: may be bound again, works for every queue pair of the domain
	KindWindow2             // type 2 window (2B): bound once until invalidated, works for the queue pair that bound it
)

var kindNames = [...]string{"region", "fast-registered region", "type 1 window", "type 2 window"}

func (k Kind) String() string {
	if int(k) < len(kindNames) {
		return kindNames[k]
	}
	return fmt.Sprintf("kind %d", uint8(k))
}

// MarshalText returns the text of String, for logs and JSON.
func (k Kind) MarshalText() ([]byte, error) { return []byte(k.String()), nil }

// UnmarshalText takes what MarshalText returns.
func (k *Kind) UnmarshalText(text []byte) error { return enum.Parse(k, text) }

// Region is memory that a key opens now: registered memory, or the part of it that a window shows. What the key opens
// never changes; another registration or binding of the same key is another Region.
type Region struct {
	key    uint32
	access Access
	domain *Domain
	start  uint64 // address of the first byte, as peers and work requests name it
	buffer []byte
	dead   atomic.Bool
	pins   atomic.Int64 // accesses of the program itself that are under way (Region.pin)
	kind   Kind
	owner  *Principal // of a type 2 window: who bound it

	// Guarded by the table's mutex.
	bound  int     // windows bound to the region
	parent *Region // of a window: the region that it is bound to
}

// newRegion makes a region that has no key yet.
func newRegion(domain *Domain, buffer []byte, address uint64, access Access) (*Region, error) {
	access, err := access.validate()
	if err != nil {
		return nil, err
	}
	if access&ZeroBased != 0 {
		address = 0
	}
	if err := validatePlace(buffer, address); err != nil {
		return nil, err
	}
	return &Region{domain: domain, access: access, start: address, buffer: buffer}, nil
}

func validatePlace(buffer []byte, address uint64) error {
	if len(buffer) == 0 {
		return ErrEmptyBuffer
	}
	if room := -address; room != 0 && uint64(len(buffer)) > room {
		return fmt.Errorf("%w: %d bytes from %#x on", ErrAddress, len(buffer), address)
	}
	return nil
}

// Key is both lkey and rkey of the region; a window has an rkey only.
func (r *Region) Key() uint32 { return r.key }

// Kind says what the region is.
func (r *Region) Kind() Kind { return r.kind }

// Address is the address of the region's first byte, as work requests and peers name it.
func (r *Region) Address() uint64 { return r.start }

// Length is the region's length in bytes.
func (r *Region) Length() uint64 { return uint64(len(r.buffer)) }

// Access returns the rights that the region grants.
func (r *Region) Access() Access { return r.access }

// check is the one check of rights and bounds. Subtraction instead of addition: address + length may wrap.
func (r *Region) check(p *Principal, need Access, address, length uint64) Fault {
	if fault := r.permits(p, need); fault != FaultNone {
		return fault
	}
	if address < r.start || length > r.Length() || address-r.start > r.Length()-length {
		return FaultBounds
	}
	return FaultNone
}

// permits is the part of check that has nothing to do with the range.
func (r *Region) permits(p *Principal, need Access) Fault {
	switch {
	case r.kind >= KindWindow1:
		return r.windowPermits(p, need)
	case r.domain != p.Domain:
		return FaultDomain
	case need&^r.access != 0:
		return FaultAccess
	}
	return FaultNone
}

// windowPermits is permits for windows. A right that is remote tells an rkey from an lkey, which never names a window.
func (r *Region) windowPermits(p *Principal, need Access) Fault {
	switch {
	case need&remoteAccess == 0:
		return FaultKey
	case r.domain != p.Domain:
		return FaultDomain
	case r.kind == KindWindow2 && r.owner != p:
		return FaultOwner
	case need&^r.access != 0:
		return FaultAccess
	}
	return FaultNone
}
