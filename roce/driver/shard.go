package driver

// A turn of a shard, which is the life of a packet here: take the QPs whose doorbell was rung; receive a batch of
// frames, let the transport process each, give the frames back; fire deadlines; let ready QPs write frames, and publish
// them; frames for this process go to an inbox (loopback.go). Then, without the lock: kick the link, wake who waits for
// a completion, drive the shards that were handed frames, of this device or another one. The clock is read once per
// turn.

import (
	"errors"
	"math"
	"sync/atomic"
	"time"

	"github.com/xroce/xroce/internal/lockorder"
	"github.com/xroce/xroce/roce"
	"github.com/xroce/xroce/roce/link"
	"github.com/xroce/xroce/roce/link/capture"
	"github.com/xroce/xroce/roce/link/loop"
	"github.com/xroce/xroce/roce/memory"
	"github.com/xroce/xroce/roce/transport"
)

const (
	// receiveBatch and emitBudget bound a turn. One kick of 8 to 32 frames is as fast per frame as a larger one,
	// and on veth it runs the peer's whole receive path: 16 frames of 4 KiB take 20 to 40 us.
	receiveBatch = 32
	emitBudget   = 32

	// driveBriefly is how many turns a caller that came to post or to poll makes at most: a few windows of
	// frames. It is not measured; it only bounds how long such a call can take.
	driveBriefly = 8
	driveFully   = math.MaxInt

	// kickTries bounds the kicks in a row: enough for a transmit ring of 512 descriptors where the kernel takes
	// 32 of them per call (TX_BATCH_SIZE, net/xdp/xsk.c).
	kickTries = 16

	// stalledRetry is the pause before work is tried again that found no transmit buffer, and failedRetry the one after
	// the link has failed. They are not measured: a tenth of a millisecond is far below every usual timeout, and a
	// kernel without memory wants a rest. A link that is down may stay so for long and says when it is not any more
	// (Shard.resume), so downRetry is for links that do not say.
	stalledRetry = 100 * time.Microsecond
	failedRetry  = 10 * time.Millisecond
	downRetry    = time.Second

	// stuckAfter is how long a link may be without a free transmit buffer before what it should send counts as lost: a
	// frame of 4 KiB takes 3 ms at 10 Mbit/s.
	stuckAfter = 100 * time.Millisecond
)

// Shard is one queue of the link and the transport state of the QPs at home there.
type Shard struct {
	device *Device
	index  int
	queue  link.Queue
	waker  link.Waker // the queue, if it has no descriptor to sleep on; else nil
	place  place      // of the QPs at home here
	ways   []place    // of those on their way to another shard of the device, by its index

	// doorbells is a stack of the QPs that have new work, linked by QP.ringingNext.
	doorbells atomic.Pointer[QP]
	inboxes   atomic.Pointer[[]*inbox] // replaced, never changed; never nil
	polls     atomic.Uint64
	given     atomic.Uint64 // what polls was when the lease was given back
	turns     atomic.Uint64 // that had something to do, for the watch
	admitted  atomic.Uint64 // turns in which a packet of a peer came

	kickMu lockorder.Mutex[lockorder.Kick] // held by whoever is in Kick

	mu      lockorder.Mutex[lockorder.Shard] // guards everything below, and the data-path calls of queue except Kick
	engine  *transport.Engine
	user    *memory.User
	frames  [receiveBatch]link.Frame
	packet  roce.Packet
	fired   []*CQ          // CQs that have something due (CQ.fire)
	handed  []*Shard       // the shards that were handed something in this turn
	leaving []*QP          // QPs that want to move
	now     transport.Time // of the turn
	fed     bool           // a packet of a peer has come in it
	full    transport.Time // since when the link has no transmit buffer; 0 if it had one
	waste   []byte         // where frames are written that go nowhere
	wasted  bool           // the transmitter lent it last
	closed  bool
	taps    []*capture.Buffer // of the captures that are on (capture.go)
	sent    [1][]byte         // of the packet that is shown to them

	hasFired atomic.Bool // fired is not empty
	resumed  atomic.Bool // an inbox that had no place for frames from here has some now, or all shards have read their rings
	failed   atomic.Bool // the last kick ended with an error
	down     atomic.Bool // which was that the link is down
	stuck    atomic.Bool // it has had no transmit buffer for too long
	gone     atomic.Bool // closed, for those who do not hold the lock
	owes     atomic.Bool // acknowledgements wait for the next turn

	hearing
	sleep      sleep
	background background
}

