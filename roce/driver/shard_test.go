package driver

import (
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/xroce/xroce/roce"
	"github.com/xroce/xroce/roce/link"
	"github.com/xroce/xroce/roce/link/loop"
	"github.com/xroce/xroce/roce/link/mem"
	"github.com/xroce/xroce/roce/memory"
	"github.com/xroce/xroce/roce/transport"
)

// The moments that follow are a few instructions long when they happen by themselves; here they are played one by one.

func newManual(t *testing.T, queues int) (*Device, *QP) {
	t.Helper()
	l, err := mem.NewNetwork(mem.Options{Manual: true}).NewDevice(mem.DeviceOptions{Queues: queues})
	require.NoError(t, err)
	d, err := Open(l, Options{Manual: true})
	require.NoError(t, err)
	cq := newCQ(t, d, CQConfig{Capacity: 4})
	q := newQP(t, d, QPConfig{
		Type: transport.RC, Domain: new(memory.Domain), SendCQ: cq, RecvCQ: cq,
		MaxSendWR: 1, MaxRecvWR: 1, MaxSendSGE: 1, MaxRecvSGE: 1,
	})
	t.Cleanup(func() {
		require.NoError(t, q.Close())
		require.NoError(t, cq.Close())
		require.NoError(t, d.Close())
	})
	return d, q
}

// putFrom hands a frame over from another shard, without driving.
func putFrom(s *Shard, index int) bool {
	return s.inboxFrom(s.device.shards[index]).ring.Put([][]byte{make([]byte, 60)})
}

// TestUnlockLooksAgain: whatever is left for the holder of a shard's lock is done when he lets go of it.
func TestUnlockLooksAgain(t *testing.T) {
	d, q := newManual(t, 2)
	s := d.shards[0]
	for name, leave := range map[string]func(){
		"doorbell": func() { s.ring(q) },
		"frame":    func() { require.True(t, putFrom(s, 1)) },
		"loopback": func() { s.resumed.Store(true) },
		"waiters":  func() { s.fired = append(s.fired, q.config.SendCQ); s.hasFired.Store(true) },
	} {
		s.mu.Lock()
		leave()
		require.True(t, s.called(), name)
		s.unlock()
		require.False(t, s.called(), name)
	}
}

// TestRunLooksAgain: a frame that is handed over while a turn is under way is not left to the next one who comes by.
func TestRunLooksAgain(t *testing.T) {
	d, _ := newManual(t, 2)
	s := d.shards[0]
	// The kick is after the turn and before the last look.
	handed := false
	s.queue = &hookedQueue{Queue: s.queue, pending: func() bool {
		if !handed {
			require.True(t, putFrom(s, 1))
			handed = true
		}
		return false
	}}
	s.drive(driveBriefly)
	require.True(t, handed)
	require.False(t, s.inboxWaiting())
}

// TestLeadLooksAgain: a post whose doorbell rang while the sleeper-to-be held the lock keeps it from sleeping.
func TestLeadLooksAgain(t *testing.T) {
	d, q := newManual(t, 2)
	s := d.shards[0]
	w, err := newWaiter()
	require.NoError(t, err)
	defer w.close()
	timeout, ok := s.lead(w)
	require.True(t, ok)
	require.Negative(t, timeout, "nothing to do: for ever")

	s.ring(q)
	timeout, ok = s.lead(w)
	require.True(t, ok)
	require.Zero(t, timeout)
	s.drive(1)

	require.True(t, putFrom(s, 1))
	timeout, _ = s.lead(w)
	require.Zero(t, timeout)
	s.drive(1)

	s.queue = &hookedQueue{Queue: s.queue, pending: func() bool { return true }}
	timeout, _ = s.lead(w)
	require.Positive(t, timeout, "frames wait for a kick: try again soon")
	require.LessOrEqual(t, timeout, stalledRetry)
	s.failed.Store(true)
	timeout, _ = s.lead(w)
	require.Greater(t, timeout, stalledRetry, "a link that fails gets more time")
	require.LessOrEqual(t, timeout, failedRetry)
	s.sleep.leave(w)
}

// TestKickUntilNothingIsPending: frames that were published after the kernel's last look are kicked by the one who is
// at it.
func TestKickUntilNothingIsPending(t *testing.T) {
	d, _ := newManual(t, 1)
	s := d.shards[0]
	left, kicks := 3, 0
	s.queue = &hookedQueue{
		Queue: s.queue, pending: func() bool { return left > 0 },
		kick: func() error { kicks++; left--; return nil },
	}
	s.kick()
	require.Equal(t, 3, kicks)

	left = 1000
	s.kick()
	require.Equal(t, 3+kickTries, kicks, "a link that takes nothing is left alone")

	kicks = 0
	s.queue.(*hookedQueue).kick = func() error { kicks++; return errors.New("down") }
	s.kick()
	require.Equal(t, 1, kicks)
	require.True(t, s.failed.Load())
	s.queue.(*hookedQueue).kick = func() error { left = 0; return nil }
	s.kick()
	require.False(t, s.failed.Load())
}

