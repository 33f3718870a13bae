package driver

import (
	"slices"
	"sync/atomic"

	"github.com/xroce/xroce/roce"
	"github.com/xroce/xroce/roce/link/loop"
	"github.com/xroce/xroce/roce/transport"
)

// inbox carries frames from one shard to another one, or to itself: those that came in at the wrong shard, and those on
// loopback. Its producer is whoever drives the one, its consumer whoever drives the other, so that no shard waits for
// another's lock or buffers. A frame that came from the network is dropped when the inbox is full, as the network may;
// a queue pair on loopback waits instead.
//
// What came from the network is checked before it is handed over: its ICRC, and that it is between the addresses of the
// queue pair's connection. Packets with forged addresses get that far, so no queue pair may fill an inbox that others
// share.
type inbox struct {
	from, to *Shard
	ring     loop.Ring
	// held is how many frames of each QP, by the place of its number, were handed over and wait. The producer makes it
	// with the first frame, and the consumer, who takes one off, does not look before there is one.
	held *[places]atomic.Int32
}

// inboxShare bounds the frames of one QP in an inbox to so many times the slots that are free: 96 of 128 for one that
// is alone, which is more than a window of 64, and 55 each for two. Beside up to 40 that take all they may, another one
// finds a slot.
const inboxShare = 3

// put copies a frame from the network for the QP at a place of the numbers into the inbox, if there is room for it.
func (b *inbox) put(place roce.QPN, segments [][]byte) bool {
	if b.held == nil {
		b.held = new([places]atomic.Int32)
	}
	held, free := &b.held[place], loop.Slots-b.ring.Waiting()
	if int(held.Load()) >= inboxShare*free {
		return false
	}
	held.Add(1)
	if b.ring.Put(segments) {
		return true
	}
	held.Add(-1)
	return false
}

// inboxFrom returns the shard's inbox for frames from another one. Those from shards of its own device exist from the
// start, at their index; one from a shard of another device is made when first used.
func (s *Shard) inboxFrom(from *Shard) *inbox {
	for {
		list := s.inboxes.Load()
		if from.device == s.device {
			return (*list)[from.index]
		}
		for _, b := range *list {
			if b.from == from {
				return b
			}
		}
		longer := append(slices.Clip(*list), &inbox{from: from, to: s})
		if s.inboxes.CompareAndSwap(list, &longer) {
			return longer[len(longer)-1]
		}
	}
}

// forget removes the inboxes from the shards of a device that has stopped. What is in them is still for this one. A
// shard that never got anything from there is left alone: it is none of that device's business when it is driven.
func (s *Shard) forget(d *Device) {
	if !slices.ContainsFunc(*s.inboxes.Load(), func(b *inbox) bool { return b.from.device == d }) {
		return
	}
	s.mu.Lock()
	if !s.closed {
		s.drainInboxes(s.device.options.Clock())
		s.dropInboxes(d)
	}
	s.mu.Unlock()
	s.drive(driveBriefly) // for what the frames have made ready, and whom they were handed on to
}

// dropInboxes removes the inboxes from the shards of a device.
func (s *Shard) dropInboxes(d *Device) {
	for {
		list := s.inboxes.Load()
		kept := make([]*inbox, 0, len(*list))
		for _, b := range *list {
			if b.from.device != d {
				kept = append(kept, b)
			}
		}
		if s.inboxes.CompareAndSwap(list, &kept) {
			return
		}
	}
}

func (s *Shard) inboxWaiting() bool {
	for _, b := range *s.inboxes.Load() {
		if b.ring.Waiting() > 0 {
			return true
		}
	}
	return false
}

// drainInboxes processes the frames that other shards handed over, and those on loopback. A frame whose QP has moved on
// meanwhile is handed on.
func (s *Shard) drainInboxes(now transport.Time) {
	for _, b := range *s.inboxes.Load() {
		// What comes in meanwhile is for the next turn.
		for range b.ring.Waiting() {
			s.receiveInbox(now, b)
			b.ring.Release()
		}
		if b.ring.Starved() {
			b.from.resumed.Store(true)
			s.hand(b.from)
		}
	}
	s.letGo()
}

// receiveInbox lets the transport process the packet in front of an inbox.
func (s *Shard) receiveInbox(now transport.Time, b *inbox) {
	var q *QP
	segments := b.ring.Front()
	reason := s.packet.ParseHeaders(segments)
	if reason == roce.DropNone && b.ring.Copied() { // whoever handed it over has checked its ICRC
		b.held[s.device.numbers.place(s.packet.DestinationQPN)].Add(-1)
	} else if reason == roce.DropNone {
		reason = s.packet.CheckICRC(segments)
	}
	if reason == roce.DropNone {
		q = s.device.numbers.find(s.packet.DestinationQPN)
		switch {
		case q == nil:
			reason = roce.DropUnknownQPN
		case s.has(q):
		case s.handOver(q, segments):
			return
		default:
			reason = roce.DropInboxFull
		}
	}
	if s.process(now, q, reason, segments) && b.from != s && b.from.device == s.device && !q.within.Load() {
		s.cameElsewhere(q, b.from)
	}
}

// crowds says that another shard should be driven before this one reads on: its inbox may not hold the next batch.
func (s *Shard) crowds(to *Shard) bool {
	return to.device == s.device && to.inboxFrom(s).ring.Waiting() > loop.Slots-receiveBatch
}

// hand notes that another shard has got something to do: it is driven when this one's lock is free again.
func (s *Shard) hand(to *Shard) {
	if to != s && !slices.Contains(s.handed, to) {
		s.handed = append(s.handed, to)
	}
}

const (
	// errandShards is how many shards one drive looks after; a turn of a device on veth hands frames to one or two.
	errandShards = 16
	// errandVisits is how often it runs each of them. It only bounds how long a call can take.
	errandVisits = 2
)

// errands are the shards that a drive has to run because they were handed something.
type errands struct {
	list  [errandShards]errand
	count int
	after int  // where to look for the next one
	full  bool // one found no place

	putOff *Shard // whose acknowledgements wait for the next turn, if any
}

type errand struct {
	shard  *Shard
	visits uint8
	due    bool
}

// add notes that a shard was handed something. It may be called under the lock of another one.
func (e *errands) add(s *Shard) {
	at := 0
	for at < e.count && e.list[at].shard != s {
		at++
	}
	if at == errandShards {
		e.full = true
		return
	}
	e.count = max(e.count, at+1)
	e.list[at].shard, e.list[at].due = s, true
}

// next is a shard to run now, or nil. They take turns.
func (e *errands) next() *Shard {
	for i := range e.count {
		i = (e.after + i) % e.count
		if at := &e.list[i]; at.due && at.visits < errandVisits {
			at.due, e.after = false, i+1
			at.visits++
			return at.shard
		}
	}
	return nil
}

// leave makes others run what is left: the shards have handed things to each other for long enough. Whoever sleeps
// there goes on.
func (e *errands) leave() {
	for i := range e.list[:e.count] {
		if e.list[i].due {
			e.list[i].shard.sleep.remind(0)
		}
	}
	if e.full {
		remindCalled()
	}
}
