package verbs

import (
	"fmt"

	"github.com/xroce/xroce/roce/memory"
)

// The program's own accesses to words of its regions. Each is one instruction of the CPU, as remote atomics are, and
// goes through the guard of package memory: where a plain access to MR.Bytes ends the process, these return an error.

// LoadUint64 loads the 8-byte aligned word at offset atomically, in host byte order. This is how a program waits for a
// peer's RDMA WRITE without a completion: if the word is the last of the message, everything before it is there once
// the word has changed. It fails with ErrInvalid if the word is not within the region or not aligned, or if a region
// for fast registration is not open, with ErrClosed after Dereg, and with ErrFault if the memory cannot be accessed.
func (m *MR) LoadUint64(offset int) (value uint64, err error) {
	err = m.word(offset, func(r *memory.Region, at uint64) (fault memory.Fault) {
		value, fault = r.LoadUint64(at)
		return fault
	})
	return value, err
}

// StoreUint64 stores the 8-byte aligned word at offset atomically, in host byte order. It fails like LoadUint64.
func (m *MR) StoreUint64(offset int, value uint64) error {
	return m.word(offset, func(r *memory.Region, at uint64) memory.Fault { return r.StoreUint64(at, value) })
}

// AddUint64 adds delta, modulo 2^64, to the 8-byte aligned word at offset, which is in host byte order, and returns the
// word as it is then. It is atomic towards the program and towards the atomics of all peers. It fails like LoadUint64.
func (m *MR) AddUint64(offset int, delta uint64) (sum uint64, err error) {
	err = m.word(offset, func(r *memory.Region, at uint64) (fault memory.Fault) {
		sum, fault = r.AddUint64(at, delta)
		return fault
	})
	return sum, err
}

// CompareAndSwapUint64 stores next in the 8-byte aligned word at offset if that is equal to old, and says whether it
// was. The word is in host byte order. It is atomic towards the program and towards the atomics of all peers. It fails
// like LoadUint64.
func (m *MR) CompareAndSwapUint64(offset int, old, next uint64) (swapped bool, err error) {
	err = m.word(offset, func(r *memory.Region, at uint64) (fault memory.Fault) {
		swapped, fault = r.CompareAndSwapUint64(at, old, next)
		return fault
	})
	return swapped, err
}

// word does an operation on a word of what the region is now.
func (m *MR) word(offset int, operation func(r *memory.Region, offset uint64) memory.Fault) error {
	if err := m.check(); err != nil {
		return err
	}
	if offset < 0 {
		return fmt.Errorf("MR: %w: offset %d", ErrInvalid, offset)
	}
	for {
		region := m.view.Load().region
		if m.allocation != nil {
			region = m.allocation.Region()
		}
		if region != nil {
			switch fault := operation(region, uint64(offset)); fault {
			case memory.FaultNone:
				return nil
			case memory.FaultBuffer:
				return fmt.Errorf("MR: word at offset %d: %w", offset, ErrFault)
			case memory.FaultKey: // it has ended since
			default:
				return fmt.Errorf("MR: %w: word at offset %d of a region of %d bytes at %#x: %v",
					ErrInvalid, offset, region.Length(), region.Address(), fault)
			}
		}
		m.mu.Lock() // Rereg and Dereg are done then
		dead := m.dead
		m.mu.Unlock()
		switch {
		case dead:
			return fmt.Errorf("MR: %w", ErrClosed)
		case region == nil:
			return fmt.Errorf("MR: %w: key %#x is not registered now", ErrInvalid, m.RKey())
		}
	}
}
