package memory

import (
	"runtime/debug"
	"sync/atomic"
)

// Life of an atomic: like any access it holds its region, then does one operation of the CPU on the word, so that it is atomic
// for all shards and for the program itself. The word is in host byte order.

// CompareSwap stores swap in the word of eight bytes at r if it is equal to compare. It returns the word as it was before.
// It needs RemoteAtomic. The word's place in memory, not its address in the region, must be aligned (FaultAlignment).
func (u *User) CompareSwap(p *Principal, r Range, compare, swap uint64) (original uint64, fault Fault) {
	word, fault := u.holdWord(p, RemoteAtomic, r)
	if fault != FaultNone {
		return 0, fault
	}
	defer u.release()
	original, ok := compareSwap(word, compare, swap)
	if !ok {
		return 0, FaultBuffer
	}
	return original, FaultNone
}

// FetchAdd adds to the word of eight bytes at r, modulo 2^64, and returns the word as it was before; otherwise like
// CompareSwap.
func (u *User) FetchAdd(p *Principal, r Range, add uint64) (original uint64, fault Fault) {
	word, fault := u.holdWord(p, RemoteAtomic, r)
	if fault != FaultNone {
		return 0, fault
	}
	defer u.release()
	original, ok := fetchAdd(word, add)
	if !ok {
		return 0, FaultBuffer
	}
	return original, FaultNone
}

// StoreWord stores eight bytes at r in one go (ATOMIC WRITE, IBTA annex A19). Value is those bytes, as they are to lie in
// memory, read in host byte order. It needs RemoteWrite and is otherwise like CompareSwap.
func (u *User) StoreWord(p *Principal, r Range, value uint64) Fault {
	word, fault := u.holdWord(p, RemoteWrite, r)
	if fault != FaultNone {
		return fault
	}
	defer u.release()
	if !store(word, value) {
		return FaultBuffer
	}
	return FaultNone
}

// holdWord is hold for one aligned word. On FaultNone the caller releases.
func (u *User) holdWord(p *Principal, need Access, r Range) (*uint64, Fault) {
	region, fault := u.hold(p, need, r)
	if fault != FaultNone {
		return nil, fault
	}
	if r.Length != 8 {
		u.release()
		return nil, FaultBounds
	}
	offset := r.Address - region.start
	word := wordOf(region.buffer[offset : offset+8])
	if word == nil {
		u.release()
		return nil, FaultAlignment
	}
	return word, FaultNone
}

func compareSwap(word *uint64, compare, swap uint64) (original uint64, ok bool) {
	ok = true
	defer survive(&ok, debug.SetPanicOnFault(true))
	for !atomic.CompareAndSwapUint64(word, compare, swap) {
		// If it is equal now, it was not a moment ago: try again, as either answer would be wrong.
		if original = atomic.LoadUint64(word); original != compare {
			return original, ok
		}
	}
	return compare, ok
}

func fetchAdd(word *uint64, add uint64) (original uint64, ok bool) {
	ok = true
	defer survive(&ok, debug.SetPanicOnFault(true))
	return atomic.AddUint64(word, add) - add, ok
}

func store(word *uint64, value uint64) (ok bool) {
	ok = true
	defer survive(&ok, debug.SetPanicOnFault(true))
	atomic.StoreUint64(word, value)
	return ok
}
