package driver

// The background goroutine of a shard makes progress while the application does not: it receives, acknowledges and
// retransmits. While somebody polls all the time or leads it stays away from the socket, because a second thread in
// poll(2) on it costs a poller 30 % and its tail (p99 5 us to 56..108 us). Every poll increments a counter, and the
// rate at which it grows is the lease: a program that looks into its CQ now and then does not hold it, and one that
// asks for an event of a channel on which it selects gives it back, since it is about to sleep. Idle costs no CPU: with
// nobody polling the background sleeps in poll(2) until a frame, a doorbell or the next deadline, after it has looked
// for more for a while if that has paid lately (linger.go).
//
// An acknowledgement for which a poller has made room in its next post waits for that, or for its next poll. If neither
// comes, the background sends it at the end of its pause, which is a millisecond at most.

import (
	"math"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/xroce/xroce/internal/lockorder"
	"github.com/xroce/xroce/roce/transport"
)

const (
	// watchInterval is how long the background leaves a shard to its poller before it samples the rate again.
	watchInterval = 5 * time.Millisecond
	// sampleInterval is how long the rate is sampled, and how long an acknowledgement may wait; the runtime's timers
	// are no finer. So a shard goes without progress for watchInterval and sampleInterval after a poller has stopped,
	// and for sampleInterval after a blocked wait or a single poll, far less than the usual ACK timeout of 67 ms.
	sampleInterval = time.Millisecond
	// leasePolls is how many polls in a sample hold the lease: one in 60 us, the time that waking another thread takes
	// twice. One that finds work counts for two.
	leasePolls = 16
	// backgroundTurns is how long the background drives before it looks around; not measured.
	backgroundTurns = 64
)

type background struct {
	waiter   *waiter
	alarm    *time.Timer
	polls    uint64        // of the shard at the end of the last sample
	patience time.Duration // how long it lingers
	slept    time.Duration // the last time, if there was one
	admitted uint64        // of the shard before that
	quit     atomic.Bool
	resting  atomic.Bool // sleeping without a limit because somebody leads
	pausing  atomic.Bool // letting time pass
	finished sync.WaitGroup
}

func (b *background) init(manual bool) (err error) {
	if manual {
		return nil
	}
	b.alarm = time.NewTimer(0)
	b.alarm.Stop()
	if b.waiter, err = newWaiter(); err == nil {
		b.waiter.background = true
	}
	return err
}

func (s *Shard) startBackground() {
	b := &s.background
	b.finished.Go(func() { s.runBackground(b) })
}

func (b *background) stop() {
	if b.waiter == nil {
		return
	}
	b.quit.Store(true)
	b.waiter.wake()
	b.finished.Wait()
	b.waiter.close()
}

// endRest makes the background look at the lease again, since the last blocked wait has ended.
func (b *background) endRest() {
	if b.resting.Load() {
		b.waiter.wake()
	}
}

func (s *Shard) runBackground(b *background) {
	for !b.quit.Load() {
		if s.sleep.waiters.Load() > 0 {
			b.rest(s)
			continue
		}
		if b.leased(s) {
			for range watchInterval / sampleInterval {
				b.pause(s, sampleInterval)
			}
			continue
		}
		if s.sleep.waiters.Load() > 0 {
			continue
		}
		if s.drive(backgroundTurns) {
			// A goroutine that was woken by it runs now. Else it would wait in the queue of a thread that is about to
			// sleep in poll(2), until another thread has been woken to take it over.
			runtime.Gosched()
		}
		b.linger(s)
		timeout, lead := s.lead(b.waiter)
		if lead && s.sleep.waiters.Load() == 0 && !b.quit.Load() {
			before := s.device.options.Clock()
			b.admitted = s.admitted.Load()
			b.waiter.sleep([]*Shard{s}, timeout)
			b.slept = time.Duration(s.device.options.Clock() - before)
		}
		s.sleep.leave(b.waiter)
	}
}

// leased says whether somebody polls the shard all the time.
func (b *background) leased(s *Shard) bool {
	before := s.polls.Load()
	if before == b.polls || s.givenBack() {
		return false
	}
	b.pause(s, sampleInterval)
	b.polls = s.polls.Load()
	return b.polls-before >= leasePolls && !s.givenBack()
}

// giveBack ends the lease of whoever has polled the shard until now. A few more polls, which belong to asking for an
// event, do not begin another one.
func (s *Shard) giveBack() {
	s.given.Store(s.polls.Load())
	if s.background.pausing.Load() {
		s.background.waiter.wake()
	}
}

