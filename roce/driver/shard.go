package driver

// A turn of a shard, which is the life of a packet here: take the QPs whose doorbell was rung; receive a batch of
// frames, let the transport process each, give the frames back; fire deadlines; let ready QPs write frames, and publish
// them. Then, without the lock: kick the link, wake who waits for a completion, drive the shards that were handed
// frames. The clock is read once per turn.

import (
	"math"
	"sync"
	"sync/atomic"

	"github.com/xroce/xroce/roce"
	"github.com/xroce/xroce/roce/link"
	"github.com/xroce/xroce/roce/memory"
	"github.com/xroce/xroce/roce/transport"
)

const (
	// receiveBatch and emitBudget bound a turn. One kick of 8 to 32 frames is as fast per frame as a larger one,
	// and on veth it runs the peer's whole receive path: 16 frames of 4 KiB take 20 to 40 us.
	receiveBatch = 32
	emitBudget   = 32

	// A caller that came to post or to poll is not kept for longer than this many turns.
	driveBriefly = 8
	driveFully   = math.MaxInt

	// kickTries bounds the kicks in a row that the link wants repeated.
	kickTries = 16
)

// Shard is one queue of the link and the transport state of the QPs at home there.
type Shard struct {
	device *Device
	index  int
	queue  link.Queue

	// doorbells is a stack of the QPs that have new work, linked by QP.rungNext.
	doorbells atomic.Pointer[QP]
	inboxes   []inbox // indexed by the shard that hands over
	polls     atomic.Uint64

	kickMu sync.Mutex // held by whoever is in Kick

	mu     sync.Mutex // guards everything below, and the data-path calls of queue except Kick
	engine *transport.Engine
	user   *memory.User
	frames [receiveBatch]link.Frame
	packet roce.Packet
	fired  []*CQ // armed CQs that got a completion in this turn
	closed bool

	sleep      sleep
	background background
}

func newShard(d *Device, index int, q link.Queue) (*Shard, error) {
	user := d.memory.NewUser()
	s := &Shard{
		device: d, index: index, queue: q,
		user: user, engine: transport.NewEngine(user),
		inboxes: make([]inbox, len(d.link.Queues())),
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
	s.device.memory.CloseUser(s.user)
}

// ring tells the shard that qp has new work. The caller then drives.
func (s *Shard) ring(q *QP) {
	if q.rung.Swap(true) {
		return
	}
	for {
		top := s.doorbells.Load()
		q.rungNext = top
		if s.doorbells.CompareAndSwap(top, q) {
			return
		}
	}
}

// answerDoorbells marks the QPs ready whose doorbell was rung. The mark is taken back before the work is
// looked at: a post that comes later rings again.
func (s *Shard) answerDoorbells() bool {
	q := s.doorbells.Swap(nil)
	if q == nil {
		return false
	}
	for q != nil {
		next := q.rungNext
		q.rungNext = nil
		q.rung.Store(false)
		if home := q.home.Load(); home == s {
			s.engine.Ready(q.transport)
		} else {
			home.ring(q) // it moved in between
		}
		q = next
	}
	return true
}

// drive runs the shard for at most so many turns, if nobody else does, and reports whether anything was done.
//
// No work is ever stranded: who finds the lock taken has rung a doorbell before, and the holder looks for
// doorbells again after it has unlocked.
func (s *Shard) drive(turns int) (progress bool) {
	for ; turns > 0; turns-- {
		if !s.mu.TryLock() {
			return progress
		}
		if s.closed {
			s.mu.Unlock()
			return progress
		}
		result := s.turn()
		fired := s.fired
		s.fired = nil
		s.mu.Unlock()

		s.kick()
		for _, cq := range fired {
			cq.notify()
		}
		s.driveOthers(result.handed)
		if result.earlier {
			s.sleep.wake()
		}
		progress = progress || result.did
		more := result.more || s.doorbells.Load() != nil
		if !more {
			return progress
		}
		if !result.did {
			break // the link has no transmit buffer
		}
	}
	s.background.help()
	s.sleep.wake()
	return progress
}

type turnResult struct {
	did     bool   // something was done
	more    bool   // something is left that could be done at once
	handed  uint64 // shards that were handed frames
	earlier bool   // the next deadline is before the time that somebody sleeps until
}

func (s *Shard) turn() (r turnResult) {
	r.did = s.answerDoorbells()
	n := s.queue.Receive(s.frames[:])
	waiting := s.inboxWaiting()
	deadline, timed := s.engine.NextDeadline()
	if n == 0 && !waiting && !timed && s.engine.Idle() {
		return r
	}
	now := s.device.options.Clock()
	for i := range s.frames[:n] {
		s.receive(now, s.frames[i].Segments, &r)
	}
	if n > 0 {
		s.queue.Release()
	}
	if waiting {
		s.drainInboxes(now)
	}
	if timed && deadline <= now {
		s.engine.Expire(now)
		r.did = true
	}
	sent := s.engine.Emit(now, emitBudget, s.queue)
	if sent > 0 {
		s.queue.Publish()
	}
	r.did = r.did || n > 0 || waiting || sent > 0
	r.more = n == len(s.frames) || !s.engine.Idle()
	if deadline, timed = s.engine.NextDeadline(); timed {
		r.earlier = s.sleep.until.Load() > int64(deadline)
	}
	return r
}

// receive lets the transport process a frame, or hands it to the shard where its QP is at home.
func (s *Shard) receive(now transport.Time, segments [][]byte, r *turnResult) {
	p := &s.packet
	if reason := p.ParseHeaders(segments); reason != roce.DropNone {
		s.engine.Counters().Drops[reason]++
		return
	}
	q := s.device.qp(p.DestinationQPN)
	if q == nil {
		s.engine.Counters().Drops[roce.DropUnknownQPN]++
		return
	}
	home := q.home.Load()
	if home != s {
		if home.inboxes[s.index].put(segments) {
			r.handed |= 1 << home.index
		} else {
			s.engine.Counters().Drops[roce.DropInboxFull]++
		}
		return
	}
	// Nothing may change because of a packet whose ICRC is wrong.
	if reason := p.CheckICRC(segments); reason != roce.DropNone {
		s.engine.Counters().Drops[reason]++
		return
	}
	s.engine.Receive(now, q.transport, p)
}

// kick makes the link send what was published. It needs no lock of the shard, and one caller at a time is enough: who
// finds another one at it leaves the frames to it, since that one looks again when it is done.
func (s *Shard) kick() {
	for tries := 0; s.queue.Pending() && tries < kickTries; tries++ {
		if !s.kickMu.TryLock() {
			return
		}
		again, err := s.queue.Kick()
		s.kickMu.Unlock()
		if err != nil || !again && s.queue.Pending() {
			// The device is down, or it took less than all without saying why: the next turn tries again.
			return
		}
	}
}

func (s *Shard) driveOthers(handed uint64) {
	for i := 0; handed != 0; i, handed = i+1, handed>>1 {
		if handed&1 != 0 {
			s.device.shards[i].drive(driveBriefly)
		}
	}
}