func newShard(d *Device, index int, q link.Queue) (*Shard, error) {
	user := d.memory.NewUser()
	s := &Shard{
		device: d, index: index, queue: q,
		user: user, engine: transport.NewEngine(user),
	}
	count, size := d.link.ReceiveBuffers()
	s.engine.SetBuffers(transport.Buffers{Count: count, Size: size})
	s.ringFrames = count
	s.place.shard = s
	s.inboxes.Store(new([]*inbox))
	if waker, ok := q.(link.Waker); ok && q.FD() < 0 {
		s.waker = waker
		waker.OnArrival(s.sleep.wakeLeader)
	}
	return s, s.background.init(d.options.Manual)
}

func (s *Shard) stop() {
	s.background.stop()
	s.kickMu.Lock()
	defer s.kickMu.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	s.gone.Store(true)
	s.device.memory.CloseUser(s.user)
}

// ring tells the shard that qp has new work. The caller then drives.
func (s *Shard) ring(q *QP) {
	if q.ringing.Swap(true) {
		return
	}
	for {
		top := s.doorbells.Load()
		q.ringingNext = top
		if s.doorbells.CompareAndSwap(top, q) {
			return
		}
	}
}

// answerDoorbells marks the QPs ready whose doorbell was rung. The mark is taken back before the work is
// looked at: a post that comes later rings again.
func (s *Shard) answerDoorbells() (did bool) {
	for q := s.doorbells.Swap(nil); q != nil; {
		next := q.ringingNext
		q.ringingNext = nil
		q.ringing.Store(false)
		if s.has(q) {
			if q.ended.Swap(false) {
				s.answerEnd(q)
			}
			s.engine.Ready(q.transport)
		} else { // it moved in between
			home := q.shard()
			home.ring(q)
			s.hand(home)
		}
		q, did = next, true
	}
	return did
}

// called says that somebody wants something of the shard: a doorbell was rung, frames were handed over, waiters are to
// be woken, what has arrived is to be read, or what it waited for is there.
func (s *Shard) called() bool {
	return s.doorbells.Load() != nil || s.hasFired.Load() || s.resumed.Load() || s.asking() || s.inboxWaiting()
}

// unlock releases the shard. Whoever finds the lock taken leaves his work in a doorbell, an inbox or the list of fired
// CQs and goes away, so every holder has to look after it has let go: no work is ever stranded.
func (s *Shard) unlock() {
	s.mu.Unlock()
	if s.called() {
		s.drive(driveBriefly)
	}
}

// drive runs the shard for at most so many turns, if nobody else does, and reports whether anything was done. Then it
// runs the shards that were handed frames.
func (s *Shard) drive(turns int) (progress bool) { return s.driveFor(turns, false) }

// driveFor is drive for somebody who gives the program its turn afterwards, if putOff: then acknowledgements wait for
// what the program posts, and both leave with one system call. (A round trip of 8 bytes takes 0.7 times as long.)
func (s *Shard) driveFor(turns int, putOff bool) (progress bool) {
	var e errands
	if putOff {
		e.putOff = s
	}
	for next := s; next != nil; next = e.next() {
		progress = next.run(turns, &e) || progress
	}
	e.leave()
	return progress
}

