package simulation

import (
	"bytes"
	"fmt"

	"github.com/xroce/xroce/verbs"
)

// Keys that come and go. Each side has, in every life: a region for fast registration, a window of type 1 and one of
// type 2 that the peer may use while they are open; an ordinary region that may be deregistered under way; and two
// regions for fast registration for its own requests, which it opens, uses and closes in one go, without waiting for
// anything.

type keyKind int

const (
	plain keyKind = iota
	fast
	window1
	window2
)

type keyUse int

const (
	useRemote      keyUse = iota // by the peer
	useSource                    // by this end, to send from
	useDestination               // by this end, for what READs bring
)

type key struct {
	kind keyKind
	use  keyUse
	side *side
	mr   *verbs.MR
	mw   *verbs.MW
	rkey uint32
	base uint64 // address of the first byte
	at   int    // place of the first byte in the plot, or in the library
	n    int    // bytes
	next int    // first byte without a slot

	open    bool   // requests may use it
	pending bool   // a request to open or close it is under way
	doomed  bool   // it is to be closed whoever uses it
	uses    int    // requests of the peer that are not complete
	frozen  []byte // what the memory held when the region was deregistered: no byte may change any more
}

const keySize = 6 << 10

func (c *connection) makeKeys(s *side) error {
	s.keys = nil
	for _, k := range []*key{
		{kind: plain}, {kind: fast}, {kind: window1}, {kind: window2},
		{kind: fast, use: useSource}, {kind: fast, use: useDestination},
	} {
		if c.g.chance(3) {
			continue
		}
		k.side, k.n = s, keySize
		if k.use == useSource {
			k.at = c.g.random.IntN(librarySize - k.n)
		} else {
			k.at = s.plot.reserve(k.n)
		}
		if err := c.allocate(k); err != nil {
			return err
		}
		s.keys = append(s.keys, k)
	}
	return nil
}

// buffer is the memory that the key opens.
func (k *key) buffer() []byte {
	if k.use == useSource {
		return k.side.end.library.bytes[k.at : k.at+k.n]
	}
	return k.side.plot.bytes[k.at : k.at+k.n]
}

func (c *connection) allocate(k *key) (err error) {
	pd := k.side.end.pd
	k.base = c.g.address()
	switch k.kind {
	case plain:
		k.mr, err = pd.RegMRIOVA(k.buffer(), k.base, everyRight)
		k.open = true
	case fast:
		if k.mr, err = pd.AllocMR(keySize); err == nil {
			err = k.mr.Map(k.buffer(), k.base)
		}
	case window1:
		k.mw, err = pd.AllocMW(verbs.MWType1)
	case window2:
		k.mw, err = pd.AllocMW(verbs.MWType2)
	}
	if err != nil {
		return err
	}
	if k.mr != nil {
		k.rkey = k.mr.RKey()
	} else {
		k.rkey = k.mw.RKey()
	}
	return nil
}

