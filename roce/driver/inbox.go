package driver

import (
	"sync/atomic"

	"github.com/xroce/xroce/roce"
	"github.com/xroce/xroce/roce/transport"
)

const (
	// inboxSlots is two receive batches; not measured.
	inboxSlots = 64
	// inboxFrame holds the largest frame: path MTU 4096 and all headers.
	inboxFrame = 4352
)

// inbox carries frames from one shard to another whose QPs they are for: a ring with the sending shard's
// driver as its producer and the receiving one's as its consumer. The frames are copied, so that no shard waits for
// another's buffers; a full inbox drops, as the network may.
type inbox struct {
	slots    atomic.Pointer[[inboxSlots]inboxSlot] // made when first used
	produced atomic.Uint32
	consumed atomic.Uint32
	segments [1][]byte // the consumer's
}

type inboxSlot struct {
	length int
	frame  [inboxFrame]byte
}

// put copies a frame into the inbox.
func (b *inbox) put(segments [][]byte) bool {
	slots := b.slots.Load()
	if slots == nil {
		slots = new([inboxSlots]inboxSlot)
		b.slots.Store(slots)
	}
	at := b.produced.Load()
	if at-b.consumed.Load() == inboxSlots {
		return false
	}
	slot := &slots[at%inboxSlots]
	slot.length = 0
	for _, piece := range segments {
		if len(piece) > inboxFrame-slot.length {
			return false
		}
		slot.length += copy(slot.frame[slot.length:], piece)
	}
	b.produced.Store(at + 1)
	return true
}

func (b *inbox) waiting() bool { return b.produced.Load() != b.consumed.Load() }

func (s *Shard) inboxWaiting() bool {
	if len(s.inboxes) == 1 {
		return false
	}
	for i := range s.inboxes {
		if s.inboxes[i].waiting() {
			return true
		}
	}
	return false
}

// drainInboxes processes the frames that other shards handed over. A frame whose QP has moved on meanwhile is dropped:
// handing it over again might go in circles.
func (s *Shard) drainInboxes(now transport.Time) {
	counters := s.engine.Counters()
	for i := range s.inboxes {
		b := &s.inboxes[i]
		// What comes in meanwhile is for the next turn.
		for at, end := b.consumed.Load(), b.produced.Load(); at != end; at++ {
			slot := &b.slots.Load()[at%inboxSlots]
			b.segments[0] = slot.frame[:slot.length]
			reason := s.packet.Parse(b.segments[:])
			if reason == roce.DropNone {
				if q := s.device.numbers.find(s.packet.DestinationQPN); q == nil || q.home.Load() != s {
					reason = roce.DropUnknownQPN
				} else {
					counters.HandedOver++
					s.engine.Receive(now, q.transport, &s.packet)
				}
			}
			if reason != roce.DropNone {
				counters.Drops[reason]++
			}
			b.consumed.Store(at + 1)
		}
	}
}