// drivePolled is drive for a poller, who may put acknowledgements off as long as the background looks after them.
func (s *Shard) drivePolled() (progress bool) {
	pausing := &s.background.pausing
	putOff := pausing.Load()
	progress = s.driveFor(driveBriefly, putOff)
	if putOff && s.owes.Load() && !pausing.Load() {
		s.drive(driveBriefly) // it has stopped meanwhile, and may not have seen it
	}
	return progress
}

// run is drive for this shard alone. The shards that were handed frames are added to e.
func (s *Shard) run(turns int, e *errands) (progress bool) {
	var firing [4]*CQ // room for the usual turn, without an allocation
	for ; turns > 0; turns-- {
		if !s.mu.TryLock() {
			return progress
		}
		if s.closed {
			s.mu.Unlock()
			return progress
		}
		asked := s.device.asked.Load()
		result := s.turn(e.putOff == s)
		result.did = s.listen(asked, result.received) || result.did
		crowded := false
		for _, to := range s.handed {
			e.add(to)
			crowded = crowded || result.received > 0 && s.crowds(to)
		}
		s.handed = s.handed[:0]
		fired := append(firing[:0], s.fired...)
		clear(s.fired)
		s.fired = s.fired[:0]
		lower(&s.hasFired)
		if owes := s.engine.Owes(); owes != s.owes.Load() {
			s.owes.Store(owes)
		}
		s.mu.Unlock()

		s.kick()
		for _, cq := range fired {
			cq.fire(e)
		}
		progress = progress || result.did
		if result.deadline > 0 {
			s.sleep.remind(result.deadline)
		}
		if crowded {
			e.add(s)
			return progress
		}
		if !result.more && !s.called() {
			if s.queue.Pending() {
				s.sleep.remind(s.retryTime())
			}
			return progress
		}
		if !result.did && !s.called() {
			s.sleep.remind(s.retryTime()) // the link has no transmit buffer
			return progress
		}
	}
	s.sleep.remind(0)
	return progress
}

// retryTime is when it is worth while to kick or to look for a transmit buffer again.
func (s *Shard) retryTime() transport.Time {
	pause := stalledRetry
	switch {
	case s.down.Load():
		pause = downRetry
	case s.failed.Load() || s.stuck.Load():
		pause = failedRetry
	}
	return s.device.options.Clock() + transport.Time(pause)
}

// lower takes a flag back. It is nearly always down, and to see that costs less than to write it: an atomic store takes
// some 20 cycles (XCHG), a load one.
func lower(flag *atomic.Bool) {
	if flag.Load() {
		flag.Store(false)
	}
}

type turnResult struct {
	did      bool           // something was done
	received int            // frames
	more     bool           // something is left that could be done at once
	deadline transport.Time // the next one; 0 is none
}

func (s *Shard) turn(putOff bool) (r turnResult) {
	lower(&s.resumed)
	s.engine.Begin(putOff)
	r.did = s.answerDoorbells()
	n := s.queue.Receive(s.frames[:])
	r.received = n
	heard := s.allHeard() // before the inboxes are looked at
	waiting := s.inboxWaiting()
	_, timed := s.engine.NextDeadline()
	if n == 0 && !waiting && !timed && s.engine.Idle() && s.overdue.Load() == 0 {
		return r
	}
	s.turns.Add(1)
	now := s.device.options.Clock()
	for i := range s.frames[:n] {
		s.receive(now, s.frames[i].Segments)
	}
	if n > 0 {
		s.queue.Release()
	}
	if s.fed {
		s.fed = false
		s.admitted.Add(1)
	}
	if waiting {
		s.drainInboxes(now)
	}
	r.did = s.expire(now, heard) || r.did
	s.now = now
	sent := s.engine.Emit(now, emitBudget, (*transmitter)(s))
	if sent > 0 {
		s.queue.Publish()
	}
	r.did = r.did || n > 0 || waiting || sent > 0
	r.more = n == len(s.frames) || !s.engine.Idle()
	if deadline, timed := s.nextDeadline(); timed {
		r.deadline = max(deadline, 1)
	}
	return r
}