func (c *connection) dropKeys(s *side) error {
	for _, k := range s.keys {
		var err error
		switch {
		case k.frozen != nil && difference(k.buffer(), k.frozen) >= 0:
			err = fmt.Errorf("byte %d changed after it was deregistered", k.side.plot.base+k.at+difference(k.buffer(), k.frozen))
		case k.mw != nil:
			err = k.mw.Dealloc()
		case k.mr != nil:
			err = k.mr.Dereg()
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// slot makes a slot within the memory that the key opens; nil if there is no room.
func (k *key) slot(n int) *slot {
	at := (k.next + guard + 7) &^ 7
	if at+n > k.n {
		return nil
	}
	k.next = at + n
	s := k.side.plot.slot(k.at+at, n)
	s.key = k
	return s
}

// address is how the key calls the first byte of a slot.
func (k *key) address(s *slot) uint64 { return k.base + uint64(s.place-k.side.plot.base-k.at) }

// buildKeyRequest makes a request that opens or closes a key, if it is time for one.
func (f *flow) buildKeyRequest() *request {
	g := f.g
	for _, k := range f.from.keys {
		switch {
		case k.doomed && k.open && !k.pending:
			f.c.flows[1-f.c.sideOf(f.from)].risk(k)
			k.doomed = false
			return f.buildClose(k)
		case k.kind == plain || k.pending || !g.chance(9):
		case !k.open:
			return f.buildOpen(k)
		case k.uses == 0:
			return f.buildClose(k)
		}
	}
	for _, k := range f.to.keys {
		if k.use == useRemote && (k.kind == fast || k.kind == window2) && k.open && !k.pending && g.chance(3) {
			return f.buildInvalidate(k)
		}
	}
	return nil
}

// buildOpen makes a request that opens one of this end's keys.
func (f *flow) buildOpen(k *key) *request {
	r := &request{}
	k.rkey = verbs.IncRKey(k.rkey)
	if k.kind == fast {
		r.wr = verbs.SendWR{Opcode: verbs.WRRegMR, RKey: k.rkey, Access: everyRight}
	} else {
		r.wr = verbs.SendWR{Opcode: verbs.WRBindMW, RKey: k.rkey, Bind: f.binding(k)}
	}
	if k.use != useRemote {
		k.open = true // the order of the queue suffices
		return r
	}
	k.pending = true
	r.executed = func() { k.open, k.pending = true, false }
	return r
}

func (f *flow) binding(k *key) verbs.BindInfo {
	e := f.from.end
	address := e.arena.Addr() + uint64(k.side.plot.base+k.at)
	access := verbs.AccessRemoteWrite | verbs.AccessRemoteRead | verbs.AccessRemoteAtomic | verbs.AccessFlushGlobal
	k.base = address
	if k.kind == window2 && f.g.chance(2) {
		access |= verbs.AccessZeroBased
		k.base = 0
	}
	return verbs.BindInfo{LKey: e.arena.LKey(), Addr: address, Length: uint64(k.n), Access: access}
}

// buildClose makes a request that closes one of this end's keys, which no request of the peer uses any more. Windows
// of type 1 are bound anew, or to nothing.
func (f *flow) buildClose(k *key) *request {
	k.open = false
	if k.kind == window1 && f.g.chance(2) {
		return f.buildOpen(k)
	}
	r := &request{wr: verbs.SendWR{Opcode: verbs.WRLocalInv, InvalidateRKey: k.rkey}}
	if k.kind == window1 {
		r.wr = verbs.SendWR{Opcode: verbs.WRBindMW, RKey: verbs.IncRKey(k.rkey)}
	}
	if k.use != useRemote {
		return r
	}
	k.pending = true
	r.executed = func() { k.pending = false }
	return r
}

// buildInvalidate makes a SEND that closes a key of the peer. Its own READs before it have to be complete.
func (f *flow) buildInvalidate(k *key) *request {
	r := f.buildSend(f.g.length())
	if r == nil {
		return nil
	}
	r.wr.Opcode, r.wr.ImmData, r.wr.InvalidateRKey = verbs.WRSendWithInv, 0, k.rkey
	r.wr.Flags |= verbs.SendFence
	k.open, k.pending = false, true
	r.executed = func() { k.pending = false }
	return r
}

// endanger takes a key away that the peer uses: an ordinary region is deregistered, others are closed by the next
// request. What the peer has under way may fail.
func (c *connection) endanger(s *side) error {
	for _, k := range s.keys {
		switch {
		case k.use != useRemote || !k.open || k.pending || c.g.chance(3):
			continue
		case k.kind != plain:
			k.doomed = true
			return nil
		}
		if err := k.mr.Dereg(); err != nil {
			return err
		}
		k.open, k.mr = false, nil
		k.frozen = bytes.Clone(k.buffer())
		c.flows[1-c.sideOf(s)].risk(k)
		return nil
	}
	return nil
}

// risk marks the requests that use a key which goes away.
func (f *flow) risk(k *key) {
	for _, r := range f.requests[f.next:] {
		if r.key == k {
			r.may, f.hazard = verbs.WCRemAccessErr, true
			if r.receive != nil {
				r.breaksRcv = verbs.WCRemAccessErr
			}
		}
	}
}

// closed says that the slot lies in an ordinary region that was deregistered: nobody may write there any more.
func (s *slot) closed() bool { return s.key != nil && s.key.kind == plain && !s.key.open }
