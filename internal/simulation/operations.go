package simulation

import (
	"slices"

	"github.com/xroce/xroce/verbs"
)

// length draws a message length: often on or next to a boundary between packets.
func (g *Program) length() int {
	mtu := g.mtu.Bytes()
	switch g.random.IntN(6) {
	case 0:
		return g.random.IntN(9)
	case 1:
		return max(0, g.random.IntN(6)*mtu+g.random.IntN(3)-1)
	case 2:
		return g.random.IntN(mtu + 1)
	case 3:
		return g.random.IntN(maxInline)
	}
	return g.random.IntN(5 * mtu)
}

// split divides n bytes among the elements of a list, some of which may get none.
func (g *Program) split(n int) (sizes []int) {
	for count := 1 + g.random.IntN(maxSGE); count > 1; count-- {
		size := g.random.IntN(n + 1)
		sizes = append(sizes, size)
		n -= size
	}
	return append(sizes, n)
}

// build makes up the next request. It returns nil if memory is used up.
func (f *flow) build() *request {
	if f.violate && !f.violated {
		f.violated = true
		return f.buildViolation()
	}
	if r := f.buildKeyRequest(); r != nil {
		return r
	}
	switch f.g.random.IntN(14) {
	case 0, 1, 2:
		return f.buildSend(f.g.length())
	case 3, 4, 5, 6:
		return f.buildWrite(f.g.length())
	case 7, 8, 9:
		return f.buildRead()
	case 10:
		return f.buildFetchAdd()
	case 11:
		return f.buildCompareSwap()
	case 12:
		return f.buildAtomicWrite()
	}
	return f.buildFlush()
}

// gather chooses n bytes to send. Most come from the library, some from what a READ of this flow has brought, or
// brings: then the request has a fence.
func (f *flow) gather(r *request, n int) (data []byte) {
	g, e := f.g, f.from.end
	r.length = n
	if n <= maxInline && g.chance(2) {
		r.wr.Flags |= verbs.SendInline
		copy(e.scratch[:n], noise[g.random.IntN(1<<16):])
		at := len(e.memory) - scratchSize
		for _, size := range g.split(n) {
			r.wr.SGList = append(r.wr.SGList, e.arena.SGE(at, size))
			at += size
		}
		return slices.Clone(e.scratch[:n])
	}
	for _, size := range g.split(n) {
		sge, bytes := f.source(r, size)
		r.wr.SGList = append(r.wr.SGList, sge)
		data = append(data, bytes...)
	}
	return data
}

func (f *flow) source(r *request, n int) (verbs.SGE, []byte) {
	g, e := f.g, f.from.end
	if n == 0 && g.chance(2) {
		return verbs.SGE{Addr: g.random.Uint64(), LKey: g.random.Uint32()}, nil // may name anything
	}
	if len(f.contents) > 0 && g.chance(2) {
		s := f.contents[g.random.IntN(len(f.contents))]
		number := len(s.versions) - 1
		if data, ok := s.versions[number].known(len(s.bytes)); ok && len(data) >= n {
			if s.certain < number {
				r.wr.Flags |= verbs.SendFence
			}
			return e.arena.SGE(s.place, n), data[:n]
		}
	}
	for _, k := range f.from.keys {
		if k.use == useSource && k.open && n <= k.n && g.chance(2) {
			at := g.random.IntN(k.n - n + 1)
			return verbs.SGE{Addr: k.base + uint64(at), Length: uint32(n), LKey: k.rkey}, e.library.bytes[k.at+at:][:n]
		}
	}
	at := g.random.IntN(librarySize - n)
	region := e.arena
	if g.chance(3) {
		region = e.readOnly
	}
	return region.SGE(at, n), e.library.bytes[at : at+n]
}

// scatter makes slots for n bytes that come back.
func (f *flow) scatter(r *request, sizes []int) bool {
	skip := 0
	for _, size := range sizes {
		s, sge := f.destination(size)
		if s == nil {
			return false
		}
		r.wr.SGList = append(r.wr.SGList, sge)
		r.local = append(r.local, part{s, s.expect(r.read, skip)})
		skip += size
	}
	return true
}

