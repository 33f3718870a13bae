package transport

// A flight is what an engine has in flight towards one peer, of all its queue pairs with that peer together. Each of
// them has a window of its own, but it is the sum that has to fit into the receive buffers at either end: requests wait
// in the peer's, responses to READs in the own ones.
//
// Way of a request packet: recovery asks share.offer. While there is room and nobody waits, it goes. Else the queue
// pair joins the end of a line. Whenever there is room the first one of the line gets a turn of so many bytes, and
// joins the end again if it has more (round robin, as in deficit round robin). Answers, and packets without which a
// queue pair would never hear of what it has in flight, do not wait.
//
// What was lost holds no room for long. A queue pair that has frames out and has heard nothing for one to two
// generations is not counted any more and gets no turn, only its resends go: so those whose peer has ended do not hold
// up the others. If nobody has heard anything for a generation, the peer's device is probably gone. The room then
// counts as empty and a turn is one packet, so that every queue pair finds out soon.
//
// Losses of several queue pairs at once halve the room, and acknowledgements give it back: so several senders that meet
// at one device share its buffers.

import (
	"math"
	"time"

	"github.com/xroce/xroce/roce"
)

// Buffers are the receive buffers of a queue of a device.
type Buffers struct {
	Count int
	Size  int // bytes of a frame that one takes
}

const (
	// roomNumerator / roomDenominator is the part of the receive buffers that a flight may fill. The peer is taken to
	// have as many as this end. At most half can be for requests, since the responses to the peer's own READs come in
	// there, too; an eighth stays for acknowledgements. With the defaults it is 192 frames of path MTU 4096, and from
	// 64 on no more are faster.
	roomNumerator, roomDenominator = 3, 8

	// leastRoom is where a loss does not shrink the room any further, in buffers: enough for one queue pair to keep
	// going.
	leastRoom = 32

	// lossesPerRoom is which part of the room has to be as many losses until it shrinks: a loss for 16 buffers that are
	// acknowledged. Buffers that overflow lose frames of nearly all queue pairs. A network that loses one packet of a
	// hundred loses less, and a smaller room would not help.
	lossesPerRoom = 16

	// A turn in the line ends with so many bytes, or so many packets if they are short. 64 KiB are 16 packets of path
	// MTU 4096, a quantum.
	turnBytes   = quantum * 4096
	turnPackets = DefaultWindow

	// generation is how long frames are surely counted: above the round trip through full rings (some ms), below the
	// usual ACK timeout of 67 ms, and roundTrips round trips if those are longer, as on a long way. While nothing is
	// heard at all it doubles: the peer may only be busy. They are not measured.
	generation        = Time(10 * time.Millisecond)
	longestGeneration = Time(200 * time.Millisecond)
	roundTrips        = 4
)

type flight struct {
	engine  *Engine
	peer    roce.GID
	members int

	room   window    // in buffers
	used   [2]uint64 // buffers in flight, of the present generation and of the one before, by its lowest bit
	round  uint64    // buffers acknowledged in this round, which ends when it is as many as there is room for
	losses int       // of this round

	age   uint64 // number of the present generation
	until Time   // when it ends, while somebody waits
	span  Time   // how long it is
	timed bool   // somebody does
	// heard says that something was acknowledged in this generation, and silent that nothing was in the last one.
	heard, silent bool

	pace       pace
	head, tail *share  // the line
	next, last *flight // among the engine's flights in which somebody waits
}

// share is a queue pair's part in a flight.
type share struct {
	qp      *QP
	flight  *flight // nil on loopback, and where nothing is sent
	buffers uint64  // that one packet takes
	held    uint64  // buffers that are counted for it
	age     uint64  // the generation in which they are counted
	since   uint64  // the generation in which it heard something, or began to have something in flight

	inLine   bool
	resting  bool   // it has responses to long READs that wait for credit (pace.go)
	refused  bool   // offer has said no in this turn of the engine
	need     uint64 // buffers that it was asked for then
	bytes    int    // of the turn so far
	packets  int
	previous *share // in the line
	next     *share
}