// TestStuckLink: a link that takes nothing for long, although it is not down, has lost what it should send.
func TestStuckLink(t *testing.T) {
	d, _ := newManual(t, 1)
	s := d.shards[0]
	own, full, committed := s.queue, true, 0
	s.queue = &hookedQueue{
		Queue: own, pending: func() bool { return false },
		buffer: func() []byte {
			if full {
				return nil
			}
			return own.Buffer()
		},
		commit: func(int) { committed++ },
	}
	link := (*transmitter)(s)
	s.now = transport.Time(time.Second)
	require.Nil(t, link.Buffer())
	s.now += transport.Time(stuckAfter) - 1
	require.Nil(t, link.Buffer())
	s.now++
	require.Len(t, link.Buffer(), loop.FrameSize)
	link.Commit(60)
	require.Zero(t, committed)
	d.options.Clock = func() transport.Time { return s.now }
	require.Equal(t, s.now+transport.Time(failedRetry), s.retryTime(), "nothing spins")

	full = false
	require.NotNil(t, link.Buffer())
	link.Commit(60)
	require.Equal(t, 1, committed)
	full = true
	require.Nil(t, link.Buffer(), "the time begins anew")
}

// TestRemind: a sleeper is woken for what comes before its alarm, and for nothing else.
func TestRemind(t *testing.T) {
	d, _ := newManual(t, 1)
	s := d.shards[0]
	w, err := newWaiter()
	require.NoError(t, err)
	defer w.close()
	_, ok := s.lead(w)
	require.True(t, ok)
	s.sleep.until.Store(1000)
	s.sleep.remind(1000)
	require.False(t, w.woken.Load())
	s.sleep.remind(999)
	require.True(t, w.woken.Load())
	s.sleep.leave(w)
	w.woken.Store(false)
	s.sleep.remind(0)
	require.False(t, w.woken.Load(), "nobody sleeps")
}

// hookedQueue is a queue with some calls replaced.
type hookedQueue struct {
	link.Queue
	pending func() bool
	kick    func() error
	buffer  func() []byte
	commit  func(int)
}

func (q *hookedQueue) Buffer() []byte {
	if q.buffer == nil {
		return q.Queue.Buffer()
	}
	return q.buffer()
}

func (q *hookedQueue) Commit(length int) {
	if q.commit == nil {
		q.Queue.Commit(length)
		return
	}
	q.commit(length)
}

func (q *hookedQueue) Pending() bool { return q.pending() }

func (q *hookedQueue) Kick() error {
	if q.kick == nil {
		return q.Queue.Kick()
	}
	return q.kick()
}

// TestGIDTable: an index keeps its meaning while its address is there.
func TestGIDTable(t *testing.T) {
	var g gids
	a, b, c := gid(1), gid(2), gid(3)
	require.Equal(t, []byte{2, 3}, last(g.update(list(b, c))))
	require.Equal(t, []byte{2, 3, 1}, last(g.update(list(a, b, c))), "a new address takes a new slot, wherever it sorts")
	require.Equal(t, []byte{0, 3, 1}, last(g.update(list(a, c))))
	require.Equal(t, []byte{2, 3, 1}, last(g.update(list(a, b, c))), "a slot is used again")
	require.Equal(t, []byte{0, 0, 0}, last(g.update(nil)))
}

// TestRetryTime is in the clock of the shard.
func TestRetryTime(t *testing.T) {
	d, _ := newManual(t, 1)
	now := transport.Time(5 * time.Second)
	d.options.Clock = func() transport.Time { return now }
	require.Equal(t, now+transport.Time(stalledRetry), d.shards[0].retryTime())
	d.shards[0].failed.Store(true)
	require.Equal(t, now+transport.Time(failedRetry), d.shards[0].retryTime())
	d.shards[0].down.Store(true)
	require.Equal(t, now+transport.Time(downRetry), d.shards[0].retryTime())
}

func gid(n byte) roce.GID { return roce.GID{0: 0xfd, 15: n} }

func list(gids ...roce.GID) []roce.GID { return gids }

func last(gids []roce.GID) (bytes []byte) {
	for _, g := range gids {
		bytes = append(bytes, g[15])
	}
	return bytes
}
