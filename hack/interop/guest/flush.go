//go:build linux

package guest

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/xroce/xroce/hack/interop/plan"
	"github.com/xroce/xroce/hack/interop/wire"
	"github.com/xroce/xroce/internal/netns"
)

// rdma_rxe and xroce disagree about the ICRC of a FLUSH, so neither answers that of the other. That it is nothing
// else takes evidence, or a mistake of xroce in any other part of a FLUSH would look the same. This file finds it:
// the ICRC of each captured packet is computed by the specification and as rdma_rxe does it, and the very packet that
// was not answered is sent again with the ICRC that its responder goes by, and nothing else changed. Then it is
// answered.

// provokeFlush has a FLUSH posted by an end, which is answered like a READ without payload (IBTA annex A19).
func (g *guest) provokeFlush(requester *end) error {
	access := append([]string{"flush"}, allAccess...)
	p, err := g.connect(requester.name, terms{
		mtu: 1024, family: 4, length: plan.FaultLength, access: access, special: plan.Flush, retry: 2, rnrRetry: 7,
	})
	if err != nil {
		return err
	}
	before, err := g.right.do(command{Do: "counters"})
	if err != nil {
		return err
	}
	r := request{Operation: plan.Flush, Length: 100, Addr: p.remote.Addr, RKey: p.remote.RKey}
	if err := do(step{p.requester, command{Do: "post", Requests: []request{r}}}); err != nil {
		return err
	}
	seen, err := p.requester.do(command{Do: "wait", Count: 1, Seconds: 20})
	if err != nil {
		return err
	}
	after, err := g.right.do(command{Do: "counters"})
	if err != nil {
		return err
	}
	packets, err := g.packetsSoFar()
	if err != nil {
		return err
	}
	requests, twice, err := g.flushes(packets, requester == g.right)
	status, bad := seen.Completions[0].Status, after.Counters["icrc_bad"]-before.Counters["icrc_bad"]
	switch {
	case err != nil:
		return err
	case status == 0 && twice == 0 && bad == 0:
		return nil
	case status != plan.StatusRetryExcErr:
		return fmt.Errorf("%s, %d of %d requests of FLUSH with the headers twice in their ICRC, icrc_bad %d",
			plan.StatusNames[status], twice, len(requests), bad)
	}
	const how = "it computes the ICRC of a FLUSH over the 32 bytes of transport headers twice, since its opcode table " +
		"(drivers/infiniband/sw/rxe/rxe_opcode.c) gives FLUSH no offset of the payload"
	// rdma_rxe sends it again with address 0 in its RETH, as it does with atomic writes, so the first one is what is
	// asked for.
	first := requests[0]
	if requester == g.right {
		if err := g.resend(first, first.HeadersTwice()); err != nil {
			return err
		}
		if _, err := g.answerTo(wire.MACV0, wire.ReadResponseOnly, first.PSN); err != nil {
			return fmt.Errorf("with the headers twice in the ICRC: %w", err)
		}
		return &rxeFault{fmt.Sprintf("rdma_rxe drops FLUSH without an answer: %s. Each of %d requests has the right ICRC; the same one with "+
			"that of rdma_rxe is answered", how, len(requests))}
	}
	if twice != len(requests) || bad != uint64(twice) {
		return fmt.Errorf("%d of %d requests of rdma_rxe's FLUSH have the headers twice in their ICRC, and xroce has dropped %d (icrc_bad)", twice, len(requests), bad)
	}
	if err := g.resend(first, wire.InvariantCRC(first.Covered)); err != nil {
		return err
	}
	if _, err := g.answerTo(wire.MACV1, wire.ReadResponseOnly, first.PSN); err != nil {
		return err
	}
	return &rxeFault{fmt.Sprintf("rdma_rxe sends FLUSH with a wrong ICRC: %s, in each of %d requests, which xroce counts as icrc_bad. The same one with the "+
		"right ICRC is answered", how, twice)}
}

// flushes are the requests of a FLUSH, and how many of them have their headers twice in the ICRC. Every other packet,
// and every one of xroce, must have the right one, and a request that xroce sends again must be the same.
func (g *guest) flushes(packets []wire.Packet, byXroce bool) (requests []wire.Packet, twice int, err error) {
	requester := byte(wire.MACV0)
	if byXroce {
		requester = wire.MACV1
	}
	for _, d := range packets {
		isRequest := d.Sender == requester && d.Opcode == wire.FlushOpcode
		if isRequest {
			requests = append(requests, d)
		}
		switch {
		case isRequest && byXroce && (d.QPN != requests[0].QPN || d.PSN != requests[0].PSN || !bytes.Equal(d.Body, requests[0].Body)):
			return nil, 0, fmt.Errorf("xroce sent a FLUSH to QPN %#06x with PSN %#06x and %x behind the BTH, and another time to %#06x with %#06x and %x", requests[0].QPN,
				requests[0].PSN, requests[0].Body, d.QPN, d.PSN, d.Body)
		case d.ICRC == wire.InvariantCRC(d.Covered):
		case isRequest && !byXroce && d.ICRC == d.HeadersTwice():
			twice++
		default:
			return nil, 0, fmt.Errorf("%s sent opcode %#02x, PSN %#06x with ICRC %#08x instead of %#08x, and with the headers twice it would be %#08x", g.sender(d.Sender),
				d.Opcode, d.PSN, d.ICRC, wire.InvariantCRC(d.Covered), d.HeadersTwice())
		}
	}
	if len(requests) == 0 {
		return nil, 0, errors.New("the capture has no FLUSH")
	}
	return requests, twice, nil
}

// resend sends a captured packet of IPv4 once more, in the place of its sender, with another ICRC.
func (g *guest) resend(d wire.Packet, icrc uint32) error {
	packet := binary.LittleEndian.AppendUint32(d.Covered[:len(d.Covered):len(d.Covered)], icrc)
	if d.Sender == wire.MACV0 {
		return wire.SendFrame("v0", wire.Ethernet(4, wire.MACV1, packet))
	}
	n1, err := netns.Open("/run/netns/n1")
	if err != nil {
		return err
	}
	defer n1.Close()
	return n1.Do(func() error { return wire.SendFrame("v1", wire.Ethernet(4, wire.MACV0, packet)) })
}