func (s *Shard) givenBack() bool { return s.polls.Load()-s.given.Load() < leasePolls }

// rest sleeps until the last blocked wait on the shard has ended.
func (b *background) rest(s *Shard) {
	b.resting.Store(true)
	if s.sleep.waiters.Load() > 0 && !b.quit.Load() {
		b.waiter.parkUntilWoken()
	}
	b.resting.Store(false)
}

// pause lets time pass, and then sends what a poller has put off. It waits for a timer of the runtime: a thread that
// blocks in poll(2) instead keeps the runtime's monitor awake, which takes a poller's CPU every 100 us or so (the 90th
// percentile of round trips doubled).
func (b *background) pause(s *Shard, d time.Duration) {
	b.pausing.Store(true)
	if !b.quit.Load() && !s.givenBack() {
		b.alarm.Reset(d)
		b.waiter.parkFor(b.alarm.C)
	}
	// In this order: whoever has put something off looks afterwards whether this still pauses, and one of the two sees
	// the other.
	b.pausing.Store(false)
	if s.owes.Load() {
		s.drive(driveBriefly) // whoever has put it off may not come again
	}
}

// sleep says who sleeps in poll(2) on a shard's socket, and until when.
type sleep struct {
	leader atomic.Pointer[waiter]
	// until is the time of the sleeper's alarm in the shard's clock: math.MaxInt64 is never, 0 nobody.
	until atomic.Int64
	// waiters counts the blocked waits on the shard. The background gives way to them.
	waiters atomic.Int32

	mu        lockorder.Mutex[lockorder.Sleep]
	followers []*waiter // the blocked waits, the leader among them
}

// wakeLeader wakes the sleeper, if there is one: frames have come that no descriptor tells of.
func (l *sleep) wakeLeader() {
	if w := l.leader.Load(); w != nil {
		w.wake()
	}
}

// remind wakes the sleeper, if there is one and it would sleep beyond a time of the shard's clock.
func (l *sleep) remind(at transport.Time) {
	if l.until.Load() > int64(at) {
		if w := l.leader.Load(); w != nil {
			w.wake()
		}
	}
}

// lead makes w the shard's sleeper unless there is another one, and returns how long it may sleep; negative is for
// ever. The alarm is set under the shard's lock: whoever sets an earlier deadline afterwards sees it.
func (s *Shard) lead(w *waiter) (timeout time.Duration, ok bool) {
	l := &s.sleep
	if !l.leader.CompareAndSwap(nil, w) && l.leader.Load() != w {
		return 0, false
	}
	s.mu.Lock()
	alarm := int64(math.MaxInt64)
	if deadline, timed := s.nextDeadline(); timed {
		alarm = int64(deadline)
	}
	if s.queue.Pending() || !s.engine.Idle() {
		alarm = min(alarm, int64(s.retryTime()))
	}
	l.until.Store(alarm)
	owes := s.engine.Owes()
	s.mu.Unlock()
	switch {
	case owes || s.called():
		return 0, true // somebody put something off, or found the lock taken just now
	case alarm == math.MaxInt64:
		return -1, true
	}
	return max(0, time.Duration(alarm-int64(s.device.options.Clock()))), true
}

// awake takes back the alarm of a sleeper that goes on leading.
func (l *sleep) awake() { l.until.Store(0) }

// leave ends w's time as the sleeper and makes one of the followers try.
func (l *sleep) leave(w *waiter) {
	if l.leader.Load() == w {
		l.until.Store(0)
		l.leader.Store(nil)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.followers) > 0 && l.leader.Load() == nil {
		l.followers[0].wake()
	}
}

// displace makes the background give way.
func (l *sleep) displace() {
	if w := l.leader.Load(); w != nil && w.background {
		w.wake()
	}
}

// enter adds a blocked wait.
func (l *sleep) enter(w *waiter) {
	l.waiters.Add(1)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.followers = append(l.followers, w)
}

// exit removes a blocked wait and reports whether it was the last one.
func (l *sleep) exit(w *waiter) (last bool) {
	l.mu.Lock()
	for i, v := range l.followers {
		if v == w {
			l.followers = append(l.followers[:i], l.followers[i+1:]...)
			break
		}
	}
	l.mu.Unlock()
	l.leave(w)
	return l.waiters.Add(-1) == 0
}
