package verbs

import (
	"github.com/xroce/xroce/internal/enum"
	"github.com/xroce/xroce/roce/memory"
)

// AccessFlags are the rights of a memory region, or of a queue pair's peer; the values are those of enum
// ibv_access_flags.
type AccessFlags uint32

// Rights.
const (
	AccessLocalWrite   AccessFlags = 1
	AccessRemoteWrite  AccessFlags = 2
	AccessRemoteRead   AccessFlags = 4
	AccessRemoteAtomic AccessFlags = 8
	AccessMWBind       AccessFlags = 0x10  // windows may be bound to the region
	AccessZeroBased    AccessFlags = 0x20  // addresses start at 0
	AccessOnDemand     AccessFlags = 0x40  // accepted, without meaning: nothing is pinned anyway
	AccessHugeTLB      AccessFlags = 0x80  // accepted, without meaning: nothing is pinned anyway
	AccessFlushGlobal  AccessFlags = 0x100 // FLUSH that makes writes visible
	// AccessFlushPersistent is refused for regions: their memory is lost with the power.
	AccessFlushPersistent AccessFlags = 0x200
	// AccessRelaxedOrdering is accepted and has no meaning here, as on every device that does not have it.
	AccessRelaxedOrdering AccessFlags = 1 << 20
)

// String names the bits, with | between them; "0" is none.
func (a AccessFlags) String() string { return memory.Access(a).String() }

// MarshalText returns the text of String, for logs and JSON.
func (a AccessFlags) MarshalText() ([]byte, error) { return []byte(a.String()), nil }

// UnmarshalText takes what MarshalText returns.
func (a *AccessFlags) UnmarshalText(text []byte) error { return enum.ParseFlags(a, text) }

// AccessFault is why an access to memory, or an operation on a key, failed at this end: WC.VendorErr and
// AsyncEvent.Fault.
type AccessFault uint8

// Faults of an access to memory or of an operation on a key.
const (
	FaultNone      AccessFault = 0
	FaultKey       AccessFault = 1 // nothing has this key, or an lkey names a window
	FaultDomain    AccessFault = 2 // it belongs to another protection domain
	FaultOwner     AccessFault = 3 // it is a type 2 window that another queue pair has bound
	FaultAccess    AccessFault = 4 // it does not grant the right, or the rights asked for do not fit
	FaultBounds    AccessFault = 5 // the range is not within the region
	FaultAlignment AccessFault = 6 // the memory of an atomic is not aligned to 8 bytes
	FaultBuffer    AccessFault = 7 // the memory itself cannot be accessed: unmapped, read-only, truncated file
	FaultState     AccessFault = 8 // the key is not free, not valid, not mapped, or not of a kind for the operation
	FaultBound     AccessFault = 9 // windows are bound to the region
)

// String is the name of the value.
func (a AccessFault) String() string { return memory.Fault(a).String() }

// MarshalText returns the text of String, for logs and JSON.
func (a AccessFault) MarshalText() ([]byte, error) { return []byte(a.String()), nil }

// UnmarshalText takes what MarshalText returns.
func (a *AccessFault) UnmarshalText(text []byte) error { return enum.Parse(a, text) }
