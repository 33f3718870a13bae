package transport

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/xroce/xroce/roce"
	"github.com/xroce/xroce/roce/queue"
)

// fixedRate is a congestion control that only notes what it hears.
type fixedRate struct {
	gap            Time
	marks, notices int
	ends           []Time
	losses         []loss
	refusals       int
}

func (c *fixedRate) start(r *recovery, limit uint64)      { r.window, r.gap = limit, c.gap }
func (c *fixedRate) acknowledged(*recovery, Time, uint64) {}
func (c *fixedRate) refused(*recovery, Time)              { c.refusals++ }
func (c *fixedRate) marked(*recovery, Time)               { c.marks++ }
func (c *fixedRate) notified(r *recovery, now Time)       { c.notices, r.control = c.notices+1, now+5 }
func (c *fixedRate) expired(_ *recovery, now Time)        { c.ends = append(c.ends, now) }
func (c *fixedRate) lost(_ *recovery, _ Time, kind loss)  { c.losses = append(c.losses, kind) }

func newPaced(t *testing.T, gap Time) (*drainer, *fixedRate) {
	d, c := newDrainer(t), &fixedRate{gap: gap}
	d.qp.recovery.congestion = c
	c.start(&d.qp.recovery, DefaultWindow)
	return d, c
}

// TestPacing: packets leave no faster than the congestion control permits, and the engine asks to be called when the
// next one may.
func TestPacing(t *testing.T) {
	d, _ := newPaced(t, 100)
	timeout := Time(roce.AckTimeout(valid().Timeout))
	require.Equal(t, 1, d.post(3))
	for i := range Time(2) {
		at, some := d.engine.NextDeadline()
		require.True(t, some)
		require.Equal(t, 1+100*(i+1), at)
		require.False(t, d.engine.Overdue(at-1))
		require.Zero(t, d.engine.Emit(at-1, 100, &d.sink))
		d.engine.Expire(at, at)
		require.Equal(t, 1, d.engine.Emit(at, 100, &d.sink))
	}
	d.engine.Expire(301, 301)
	require.Zero(t, d.engine.Emit(301, 100, &d.sink), "there is nothing more to send")
	at, some := d.engine.NextDeadline()
	require.True(t, some)
	require.LessOrEqual(t, at, 1+timeout)
	d.acknowledge(3)
	d.requireEntries("1 success", "2 success", "3 success")

	// A gap that has passed while nothing was to be sent is not made up for.
	require.Equal(t, 1, d.postAt(10_000, 2))
	require.Zero(t, d.postAt(10_099, 0))
	require.Equal(t, 1, d.postAt(10_100, 0))
}

// TestCongestionHears: marks, CNPs and losses reach the congestion control, those of strangers do not, and it has a
// deadline of its own.
func TestCongestionHears(t *testing.T) {
	d, c := newPaced(t, 0)
	peer, stranger := roce.GID{15: 2}, roce.GID{15: 3}
	receive := func(p *roce.Packet) Verdict { return d.engine.Receive(10, d.qp, p) }
	require.Equal(t, 2, d.post(2))

	ack := roce.BTHFields{Opcode: roce.RCAcknowledge, PSN: valid().SQPSN}
	aeth := make([]byte, roce.AETHLength)
	roce.AETHFields{Syndrome: roce.SyndromeAckNoCredits, MSN: 1}.Put(aeth)
	receive(d.packet(peer, 2, ack, aeth...))
	receive(d.packet(stranger, 3, ack, aeth...))
	require.Zero(t, c.marks)
	require.True(t, receive(d.packet(peer, 3, ack, aeth...)).Admitted)
	require.Equal(t, 1, c.marks)

	cnp := roce.BTHFields{Opcode: roce.CNP}
	receive(d.packet(stranger, 0, cnp, make([]byte, 16)...))
	require.Zero(t, c.notices)
	require.Equal(t, Verdict{Dropped: roce.DropTransportMismatch}, receive(d.packet(peer, 0, cnp, make([]byte, 16)...)))
	require.Equal(t, 1, c.notices)
	d.engine.Emit(10, 100, &d.sink)
	require.False(t, d.engine.Overdue(14))
	d.engine.Expire(15, 15)
	require.Equal(t, []Time{15}, c.ends)
	require.Zero(t, d.qp.recovery.retries, "it was not the ACK timeout")

	nak := roce.BTHFields{Opcode: roce.RCAcknowledge, PSN: valid().SQPSN.Add(1)}
	roce.AETHFields{Syndrome: roce.SyndromeNAKSequence, MSN: 1}.Put(aeth)
	receive(d.packet(peer, 0, nak, aeth...))
	require.Equal(t, []loss{lossTold}, c.losses)
	receive(d.packet(peer, 0, nak, aeth...))
	require.Len(t, c.losses, 1, "the same loss")
	d.engine.Emit(20, 100, &d.sink)
	at, _ := d.engine.NextDeadline()
	d.engine.Expire(at, at)
	require.Equal(t, []loss{lossTold, lossTimer}, c.losses)
	roce.AETHFields{Syndrome: roce.RNRNAK(1), MSN: 1}.Put(aeth)
	d.engine.Emit(at, 100, &d.sink)
	receive(d.packet(peer, 0, nak, aeth...))
	require.Equal(t, 1, c.refusals)
}

// TestNoRecoveryAfterFailure: an answer may both complete what it acknowledges, so that a request which cannot go on is
// the oldest and ends the queue pair, and tell of a loss. There is nothing to recover then, now or later.
func TestNoRecoveryAfterFailure(t *testing.T) {
	d := newDrainer(t)
	region, err := d.table.Register(d.domain, make([]byte, 2048), 0, 0)
	require.NoError(t, err)
	require.Equal(t, 1, d.post(1))
	wr := queue.SendWR{
		WRID: 2, Opcode: queue.Send, SGList: []queue.SGE{{Addr: region.Address(), Length: 2048, LKey: region.Key()}},
	}
	require.NoError(t, d.send.PostSend(&wr, queue.SendLimits{MaxSGE: 1}, nil))
	d.engine.Ready(d.qp)
	require.Equal(t, 1, d.engine.Emit(1, 1, &d.sink), "the first packet of two")
	require.NoError(t, d.table.Deregister(region))
	require.Zero(t, d.engine.Emit(1, 100, &d.sink), "the second cannot be made")

	aeth := make([]byte, roce.AETHLength)
	roce.AETHFields{Syndrome: roce.SyndromeNAKSequence, MSN: 1}.Put(aeth)
	nak := roce.BTHFields{Opcode: roce.RCAcknowledge, PSN: valid().SQPSN.Add(1)}
	d.engine.Receive(1, d.qp, d.packet(roce.GID{15: 2}, 0, nak, aeth...))
	d.requireEntries("1 success", "2 local protection error")
	require.Equal(t, StateError, d.qp.State())
	d.engine.Expire(1e12, 1e12)
	d.engine.Emit(1e12, 100, &d.sink)
	_, timed := d.engine.NextDeadline()
	require.False(t, timed)
	c := d.engine.Counters()
	require.Zero(t, c.Recoveries+c.Timeouts+c.RetriesExceeded)
	require.Empty(t, d.silent)
}
