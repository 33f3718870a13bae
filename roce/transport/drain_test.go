package transport

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/xroce/xroce/internal/support"
	"github.com/xroce/xroce/roce"
	"github.com/xroce/xroce/roce/memory"
	"github.com/xroce/xroce/roce/queue"
)

// diary notes completions and events in the order in which a program could see them.
type diary struct {
	entries   []string
	completed func() // called after each completion, if not nil
	silent    []roce.Path
}

func (d *diary) Complete(wc *queue.WC, _ bool) bool {
	d.entries = append(d.entries, fmt.Sprintf("%d %v", wc.WRID, wc.Status))
	if d.completed != nil {
		d.completed()
	}
	return true
}

func (d *diary) Event(e EventType) { d.entries = append(d.entries, e.String()) }

func (d *diary) Unanswered(path roce.Path) { d.silent = append(d.silent, path) }

// sink takes frames and forgets them.
type sink struct {
	buffer [2048]byte
	frames int
}

func (s *sink) Buffer() []byte { return s.buffer[:] }
func (s *sink) Commit(int)     { s.frames++ }

// drainer is a QP in RTS that has sent empty SENDs, whose completions and events its diary has.
type drainer struct {
	*diary
	t      *testing.T
	table  *memory.Table
	domain *memory.Domain
	engine *Engine
	qp     *QP
	send   *queue.Producer
	sink   sink
	sent   uint64
}

func newDrainer(t *testing.T) *drainer {
	d := &drainer{diary: &diary{}, t: t, table: memory.NewTable(1), domain: new(memory.Domain)}
	d.engine = NewEngine(d.table.NewUser())
	layout := queue.SendLayout(8, 1, 0)
	ring, err := queue.New(layout)
	require.NoError(t, err)
	d.send, err = queue.NewProducer(ring, layout)
	require.NoError(t, err)
	consumer, err := queue.NewConsumer(ring, layout)
	require.NoError(t, err)
	d.qp, err = NewQP(Config{
		QPN: 0x1234, Type: RC, Domain: d.domain, Send: consumer, Receive: noReceives{}, SendCQ: d, RecvCQ: d,
		MaxSendSGE: 1, MaxRecvSGE: 1, Events: d,
	})
	require.NoError(t, err)
	d.qp.Attach(d.engine)
	a := valid()
	a.Path = roce.Path{Source: roce.GID{15: 1}, Destination: roce.GID{15: 2}}
	for _, step := range []struct {
		to   State
		mask AttributeMask
	}{
		{StateInit, MaskPKeyIndex | MaskPort | MaskAccess},
		{StateRTR, MaskAV | MaskPathMTU | MaskDestinationQPN | MaskRQPSN | MaskMaxDestRDAtomic | MaskMinRNRTimer},
		{StateRTS, MaskTimeout | MaskRetryCount | MaskRNRRetry | MaskSQPSN | MaskMaxRDAtomic},
	} {
		a.State = step.to
		require.NoError(t, d.qp.Modify(1, &a, MaskState|step.mask))
	}
	return d
}

// post posts SENDs and lets the QP send what it may; it returns how many frames that were.
func (d *drainer) post(count int) int { return d.postAt(1, count) }

func (d *drainer) postAt(now Time, count int) int {
	for range count {
		d.sent++
		wr := queue.SendWR{WRID: d.sent, Opcode: queue.Send, Flags: queue.SendSignaled}
		require.NoError(d.t, d.send.PostSend(&wr, queue.SendLimits{MaxSGE: 1}, nil))
	}
	before := d.sink.frames
	d.engine.Ready(d.qp)
	d.engine.Emit(now, 100, &d.sink)
	return d.sink.frames - before
}

// acknowledge acknowledges everything up to the n-th SEND.
func (d *drainer) acknowledge(n uint64) {
	fields := roce.BTHFields{Opcode: roce.RCAcknowledge, PSN: valid().SQPSN.Add(uint32(n - 1))}
	aeth := make([]byte, roce.AETHLength)
	roce.AETHFields{Syndrome: roce.SyndromeAckNoCredits, MSN: uint32(n)}.Put(aeth)
	d.engine.Receive(1, d.qp, d.packet(roce.GID{15: 2}, 0, fields, aeth...))
}

// packet is one for the QP from an address, with a traffic class and with what follows the BTH.
func (d *drainer) packet(from roce.GID, class uint8, fields roce.BTHFields, rest ...byte) *roce.Packet {
	template := roce.NewHeaderTemplate(roce.Path{Source: from, Destination: roce.GID{15: 1}, TrafficClass: class})
	start := template.Length()
	frame := make([]byte, start+roce.BTHLength+len(rest)+roce.ICRCLength)
	template.Put(frame)
	fields.PKey, fields.DestinationQPN = defaultPKey, 0x1234
	fields.Put(frame[start:])
	copy(frame[start+roce.BTHLength:], rest)
	template.Seal(frame)
	var p roce.Packet
	require.Equal(d.t, roce.DropNone, p.Parse([][]byte{frame}))
	return &p
}

func (d *drainer) to(state State, notify bool) {
	mask := MaskState
	if state == StateSQD {
		mask |= MaskEnSQDNotify
	}
	require.NoError(d.t, d.qp.Modify(1, &Attributes{State: state, EnSQDAsyncNotify: notify}, mask))
}

func (d *drainer) requireEntries(want ...string) {
	d.t.Helper()
	require.Equal(d.t, want, d.entries)
	d.entries = nil
}

// TestDrainedEvent: the event comes behind the last completion of what was begun, once for every time in SQD, and only
// if it was asked for.
func TestDrainedEvent(t *testing.T) {
	const drained = "send queue drained"
	d := newDrainer(t)
	require.Equal(t, 3, d.post(3))
	d.to(StateSQD, true)
	require.Zero(t, d.post(1))
	d.acknowledge(2)
	d.requireEntries("1 success", "2 success")
	d.acknowledge(3)
	d.requireEntries("3 success", drained)
	d.acknowledge(3)
	require.Zero(t, d.post(1))
	d.requireEntries()

	d.to(StateRTS, false)
	require.Equal(t, 2, d.post(0))
	d.to(StateSQD, false)
	d.acknowledge(5)
	d.requireEntries("4 success", "5 success")
	require.False(t, d.qp.Attributes().Draining)

	d.to(StateRTS, false)
	d.to(StateSQD, true) // nothing to drain
	d.requireEntries(drained)

	d.to(StateRTS, false)
	require.Equal(t, 1, d.post(1))
	d.to(StateSQD, true)
	d.to(StateError, false) // it never drains
	d.requireEntries("6 work request flushed")
	support.Object(t, "Event", EventSQDrained.String(), "behind the last completion of what was begun, once for each SQD, if asked for")
}
