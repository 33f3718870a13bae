//go:build linux

package main

import (
	"errors"
	"fmt"
)

// Opcodes that may carry a NAK to an atomic, and what it says.
const (
	acknowledge       = 0x11
	atomicAcknowledge = 0x12
	nakRemoteAccess   = 0x62
)

var answerNames = map[byte]string{acknowledge: "Acknowledge (0x11)", atomicAcknowledge: "Atomic Acknowledge (0x12)"}

// atomicNAK has an atomic refused, and looks at what it was refused by.
func (g *guest) atomicNAK(f faultCase, requester string) error {
	e, responder := g.left, byte(macV1)
	if requester == g.right.name {
		e, responder = g.right, macV0
	}
	if err := g.provoke(f, e); err != nil {
		return err
	}
	packets, err := g.captured(true)
	if err != nil {
		return err
	}
	asked := map[uint32]bool{}
	for _, d := range packets {
		switch {
		case d.sender != responder && (d.opcode == 0x13 || d.opcode == 0x14):
			asked[d.psn] = true
		case d.sender == responder && asked[d.psn] && d.body[0] == nakRemoteAccess:
			name, known := answerNames[d.opcode]
			// IBTA section 9.7.5.2: xroce sends a NAK by a plain acknowledgement whatever was asked for.
			if !known || responder == macV1 && d.opcode != acknowledge {
				return fmt.Errorf("%s sends the NAK by opcode %#02x", g.sender(responder), d.opcode)
			}
			who := "xroce"
			if responder == macV0 {
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
	e, silent, silentMAC := g.right, g.left, byte(macV0)
	if requester == g.left.name {
		e, silent, silentMAC = g.left, g.right, macV1
	}
	var remote, local endpoint
	t := terms{mtu: 1024, family: 4, length: faultLength, access: allAccess}
	for e, into := range map[*end]*endpoint{silent: &remote, e: &local} {
		a, err := e.do(command{Do: "create", Address: e.address[t.family], Length: t.length, Access: t.access})
		if err != nil {
			return err
		}
		*into = *a.Endpoint
	}
	all := []piece{{0, requesterFrom, faultLength}}
	err := do(
		step{e, command{Do: "connect", Remote: &remote, MTU: t.mtu, Retry: 7, RNRRetry: 7}},
		step{e, command{Do: "fill", Pieces: all}},
		step{e, command{Do: "post", Requests: []request{{Operation: operation, Length: 8, Addr: remote.Addr, RKey: remote.RKey}}}},
	)
	if err != nil {
		return err
	}
	f := forged{toRxe: e == g.left, family: 4, opcode: opcode, qpn: local.QPN, psn: local.PSN, headers: []byte{nakRemoteAccess, 0, 0, 0}}
	if opcode == atomicAcknowledge {
		f.headers = append(f.headers, 1, 2, 3, 4, 5, 6, 7, 8) // the word as it was, which must not count
	}
	if err := f.send(); err != nil {
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
		if d.sender == silentMAC {
			return fmt.Errorf("%s answers with opcode %#02x what it should not", g.sender(silentMAC), d.opcode)
		}
	}
	got := a.Completions[0].Status
	if got == 0 && e == g.left && opcode == atomicAcknowledge {
		return &rxeFault{"rdma_rxe completes an atomic with success that is refused in " + answerNames[opcode] +
			": its check_ack returns an error without a status (drivers/infiniband/sw/rxe/rxe_comp.c), about which the kernel warns"}
	}
	if got != 10 {
		return fmt.Errorf("%s: %s instead of %s", e.name, statusNames[got], statusNames[10])
	}
	return do(step{e, command{Do: "check", Pieces: all}})
}
