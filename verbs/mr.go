package verbs

import (
	"fmt"
	"math"
	"sync/atomic"

	"github.com/xroce/xroce/roce/memory"
)

// MR is a registered memory region.
type MR struct {
	pd     *PD
	region *memory.Region
	buffer []byte
	dead   atomic.Bool
}

// RegMR registers buffer, an ordinary slice or one of AllocBuffer. Peers and work requests address it by its
// virtual address. The buffer stays reachable until Dereg; what access permits to peers may happen at any time
// until then, so the program synchronises with them by completions or with LoadUint64.
func (p *PD) RegMR(buffer []byte, access AccessFlags) (*MR, error) {
	return p.RegMRIova(buffer, memory.BufferAddress(buffer), access)
}

// RegMRIova is RegMR with another address for the first byte; 0 makes addresses offsets into the buffer.
func (p *PD) RegMRIova(buffer []byte, iova uint64, access AccessFlags) (*MR, error) {
	if access&AccessRemoteAtomic != 0 {
		return nil, fmt.Errorf("%w: remote atomics", ErrNotSupported)
	}
	if err := p.enter(); err != nil {
		return nil, err
	}
	region, err := p.device.driver.Memory().Register(&p.domain, buffer, iova, access)
	if err != nil {
		p.leave()
		return nil, err
	}
	return &MR{pd: p, region: region, buffer: buffer}, nil
}

// Dereg ends the registration. When it returns, no byte of the buffer is read or written any more.
func (m *MR) Dereg() error {
	if err := m.check(); err != nil {
		return err
	}
	if m.dead.Swap(true) {
		return fmt.Errorf("MR: %w", ErrClosed)
	}
	if err := m.pd.device.driver.Memory().Deregister(m.region); err != nil {
		return err
	}
	m.pd.leave()
	return nil
}

// check tells a region that was registered from nil and from a zero value.
func (m *MR) check() error {
	if m == nil || m.region == nil {
		return fmt.Errorf("MR: %w: nil, or not made by RegMR", ErrInvalid)
	}
	return nil
}

// LKey is the key for work requests; 0, which is never valid, for an MR that was not made by RegMR.
func (m *MR) LKey() uint32 {
	if m.check() != nil {
		return 0
	}
	return m.region.Key()
}

// RKey is the key for peers; see LKey.
func (m *MR) RKey() uint32 { return m.LKey() }

// Addr is the address of the first byte.
func (m *MR) Addr() uint64 {
	if m.check() != nil {
		return 0
	}
	return m.region.Address()
}

// Length is the length in bytes.
func (m *MR) Length() int { return len(m.Bytes()) }

// Bytes is the registered buffer.
func (m *MR) Bytes() []byte {
	if m == nil {
		return nil
	}
	return m.buffer
}

// SGE makes a scatter/gather element of length bytes at offset of the region. It does not check the range: a wrong one
// completes with WCLocProtErr like any other, and a length that no message can have is refused by the post.
func (m *MR) SGE(offset, length int) SGE {
	n := uint32(math.MaxUint32)
	if length >= 0 && length < math.MaxUint32 {
		n = uint32(length)
	}
	return SGE{Addr: m.Addr() + uint64(offset), Length: n, LKey: m.LKey()}
}

// Remote is what a peer needs to reach the region.
func (m *MR) Remote() RemoteMemory {
	return RemoteMemory{Addr: m.Addr(), RKey: m.RKey(), Length: uint64(m.Length())}
}

// RemoteMemory names memory of a peer: address, key and length travel as one value.
type RemoteMemory struct {
	Addr   uint64 `json:"addr"`
	Length uint64 `json:"length"`
	RKey   uint32 `json:"rkey"`
}

// LoadUint64 loads the 8-byte aligned word at offset atomically, in host byte order. This is how a program waits for a
// peer's RDMA WRITE without a completion: if the word is the last of the message, everything before it is
// there once the word has changed.
func (m *MR) LoadUint64(offset int) (uint64, error) {
	if err := m.check(); err != nil {
		return 0, err
	}
	if offset < 0 {
		return 0, fmt.Errorf("MR: %w: offset %d", ErrInvalid, offset)
	}
	return m.region.LoadUint64(uint64(offset))
}
