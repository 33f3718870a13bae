package perf

import "github.com/xroce/xroce/verbs"

// prepare makes the requests of a queue pair, of which each post only changes what differs.
func (s *station) prepare(p *pair) {
	p.sends = make([]verbs.SendWR, s.plan.Moderation)
	elements := make([]verbs.SGE, s.plan.Moderation)
	for i := range p.sends {
		p.sends[i] = verbs.SendWR{Opcode: s.plan.operation().opcode, SGList: elements[i : i+1], CompareAdd: 1}
	}
	p.sends[len(p.sends)-1].Flags = verbs.SendSignaled
	if !s.plan.operation().arrives {
		return
	}
	p.receives = make([]verbs.RecvWR, s.plan.receives())
	p.again = make([]verbs.RecvWR, 0, len(p.receives))
	for i := range p.receives {
		p.receives[i].WRID = wrid(uint64(i), p.index)
		if s.plan.Operation == "send" { // that of a WRITE with immediate has no memory
			offset := s.plan.sink(p.index, uint64(i))
			p.receives[i].SGList = []verbs.SGE{s.mr.SGE(offset, s.plan.largest())}
		}
	}
}

// begin makes everything ready for a run with messages of another size, or for another one: numbers begin at 0 again,
// and nothing of earlier messages is left where new ones come. The other end must not send yet.
func (s *station) begin(size int) {
	s.size = size
	s.posted, s.completed, s.arrived = 0, 0, 0
	clear(s.memory[s.plan.half():])
	for _, p := range s.pairs {
		p.posted, p.completed, p.last, p.arrived = 0, 0, 0, 0
		for i := range p.sends {
			w := &p.sends[i]
			w.RKey = s.remote.RKey
			w.SGList[0] = s.mr.SGE(0, size)
			w.Flags &^= verbs.SendInline
			if s.plan.operation().inline && size <= s.plan.Inline {
				w.Flags |= verbs.SendInline
			}
		}
	}
	s.check.begin(s)
}

// post posts the next messages of a queue pair at once, at most as many as have one completion, which is that of the
// last one.
func (s *station) post(p *pair, count int) error {
	// The last ones of the list, so that the flags stay where they are.
	list := p.sends[len(p.sends)-count:]
	for i := range list {
		n := p.posted + uint64(i)
		w := &list[i]
		w.WRID = wrid(n, p.index)
		near, far := s.plan.source(p.index, n), s.plan.sink(p.index, n)
		if s.plan.operation().fetches {
			near, far = s.plan.result(p.index, n), s.plan.source(p.index, n)
			if s.plan.Operation == "atomic" {
				far = s.plan.source(p.index, 0) // all of a queue pair change one word
			}
		} else if err := s.check.fill(s, p, near, n); err != nil {
			return err
		}
		w.SGList[0].Addr = s.mr.Addr() + uint64(near)
		w.RemoteAddr = s.remote.Addr + uint64(far)
	}
	if err := p.qp.PostSend(list...); err != nil {
		return err
	}
	p.posted += uint64(count)
	s.posted += uint64(count)
	return nil
}

// refill posts what has room in the window of a queue pair.
func (s *station) refill(p *pair) error {
	for p.posted < p.last {
		count := min(uint64(s.plan.Moderation), p.last-p.posted)
		if p.posted+count > p.completed+uint64(s.plan.Depth) {
			return nil
		}
		if err := s.post(p, int(count)); err != nil {
			return err
		}
	}
	return nil
}

// take does what a completion calls for. Receives are posted again by repost.
func (s *station) take(wc *verbs.WC) error {
	if wc.Status != verbs.WCSuccess {
		return s.explain(wc)
	}
	n, index := number(wc.WRID)
	p := s.pairs[index]
	if wc.Opcode != verbs.WCRecv && wc.Opcode != verbs.WCRecvRDMAWithImm {
		first := p.completed
		p.completed = n + 1
		s.completed += p.completed - first
		return s.check.fetched(s, p, first, p.completed)
	}
	if err := s.check.received(s, p, wc, n); err != nil {
		return err
	}
	p.arrived++
	s.arrived++
	p.again = append(p.again, p.receives[n])
	return nil
}

// repost posts the receives that a queue pair has used.
func (s *station) repost(p *pair) error {
	if len(p.again) == 0 {
		return nil
	}
	list := p.again
	p.again = p.again[:0]
	return p.qp.PostRecv(list...)
}
