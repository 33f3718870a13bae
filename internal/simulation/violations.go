package simulation

import (
	"github.com/xroce/xroce/roce/queue"
	"github.com/xroce/xroce/verbs"
)

// buildViolation makes a request that must fail. Nothing of it may change a byte, and it ends the life of the
// connection.
func (f *flow) buildViolation() *request {
	f.hazard = true
	switch f.g.random.IntN(6) {
	case 0:
		return f.buildTooLong()
	case 1:
		return f.buildBadInvalidate()
	case 2:
		return f.buildBadSource()
	}
	return f.buildBadAccess()
}

// buildTooLong makes a SEND that is longer than its receive. What comes before the end may be there.
func (f *flow) buildTooLong() *request {
	none := 0
	v := f.nextReceive(&none)
	if v == nil {
		return nil
	}
	r := &request{receive: v, fails: verbs.WCRemInvReqErr, breaksRcv: verbs.WCLocLenErr, wr: verbs.SendWR{Opcode: verbs.WRSend}}
	f.gather(r, v.capacity+1+f.g.random.IntN(f.g.mtu.Bytes()))
	for _, s := range v.slots {
		s.expect(nil, 0)
	}
	f.messages = append(f.messages, r)
	return r
}

// buildBadInvalidate makes a SEND that arrives, but its key cannot be invalidated: only the receiver fails.
func (f *flow) buildBadInvalidate() *request {
	r := f.buildSend(f.g.length())
	if r == nil {
		return nil
	}
	r.wr.Opcode, r.wr.ImmData, r.wr.InvalidateRKey = verbs.WRSendWithInv, 0, f.to.end.arena.RKey()
	if k := f.forbidden(); k != nil {
		r.wr.InvalidateRKey = k.rkey
	}
	r.breaks, r.breaksRcv = true, verbs.WCRemInvReqErr
	return r
}

// buildBadSource makes a request whose own memory is not there: only the sender fails.
func (f *flow) buildBadSource() *request {
	r := &request{fails: verbs.WCLocProtErr, wr: verbs.SendWR{Opcode: verbs.WRRDMAWrite}}
	e := f.from.end
	r.wr.RemoteAddr, r.wr.RKey = f.to.end.arena.Addr(), f.to.end.arena.RKey()
	n := 1 + f.g.random.IntN(f.g.mtu.Bytes())
	sge := e.arena.SGE(len(e.memory)-n/2, n)
	if n == 1 || f.g.chance(2) {
		sge.LKey = f.g.random.Uint32()
	}
	r.wr.SGList = []verbs.SGE{e.arena.SGE(0, n), sge}
	if f.g.chance(2) { // the region grants no write to READs
		r.wr.Opcode = verbs.WRRDMARead
		r.wr.SGList = []verbs.SGE{e.readOnly.SGE(0, n)}
	}
	return r
}

// buildBadAccess makes a request for memory of the peer that it may not have: both queue pairs fail.
func (f *flow) buildBadAccess() *request {
	g, e := f.g, f.to.end
	r := &request{fails: verbs.WCRemAccessErr}
	r.wr = verbs.SendWR{
		Opcode:     []verbs.WROpcode{verbs.WRRDMAWrite, verbs.WRRDMARead, verbs.WRAtomicFetchAdd, verbs.WRAtomicWrite}[g.random.IntN(4)],
		RemoteAddr: e.arena.Addr() + uint64(len(e.memory)), RKey: e.arena.RKey(), CompareAdd: 1,
	}
	n := 8
	if !queue.Opcode(r.wr.Opcode).Answered() || r.wr.Opcode == verbs.WRRDMARead {
		n += g.random.IntN(3 * g.mtu.Bytes())
	}
	writes := r.wr.Opcode != verbs.WRRDMARead
	switch r.wr.Opcode {
	case verbs.WRRDMARead, verbs.WRAtomicFetchAdd:
		r.length = n
		if !f.scatter(r, []int{n}) {
			return nil
		}
	default:
		f.gather(r, n)
	}
	switch g.random.IntN(8) {
	case 0: // begins within the region and ends behind it
		r.wr.RemoteAddr -= 8 * uint64(g.random.IntN(n)/8)
	case 1: // the end of the range wraps around
		r.wr.RemoteAddr = -uint64(8 + 8*g.random.IntN(n/8))
	case 2: // before the region
		r.wr.RemoteAddr = e.arena.Addr() - 8
	case 3:
		r.wr.RKey = g.random.Uint32()
	case 4: // a right is missing
		if writes {
			r.wr.RemoteAddr, r.wr.RKey = e.readOnly.Addr(), e.readOnly.RKey()
		}
	default: // the key of something that is closed, or open for others
		if k := f.forbidden(); k != nil {
			r.wr.RemoteAddr, r.wr.RKey = k.base, k.rkey
		}
	}
	return r
}

// forbidden is a key of the peer that must not open anything for this queue pair.
func (f *flow) forbidden() *key {
	side := f.c.sideOf(f.to)
	for _, c := range f.g.connections {
		for _, k := range c.sides[side].keys {
			mine := c == f.c
			switch {
			case k.use == useRemote && mine && !k.open && !k.pending && f.g.chance(2),
				k.kind == window2 && !mine && k.open && !k.pending:
				return k
			}
		}
	}
	return nil
}