func (f *flow) destination(n int) (*slot, verbs.SGE) {
	p, e := f.from.plot, f.from.end
	for _, k := range f.from.keys {
		if k.use == useDestination && k.open && f.g.chance(2) {
			if s := k.slot(n); s != nil {
				return s, verbs.SGE{Addr: k.address(s), Length: uint32(n), LKey: k.rkey}
			}
		}
	}
	at := p.reserve(n)
	if at < 0 {
		return nil, verbs.SGE{}
	}
	s := p.slot(at, n)
	return s, e.arena.SGE(s.place, n)
}

// target chooses n bytes at the peer that may be written: a part of a slot that was written before, or a new one.
func (f *flow) target(r *request, n int) (s *slot, offset int) {
	g := f.g
	if len(f.targets) > 0 && g.chance(2) {
		if s := f.targets[g.random.IntN(len(f.targets))]; len(s.bytes) >= n && !s.closed() {
			return s, g.random.IntN(len(s.bytes)-n+1) &^ 7
		}
	}
	for _, k := range f.to.keys {
		if k.use == useRemote && k.open && g.chance(2) {
			s = k.slot(n)
		}
	}
	if s == nil {
		at := f.to.plot.reserve(n)
		if at < 0 {
			return nil, 0
		}
		s = f.to.plot.slot(at, n)
	}
	f.targets = append(f.targets, s)
	return s, 0
}

// aim gives the request the remote address of a place in a slot, by way of a key or of the whole memory.
func (f *flow) aim(r *request, s *slot, offset int) {
	if k := s.key; k != nil && k.open && (k.kind == plain || f.g.random.IntN(4) > 0) {
		k.uses++
		r.key = k
		r.wr.RemoteAddr, r.wr.RKey = k.address(s)+uint64(offset), k.rkey
		return
	}
	r.wr.RemoteAddr, r.wr.RKey = f.to.end.arena.Addr()+uint64(s.place+offset), f.to.end.arena.RKey()
}

// buildSend makes a message of n bytes, or fewer if its receive is posted already and has no room for so many.
func (f *flow) buildSend(n int) *request {
	v := f.nextReceive(&n)
	if v == nil {
		return nil
	}
	r := &request{receive: v}
	r.wr = verbs.SendWR{Opcode: verbs.WRSend, ImmData: f.g.random.Uint32()}
	if f.g.chance(2) {
		r.wr.Opcode = verbs.WRSendWithImm
	}
	left := f.gather(r, n)
	for _, s := range v.slots {
		size := min(len(left), len(s.bytes))
		v.parts = append(v.parts, part{s, s.write(0, left[:size])})
		left = left[size:]
	}
	f.messages = append(f.messages, r)
	return r
}

func (f *flow) nextReceive(n *int) *receive {
	if len(f.messages) == len(f.receives) {
		return f.addReceive(*n)
	}
	v := f.receives[len(f.messages)]
	*n = min(*n, v.capacity)
	return v
}

func (f *flow) buildWrite(n int) *request {
	r := &request{}
	s, offset := f.target(r, n)
	if s == nil {
		return nil
	}
	r.wr = verbs.SendWR{Opcode: verbs.WRRDMAWrite}
	if f.g.chance(3) {
		none := 0
		if r.receive = f.nextReceive(&none); r.receive == nil {
			return nil
		}
		r.wr.Opcode, r.wr.ImmData = verbs.WRRDMAWriteWithImm, f.g.random.Uint32()
		f.messages = append(f.messages, r)
	}
	data := f.gather(r, n)
	r.remote = &part{s, s.write(offset, data)}
	f.aim(r, s, offset)
	if n == 0 && f.g.chance(2) {
		r.wr.RemoteAddr, r.wr.RKey = f.g.random.Uint64(), f.g.random.Uint32() // may be anything
	}
	return r
}

