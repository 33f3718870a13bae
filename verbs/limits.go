package verbs

import (
	"encoding/binary"
	"fmt"

	"github.com/xroce/xroce/internal/enum"
	"github.com/xroce/xroce/roce"
)

// Limits of every device, beside those of package verbs that bound one object. They are numbers of objects that exist
// at once, but for MaxMRSize.
const (
	MaxQP  = 1 << 14
	MaxCQ  = 1 << 16
	MaxSRQ = 1 << 14
	MaxPD  = 1 << 16
	MaxMR  = 1 << 19 // regions for fast registration included
	MaxMW  = 1 << 19
	// MaxMRSize is the largest region in bytes: half of what a process can map on any 64-bit system.
	MaxMRSize uint64 = 1 << 46
	// MaxInlineData is the most bytes that a SendWR can carry itself.
	MaxInlineData = 1024
)

// AtomicCap says towards whom remote atomics are atomic; the values are those of enum ibv_atomic_cap.
type AtomicCap uint8

// Atomic capabilities.
const (
	AtomicNone AtomicCap = 0 // there are none
	AtomicHCA  AtomicCap = 1 // towards other requests of the same device
	AtomicGlob AtomicCap = 2 // towards the CPUs too
)

func (a AtomicCap) String() string {
	switch a {
	case AtomicNone:
		return "none"
	case AtomicHCA:
		return "device"
	case AtomicGlob:
		return "global"
	}
	return fmt.Sprintf("atomic capability %d", uint8(a))
}

// MarshalText returns the text of String, for logs and JSON.
func (a AtomicCap) MarshalText() ([]byte, error) { return []byte(a.String()), nil }

// UnmarshalText takes what MarshalText returns.
func (a *AtomicCap) UnmarshalText(text []byte) error { return enum.Parse(a, text) }

// DeviceAttr describes a device. Every limit can be reached, and one more is refused with an error that wraps ErrLimit
// (or ErrAttribute, for attributes of QP.Modify) and names both numbers. Objects are counted while they exist.
type DeviceAttr struct {
	NodeGUID      uint64 // EUI-64 of the network device's address, in host byte order
	PhysPortCnt   int
	MaxQP         int
	MaxQPWR       int // requests in a send or receive queue
	MaxSGE        int // elements of a request
	MaxSGERD      int // elements of an RDMA READ
	MaxInlineData int // bytes
	MaxCQ         int
	MaxCQE        int // completions in a CQ
	MaxPD         int
	MaxMR         int
	MaxMRSize     uint64 // bytes
	MaxMW         int
	MaxSRQ        int
	MaxSRQWR      int // requests in an SRQ
	MaxSRQSGE     int // elements of a request of an SRQ
	MaxAH         int
	// MaxQPRDAtom bounds MaxDestRDAtomic of a queue pair, MaxQPInitRDAtom its MaxRDAtomic, and MaxResRDAtom is the sum
	// of the former over all queue pairs.
	MaxQPRDAtom     int
	MaxQPInitRDAtom int
	MaxResRDAtom    int
	AtomicCap       AtomicCap
	MaxMsgSize      uint32
	MaxPKeys        int
	// LocalCAAckDelay is the longest time that an answer takes here, as a code like QPAttr.Timeout: 4.096 us * 2^12 is
	// 17 ms, what a process that is not scheduled at once may need.
	LocalCAAckDelay uint8
}

// QueryDevice describes the device.
func (d *Device) QueryDevice() DeviceAttr {
	must(d.check())
	return DeviceAttr{
		NodeGUID: nodeGUID(d.driver.Link().HardwareAddr()), PhysPortCnt: 1,
		MaxQP: MaxQP, MaxQPWR: MaxQPWR, MaxSGE: MaxSGE, MaxSGERD: MaxSGE, MaxInlineData: MaxInlineData,
		MaxCQ: MaxCQ, MaxCQE: MaxCQE, MaxPD: MaxPD, MaxMR: MaxMR, MaxMRSize: MaxMRSize, MaxMW: MaxMW,
		MaxSRQ: MaxSRQ, MaxSRQWR: MaxSRQWR, MaxSRQSGE: MaxSGE, MaxAH: 0,
		MaxQPRDAtom: MaxRDAtomic, MaxQPInitRDAtom: MaxRDAtomic, MaxResRDAtom: MaxQP * MaxRDAtomic,
		AtomicCap: AtomicGlob, MaxMsgSize: MaxMsgSize, MaxPKeys: 1, LocalCAAckDelay: 12,
	}
}

// nodeGUID is the EUI-64 of an Ethernet address (addrconf_addr_eui48 in include/net/addrconf.h).
func nodeGUID(m roce.MAC) uint64 {
	return binary.BigEndian.Uint64([]byte{m[0] ^ 2, m[1], m[2], 0xFF, 0xFE, m[3], m[4], m[5]})
}

// checkRegionLength says whether a region can have so many bytes.
func checkRegionLength(bytes int) error {
	if uint64(bytes) > MaxMRSize {
		return fmt.Errorf("%w: memory region of %d bytes, the limit is %d", ErrLimit, bytes, MaxMRSize)
	}
	return nil
}
