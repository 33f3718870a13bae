package verbs

import (
	"errors"
	"fmt"
	"log/slog"
	"math"
	"runtime"
	"sync/atomic"

	"github.com/xroce/xroce/internal/lockorder"
	"github.com/xroce/xroce/roce/memory"
)

// MR is a registered memory region. All methods may be called concurrently.
type MR struct {
	*registration
	warning runtime.Cleanup // of dropped
}

// registration is an MR as its device knows it: an MR that a program drops without Dereg is noticed, since nothing
// leads to it.
type registration struct {
	view    atomic.Pointer[mrView]
	dropped *dropped

	mu         lockorder.Mutex[lockorder.MR] // guards changes
	pd         *PD
	allocation *memory.Allocation // of fast registrations; nil for a region of RegMR
	dead       bool
}

// mrView is what an MR is at a moment.
type mrView struct {
	region  *memory.Region // nil for fast registrations
	key     uint32
	address uint64
	buffer  []byte
}

// RegMR registers buffer, an ordinary slice or one of AllocBuffer. Peers and work requests address it by its virtual
// address, or from 0 on with AccessZeroBased. The buffer stays reachable, and FreeBuffer refuses it, until Dereg;
// what access permits to peers may happen at any time until then, so the program synchronises with them by
// completions or with LoadUint64. Nothing is locked into memory: RLIMIT_MEMLOCK does not matter. But the engine waits
// for a page that is not there, and with it all queue pairs of the device's queue: for one that was swapped out, of a
// file on a slow disk, or of userfaultfd(2). Where a wait of an ACK timeout would be too long, lock the buffer with
// mlock(2). A wait of more than a second is told of in the log.
func (p *PD) RegMR(buffer []byte, access AccessFlags) (*MR, error) {
	return p.RegMRIOVA(buffer, memory.BufferAddress(buffer), access)
}

// RegMRIOVA is RegMR with another address for the first byte; 0 makes addresses offsets into the buffer.
func (p *PD) RegMRIOVA(buffer []byte, iova uint64, access AccessFlags) (*MR, error) {
	r := &registration{pd: p}
	err := p.make(kindMR, r, func() error {
		if err := checkRegionLength(len(buffer)); err != nil {
			return err
		}
		allocated.enter(buffer)
		region, err := p.device.driver.Memory().Register(&p.domain, buffer, iova, memory.Access(access))
		if err != nil {
			allocated.leave(buffer)
			return err
		}
		r.dropped = newDropped(p.device, region.Key(), region.Length())
		r.show(region, buffer)
		return nil
	})
	if err != nil {
		return nil, err
	}
	return newMR(r), nil
}

// show makes a region what the registration is now.
func (r *registration) show(region *memory.Region, buffer []byte) {
	r.view.Store(&mrView{region: region, key: region.Key(), address: region.Address(), buffer: buffer})
}

// dropped is what the log tells of a registration that has not ended and that nobody can end any more. Its buffer
// stays registered, and valid, until the device is closed. It does not lead to the registration: that leads to the
// device, and an MR that the device leads to in turn, by its clock say, would never be collected. Nor is one whose
// own buffer leads to it, such as an array in the struct that has the MR; then there is no warning.
type dropped struct {
	device string
	key    uint32
	bytes  atomic.Uint64
	ended  atomic.Bool
}

func newDropped(device *Device, key uint32, bytes uint64) *dropped {
	d := &dropped{device: device.Name(), key: key}
	d.bytes.Store(bytes)
	return d
}

// newMR makes the program's end of a registration.
func newMR(r *registration) *MR {
	m := &MR{registration: r}
	m.warning = runtime.AddCleanup(m, (*dropped).warn, r.dropped)
	return m
}

func (d *dropped) warn() {
	if !d.ended.Load() {
		slog.Warn("xroce: memory region dropped without Dereg", "device", d.device, "key", fmt.Sprintf("%#x", d.key), "bytes", d.bytes.Load())
	}
}

