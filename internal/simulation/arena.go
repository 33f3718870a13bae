package simulation

import (
	"bytes"
	"fmt"
	"slices"
)

// What memory may hold. Every message has a slot of its own at the place where it is to arrive, or writes a part of
// the slot of an earlier one of its queue pair, which is where a duplicate that is executed late would show. A slot
// knows its versions in the order in which they are written, and up to which of them that is certain: each byte must
// be that of the last certain version, or of one of those that may have followed.

// guard is the number of bytes between slots, which nobody may touch.
const guard = 16

// plot is the part of a device's memory that one side of a connection uses.
type plot struct {
	bytes []byte
	truth []byte // what bytes hold outside of the slots
	base  int    // place in the device's memory
	next  int    // first byte that is not used in this life
	slots []*slot
}

// reserve takes n bytes out of the plot, aligned to 8, with guards on both sides. It returns -1 if there is no room.
func (p *plot) reserve(n int) int {
	at := (p.next + guard + 7) &^ 7
	if at+n+guard > len(p.bytes) {
		return -1
	}
	p.next = at + n
	return at
}

// slot makes a slot out of reserved bytes.
func (p *plot) slot(at, n int) *slot {
	s := &slot{bytes: p.bytes[at : at+n : at+n], place: p.base + at}
	s.versions = []version{{data: slices.Clone(s.bytes)}}
	p.slots = append(p.slots, s)
	return s
}

// check compares the whole plot with the model.
func (p *plot) check() error {
	for _, s := range p.slots {
		if err := s.check(); err != nil {
			return err
		}
		copy(p.truth[s.place-p.base:], s.bytes)
	}
	if at := difference(p.bytes, p.truth); at >= 0 {
		return fmt.Errorf("byte %d, which nobody may write, is %#x, was %#x", p.base+at, p.bytes[at], p.truth[at])
	}
	return nil
}

// forget ends a life: the bytes as they are now are what the next life begins with.
func (p *plot) forget() error {
	err := p.check()
	p.slots, p.next = nil, 0
	return err
}

// difference is the index of the first byte in which a and b differ, or -1.
func difference(a, b []byte) int {
	if bytes.Equal(a, b) {
		return -1
	}
	for i := range a {
		if a[i] != b[i] {
			return i
		}
	}
	return -1
}

type slot struct {
	bytes    []byte
	place    int // in the device's memory
	versions []version
	certain  int  // the newest version that was certainly written in full
	key      *key // covers the slot, or nil
}

// version is what one request makes of a slot: bytes that are known, those that a READ in flight brings, or any.
type version struct {
	data []byte
	read *read
	skip int // bytes of the READ before the slot's
}

// read is what a READ may return: any of its source's versions from oldest to newest.
type read struct {
	source         *slot
	offset         int
	oldest, newest int // newest is -1 while later requests may still change the source before the READ is complete
}

// write adds a version that replaces the bytes from offset on, and returns its number.
func (s *slot) write(offset int, data []byte) int {
	next := slices.Clone(s.versions[len(s.versions)-1].data)
	copy(next[offset:], data)
	s.versions = append(s.versions, version{data: next})
	return len(s.versions) - 1
}

// expect adds a version whose bytes are not known yet, and returns its number.
func (s *slot) expect(r *read, skip int) int {
	s.versions = append(s.versions, version{read: r, skip: skip})
	return len(s.versions) - 1
}

// settle says that a version was certainly written.
func (s *slot) settle(number int) { s.certain = max(s.certain, number) }

// learn takes the bytes as they are for a version of which they were not known, if they are possible.
func (s *slot) learn(number int) error {
	s.settle(number)
	if err := s.check(); err != nil {
		return err
	}
	s.versions[number] = version{data: slices.Clone(s.bytes)}
	return nil
}

func (s *slot) check() error {
	versions := s.versions[s.certain:]
	if len(versions) == 1 && versions[0].data != nil && bytes.Equal(versions[0].data, s.bytes) {
		return nil
	}
	for i, b := range s.bytes {
		if !slices.ContainsFunc(versions, func(v version) bool { return v.permits(i, b) }) {
			return fmt.Errorf("byte %d, byte %d of a slot of %d, is %#x; version %d of %d is certain and has %s",
				s.place+i, i, len(s.bytes), b, s.certain, len(s.versions)-1, versions[0].describe(i))
		}
	}
	return nil
}

func (v version) permits(i int, b byte) bool {
	switch {
	case v.data != nil:
		return v.data[i] == b
	case v.read == nil:
		return true
	}
	return slices.ContainsFunc(v.read.versions(), func(w version) bool { return w.permits(v.read.offset+v.skip+i, b) })
}

func (v version) describe(i int) string {
	if v.data == nil {
		return "what a request brings"
	}
	return fmt.Sprintf("%#x", v.data[i])
}

func (r *read) versions() []version {
	newest := r.newest
	if newest < 0 {
		newest = len(r.source.versions) - 1
	}
	return r.source.versions[r.oldest : newest+1]
}

// known is what a version that was expected will be, if there is only one possibility.
func (v version) known(n int) ([]byte, bool) {
	switch {
	case v.data != nil:
		return v.data, true
	case v.read == nil || v.read.newest != v.read.oldest:
		return nil, false
	}
	from := v.read.offset + v.skip
	return v.read.source.versions[v.read.oldest].data[from : from+n], true
}
