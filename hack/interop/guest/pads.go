//go:build linux

package guest

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/xroce/xroce/hack/interop/plan"
	"github.com/xroce/xroce/hack/interop/wire"
)

var padSizes = []int{1, 2, 3, 4, 5, 6, 7, 8, 33, 1023, 1025, 4095}

// padded sends a message of each size. The guards before and behind each show a pad that is written.
func (g *guest) padded(operation, requester string, mtu int) error {
	length, at := guard, []int(nil)
	for _, size := range padSizes {
		at = append(at, length)
		length += size + guard
	}
	p, err := g.connect(requester, terms{mtu: mtu, family: 4, length: length, access: allAccess, retry: 7, rnrRetry: 7})
	if err != nil {
		return err
	}
	var requests []request
	var receives []slot
	// What is where in the region that the messages arrive in.
	from, source := responderFrom, requesterFrom
	if operation == plan.Read {
		from, source = source, from
	}
	arrived := []piece{{0, from, guard}}
	for i, size := range padSizes {
		requests = append(requests, request{
			Operation: operation, At: at[i], Length: size, Addr: p.remote.Addr + uint64(at[i]), RKey: p.remote.RKey,
		})
		receives = append(receives, slot{at[i], size + 16})
		arrived = append(arrived, piece{at[i], source + at[i], size}, piece{at[i] + size, from + at[i] + size, guard})
	}
	mine, theirs := []piece{{0, requesterFrom, length}}, []piece{{0, responderFrom, length}}
	steps := []step{{p.requester, command{Do: "fill", Pieces: mine}}, {p.responder, command{Do: "fill", Pieces: theirs}}}
	if operation == plan.Send {
		steps = append(steps, step{p.responder, command{Do: "receive", Slots: receives}})
	}
	if err := do(append(steps, step{p.requester, command{Do: "post", Requests: requests}})...); err != nil {
		return err
	}
	// Wrong packets are the reason of what else goes wrong.
	failed := p.succeed(len(requests))
	if failed == nil && operation == plan.Send {
		a, err := p.responder.do(command{Do: "wait", Count: len(requests), Seconds: patience})
		failed = err
		for i, got := range a.Completions {
			if want := (completion{Receive: true, Place: i, Length: padSizes[i]}); got != want {
				failed = fmt.Errorf("%s: completion %+v instead of %+v", p.responder.name, got, want)
			}
		}
	}
	packets, err := g.captured(true)
	if err = errors.Join(err, failed); err != nil {
		return err
	}
	if theirs = arrived; operation == plan.Read {
		mine, theirs = arrived, []piece{{0, responderFrom, length}}
	}
	err = do(step{p.requester, command{Do: "check", Pieces: mine}}, step{p.responder, command{Do: "check", Pieces: theirs}})
	if err != nil {
		return err
	}
	sender := byte(wire.MACV1)
	if (requester == plan.Rxe) == (operation != plan.Read) {
		sender = wire.MACV0
	}
	return checkPads(packets, sender, operation, mtu)
}

const (
	rethLength = 16
	aethLength = 4
)

// dataOpcodes are those that carry the data of an operation, with the lengths of their extension headers.
var dataOpcodes = map[string]map[byte]int{
	plan.Send:  {wire.SendFirst: 0, wire.SendMiddle: 0, wire.SendLast: 0, wire.SendOnly: 0},
	plan.Write: {wire.WriteFirst: rethLength, wire.WriteMiddle: 0, wire.WriteLast: 0, wire.WriteOnly: rethLength},
	plan.Read:  {wire.ReadFirst: aethLength, wire.ReadMiddle: 0, wire.ReadLast: aethLength, wire.ReadResponseOnly: aethLength},
}

// checkPads follows the messages packet by packet.
func checkPads(packets []wire.Packet, sender byte, operation string, mtu int) error {
	left := slices.Clone(padSizes)
	seen := map[uint32]bool{}
	for _, d := range packets {
		headers, data := dataOpcodes[operation][d.Opcode]
		if !data || d.Sender != sender {
			if d.Pad != 0 {
				return fmt.Errorf("opcode %#02x, PSN %#06x has no payload but a pad of %d bytes", d.Opcode, d.PSN, d.Pad)
			}
			continue
		}
		if seen[d.PSN] {
			continue // sent again
		}
		seen[d.PSN] = true
		if len(left) == 0 {
			return fmt.Errorf("opcode %#02x, PSN %#06x belongs to no message", d.Opcode, d.PSN)
		}
		want := min(mtu, left[0])
		pad := (4 - want%4) % 4
		if d.Pad != pad || len(d.Body) != headers+want+pad {
			return fmt.Errorf("opcode %#02x, PSN %#06x: pad count %d and %d bytes of payload and pad instead of %d and %d", d.Opcode, d.PSN, d.Pad,
				len(d.Body)-headers, pad, want+pad)
		}
		if left[0] -= want; left[0] == 0 {
			left = left[1:]
		}
	}
	if len(left) > 0 {
		return fmt.Errorf("the capture lacks %d messages", len(left))
	}
	return nil
}