func (f *flow) buildRead() *request {
	g, source := f.g, f.to.end.library
	n := g.length()
	offset := g.random.IntN(librarySize - n)
	if len(f.targets) > 0 && g.chance(2) {
		source = f.targets[g.random.IntN(len(f.targets))]
		n = min(n, len(source.bytes))
		offset = g.random.IntN(len(source.bytes) - n + 1)
	}
	newest := len(source.versions) - 1
	r := &request{length: n, wr: verbs.SendWR{Opcode: verbs.WRRDMARead}}
	r.read = &read{source: source, offset: offset, oldest: newest, newest: -1}
	if source == f.to.end.library {
		r.read.newest = newest
	}
	sizes := g.split(n)
	if g.chance(2) {
		sizes = []int{n}
	}
	if !f.scatter(r, sizes) {
		return nil
	}
	for _, p := range r.local {
		f.contents = append(f.contents, p.slot)
	}
	f.aim(r, source, offset)
	if region := f.to.end.readOnly; source == f.to.end.library && g.chance(2) {
		r.wr.RemoteAddr, r.wr.RKey = region.Addr()+uint64(offset), region.RKey()
	}
	return r
}

func (f *flow) buildFlush() *request {
	r := &request{wr: verbs.SendWR{Opcode: verbs.WRFlush}}
	r.wr.Flush.Placement = verbs.FlushPlacementGlobal
	if f.g.chance(2) {
		r.wr.Flush.Selectivity = verbs.FlushSelectMR
	}
	if len(f.targets) > 0 {
		s := f.targets[f.g.random.IntN(len(f.targets))]
		f.aim(r, s, 0)
		r.wr.Flush.Length = uint32(len(s.bytes))
	} else {
		r.wr.RemoteAddr, r.wr.RKey, r.wr.Flush.Length = f.to.end.arena.Addr(), f.to.end.arena.RKey(), librarySize
	}
	return r
}

func (f *flow) buildAtomicWrite() *request {
	r := &request{}
	s, offset := f.target(r, 8)
	if s == nil {
		return nil
	}
	r.wr = verbs.SendWR{Opcode: verbs.WRAtomicWrite}
	r.remote = &part{s, s.write(offset, f.gather(r, 8))}
	f.aim(r, s, offset)
	return r
}

func (f *flow) buildFetchAdd() *request {
	which := f.g.random.IntN(words)
	word := f.g.adders[which]
	r := f.buildAtomic(verbs.WRAtomicFetchAdd, which)
	if r == nil {
		return nil
	}
	number, ok := word.add(origin{f, f.c.life})
	if !ok {
		return f.buildFlush() // the word has had all it can take
	}
	r.wr.CompareAdd = 1 << number
	r.result = func(old uint64) { word.before[number] = old - word.initial }
	return r
}

func (f *flow) buildCompareSwap() *request {
	which := f.g.random.IntN(words)
	word := f.g.swappers[which]
	r := f.buildAtomic(verbs.WRAtomicCmpAndSwp, words+which)
	if r == nil {
		return nil
	}
	w := &swap{compare: word.value(), value: f.g.random.Uint64(), by: origin{f, f.c.life}}
	if len(word.swaps) > 0 && f.g.chance(2) {
		w.compare = word.swaps[len(word.swaps)-1].value // succeeds if the one before it does
	}
	word.swaps = append(word.swaps, w)
	r.wr.CompareAdd, r.wr.Swap = w.compare, w.value
	r.result = func(old uint64) { w.known, w.returned = true, old }
	return r
}

// buildAtomic makes an atomic on one of the common words.
func (f *flow) buildAtomic(o verbs.WROpcode, word int) *request {
	r := &request{length: 8, wr: verbs.SendWR{Opcode: o}}
	region := f.to.end.commons
	r.wr.RemoteAddr, r.wr.RKey = region.Addr()+uint64(8*word), region.RKey()
	if !f.scatter(r, []int{8}) {
		return nil
	}
	return r
}
