package driver

// A deadline is judged by what had arrived when it passed, not by what has been read. A process that was stopped, or
// did not get the CPU, finds its answers in the receive rings and the clock beyond its deadlines; none of these may
// fire then.
//
// Life of a deadline that has passed: a turn of its shard finds it behind the clock, notes that time (Shard.overdue)
// and asks all shards of the device for what had arrived by then (Device.asked). Each reads its ring until that is
// empty, or until it has read as many frames as a ring holds, so that a flood puts a deadline off by that much and no
// more. Each frame is processed, or handed over, before the shard says so (Shard.heard). When all have said so, the
// shard drains its inboxes and fires the deadlines that the answers have left (Shard.expire).

import (
	"slices"
	"sync/atomic"
	"time"

	"github.com/xroce/xroce/roce/transport"
)

const (
	// longestHearing, twice, bounds the time that a deadline waits for a shard that nobody can drive, since whoever
	// holds its lock waits for a page of user memory. It is far longer than a thread waits for a CPU; not measured.
	longestHearing = time.Second / 2
)

// hearing is what a shard has read of what had arrived.
type hearing struct {
	heard   atomic.Int64 // all that had arrived by this time was processed or handed over
	overdue atomic.Int64 // when a deadline was found behind the clock, which waits for the other shards; 0 if none does

	again      bool  // the deadline has waited for longestHearing once
	ringFrames int   // how many frames the receive ring holds at most
	asked      int64 // what it reads for; guarded by the shard's lock, as is read
	read       int   // frames since then
}

// expire fires the deadlines that have passed by a time up to which all shards had read their rings before this one
// looked into its inboxes. It has them asked first.
func (s *Shard) expire(now, heard transport.Time) (did bool) {
	since := transport.Time(s.overdue.Load())
	switch {
	case !s.engine.Overdue(now):
		if since != 0 {
			s.overdue.Store(0)
			s.again = false
		}
		return false
	case since == 0:
		since = max(now, 1)
		s.overdue.Store(int64(since))
		s.device.ask(int64(since))
		s.handAsked()
		return true
	case heard >= since:
		s.engine.Expire(now, heard)
	case now-since >= transport.Time(longestHearing) && !s.again:
		// Perhaps nobody has run in this time, so that nobody could read.
		s.again = true
		s.overdue.Store(int64(now))
		s.device.ask(int64(now))
		s.handAsked()
		return true
	case now-since >= transport.Time(longestHearing):
		s.engine.Expire(now, now)
	default:
		s.handAsked()
		return false
	}
	s.overdue.Store(0)
	s.again = false
	return true
}

// handAsked has the other shards driven that have not read what they were asked for.
func (s *Shard) handAsked() {
	for _, other := range s.device.shards {
		if other.asking() {
			s.hand(other)
		}
	}
}

// ask makes the shards read what has arrived by now.
func (d *Device) ask(now int64) {
	for {
		asked := d.asked.Load()
		if asked >= now || d.asked.CompareAndSwap(asked, now) {
			return
		}
	}
}

// allHeard is the time up to which all shards have read their rings, if a deadline of this one waits for it.
func (s *Shard) allHeard() transport.Time {
	if s.overdue.Load() == 0 {
		return 0
	}
	least := s.heard.Load()
	for _, other := range s.device.shards {
		least = min(least, other.heard.Load())
	}
	return transport.Time(least)
}

// asking says that the shard has been asked for more than it has read.
func (s *Shard) asking() bool { return s.device.asked.Load() > s.heard.Load() }

// listen notes that a turn, which began when the shards had been asked for all until a time, has read so many frames,
// and reports whether that was the last of it. The last shard to say so has those driven that wait.
func (s *Shard) listen(asked int64, frames int) (all bool) {
	if asked <= s.heard.Load() {
		return false
	}
	if asked != s.asked {
		s.asked, s.read = asked, 0
	}
	if s.read += frames; frames == receiveBatch && s.read < s.ringFrames {
		return false
	}
	s.heard.Store(asked)
	if slices.ContainsFunc(s.device.shards, func(other *Shard) bool { return other.heard.Load() < asked }) {
		return true
	}
	for _, other := range s.device.shards {
		if other.overdue.Load() != 0 {
			other.resumed.Store(true)
			s.hand(other)
		}
	}
	return true
}

// nextDeadline is when the shard has to be driven at the latest. A deadline that waits for other shards is not looked
// at before they have read their rings, which makes somebody drive this one.
func (s *Shard) nextDeadline() (transport.Time, bool) {
	if since := s.overdue.Load(); since != 0 {
		return transport.Time(since) + transport.Time(longestHearing), true
	}
	return s.engine.NextDeadline()
}
