//go:build linux

package guest

import (
	"fmt"
	"slices"
	"strings"

	"github.com/xroce/xroce/hack/interop/plan"
	"github.com/xroce/xroce/hack/interop/report"
)

// A clean refusal is a result that is all right only where something is missing that is known to be missing there.
// This file says where; any other refusal is a mistake of the end that refuses, which would otherwise hide behind its
// own error.

// expectation is what is known of a refusal before it is seen.
type expectation int

const (
	never expectation = iota
	perhaps
	always
)

// setting is what decides about refusals.
type setting struct {
	kernel string
	nic    string // model; empty is veth
	netMTU int
	rung   plan.Rung // what is asked of xroce
}

func (g *guest) setting() setting {
	nic, _, _ := strings.Cut(g.plan.NIC, ",")
	return setting{g.report.Kernel, nic, g.plan.NetMTU,
		plan.Rung{Mode: g.right.mode, Copy: g.right.copy, MultiBuffer: g.right.multiBuffer}}
}

// refusal is the one list of what may be refused: by an end ("rxe", or one made of xroce) that obeys a verb, on the
// way to a connection with the terms.
//
// Zero copy is the driver's: veth has none, nor has any driver under a generic program. virtio_net and igb of Linux
// 6.12 bind no zero copy, and those of 7.3 do (docs/interop.md). AF_XDP has multi-buffer since Linux 6.6; without it
// path MTU 4096 does not fit a frame. Few drivers combine it with zero copy, so xroce does not ask NICs for it by
// itself. rdma_rxe has atomic write and FLUSH since Linux 6.2.
func (s setting) refusal(end, verb string, t terms) expectation {
	noMultiBuffer := !atLeast(s.kernel, "Linux 6.6")
	nicIsKnown := s.nic == "virtio" || s.nic == "igb"
	switch {
	case end == plan.Rxe:
		if verb == "create" && t.special != "" && !atLeast(s.kernel, "Linux 6.2") {
			return always
		}
	case verb == "open":
		zero := s.rung.Copy == "zero"
		switch {
		case zero && (s.nic == "" || s.rung.Mode == "generic"), zero && nicIsKnown && !atLeast(s.kernel, "Linux 6.13"),
			s.rung.MultiBuffer == "on" && noMultiBuffer:
			return always
		case zero && (s.rung.MultiBuffer == "on" || !nicIsKnown || !atLeast(s.kernel, "Linux 7.3")):
			return perhaps
		}
	case verb == "connect" && t.mtu > largestMTU(s.netMTU, true):
		return always
	case verb == "connect" && t.mtu > largestMTU(s.netMTU, false):
		switch {
		case noMultiBuffer || s.rung.MultiBuffer == "off":
			return always
		case s.nic != "":
			return perhaps
		}
	}
	return never
}

// largestMTU is the largest path MTU over network devices with the MTU.
func largestMTU(netMTU int, multiBuffer bool) int {
	const overhead = 96 // of what has to go with it, by the rule of iboe_get_mtu (include/rdma/ib_addr.h)
	best := 0
	for _, m := range plan.MTUs {
		if m+overhead <= netMTU && (multiBuffer || m <= 2048) {
			best = m
		}
	}
	return best
}

// permitted turns a refusal that nothing permits into a failure, and returns any other error as it is.
func (s setting) permitted(err error, t terms) error {
	if said, ok := sole[*endError](err); ok && said.refused && s.refusal(said.end, said.verb, t) == never {
		return fmt.Errorf("should not be refused: %v", err)
	}
	return err
}

// sole finds an error of the type in err if that says nothing else: of two errors that are joined neither excuses the
// other.
func sole[T error](err error) (found T, ok bool) {
	for err != nil {
		if found, ok = err.(T); ok {
			return found, true
		}
		switch x := err.(type) {
		case interface{ Unwrap() error }:
			err = x.Unwrap()
		case interface{ Unwrap() []error }:
			all := slices.DeleteFunc(slices.Clone(x.Unwrap()), func(e error) bool { return e == nil })
			if len(all) != 1 {
				return found, false
			}
			err = all[0]
		default:
			return found, false
		}
	}
	return found, false
}

// conclude is what became of a run: cleaned is what went wrong when it was over, with both ends.
func conclude(err, cleaned error) (outcome, detail string) {
	outcome = report.Works
	if err != nil {
		outcome, detail = outcomeOf(err), err.Error()
	}
	if cleaned != nil {
		outcome = report.Fails
		if detail != "" {
			detail += "; "
		}
		detail += "afterwards: " + cleaned.Error()
	}
	return outcome, detail
}

// outcomeOf is refused or rxe's fault if the error is that and nothing else.
func outcomeOf(err error) string {
	if said, ok := sole[*endError](err); ok && said.refused {
		return report.Refused
	}
	if _, ok := sole[*rxeFault](err); ok {
		return report.RxeFault
	}
	return report.Fails
}
