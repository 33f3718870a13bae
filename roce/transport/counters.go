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
	// ChecksumsIgnored counts packets that reached a QP with a right ICRC and a UDP checksum that is not (roce.Packet.ChecksumWrong).
	ChecksumsIgnored uint64

	Drops [roce.DropReasons]uint64
	// SentOpcodes and ReceivedOpcodes are packets by the operation of their opcode, its lower five bits; all QPs are RC.
	// Received are those that passed the checks of state, addresses and partition key.
	SentOpcodes     [opcodeMask + 1]uint64
	ReceivedOpcodes [opcodeMask + 1]uint64
}

// opcodeMask takes the operation out of an opcode.
const opcodeMask = 0x1F

// names are the names of the counters, those of Linux where one exists.
var names = [...]struct {
	name string
	of   func(*Counters) *uint64
}{
	{"sent_pkts", func(c *Counters) *uint64 { return &c.SentPackets }},
	{"rcvd_pkts", func(c *Counters) *uint64 { return &c.ReceivedPackets }},
	{"sent_bytes", func(c *Counters) *uint64 { return &c.SentBytes }},
	{"rcvd_bytes", func(c *Counters) *uint64 { return &c.ReceivedBytes }},
	{"retransmitted_pkts", func(c *Counters) *uint64 { return &c.Retransmitted }},
	{"completer_retry_err", func(c *Counters) *uint64 { return &c.Recoveries }},
	{"local_ack_timeout_err", func(c *Counters) *uint64 { return &c.Timeouts }},
	{"implied_nak_seq_err", func(c *Counters) *uint64 { return &c.ImpliedNAKs }},
	{"duplicate_request", func(c *Counters) *uint64 { return &c.DuplicateRequests }},
	{"out_of_seq_request", func(c *Counters) *uint64 { return &c.OutOfSequence }},
	{"send_seq_err", func(c *Counters) *uint64 { return &c.SentSequenceNAKs }},
	{"rcvd_seq_err", func(c *Counters) *uint64 { return &c.ReceivedNAKs }},
	{"send_rnr_err", func(c *Counters) *uint64 { return &c.SentRNRNAKs }},
	{"rcvd_rnr_err", func(c *Counters) *uint64 { return &c.ReceivedRNRNAKs }},
	{"send_fatal_nak", func(c *Counters) *uint64 { return &c.SentFatalNAKs }},
	{"retry_exceeded_err", func(c *Counters) *uint64 { return &c.RetriesExceeded }},
	{"retry_rnr_exceeded_err", func(c *Counters) *uint64 { return &c.RNRRetriesExceeded }},
	{"handed_over", func(c *Counters) *uint64 { return &c.HandedOver }},
	{"moves", func(c *Counters) *uint64 { return &c.Moves }},
	{"dropped_cqe", func(c *Counters) *uint64 { return &c.CompletionsDropped }},
	{"udp_checksum_ignored", func(c *Counters) *uint64 { return &c.ChecksumsIgnored }},
}

// Named returns the counters by name, those that are zero included, but without drops and opcodes.
func (c *Counters) Named() map[string]uint64 {
	m := make(map[string]uint64, len(names))
	for _, n := range names {
		m[n.name] = *n.of(c)
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
	for _, n := range names {
		*n.of(c) += *n.of(o)
	}
	for i := range c.Drops {
		c.Drops[i] += o.Drops[i]
	}
	for i := range c.SentOpcodes {
		c.SentOpcodes[i] += o.SentOpcodes[i]
		c.ReceivedOpcodes[i] += o.ReceivedOpcodes[i]
	}
}
