package memory

import "sync/atomic"

// Range names bytes of a region the way work requests and peers do.
type Range struct {
	Key     uint32
	Address uint64
	Length  uint64
}

// User does the accesses of one shard, one at a time. Different users may work at the same time.
type User struct {
	table  *Table
	region atomic.Pointer[Region] // in use right now
	_      [48]byte               // the word above is polled by retire; keep neighbours off its cache line
}

// hold finds the region of a range, announces it and checks the access. On FaultNone the caller releases.
func (u *User) hold(p *Principal, need Access, r Range) (*Region, Fault) {
	for {
		region := u.table.lookup(r.Key)
		if region == nil {
			return nil, FaultKey
		}
		// Announce, then look: retire marks dead, then looks at the announcements. Either it sees ours and
		// waits, or we see the mark. Go's atomics are sequentially consistent, which this needs.
		u.region.Store(region)
		if region.dead.Load() {
			u.release()
			continue // it may have been replaced by another of the same key (Reregister)
		}
		if fault := region.check(p, need, r.Address, r.Length); fault != FaultNone {
			u.release()
			return nil, fault
		}
		return region, FaultNone
	}
}

// Region is the one that an access is under way to, or nil. Any goroutine may ask.
func (u *User) Region() *Region { return u.region.Load() }

func (u *User) release() { u.region.Store(nil) }

// Check says whether an access would be permitted now. Every copy checks again. Nothing is announced, as no byte of the
// buffer is touched.
func (u *User) Check(p *Principal, need Access, r Range) Fault {
	region := u.table.lookup(r.Key)
	if region == nil {
		return FaultKey
	}
	return region.check(p, need, r.Address, r.Length)
}

// CheckRegion is Check for an access to the whole of a region, which names no range (FLUSH with selectivity "memory
// region", IBTA annex A19).
func (u *User) CheckRegion(p *Principal, need Access, key uint32) Fault {
	region := u.table.lookup(key)
	if region == nil {
		return FaultKey
	}
	return region.permits(p, need)
}
