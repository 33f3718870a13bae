package transport

import "github.com/xroce/xroce/roce"

// Counters count what one QP, or all QPs of an engine, did. Fields that Linux's drivers have too are named as the
// hardware counters there (Names; drivers/infiniband/sw/rxe/rxe_hw_counters.c, drivers/infiniband/hw/mlx5/counters.c).
//
// A packet that reaches a QP is dropped for one reason, or it is one of ReceivedOpcodes and does something: of these,
// too, some are found to be of no use and are dropped, for one reason.
type Counters struct {
	SentPackets     uint64
	ReceivedPackets uint64 // packets that reached a QP
	SentBytes       uint64 // payload
	ReceivedBytes   uint64 // payload

	Retransmitted      uint64 // request packets sent again
	Recoveries         uint64 // times that a QP went back to resend, timeouts included
	Timeouts           uint64 // ACK timeouts that fired
	ImpliedNAKs        uint64 // acknowledgements that jumped over an unanswered READ
	DuplicateRequests  uint64 // requests that were executed before; most are answered again
	OutOfSequence      uint64 // requests behind one that is missing
	SentSequenceNAKs   uint64 // NAKs 0x60 sent
	ReceivedNAKs       uint64 // NAKs 0x60 received
	SentRNRNAKs        uint64
	ReceivedRNRNAKs    uint64
	SentFatalNAKs      uint64 // NAKs 0x61 to 0x63 sent
	RetriesExceeded    uint64
	RNRRetriesExceeded uint64
	HandedOver         uint64 // packets that came in on another shard's queue; of the engine there
	Moves              uint64 // QPs that came from another engine, of a QP its moves
	CompletionsDropped uint64 // completions that found their CQ full: the QP failed
	// ChecksumsIgnored counts packets that reached a QP with a right ICRC and a UDP checksum that is not
	// (roce.Packet.ChecksumWrong).
	ChecksumsIgnored uint64

	Drops [roce.DropReasons]uint64
	// SentOpcodes and ReceivedOpcodes are packets by the operation of their opcode, its lower five bits; all QPs are
	// RC. Received are those that passed the checks of state, addresses and partition key.
	SentOpcodes     [opcodeMask + 1]uint64
	ReceivedOpcodes [opcodeMask + 1]uint64
}

// opcodeMask takes the operation out of an opcode.
const opcodeMask = 0x1F

// counter is one of the things that are counted, as an index: the data path counts with count, without a look at what
// it is.
type counter uint8

const (
	sentPackets counter = iota
	receivedPackets
	sentBytes
	receivedBytes
	retransmitted
	recoveries
	timeouts
	impliedNAKs
	duplicateRequests
	outOfSequence
	sentSequenceNAKs
	receivedNAKs
	sentRNRNAKs
	receivedRNRNAKs
	sentFatalNAKs
	retriesExceeded
	rnrRetriesExceeded
	handedOver
	moves
	completionsDropped
	checksumsIgnored
	counterKinds
)

// tally is what the data path counts in.
type tally struct {
	counts         [counterKinds]uint64
	drops          [roce.DropReasons]uint64
	sent, received [opcodeMask + 1]uint64 // packets by opcode
}

// counters are the counts in the form that others read.
func (t *tally) counters() Counters {
	c := Counters{Drops: t.drops, SentOpcodes: t.sent, ReceivedOpcodes: t.received}
	for k, n := range t.counts {
		*counterTable[k].field(&c) = n
	}
	return c
}

// count counts one for the QP and for its engine.
func (q *QP) count(k counter) { q.countMany(k, 1) }

func (q *QP) countMany(k counter, n uint64) {
	q.tally.counts[k] += n
	q.engine.tally.counts[k] += n
}

// drop counts a packet that is of no use, and says so in the verdict on it.
func (q *QP) drop(reason roce.DropReason) {
	q.tally.drops[reason]++
	q.engine.tally.drops[reason]++
	q.engine.verdict.Dropped = reason
}

// countSent counts a frame that was written.
func (q *QP) countSent(opcode roce.Opcode) {
	q.count(sentPackets)
	q.tally.sent[opcode&opcodeMask]++
	q.engine.tally.sent[opcode&opcodeMask]++
}

// countReceived counts a packet that has reached the QP.
func (q *QP) countReceived(p *roce.Packet) {
	q.count(receivedPackets)
	q.countMany(receivedBytes, uint64(p.PayloadLength))
	if p.ChecksumWrong {
		q.count(checksumsIgnored)
	}
}

