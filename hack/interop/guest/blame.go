//go:build linux

package guest

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"github.com/xroce/xroce/hack/interop/plan"
	"github.com/xroce/xroce/hack/interop/wire"
)

// rxeFault is an error that is rdma_rxe's, with the evidence.
type rxeFault struct{ evidence string }

func (r *rxeFault) Error() string { return r.evidence }

// blame looks into the capture of a cell that has failed for what rdma_rxe is known to do wrong there. Without
// evidence of that the error stays what it is: it must be the status of a request and nothing else.
func (g *guest) blame(c plan.Cell, err error) error {
	failed, ok := sole[*statusError](err)
	if !ok || g.left.name != plan.Rxe || c.Loss == plan.NoLoss || failed.status != plan.StatusRemAccessErr && failed.status != plan.StatusRetryExcErr {
		return err
	}
	packets, read := wire.ReadPackets()
	if read != nil {
		return errors.Join(err, read)
	}
	switch {
	// The NAK may be lost, too, and xroce sends no other one.
	case c.Operation == plan.AtomicWrite && c.Requester == plan.Rxe && (failed.status == plan.StatusRemAccessErr || c.Loss == plan.Lost):
		if psn, refused := nowhere(packets, g.first); refused {
			return &rxeFault{fmt.Sprintf("rdma_rxe sends an atomic write again with address 0 in its RETH, which is refused: the capture has the request, in "+
				"its turn, and the NAK with its PSN %d", psn)}
		}
	case c.Operation == plan.Read && c.Requester == plan.Xroce && c.Size == 0 && failed.status == plan.StatusRetryExcErr:
		if n := unanswered(packets); n >= 3 {
			return &rxeFault{fmt.Sprintf("rdma_rxe does not answer a READ of 0 bytes that is sent again: the same request (QPN, PSN and RETH) %d times in "+
				"the capture, after the first one or its only response, and none of them has one. Its duplicate_request "+
				"(drivers/infiniband/sw/rxe/rxe_resp.c) compares the rkey with 0, which qp_resp_from_reth has put in its place", n)}
		}
	}
	return err
}

// nowhere is the PSN of an atomic write of rdma_rxe with address 0 that was next in turn at xroce, and that xroce has
// refused with a remote access error. All requests are atomic writes, of one packet each, the first one of them has
// the PSN first. So every one that came in its turn before has been executed, and what xroce makes of those does not
// count.
func nowhere(packets []wire.Packet, first uint32) (psn uint32, refused bool) {
	for next := first; len(packets) > 0; packets = packets[1:] {
		d := packets[0]
		if d.Sender != wire.MACV0 || d.Opcode != wire.AtomicWrite || d.PSN != next {
			continue
		}
		if len(d.Body) < 16 || binary.BigEndian.Uint64(d.Body) != 0 {
			next = (next + 1) & 0xffffff
			continue
		}
		for _, a := range packets[1:] {
			if a.Sender == wire.MACV1 && a.Opcode == wire.Acknowledge && a.PSN == next && bytes.HasPrefix(a.Body, []byte{wire.NAKRemoteAccess}) {
				return next, true
			}
		}
		return 0, false
	}
	return 0, false
}

// unanswered is how often a READ of xroce was asked for again, after the first time or after the last response with
// its PSN. That may come after a second request, while both are on their way. A request that is not the same as the
// first one with its PSN counts for nothing.
func unanswered(packets []wire.Packet) (most int) {
	first, again := map[uint32]wire.Packet{}, map[uint32]int{}
	for _, d := range packets {
		f, asked := first[d.PSN]
		switch {
		case d.Sender == wire.MACV1 && d.Opcode == wire.ReadRequest && !asked:
			first[d.PSN], again[d.PSN] = d, 0
		case d.Sender == wire.MACV1 && d.Opcode == wire.ReadRequest && d.QPN == f.QPN && bytes.Equal(d.Body, f.Body):
			again[d.PSN]++
		case d.Sender == wire.MACV1 && d.Opcode == wire.ReadRequest:
			return 0
		case d.Sender == wire.MACV0 && d.Opcode == wire.ReadResponseOnly:
			again[d.PSN] = 0
		}
	}
	for _, n := range again {
		most = max(most, n)
	}
	return most
}

// checkMSN compares the last message sequence number in the answers of the end at v1 with the number of messages.
// rdma_rxe does not look at it, others do.
func checkMSN(packets []wire.Packet, messages int) error {
	last := uint32(0)
	for _, d := range packets {
		// Those with an AETH: the first, last and only response to a READ, and acknowledgements.
		if d.Sender == wire.MACV1 && slices.Contains([]byte{wire.ReadFirst, wire.ReadLast, wire.ReadResponseOnly, wire.Acknowledge, wire.AtomicAcknowledge}, d.Opcode) && len(d.Body) >= 4 {
			last = binary.BigEndian.Uint32(d.Body) & 0xffffff
		}
	}
	if last != uint32(messages) {
		return fmt.Errorf("the last MSN in the answers of xroce is %d after %d messages", last, messages)
	}
	return nil
}
