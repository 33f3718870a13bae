package memory

import (
	"runtime/debug"
	"sync/atomic"
)

// Life of an atomic: like any access it holds its region, then does one operation of the CPU on the word, so that it is
// atomic for all shards and for the program itself. The word is in host byte order.

// CompareSwap stores swap in the word of eight bytes at r if it is equal to compare. It returns the word as it was
// before. It needs RemoteAtomic. The word's place in memory, not its address in the region, must be aligned
// (FaultAlignment).
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

// StoreWord stores eight bytes at r in one go (ATOMIC WRITE, IBTA annex A19). Value is those bytes, as they are to lie
// in memory, read in host byte order. It needs RemoteWrite and is otherwise like CompareSwap.
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

// The program's own accesses to words of its memory. Region.pin announces them, so that Deregister and all others that
// end a region wait for them as they do for those of the engine; any number of them may be under way at once. They ask
// for no right: the memory is the program's. FaultKey says that the region has ended.

// LoadUint64 loads the aligned word at offset, in host byte order. It is how a program sees that a peer's write has
// arrived: if the word is the last of the message, everything before it is there too.
func (r *Region) LoadUint64(offset uint64) (value uint64, fault Fault) {
	word, fault := r.pin(offset)
	if fault != FaultNone {
		return 0, fault
	}
	defer r.unpin()
	value, ok := load(word)
	return value, faultOf(ok)
}

// StoreUint64 stores the aligned word at offset, in host byte order.
func (r *Region) StoreUint64(offset, value uint64) Fault {
	word, fault := r.pin(offset)
	if fault != FaultNone {
		return fault
	}
	defer r.unpin()
	return faultOf(store(word, value))
}

// AddUint64 adds to the aligned word at offset, modulo 2^64, and returns the word as it is then.
func (r *Region) AddUint64(offset, delta uint64) (sum uint64, fault Fault) {
	word, fault := r.pin(offset)
	if fault != FaultNone {
		return 0, fault
	}
	defer r.unpin()
	original, ok := fetchAdd(word, delta)
	if !ok {
		return 0, FaultBuffer
	}
	return original + delta, FaultNone
}

// CompareAndSwapUint64 stores next in the aligned word at offset if that is equal to old, and says whether it was.
func (r *Region) CompareAndSwapUint64(offset, old, next uint64) (swapped bool, fault Fault) {
	word, fault := r.pin(offset)
	if fault != FaultNone {
		return false, fault
	}
	defer r.unpin()
	original, ok := compareSwap(word, old, next)
	return ok && original == old, faultOf(ok)
}

// pin finds the word at offset of a region that has not ended. On FaultNone the caller unpins.
func (r *Region) pin(offset uint64) (*uint64, Fault) {
	if offset > r.Length() || r.Length()-offset < 8 {
		return nil, FaultBounds
	}
	word := wordOf(r.buffer[offset : offset+8])
	if word == nil {
		return nil, FaultAlignment
	}
	if !r.hold() {
		return nil, FaultKey
	}
	return word, FaultNone
}

// hold keeps a region from ending until unpin, unless it has ended.
func (r *Region) hold() bool {
	r.pins.Add(1) // then look, as in User.hold
	if r.dead.Load() {
		r.unpin()
		return false
	}
	return true
}

func (r *Region) unpin() { r.pins.Add(-1) }

func faultOf(ok bool) Fault {
	if !ok {
		return FaultBuffer
	}
	return FaultNone
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

func load(word *uint64) (value uint64, ok bool) {
	ok = true
	defer survive(&ok, debug.SetPanicOnFault(true))
	return atomic.LoadUint64(word), ok
}

func store(word *uint64, value uint64) (ok bool) {
	ok = true
	defer survive(&ok, debug.SetPanicOnFault(true))
	atomic.StoreUint64(word, value)
	return ok
}
