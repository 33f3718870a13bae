package verbs

import (
	"errors"
	"fmt"
	"log/slog"
	"math"
	"runtime"
	"sync"
	"sync/atomic"

	"github.com/xroce/xroce/roce/memory"
)

// MR is a registered memory region. All methods may be called concurrently.
type MR struct {
	view atomic.Pointer[mrView]

	mu         sync.Mutex // guards changes
	pd         *PD
	allocation *memory.Allocation // of fast registrations; nil for a region of RegMR
	warning    runtime.Cleanup    // of warnWhenDropped
	dead       bool
}

// mrView is what an MR is at a moment.
type mrView struct {
	region  *memory.Region // nil for fast registrations
	key     uint32
	address uint64
	buffer  []byte
}

// RegMR registers buffer, an ordinary slice or one of AllocBuffer. Peers and work requests address it by its
// virtual address, or from 0 on with AccessZeroBased. The buffer stays reachable, and FreeBuffer refuses it, until Dereg; what access permits to peers
// may happen at any time until then, so the program synchronises with them by completions or with LoadUint64. Nothing is
// locked into memory: RLIMIT_MEMLOCK does not matter. But the engine waits for a page that is not there, and with it all queue pairs
// of the device's queue: for one that was swapped out, of a file on a slow disk, or of userfaultfd(2). Where a wait of an ACK timeout
// would be too long, lock the buffer with mlock(2). A wait of more than a second is told of in the log.
func (p *PD) RegMR(buffer []byte, access AccessFlags) (*MR, error) {
	return p.RegMRIova(buffer, memory.BufferAddress(buffer), access)
}

// RegMRIova is RegMR with another address for the first byte; 0 makes addresses offsets into the buffer.
func (p *PD) RegMRIova(buffer []byte, iova uint64, access AccessFlags) (*MR, error) {
	if err := p.enter(); err != nil {
		return nil, err
	}
	if err := p.device.takeRegion(len(buffer)); err != nil {
		p.leave()
		return nil, err
	}
	allocated.enter(buffer)
	region, err := p.device.driver.Memory().Register(&p.domain, buffer, iova, access)
	if err != nil {
		allocated.leave(buffer)
		p.device.regions.give()
		p.leave()
		return nil, err
	}
	m := &MR{pd: p}
	m.view.Store(&mrView{region: region, key: region.Key(), address: region.Address(), buffer: buffer})
	m.warnWhenDropped(region.Key(), region.Length())
	return m, nil
}

// warnWhenDropped makes the log tell of a registration that has not ended and that nobody can end any more. Its buffer stays
// registered, and valid, until the device is closed. The warning does not refer to the region: that leads to the device, and
// an MR that the device leads to in turn, by its clock say, would never be collected. Nor is one whose own buffer leads to it, such as an array
// in the struct that has the MR; then there is no warning.
func (m *MR) warnWhenDropped(key uint32, bytes uint64) {
	m.warning = runtime.AddCleanup(m, func(device string) {
		slog.Warn("xroce: memory region dropped without Dereg", "device", device,
			"key", fmt.Sprintf("%#x", key), "bytes", bytes)
	}, m.pd.device.Name())
}

// MRChange is what Rereg changes; the zero value changes nothing.
type MRChange struct {
	PD     *PD
	Buffer []byte
	Iova   *uint64 // address of Buffer's first byte; its virtual address by default
	Access *AccessFlags
}

// Rereg changes a region of RegMR; its keys stay. When it returns, no access is under way that only the old region
// permitted. After an error the region is as it was.
func (m *MR) Rereg(c MRChange) error {
	if err := m.check(); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case m.dead:
		return fmt.Errorf("MR: %w", ErrClosed)
	case m.allocation != nil:
		return fmt.Errorf("MR: %w: a region for fast registration is changed by work requests", ErrInvalid)
	case c.Iova != nil && c.Buffer == nil:
		return fmt.Errorf("MR: %w: an address without a buffer", ErrInvalid)
	}
	old := m.view.Load()
	change := memory.Reregistration{Buffer: c.Buffer, Access: c.Access}
	if c.Buffer != nil {
		change.Address = memory.BufferAddress(c.Buffer)
	}
	if c.Iova != nil {
		change.Address = *c.Iova
	}
	pd := m.pd
	if c.PD != nil && c.PD != m.pd {
		if err := c.PD.check(); err != nil {
			return err
		}
		if c.PD.device != m.pd.device {
			return fmt.Errorf("MR: %w: the PD belongs to another device", ErrInvalid)
		}
		if err := c.PD.enter(); err != nil {
			return err
		}
		pd, change.Domain = c.PD, &c.PD.domain
	}
	allocated.enter(c.Buffer)
	region, err := pd.device.driver.Memory().Reregister(old.region, change)
	if err != nil {
		allocated.leave(c.Buffer)
		if pd != m.pd {
			pd.leave()
		}
		return inUse("MR", err)
	}
	if pd != m.pd {
		m.pd.leave()
		m.pd = pd
	}
	buffer := old.buffer
	if c.Buffer != nil {
		buffer = c.Buffer
		allocated.leave(old.buffer)
	}
	m.view.Store(&mrView{region: region, key: region.Key(), address: region.Address(), buffer: buffer})
	m.warning.Stop()
	m.warnWhenDropped(region.Key(), region.Length())
	return nil
}

// inUse gives errors about bound windows the name that all objects in use have.
func inUse(what string, err error) error {
	if errors.Is(err, memory.ErrBound) {
		return fmt.Errorf("%s: %w: %w", what, ErrInUse, err)
	}
	return err
}

// Dereg ends the registration. When it returns, no byte of the buffer is read or written any more. It fails with ErrInUse
// while windows are bound to the region.
func (m *MR) Dereg() error {
	if err := m.check(); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.dead {
		return fmt.Errorf("MR: %w", ErrClosed)
	}
	var err error
	if m.allocation != nil {
		err = m.allocation.Free()
	} else {
		err = m.pd.device.driver.Memory().Deregister(m.view.Load().region)
	}
	if err != nil {
		return inUse("MR", err)
	}
	m.dead = true
	allocated.leave(m.view.Load().buffer)
	m.warning.Stop()
	m.pd.device.regions.give()
	m.pd.leave()
	return nil
}

// check tells a region that was registered from nil and from a zero value.
func (m *MR) check() error {
	if m == nil || m.view.Load() == nil {
		return fmt.Errorf("MR: %w: nil, or not made by RegMR or AllocMR", ErrInvalid)
	}
	return nil
}

// LKey is the key for work requests; 0, which is never valid, for an MR that was not made by RegMR or AllocMR.
func (m *MR) LKey() uint32 {
	if m.check() != nil {
		return 0
	}
	return m.view.Load().key
}

// RKey is the key for peers; see LKey.
func (m *MR) RKey() uint32 { return m.LKey() }

// Addr is the address of the first byte.
func (m *MR) Addr() uint64 {
	if m.check() != nil {
		return 0
	}
	return m.view.Load().address
}

// Length is the length in bytes.
func (m *MR) Length() int { return len(m.Bytes()) }

// Bytes is the registered buffer.
func (m *MR) Bytes() []byte {
	if m.check() != nil {
		return nil
	}
	return m.view.Load().buffer
}

// SGE makes a scatter/gather element of length bytes at offset of the region. It does not check the range: a wrong one
// completes with WCLocProtErr like any other, and a length that no message can have is refused by the post.
func (m *MR) SGE(offset, length int) SGE {
	n := uint32(math.MaxUint32)
	if length >= 0 && uint64(length) < math.MaxUint32 {
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