// padNotCovered sends xroce a packet whose ICRC leaves out the pad, and then the same one with the right ICRC.
func (g *guest) padNotCovered(operation string, family int) error {
	const size = 33
	p, err := g.connect(g.left.name, terms{mtu: 1024, family: family, length: plan.FaultLength, access: allAccess, retry: 7, rnrRetry: 7})
	if err != nil {
		return err
	}
	untouched := step{g.right, command{Do: "check", Pieces: []piece{{0, responderFrom, plan.FaultLength}}}}
	err = do(
		step{g.right, command{Do: "fill", Pieces: untouched.command.Pieces}},
		step{g.right, command{Do: "receive", Slots: []slot{{guard, size + 16}}}},
	)
	if err != nil {
		return err
	}
	payload, err := patternAt(requesterFrom, size)
	if err != nil {
		return err
	}
	f := wire.Forged{Family: family, Opcode: wire.SendOnly, QPN: p.remote.QPN, PSN: p.local.PSN, AckRequest: true, Payload: payload}
	if operation == plan.Write {
		f.Opcode = wire.WriteOnly
		f.Headers = binary.BigEndian.AppendUint64(nil, p.remote.Addr+guard)
		f.Headers = binary.BigEndian.AppendUint32(f.Headers, p.remote.RKey)
		f.Headers = binary.BigEndian.AppendUint32(f.Headers, size)
	}
	bad := f
	bad.WithoutPad = true
	if err := g.dropped(bad); err != nil {
		return err
	}
	if err := do(untouched); err != nil {
		return err
	}
	if err := f.Send(); err != nil {
		return err
	}
	if operation == plan.Send {
		a, err := g.right.do(command{Do: "wait", Count: 1, Seconds: 5})
		if err != nil {
			return err
		}
		if got, want := a.Completions[0], (completion{Receive: true, Length: size}); got != want {
			return fmt.Errorf("completion %+v instead of %+v", got, want)
		}
	}
	if _, err := g.answerTo(wire.MACV1, wire.Acknowledge, f.PSN); err != nil {
		return err
	}
	return do(step{g.right, command{Do: "check", Pieces: []piece{
		{0, responderFrom, guard}, {guard, requesterFrom, size}, {guard + size, responderFrom + guard + size, plan.FaultLength - guard - size},
	}}})
}

// dropped sends xroce a packet with a wrong ICRC, which it must count, and must not answer.
func (g *guest) dropped(bad wire.Forged) error {
	counters := func() (icrc, received uint64, err error) {
		a, err := g.right.do(command{Do: "counters"})
		return a.Counters["icrc_bad"], a.Counters["received"], err
	}
	icrc, received, err := counters()
	if err != nil {
		return err
	}
	if err := bad.Send(); err != nil {
		return err
	}
	for begin := time.Now(); ; time.Sleep(10 * time.Millisecond) {
		icrcNow, now, err := counters()
		if err != nil {
			return err
		}
		if now > received {
			if icrcNow != icrc+1 {
				return fmt.Errorf("icrc_bad is %d instead of %d", icrcNow, icrc+1)
			}
			break
		}
		if time.Since(begin) > 5*time.Second {
			return errors.New("xroce has not received the packet")
		}
	}
	time.Sleep(50 * time.Millisecond) // an answer would be on its way
	packets, err := g.packetsSoFar()
	if err != nil {
		return err
	}
	if len(packets) != 1 || packets[0].Sender != wire.MACForged || wire.InvariantCRC(packets[0].Covered) == packets[0].ICRC {
		return fmt.Errorf("the capture has %d packets instead of the one with the wrong ICRC", len(packets))
	}
	return nil
}

// answerTo waits for the answer of an end to the PSN: a packet of that opcode which says that all is well, and no
// more than that.
func (g *guest) answerTo(sender, opcode byte, psn uint32) (d wire.Packet, err error) {
	for begin := time.Now(); time.Since(begin) < 5*time.Second; {
		packets, err := g.packetsSoFar()
		if err != nil {
			return d, err
		}
		for _, d := range packets {
			if d.Sender == sender && d.PSN == psn {
				if d.Opcode != opcode || len(d.Body) != aethLength || d.Body[0]>>5 != 0 || d.ICRC != wire.InvariantCRC(d.Covered) {
					return d, fmt.Errorf("%s answers with opcode %#02x, %x behind the BTH, ICRC %#08x", g.sender(sender), d.Opcode, d.Body, d.ICRC)
				}
				return d, nil
			}
		}
	}
	return d, fmt.Errorf("%s does not answer the packet with the right ICRC", g.sender(sender))
}