// SetBuffers tells the receive buffers of the engine's queue, which the QPs that go to RTR from now on share. Without
// them each QP has its window, and nothing is shared.
func (e *Engine) SetBuffers(b Buffers) { e.buffers = b }

// joinFlight makes a QP one of those that share the way to its peer, with what it has in flight already.
func (e *Engine) joinFlight(q *QP) {
	s := &q.recovery.share
	if e.buffers.Count == 0 || q.path.transmitter != nil || q.state < StateRTR || s.flight != nil {
		return
	}
	peer := q.attrs.Path.Destination
	f := e.flights[peer]
	if f == nil {
		f = &flight{engine: e, peer: peer, span: generation}
		limit := uint64(e.buffers.Count) * roomNumerator / roomDenominator
		f.room = window{size: limit, limit: limit, threshold: limit, least: min(leastRoom, limit)}
		if e.flights == nil {
			e.flights = make(map[roce.GID]*flight)
		}
		e.flights[peer] = f
	}
	f.members++
	// The longest packet: an extension header of at most 28 bytes (AtomicETH) has no payload, one of 20 (RETH and
	// immediate data) does.
	const extension = roce.RETHLength + roce.ImmDtLength
	length := uint64(q.path.template.Length()+roce.BTHLength+extension+roce.ICRCLength) + q.mtu
	size := uint64(e.buffers.Size)
	*s = share{qp: q, flight: f, buffers: (length + size - 1) / size, since: f.age, age: f.age}
	q.recovery.settle()
}

// leaveFlight takes a QP out, with what it has in flight.
func (e *Engine) leaveFlight(q *QP) {
	s := &q.recovery.share
	f := s.flight
	if f == nil {
		return
	}
	f.dequeue(s)
	f.count(s, 0)
	f.pace.leave(s)
	*s = share{qp: q}
	f.wakeFirst()
	f.arm()
	if f.members--; f.members == 0 {
		delete(e.flights, f.peer)
	}
}

// hold counts so many packets that are in flight now.
func (s *share) hold(packets uint64) {
	f := s.flight
	if f == nil {
		return
	}
	if s.stale() {
		packets = 0
	}
	buffers := packets * s.buffers
	less := buffers < s.held
	f.count(s, buffers)
	if less {
		f.wakeFirst()
	}
}

// stale says that a QP has heard nothing for long enough to be counted no more.
func (s *share) stale() bool { return s.flight.age-s.since > 1 }

// renew notes that a QP has heard something, or begins to have something in flight.
func (s *share) renew() {
	if s.flight != nil {
		s.since = s.flight.age
	}
}

// count replaces what is counted for a QP, in the present generation.
func (f *flight) count(s *share, buffers uint64) {
	if f.age-s.age <= 1 {
		f.used[s.age&1] -= s.held
	}
	s.held, s.age = buffers, f.age
	f.used[f.age&1] += buffers
}

// acknowledged notes that so many packets of the QP were acknowledged, whose round trip is known.
func (s *share) acknowledged(packets uint64, trip Time) {
	f := s.flight
	if f == nil {
		return
	}
	buffers := packets * s.buffers
	s.renew()
	f.heard, f.silent = true, false
	f.span = min(max(generation, roundTrips*trip), longestGeneration)
	if f.round += buffers; f.round >= f.room.size {
		f.round, f.losses = 0, 0
	}
	f.room.acknowledged(buffers)
}

// lost notes that the QP goes back because of a loss.
func (s *share) lost() {
	f := s.flight
	if f == nil {
		return
	}
	if f.losses++; f.losses >= int(f.room.size/lossesPerRoom) {
		f.round, f.losses = 0, 0
		f.room.lost()
	}
}

func (f *flight) total() uint64 { return f.used[0] + f.used[1] }

// fits says whether so many buffers more may be in flight. Something always may.
func (f *flight) fits(buffers uint64) bool {
	total := f.total()
	return total == 0 || total+buffers <= f.room.size
}

