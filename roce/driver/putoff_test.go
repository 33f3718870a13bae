package driver

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/xroce/xroce/roce"
	"github.com/xroce/xroce/roce/link/mem"
	"github.com/xroce/xroce/roce/transport"
)

// debtor is a station b whose shard has executed a WRITE of a for a poller, who is about to go on.
func debtor(t *testing.T) (m *movers, s *Shard, acknowledged func() uint64) {
	m = newMovers(t, mem.Options{}, 1, 0)
	m.a.write(m, m.a.qp, m.b, 8)
	m.a.device.Drive()
	m.arrive()
	s = m.b.device.shards[0]
	acknowledged = func() uint64 {
		c, _ := m.b.device.Counters()
		return c.SentOpcodes[roce.RCAcknowledge]
	}
	require.True(t, s.driveFor(driveBriefly, true))
	require.EqualValues(t, 1, m.b.qp.counters().ReceivedOpcodes[roce.RCWriteOnly])
	require.True(t, s.owes.Load())
	require.Zero(t, acknowledged())
	return m, s, acknowledged
}

// answered says that a knows now that its WRITE has arrived.
func (m *movers) answered() {
	m.Helper()
	m.arrive()
	m.a.device.Drive()
	require.Equal(m, 1, m.a.drain(m))
	require.Zero(m, poster(m.a.qp).Outstanding())
}

// TestPutOff: an acknowledgement that a poller has put off leaves with what is posted next, in one kick, or else in the
// next turn of anybody.
func TestPutOff(t *testing.T) {
	t.Run("rides", func(t *testing.T) {
		m, s, acknowledged := debtor(t)
		kicks, carrier := 0, s.queue
		s.queue = &hookedQueue{Queue: carrier, pending: carrier.Pending, kick: func() error {
			kicks++
			return carrier.Kick()
		}}
		m.b.write(m, m.b.qp, m.a, 8)
		m.b.qp.Ring()
		require.EqualValues(t, 1, acknowledged())
		require.EqualValues(t, 1, m.b.qp.counters().SentOpcodes[roce.RCWriteOnly])
		require.Equal(t, 1, kicks)
		require.False(t, s.owes.Load())
		m.answered()
	})
	t.Run("poll", func(t *testing.T) {
		m, s, acknowledged := debtor(t)
		require.True(t, s.driveFor(driveBriefly, true))
		require.EqualValues(t, 1, acknowledged())
		require.False(t, s.owes.Load())
		m.answered()
	})
	t.Run("sleep", func(t *testing.T) {
		_, s, _ := debtor(t)
		w, err := newWaiter()
		require.NoError(t, err)
		defer w.close()
		timeout, leads := s.lead(w)
		require.True(t, leads)
		require.Zero(t, timeout)
		require.True(t, s.drive(1))
		timeout, _ = s.lead(w)
		require.Negative(t, timeout)
		s.sleep.leave(w)
	})
	t.Run("background", func(t *testing.T) {
		m, s, acknowledged := debtor(t)
		b := &s.background
		require.NoError(t, b.init(false))
		defer func() { b.waiter.close(); b.waiter = nil }()
		s.polls.Add(leasePolls)
		b.pause(s, time.Millisecond)
		require.EqualValues(t, 1, acknowledged())
		m.answered()
	})
}

// TestPutOffEnds: a queue pair that is changed or destroyed leaves no acknowledgement behind.
func TestPutOffEnds(t *testing.T) {
	for name, end := range map[string]func(*QP) error{
		"close": (*QP).Close,
		"reset": func(q *QP) error {
			return q.Modify(t.Context(), &transport.Attributes{State: transport.StateReset}, nil, transport.MaskState)
		},
		"error": func(q *QP) error {
			return q.Modify(t.Context(), &transport.Attributes{State: transport.StateError}, nil, transport.MaskState)
		},
	} {
		t.Run(name, func(t *testing.T) {
			m, s, acknowledged := debtor(t)
			require.NoError(t, end(m.b.qp))
			require.EqualValues(t, 1, acknowledged())
			require.False(t, s.owes.Load())
			m.answered()
			if name == "close" {
				m.b.qp = m.b.newQP(t) // for the end of the test
			}
		})
	}
}

// TestPutOffAsThePauseEnds: an acknowledgement that is put off while the background ends its pause is not forgotten.
func TestPutOffAsThePauseEnds(t *testing.T) {
	m := newMovers(t, mem.Options{}, 1, 0)
	m.a.write(m, m.a.qp, m.b, 8)
	m.a.device.Drive()
	m.arrive()
	s := m.b.device.shards[0]
	carrier := s.queue
	s.background.pausing.Store(true)
	s.queue = &hookedQueue{Queue: carrier, pending: func() bool {
		s.background.pausing.Store(false) // after the turn, and before the poller's last look
		return carrier.Pending()
	}}
	require.True(t, s.drivePolled())
	require.False(t, s.owes.Load())
	m.answered()
}
