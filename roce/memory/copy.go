package memory

import "runtime/debug"

// Write copies data, given in pieces whose lengths sum up to r.Length, into the range. If final is set, the last whole
// aligned 64-bit word of the range is stored atomically after all other bytes, so that a program that polls the word
// (LoadUint64) sees everything that came before it.
func (u *User) Write(p *Principal, need Access, r Range, data [][]byte, final bool) Fault {
	region, fault := u.hold(p, need, r)
	if fault != FaultNone {
		return fault
	}
	defer u.release()
	offset := r.Address - region.start
	if !copyIn(region.buffer[offset:offset+r.Length], data, final) {
		return FaultBuffer
	}
	return FaultNone
}

// Read copies the range, whose Length is len(into), out of the region.
func (u *User) Read(p *Principal, need Access, r Range, into []byte) Fault {
	region, fault := u.hold(p, need, r)
	if fault != FaultNone {
		return fault
	}
	defer u.release()
	return region.read(r, into)
}

// read copies a range that was checked.
func (region *Region) read(r Range, into []byte) Fault {
	offset := r.Address - region.start
	return faultOf(copyOut(into, region.buffer[offset:offset+r.Length]))
}

// Read is User.Read of the program itself, from any goroutine: it needs no User, of which there are few since everybody
// who ends a region looks at all of them.
func (t *Table) Read(p *Principal, need Access, r Range, into []byte) Fault {
	for {
		region := t.lookup(r.Key)
		if region == nil {
			return FaultKey
		}
		if !region.hold() {
			continue // it may have been replaced by another of the same key (Reregister)
		}
		defer region.unpin()
		if fault := region.check(p, need, r.Address, r.Length); fault != FaultNone {
			return fault
		}
		return region.read(r, into)
	}
}

// Touch writes a zero into every page of a buffer, whose first byte is the first of a page. FaultBuffer says that the
// kernel cannot give one of them.
func Touch(buffer []byte, page int) Fault {
	zero := [][]byte{{0}}
	for at := 0; at < len(buffer); at += page {
		if !copyIn(buffer[at:at+1], zero, false) {
			return FaultBuffer
		}
	}
	return FaultNone
}

// survive turns a fault of the memory itself (a truncated file behind a mapping, a page made read-only) into a false
// result. Anything else that panics is a defect and goes on. With the check and the announcement it costs under 30 ns
// per copy (BenchmarkWrite against BenchmarkCopy, Xeon, Linux 6.18).
func survive(ok *bool, was bool) {
	debug.SetPanicOnFault(was)
	if p := recover(); p != nil {
		if _, fault := p.(interface{ Addr() uintptr }); !fault {
			panic(p)
		}
		*ok = false
	}
}

func copyOut(into, from []byte) (ok bool) {
	ok = true
	defer survive(&ok, debug.SetPanicOnFault(true))
	copy(into, from)
	return ok
}

func copyIn(into []byte, data [][]byte, final bool) (ok bool) {
	ok = true
	defer survive(&ok, debug.SetPanicOnFault(true))
	word := -1
	if final {
		word = lastWord(into)
	}
	at := 0
	for _, piece := range data {
		piece = piece[:min(len(piece), len(into)-at)]
		if word >= 0 {
			copyAround(into, at, piece, word)
		} else {
			copy(into[at:], piece)
		}
		at += len(piece)
	}
	if word >= 0 {
		storeWord(into[word:word+8], gather(data, word))
	}
	return ok
}

// copyAround copies piece to into[at:] but leaves the eight bytes from word alone.
func copyAround(into []byte, at int, piece []byte, word int) {
	end := at + len(piece)
	if at < word {
		copy(into[at:word], piece)
	}
	if after := word + 8; end > after {
		skip := max(0, after-at)
		copy(into[at+skip:end], piece[skip:])
	}
}

// gather returns the eight bytes of data from offset.
func gather(data [][]byte, offset int) (word [8]byte) {
	n := 0
	for _, piece := range data {
		if offset >= len(piece) {
			offset -= len(piece)
			continue
		}
		n += copy(word[n:], piece[offset:])
		offset = 0
		if n == len(word) {
			break
		}
	}
	return word
}
