package driver

// A queue pair moves to the shard where its packets arrive. Both ends take their homes from the same flow label, which
// is right where a device delivers by the queue of the sender, as veth does. A NIC that spreads packets by a hash of
// its own (RSS) brings those of a peer to a queue of its choice, always the same one, and each of them would go through
// an inbox: a copy, and a turn of a second shard.
//
// Life of a move: the home counts the packets in a row that came in through the inbox from one other shard; one that
// comes in at home begins anew. When they are as many as the queue pair's patience, that inbox is empty and all frames
// that were published have left, the home lets go of the queue pair: its engine releases it, and its place says that it
// stands between the two shards. From there it goes to whoever needs it first. The other shard takes it in for its
// doorbell, which the home has rung, or for its next packet, but not while frames of its own wait in the inbox there:
// they come first, and only it could add some. The home takes it back for such a frame, a doorbell or a control call,
// and tries again later. Either does so under its own lock, by changing the place if nobody else has, so that no two
// locks are held and nothing waits for anybody.
//
// So packets of a queue pair that come in at one shard are processed in the order in which they came in. Those of a
// third shard that were in its inbox at the old home are handed on to the new one.

const (
	// defaultMoveAfter is the shortest run of packets elsewhere that makes a queue pair move. A packet through an inbox
	// costs 0.1 us of copying and looking (BenchmarkHandedOver) and, where other threads drive the home, waking one of
	// them; a move costs 0.5 us (BenchmarkMove). So it pays soon, and the run is long for another reason: the last
	// packets on an old way, a window of 64 of the peer and as many answers, must not send a queue pair back and forth.
	defaultMoveAfter = 256
	// moveDoublings bounds the growth of the patience with each move of a connection: to 64 Ki packets and more, some
	// tenths of a second of a busy queue pair. Then moving costs next to nothing even if it never ends, and where the
	// packets go a queue pair still comes after them when the NIC's table is changed (ethtool -X) for the hundredth
	// time.
	moveDoublings = 8
	// longestMoveAfter keeps the patience a number of 32 bits.
	longestMoveAfter = 1 << 20
)

// place is where a queue pair is: at home at a shard, or, if to is one, released by it and on its way there. Each shard
// has its places from the start, so that they can be compared.
type place struct {
	shard *Shard
	to    *Shard
}

// arrivals are the packets of a queue pair that came in elsewhere; guarded by the lock of its home.
type arrivals struct {
	at       *Shard
	run      uint32 // in a row
	patience uint32 // the run that makes it move
	moves    uint32 // of this connection
}

// restart begins a connection.
func (q *QP) restart() {
	q.arrivals = arrivals{}
	q.drawPatience()
}

// drawPatience makes the next move take longer than the last one: at least moveAfter packets, twice as many after each
// move, and up to as many more, by the number of the queue pair. If both ends have their homes elsewhere, by flow
// labels of the user's choice for one, each sees its packets come in where the other one is at home. Moving at the same
// moment they would change places for ever; so one has to be first, and the other one then sees them come in at home.
func (q *QP) drawPatience() {
	a := &q.arrivals
	least := uint32(q.device.options.MoveAfter) << min(a.moves, moveDoublings)
	a.patience = least + mix(uint32(q.number), a.moves)%least
}

// mix makes one number of two, so that two queue pairs that drew nearly the same patience once hardly do so again. The
// constants are those that end MurmurHash3.
func mix(a, b uint32) uint32 {
	h := a ^ b<<24
	h = (h ^ h>>16) * 0x85EBCA6B
	h = (h ^ h>>13) * 0xC2B2AE35
	return h ^ h>>16
}

// shard is where the queue pair is at home, or was until it is taken in elsewhere: whoever has something for it goes
// there.
func (q *QP) shard() *Shard { return q.place.Load().shard }

// lock locks the shard where the queue pair is at home and returns it.
func (q *QP) lock() *Shard {
	for {
		s := q.shard()
		s.mu.Lock()
		if s.has(q) {
			return s
		}
		s.unlock()
	}
}

// has says whether a queue pair is at home here, and takes in one that is free to be. The caller holds the lock.
func (s *Shard) has(q *QP) bool {
	p := q.place.Load()
	return p == &s.place || p.to != nil && s.take(q, p)
}

// take takes in a queue pair that is on its way from p. Its doorbell, rung by letGo, is still to be answered here or
// will come here: if this is not part of a turn, that turn sees to its deadline and to what it may have to send.
func (s *Shard) take(q *QP, p *place) bool {
	if p.shard != s && (p.to != s || p.shard.inboxFrom(s).ring.Waiting() > 0) {
		return false
	}
	if !q.place.CompareAndSwap(p, &s.place) {
		return false
	}
	s.engine.Adopt(q.transport)
	if p.to == s {
		q.arrivals = arrivals{moves: q.arrivals.moves + 1}
		q.drawPatience()
		q.belong(s, s)
	}
	return true
}

// cameElsewhere notes that a packet of a queue pair which is at home here came in at another shard.
func (s *Shard) cameElsewhere(q *QP, at *Shard) {
	a := &q.arrivals
	if a.at != at {
		a.at, a.run = at, 0
	}
	if a.run++; a.run == a.patience {
		a.run-- // if it cannot go now, the next packet asks again
		s.leaving = append(s.leaving, q)
	}
}

// letGo lets the queue pairs go that want to, if they can. It is called when the inboxes have been drained and nothing
// was written yet.
func (s *Shard) letGo() {
	for i, q := range s.leaving {
		s.leaving[i] = nil
		if q.place.Load() != &s.place {
			continue // it is in the list twice, and somebody else's by now
		}
		if q.arrivals.run+1 != q.arrivals.patience {
			continue // a packet came in elsewhere meanwhile
		}
		to := q.arrivals.at
		if q.within.Load() || !q.transport.Mobile() || s.inboxFrom(to).ring.Waiting() > 0 || s.queue.Pending() {
			continue
		}
		s.engine.Release(q.transport)
		q.place.Store(&s.ways[to.index])
		to.ring(q)
		s.hand(to)
	}
	s.leaving = s.leaving[:0]
}

// handOver puts a frame into the inbox of the shard where its queue pair is at home, another one than this.
func (s *Shard) handOver(q *QP, segments [][]byte) bool {
	home := q.shard()
	fits := home.inboxFrom(s).put(s.device.numbers.place(q.number), segments)
	if fits {
		s.hand(home)
	}
	return fits
}

// belong has the queue pair's CQs count it at a shard, nil for none, instead of where they did before. Their waiters
// learn of a shard that is new to them when by is unlocked, whose lock the caller holds: that of the queue pair's home.
func (q *QP) belong(to, by *Shard) {
	from := q.counted
	if from == to {
		return
	}
	q.counted = to
	for _, c := range [...]*CQ{q.config.SendCQ, q.config.RecvCQ} {
		if to != nil && c.enter(to) {
			c.due.Or(dueShards)
			by.fired = append(by.fired, c)
			by.hasFired.Store(true)
		}
		if from != nil {
			c.exit(from)
		}
	}
}
