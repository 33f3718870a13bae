//go:build linux

package guest

import (
	"errors"
	"fmt"

	"github.com/xroce/xroce/hack/interop/plan"
	"github.com/xroce/xroce/hack/interop/wire"
)

// atomicNAK has an atomic refused, and looks at what it was refused by.
func (g *guest) atomicNAK(f plan.Fault) error {
	responder := byte(wire.MACV1)
	if f.Requester == g.right.name {
		responder = wire.MACV0
	}
	if err := g.provoke(f); err != nil {
		return err
	}
	packets, err := g.captured(true)
	if err != nil {
		return err
	}
	asked := map[uint32]bool{}
	for _, d := range packets {
		switch {
		case d.Sender != responder && (d.Opcode == wire.CompareSwap || d.Opcode == wire.FetchAdd):
			asked[d.PSN] = true
		case d.Sender == responder && asked[d.PSN] && d.Body[0] == wire.NAKRemoteAccess:
			name, known := wire.AnswerNames[d.Opcode]
			// IBTA section 9.7.5.2: xroce sends a NAK by a plain acknowledgement whatever was asked for.
			if !known || responder == wire.MACV1 && d.Opcode != wire.Acknowledge {
				return fmt.Errorf("%s sends the NAK by opcode %#02x", g.sender(responder), d.Opcode)
			}
			who := "xroce"
			if responder == wire.MACV0 {
				who = "rdma_rxe"
			}
			g.note = fmt.Sprintf("%s sends the NAK to an atomic in %s", who, name)
			return nil
		}
	}
	return errors.New("the capture has no NAK")
}

// forgedNAK answers an atomic in the place of the other end, whose queue pair is not connected and so says nothing.
func (g *guest) forgedNAK(operation, requester string, opcode byte) error {
	e, silent, silentMAC := g.right, g.left, byte(wire.MACV0)
	if requester == g.left.name {
		e, silent, silentMAC = g.left, g.right, wire.MACV1
	}
	var remote, local endpoint
	t := terms{mtu: 1024, family: 4, length: plan.FaultLength, access: allAccess}
	for e, into := range map[*end]*endpoint{silent: &remote, e: &local} {
		a, err := e.do(command{Do: "create", Address: e.address[t.family], Length: t.length, Access: t.access})
		if err != nil {
			return err
		}
		*into = *a.Endpoint
	}
	all := []piece{{0, requesterFrom, plan.FaultLength}}
	err := do(
		step{e, command{Do: "connect", Remote: &remote, MTU: t.mtu, Retry: 7, RNRRetry: 7}},
		step{e, command{Do: "fill", Pieces: all}},
		step{e, command{Do: "post", Requests: []request{{Operation: operation, Length: 8, Addr: remote.Addr, RKey: remote.RKey}}}},
	)
	if err != nil {
		return err
	}
	f := wire.Forged{ToRxe: e == g.left, Family: 4, Opcode: opcode, QPN: local.QPN, PSN: local.PSN,
		Headers: []byte{wire.NAKRemoteAccess, 0, 0, 0}}
	if opcode == wire.AtomicAcknowledge {
		f.Headers = append(f.Headers, 1, 2, 3, 4, 5, 6, 7, 8) // the word as it was, which must not count
	}
	if err := f.Send(); err != nil {
		return err
	}
	a, err := e.do(command{Do: "wait", Count: 1, Seconds: 20})
	if err != nil {
		return err
	}
	packets, err := g.captured(false)
	if err != nil {
		return err
	}
	for _, d := range packets {
		if d.Sender == silentMAC {
			return fmt.Errorf("%s answers with opcode %#02x what it should not", g.sender(silentMAC), d.Opcode)
		}
	}
	got := a.Completions[0].Status
	if got == plan.StatusSuccess && e == g.left && opcode == wire.AtomicAcknowledge {
		return &rxeFault{"rdma_rxe completes an atomic with success that is refused in " + wire.AnswerNames[opcode] +
			": its check_ack returns an error without a status (drivers/infiniband/sw/rxe/rxe_comp.c), about which the kernel warns"}
	}
	if got != plan.StatusRemAccessErr {
		return fmt.Errorf("%s: %s instead of %s", e.name, plan.StatusNames[got], plan.StatusNames[plan.StatusRemAccessErr])
	}
	return do(step{e, command{Do: "check", Pieces: all}})
}