// offer says whether the QP may send a request that brings so many packets into flight, and whether it must ask for an
// acknowledgement: where others wait, room is to be given back as soon as it can be. idle says that it has nothing in
// flight that it could hear of, urgent that the request must not wait: nothing in flight asks for an acknowledgement of
// what was sent last, or this is the question whether what is behind a loss arrives now. Without an answer the QP would
// wait for its timeout.
func (s *share) offer(packets uint64, idle, urgent bool) (permitted, ask bool) {
	f := s.flight
	if f == nil {
		return true, false
	}
	need := packets * s.buffers
	if idle {
		s.renew()
	}
	switch {
	case f.head == nil && f.fits(need):
		return true, false
	case f.head == s && f.fits(need) && !s.turnOver() && !s.stale():
		return true, true
	case urgent:
		return true, true
	}
	// Who is stale hears something or runs into its timeout, and asks again.
	s.refused, s.need = !s.stale(), need
	return false, false
}

// turnOver says whether the first one in the line has had its turn.
func (s *share) turnOver() bool {
	return s.bytes >= turnBytes || s.packets >= turnPackets || s.packets > 0 && s.flight.silent
}

// sent notes that a request has left which offer has permitted.
func (s *share) sent(bytes int) {
	if s.inLine {
		s.packets++
		s.bytes += bytes
	}
}

// emitted is called when the QP has sent what it may send now. It has its place in the line, if it needs one, and the
// next one in the line gets its turn.
func (s *share) emitted() {
	f := s.flight
	if f == nil {
		return
	}
	if f.head == s && (s.turnOver() || !s.refused && s.qp.list != &f.engine.ready) {
		f.dequeue(s)
	}
	if s.refused && !s.inLine {
		f.enqueue(s)
	}
	s.refused = false
	f.wakeFirst()
}

// wakeFirst has the first one in the line go on if there is room.
func (f *flight) wakeFirst() {
	if f.head != nil && f.fits(f.head.need) {
		f.engine.Ready(f.head.qp)
	}
}

// enqueue puts a QP at the end of the line.
func (f *flight) enqueue(s *share) {
	s.inLine, s.bytes, s.packets = true, 0, 0
	if s.previous = f.tail; f.tail != nil {
		f.tail.next = s
	} else {
		f.head = s
	}
	f.tail = s
	f.arm()
}

// dequeue takes a QP out of the line.
func (f *flight) dequeue(s *share) {
	if !s.inLine {
		return
	}
	if s.previous != nil {
		s.previous.next = s.next
	} else {
		f.head = s.next
	}
	if s.next != nil {
		s.next.previous = s.previous
	} else {
		f.tail = s.previous
	}
	s.inLine, s.previous, s.next = false, nil, nil
	f.arm()
}

// nextGeneration begins the next generation. Frames that are still counted in the one before the present one are not
// any more.
func (f *flight) nextGeneration(now Time) {
	f.age++
	f.used[f.age&1] = 0
	f.until = now + f.span
	if f.silent = !f.heard; f.silent {
		f.age++
		f.used = [2]uint64{}
		f.until = now + 2*f.span
	}
	f.heard = false
	f.pace.refill()
	f.wakeFirst()
}

// arm sees to it that time counts for a flight while somebody waits, and only then.
func (f *flight) arm() {
	e, waits := f.engine, f.head != nil || len(f.pace.resting) > 0
	switch {
	case waits && !f.timed:
		f.until, f.heard, f.silent = e.now+f.span, false, false
		f.last, f.next = nil, e.lines
		if e.lines != nil {
			e.lines.last = f
		}
		e.lines = f
	case !waits && f.timed:
		if f.last != nil {
			f.last.next = f.next
		} else {
			e.lines = f.next
		}
		if f.next != nil {
			f.next.last = f.last
		}
		f.next, f.last = nil, nil
	}
	f.timed = waits
}

// lineDeadline is when the first generation of a flight with a line ends; math.MaxInt64 if there is none.
func (e *Engine) lineDeadline() Time {
	deadline := Time(math.MaxInt64)
	for f := e.lines; f != nil; f = f.next {
		deadline = min(deadline, f.until)
	}
	return deadline
}

func (e *Engine) expireLines(by Time) {
	for f := e.lines; f != nil; {
		next := f.next // who waits for nothing else does not wait any more then
		if f.until <= by {
			f.nextGeneration(e.now)
			f.arm()
		}
		f = next
	}
}