// countAdmitted counts a packet that has passed the checks of admit.
func (q *QP) countAdmitted(opcode roce.Opcode) {
	q.tally.received[opcode&opcodeMask]++
	q.engine.tally.received[opcode&opcodeMask]++
}

// counterTable has the name of each counter, that of Linux where one exists, and its field.
var counterTable = [counterKinds]struct {
	name  string
	field func(*Counters) *uint64
}{
	sentPackets:        {"sent_pkts", func(c *Counters) *uint64 { return &c.SentPackets }},
	receivedPackets:    {"rcvd_pkts", func(c *Counters) *uint64 { return &c.ReceivedPackets }},
	sentBytes:          {"sent_bytes", func(c *Counters) *uint64 { return &c.SentBytes }},
	receivedBytes:      {"rcvd_bytes", func(c *Counters) *uint64 { return &c.ReceivedBytes }},
	retransmitted:      {"retransmitted_pkts", func(c *Counters) *uint64 { return &c.Retransmitted }},
	recoveries:         {"completer_retry_err", func(c *Counters) *uint64 { return &c.Recoveries }},
	timeouts:           {"local_ack_timeout_err", func(c *Counters) *uint64 { return &c.Timeouts }},
	impliedNAKs:        {"implied_nak_seq_err", func(c *Counters) *uint64 { return &c.ImpliedNAKs }},
	duplicateRequests:  {"duplicate_request", func(c *Counters) *uint64 { return &c.DuplicateRequests }},
	outOfSequence:      {"out_of_seq_request", func(c *Counters) *uint64 { return &c.OutOfSequence }},
	sentSequenceNAKs:   {"send_seq_err", func(c *Counters) *uint64 { return &c.SentSequenceNAKs }},
	receivedNAKs:       {"rcvd_seq_err", func(c *Counters) *uint64 { return &c.ReceivedNAKs }},
	sentRNRNAKs:        {"send_rnr_err", func(c *Counters) *uint64 { return &c.SentRNRNAKs }},
	receivedRNRNAKs:    {"rcvd_rnr_err", func(c *Counters) *uint64 { return &c.ReceivedRNRNAKs }},
	sentFatalNAKs:      {"send_fatal_nak", func(c *Counters) *uint64 { return &c.SentFatalNAKs }},
	retriesExceeded:    {"retry_exceeded_err", func(c *Counters) *uint64 { return &c.RetriesExceeded }},
	rnrRetriesExceeded: {"retry_rnr_exceeded_err", func(c *Counters) *uint64 { return &c.RNRRetriesExceeded }},
	handedOver:         {"handed_over", func(c *Counters) *uint64 { return &c.HandedOver }},
	moves:              {"moves", func(c *Counters) *uint64 { return &c.Moves }},
	completionsDropped: {"dropped_cqe", func(c *Counters) *uint64 { return &c.CompletionsDropped }},
	checksumsIgnored:   {"udp_checksum_ignored", func(c *Counters) *uint64 { return &c.ChecksumsIgnored }},
}

// Named returns the counters by name, those that are zero included, but without drops and opcodes.
func (c *Counters) Named() map[string]uint64 {
	m := make(map[string]uint64, len(counterTable))
	for _, n := range counterTable {
		m[n.name] = *n.field(c)
	}
	return m
}

// Dropped returns how many packets were dropped for which reason, without the reasons that never occurred.
func (c *Counters) Dropped() map[string]uint64 {
	m := make(map[string]uint64)
	for r, n := range c.Drops {
		if n > 0 {
			m[roce.DropReason(r).String()] = n
		}
	}
	return m
}

// Sent returns the packets sent by opcode, without those that never occurred.
func (c *Counters) Sent() map[string]uint64 { return byOpcode(&c.SentOpcodes) }

// Received returns the packets received by opcode, without those that never occurred.
func (c *Counters) Received() map[string]uint64 { return byOpcode(&c.ReceivedOpcodes) }

func byOpcode(counts *[opcodeMask + 1]uint64) map[string]uint64 {
	m := make(map[string]uint64)
	for o, n := range counts {
		if n > 0 {
			m[roce.Opcode(o).String()] = n
		}
	}
	return m
}

// Add adds the counts of o to c.
func (c *Counters) Add(o *Counters) {
	for _, n := range counterTable {
		*n.field(c) += *n.field(o)
	}
	for i := range c.Drops {
		c.Drops[i] += o.Drops[i]
	}
	for i := range c.SentOpcodes {
		c.SentOpcodes[i] += o.SentOpcodes[i]
		c.ReceivedOpcodes[i] += o.ReceivedOpcodes[i]
	}
}
