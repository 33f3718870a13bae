package transport

import "github.com/xroce/xroce/roce"

// Counters count what the QPs of an engine did. Fields that Linux's drivers have too bear the name of the
// hardware counter in their comment (drivers/infiniband/sw/rxe/rxe_hw_counters.c).
type Counters struct {
	SentPackets     uint64 // sent_pkts
	ReceivedPackets uint64 // rcvd_pkts: packets that reached a QP
	SentBytes       uint64 // payload
	ReceivedBytes   uint64 // payload

	Retransmitted      uint64 // request packets sent again
	Recoveries         uint64 // completer_retry_err: times that a QP went back to resend, timeouts included
	Timeouts           uint64 // ACK timeouts that fired
	ImpliedNAKs        uint64 // acknowledgements that jumped over an unanswered READ
	DuplicateRequests  uint64 // duplicate_request
	OutOfSequence      uint64 // out_of_seq_request
	SentSequenceNAKs   uint64 // NAKs 0x60 sent
	ReceivedNAKs       uint64 // rcvd_seq_err: NAKs 0x60 received
	SentRNRNAKs        uint64 // send_rnr_err
	ReceivedRNRNAKs    uint64 // rcvd_rnr_err
	SentFatalNAKs      uint64 // NAKs 0x61 to 0x63 sent
	RetriesExceeded    uint64 // retry_exceeded_err
	RNRRetriesExceeded uint64 // retry_rnr_exceeded_err
	HandedOver         uint64 // packets that came in on another shard's queue
	CompletionsDropped uint64 // completions that found their CQ full: the QP failed
	Drops              [roce.DropReasons]uint64
}

// Add adds the counts of o to c.
func (c *Counters) Add(o *Counters) {
	c.SentPackets += o.SentPackets
	c.ReceivedPackets += o.ReceivedPackets
	c.SentBytes += o.SentBytes
	c.ReceivedBytes += o.ReceivedBytes
	c.Retransmitted += o.Retransmitted
	c.Recoveries += o.Recoveries
	c.Timeouts += o.Timeouts
	c.ImpliedNAKs += o.ImpliedNAKs
	c.DuplicateRequests += o.DuplicateRequests
	c.OutOfSequence += o.OutOfSequence
	c.SentSequenceNAKs += o.SentSequenceNAKs
	c.ReceivedNAKs += o.ReceivedNAKs
	c.SentRNRNAKs += o.SentRNRNAKs
	c.ReceivedRNRNAKs += o.ReceivedRNRNAKs
	c.SentFatalNAKs += o.SentFatalNAKs
	c.RetriesExceeded += o.RetriesExceeded
	c.RNRRetriesExceeded += o.RNRRetriesExceeded
	c.HandedOver += o.HandedOver
	c.CompletionsDropped += o.CompletionsDropped
	for i := range c.Drops {
		c.Drops[i] += o.Drops[i]
	}
}
