//go:build linux

package main

import (
	"fmt"

	"github.com/xroce/xroce/roce"
)

// stuckError is a game that was not over in time.
type stuckError struct {
	stockRun
	said string
}

func (e *stuckError) Error() string { return fmt.Sprintf("not over after %v: %s", stockLimit, e.said) }

// blame looks into the capture for a game that rdma_rxe does not go on with. The stock programs' ACK timeout, 67 ms, can be over in an
// emulated machine with other work, and rdma_rxe then sends a message again of which the ACK comes meanwhile. On Linux 7.3 it was seen to
// send nothing for two minutes after that, not even again what it would have had to if the ACK were lost to it. Why is not known.
// Without this pattern in the capture the error stays what it is.
func (e *stuckError) blame(packets []packet) error {
	v0, v1 := sides(packets)
	turn := v0.messages == v1.messages // the client begins
	if e.server {
		turn = v1.messages == v0.messages+1
	}
	if turn && v0.again > 0 && v0.acknowledged() && v1.acknowledged() {
		return &rxeFault{fmt.Sprintf("rdma_rxe does not go on after it has sent %d packets again that were acknowledged: in the capture every message "+
			"of both ends is acknowledged, and the next one would be its own", v0.again)}
	}
	return e
}

// side is what a capture shows of the SENDs of one end.
type side struct {
	any         bool
	sent, acked roce.PSN // the highest ones
	messages    int      // sent to their ends
	again       int      // packets sent again after their acknowledgement
}

func (s *side) acknowledged() bool { return s.any && s.sent == s.acked }

func sides(packets []packet) (v0, v1 side) {
	both := map[byte]*side{1: &v0, 2: &v1}
	for _, p := range packets {
		mine, other, psn := both[p.source], both[3-p.source], roce.PSN(p.psn)
		if mine == nil || other == nil {
			continue
		}
		switch p.opcode {
		case roce.RCSendFirst, roce.RCSendMiddle, roce.RCSendLast, roce.RCSendOnly:
			if !mine.any {
				mine.any, mine.acked, mine.sent = true, psn.Sub(1), psn.Sub(1)
			}
			switch {
			case psn.After(mine.sent):
				mine.sent = psn
				if p.opcode == roce.RCSendLast || p.opcode == roce.RCSendOnly {
					mine.messages++
				}
			case !psn.After(mine.acked):
				mine.again++
			}
		case roce.RCAcknowledge:
			// The three upper bits of the syndrome are 0 for an ACK (IBTA volume 1, section 9.7.5.2.1).
			if other.any && p.rest[0]>>5 == 0 && psn.After(other.acked) {
				other.acked = psn
			}
		}
	}
	return v0, v1
}