// MRChange is what Rereg changes; the zero value changes nothing.
type MRChange struct {
	PD     *PD
	Buffer []byte
	IOVA   *uint64 // address of Buffer's first byte; its virtual address by default
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
	case c.IOVA != nil && c.Buffer == nil:
		return fmt.Errorf("MR: %w: an address without a buffer", ErrInvalid)
	}
	old := m.view.Load()
	change := memory.Reregistration{Buffer: c.Buffer, Access: (*memory.Access)(c.Access)}
	if c.Buffer != nil {
		change.Address = memory.BufferAddress(c.Buffer)
	}
	if c.IOVA != nil {
		change.Address = *c.IOVA
	}
	pd := m.pd
	if c.PD != nil && c.PD != m.pd {
		if err := c.PD.check(); err != nil {
			return err
		}
		if c.PD.device != m.pd.device {
			return fmt.Errorf("MR: %w: the PD belongs to another device", ErrInvalid)
		}
		if err := c.PD.addUser(); err != nil {
			return err
		}
		pd, change.Domain = c.PD, &c.PD.domain
	}
	allocated.enter(c.Buffer)
	region, err := pd.device.driver.Memory().Reregister(old.region, change)
	if err != nil {
		allocated.leave(c.Buffer)
		if pd != m.pd {
			pd.removeUser()
		}
		return inUse("MR", err)
	}
	if pd != m.pd {
		m.pd.removeUser()
		m.pd = pd
	}
	buffer := old.buffer
	if c.Buffer != nil {
		buffer = c.Buffer
		allocated.leave(old.buffer)
	}
	m.show(region, buffer)
	m.dropped.bytes.Store(region.Length())
	return nil
}

// inUse gives errors about bound windows the name that all objects in use have.
func inUse(what string, err error) error {
	if errors.Is(err, memory.ErrBound) {
		return fmt.Errorf("%s: %w: %w", what, ErrInUse, err)
	}
	return err
}

// Dereg ends the registration. When it returns, no byte of the buffer is read or written any more. It fails with
// ErrInUse while windows are bound to the region.
func (m *MR) Dereg() error {
	if err := m.check(); err != nil {
		return err
	}
	err := m.destroy()
	if err == nil {
		m.warning.Stop()
	}
	return err
}

func (r *registration) destroy() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.dead {
		return fmt.Errorf("MR: %w", ErrClosed)
	}
	var err error
	if r.allocation != nil {
		err = r.allocation.Free()
	} else {
		err = r.pd.device.driver.Memory().Deregister(r.view.Load().region)
	}
	if err != nil {
		return inUse("MR", err)
	}
	r.dead = true
	r.dropped.ended.Store(true)
	allocated.leave(r.view.Load().buffer)
	r.pd.remove(kindMR, r)
	return nil
}

// check tells a region that was registered from nil and from a zero value.
func (m *MR) check() error {
	if m == nil || m.registration == nil {
		return fmt.Errorf("MR: %w: nil, or not made by RegMR or AllocMR", ErrInvalid)
	}
	return nil
}

// now is what the region is at this moment: Rereg, Map and UpdateKey replace it as a whole.
func (m *MR) now() *mrView {
	must(m.check())
	return m.view.Load()
}

// LKey is the key for work requests; it is never 0.
func (m *MR) LKey() uint32 { return m.now().key }

// RKey is the key for peers, the same one.
func (m *MR) RKey() uint32 { return m.LKey() }

// Addr is the address of the first byte.
func (m *MR) Addr() uint64 { return m.now().address }

// Length is the length in bytes.
func (m *MR) Length() int { return len(m.Bytes()) }

// Bytes is the registered buffer.
func (m *MR) Bytes() []byte { return m.now().buffer }

// SGE makes a scatter/gather element of length bytes at offset of the region. It does not check the range: a wrong one
// completes with WCLocProtErr like any other, and a length that no message can have is refused by the post.
func (m *MR) SGE(offset, length int) SGE {
	n := uint32(math.MaxUint32)
	if length >= 0 && uint64(length) < math.MaxUint32 {
		n = uint32(length)
	}
	v := m.now()
	return SGE{Addr: v.address + uint64(offset), Length: n, LKey: v.key}
}

// Remote is what a peer needs to reach the region.
func (m *MR) Remote() RemoteMemory {
	v := m.now()
	return RemoteMemory{Addr: v.address, RKey: v.key, Length: uint64(len(v.buffer))}
}

// RemoteMemory names memory of a peer: address, key and length travel as one value.
type RemoteMemory struct {
	Addr   uint64 `json:"addr"`
	Length uint64 `json:"length"`
	RKey   uint32 `json:"rkey"`
}
