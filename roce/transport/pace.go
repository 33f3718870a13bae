package transport

import "slices"

// pace holds back the responses to long READs while other queue pairs have to do with the same peer. One request may
// ask for 2 GiB, and nothing acknowledges its responses. Sent as fast as they can be, they keep both ends busy with
// nothing else, and the peer's buffers full: what others send is late by a millisecond, or lost.
//
// So such responses may be as many bytes as the other queue pairs of the flight move, in both directions, and leastRate
// beside queue pairs that move little. A queue pair without credit rests. If the others move nothing for a generation,
// nobody is held back.
type pace struct {
	credit  int      // bytes of responses that may leave
	moved   Time     // when others have moved something; 0 if they never did
	resting []*share // who have more to send; few, since a queue pair rarely asks for that much at once
}

const (
	// longRead is how many response packets make a READ long: more than a window, which is what this transport asks for
	// at most.
	longRead = DefaultWindow
	// leastBytes is what a packet counts for, however short it is. On veth one of 1098 bytes takes 0.95 us to send and
	// one of 4170 bytes 1.60 us (xsk.Options.TransmitBudget names the measurement), so bytes alone would give the CPU
	// to short ones.
	leastBytes = 2048
	// leastRate is what the responses may be in a generation beside others that move little, in bytes: 0.4 Gbit/s. A
	// tenth of what a queue pair moves on veth hurts the others little, and a quarter of the receive buffers takes it.
	leastRate = 512 << 10
)

// moved notes that a packet of a queue pair has left or come.
func (f *flight) moved(bytes int) {
	p := &f.pace
	p.moved = max(f.engine.now, 1)
	p.credit = min(p.credit+max(bytes, leastBytes), max(p.credit, turnBytes))
	if len(p.resting) > 0 {
		p.wake(1)
	}
}

// wake lets the first ones of those that rest go on. Who needs more than the credit rests again, behind the others.
func (p *pace) wake(count int) {
	count = min(count, len(p.resting))
	for _, s := range p.resting[:count] {
		s.resting = false
		s.flight.engine.Ready(s.qp)
	}
	p.resting = slices.Delete(p.resting, 0, count)
}

// refill is called when a generation ends while somebody rests.
func (p *pace) refill() {
	p.credit = leastRate
	p.wake(len(p.resting))
}

// leave forgets a queue pair.
func (p *pace) leave(s *share) {
	if s.resting {
		p.resting = slices.DeleteFunc(p.resting, func(o *share) bool { return o == s })
	}
}

// mayRespond says whether the next response to a READ of so many packets may leave, whose payload has at most so many
// bytes. If not, the queue pair becomes ready when it may.
func (s *share) mayRespond(packets uint64, bytes int) bool {
	f := s.flight
	if f == nil || packets <= longRead {
		return true
	}
	p := &f.pace
	if p.moved == 0 || f.engine.now-p.moved > f.span {
		return true
	}
	if p.credit <= 0 {
		if !s.resting {
			s.resting = true
			p.resting = append(p.resting, s)
			f.arm()
		}
		return false
	}
	p.credit -= max(bytes, leastBytes)
	return true
}
