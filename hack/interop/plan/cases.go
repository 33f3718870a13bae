//go:build linux

package plan

import (
	"fmt"
	"strings"

	"github.com/xroce/xroce/hack/interop/wire"
)

// Kinds of cases. A case is an experiment whose right result is known from what users of software RDMA ran into, by
// the ID of docs/cases.md. Those here are about what only the wire shows: each looks into its own capture.
const (
	Padded        = "padded"          // A1: messages whose last packet has a pad
	PadNotCovered = "pad not covered" // A1: a forged packet whose ICRC leaves out the pad
	RefusedAtomic = "refused atomic"  // A19: by which opcode an atomic is refused
	ForgedNAK     = "forged NAK"      // A19: an atomic is refused by a forged packet
)

// Case is one case.
type Case struct {
	Kind      string `json:"kind"`
	Operation string `json:"operation"`
	Requester string `json:"requester,omitempty"` // the name of the end that posts it
	MTU       int    `json:"mtu,omitempty"`
	Family    int    `json:"family,omitempty"`
	Opcode    byte   `json:"opcode,omitempty"` // of the forged NAK
	// Fault is what is wrong with the atomic that is refused.
	Fault *Fault `json:"fault,omitempty"`
}

func (c Case) String() string {
	switch c.Kind {
	case Padded:
		return fmt.Sprintf("A1 %s by %s, MTU %d", c.Operation, c.Requester, c.MTU)
	case PadNotCovered:
		return fmt.Sprintf("A1 %s with an ICRC that leaves out the pad, IPv%d", c.Operation, c.Family)
	case RefusedAtomic:
		return "A19 " + c.Fault.String()
	default:
		return fmt.Sprintf("A19 %s by %s, NAK in %s", c.Operation, c.Requester, wire.AnswerNames[c.Opcode])
	}
}

// CaseAbout says what the cases of an ID show.
var CaseAbout = []struct{ ID, About string }{
	{"A1", "Messages of 1 to 8, 33, 1023, 1025 and 4095 bytes, of each operation in one row, arrive with the bytes around them as they were, and have, by the " +
		"capture, the pad that makes each packet a multiple of four bytes long. The ICRC of every packet of both ends covers the pad, by a computation that shares " +
		"nothing with xroce. A packet whose ICRC leaves out the pad is dropped by xroce, counted as `icrc_bad` and not answered; the same one with the right ICRC is " +
		"executed."},
	{"A19", "Which opcode carries a NAK to an atomic is disputed: Acknowledge (0x11) or Atomic Acknowledge (0x12). The capture shows what each " +
		"responder sends; its requester completes with REM_ACCESS_ERR. Then an atomic that the other end does not answer gets a forged NAK in either form: xroce takes " +
		"both for what they are."},
	{"G7", "Whose mistake it is when a kernel's rdma_rxe and xroce do not understand each other any more. Every packet of the transfers and faults above but FLUSH, and of " +
		"the cases that compare captures, goes through that computation, and a wrong ICRC fails the cell with the name of the sender. The capture of the " +
		"first small cell without loss of each operation and requester is kept in `bin/interop-results/veth-rxe/KERNEL/captures`, also when all is well. What is " +
		"listed below is how many packets there were."},
}

// allCases are all cases. They are about rdma_rxe at the left.
func allCases() (cases []Case) {
	requesters := []string{Xroce, Rxe}
	for _, mtu := range []int{1024, 4096} {
		for _, operation := range []string{Send, Write, Read} {
			for _, requester := range requesters {
				cases = append(cases, Case{Kind: Padded, Operation: operation, Requester: requester, MTU: mtu})
			}
		}
	}
	for _, operation := range []string{Send, Write} {
		for _, family := range families {
			cases = append(cases, Case{Kind: PadNotCovered, Operation: operation, Family: family})
		}
	}
	for _, fault := range accessFaults(FetchAdd) {
		what := strings.TrimPrefix(fault.Name, FetchAdd)
		for _, operation := range []string{FetchAdd, CompareSwap} {
			for _, requester := range requesters {
				f := fault
				f.Name, f.Operation, f.Requester = operation+what, operation, requester
				cases = append(cases, Case{Kind: RefusedAtomic, Operation: operation, Requester: requester, Fault: &f})
			}
		}
	}
	for _, operation := range []string{CompareSwap, FetchAdd} {
		for _, opcode := range []byte{wire.Acknowledge, wire.AtomicAcknowledge} {
			for _, requester := range requesters {
				cases = append(cases, Case{Kind: ForgedNAK, Operation: operation, Requester: requester, Opcode: opcode})
			}
		}
	}
	return cases
}