// receive lets the transport process a frame, or hands it to the shard where its QP is at home.
func (s *Shard) receive(now transport.Time, segments [][]byte) {
	q, reason := s.lookUp(segments)
	if reason == roce.DropNone {
		// Nothing may change because of a packet whose ICRC is wrong, and none takes a place in an inbox.
		reason = s.packet.CheckICRC(segments)
	}
	if reason == roce.DropNone && !s.has(q) {
		if reason = q.transport.Screen(&s.packet); reason == roce.DropNone {
			if s.handOver(q, segments) {
				s.engine.CountHandedOver()
				return
			}
			reason = roce.DropInboxFull
		}
	}
	if s.process(now, q, reason, segments) {
		s.fed = true
		if q.arrivals.run != 0 {
			q.arrivals.run = 0
		}
	}
}

// lookUp finds the QP that a frame is for. Its headers are in packet then.
func (s *Shard) lookUp(segments [][]byte) (*QP, roce.DropReason) {
	if reason := s.packet.ParseHeaders(segments); reason != roce.DropNone {
		return nil, reason
	}
	q := s.device.numbers.find(s.packet.DestinationQPN)
	switch {
	case q == nil:
		return nil, roce.DropUnknownQPN
	case q.within.Load():
		return q, roce.DropAddressMismatch
	}
	return q, roce.DropNone
}

// process lets the transport process the packet of a frame, unless there is a reason to drop it, and reports whether it
// was the peer's.
func (s *Shard) process(now transport.Time, q *QP, reason roce.DropReason, segments [][]byte) (admitted bool) {
	verdict := transport.Verdict{Dropped: reason}
	if reason == roce.DropNone {
		verdict = s.engine.Receive(now, q.transport, &s.packet)
	} else {
		s.engine.CountDrop(reason)
	}
	if len(s.taps) > 0 {
		s.captureReceived(now, q, verdict, segments)
	}
	return verdict.Admitted
}

// kick makes the link send what was published. It needs no lock of the shard, and one caller at a time is enough: who
// finds another one at it leaves the frames to it, since that one looks again when it is done.
func (s *Shard) kick() {
	for tries := 0; s.queue.Pending() && tries < kickTries; tries++ {
		if !s.kickMu.TryLock() {
			return
		}
		err := s.queue.Kick()
		if failed := err != nil; failed != s.failed.Load() {
			s.failed.Store(failed)
		}
		if down := errors.Is(err, link.ErrDown); down != s.down.Load() {
			s.down.Store(down)
		}
		s.kickMu.Unlock()
		if err != nil {
			return
		}
	}
}

// transmitter is the shard's queue as the engine writes to it. A link that is down, or takes nothing for other reasons,
// keeps the frames in its transmit ring, and nothing more fits in there: what does not is lost, as it would be on the
// wire, so that ACK timeouts run and queue pairs end.
type transmitter Shard

// Buffer implements transport.Transmitter.
func (t *transmitter) Buffer() []byte {
	b := t.queue.Buffer()
	if b != nil {
		t.wasted, t.full = false, 0
		if t.stuck.Load() {
			t.stuck.Store(false)
		}
		return b
	}
	if t.full == 0 {
		t.full = t.now
	}
	if t.now-t.full >= transport.Time(stuckAfter) && !t.stuck.Load() {
		t.stuck.Store(true)
	}
	t.wasted = t.down.Load() || t.stuck.Load()
	if !t.wasted {
		return nil
	}
	if t.waste == nil {
		t.waste = make([]byte, loop.FrameSize)
	}
	return t.waste
}

// Commit implements transport.Transmitter.
func (t *transmitter) Commit(length int) {
	if !t.wasted {
		t.queue.Commit(length)
	}
}
