//go:build linux

package main

import (
	"bytes"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// Cases are experiments whose right result is known from what users of software RDMA ran into, by the IDs that tests bear, too
// (docs/testing.md). Those here are about what only the wire shows: each looks into its own capture, with the eyes of icrc.go.
type wireCase struct {
	name string
	run  func(g *guest) error
}

// caseAbout says what the cases of an ID show.
var caseAbout = []struct{ id, about string }{
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

func allCases() (cases []wireCase) {
	for _, mtu := range []int{1024, 4096} {
		for _, operation := range []string{opSend, opWrite, opRead} {
			for _, requester := range []string{"xroce", "rxe"} {
				cases = append(cases, wireCase{
					fmt.Sprintf("A1 %s by %s, MTU %d", operation, requester, mtu),
					func(g *guest) error { return g.padded(operation, requester, mtu) },
				})
			}
		}
	}
	for _, operation := range []string{opSend, opWrite} {
		for _, family := range families {
			cases = append(cases, wireCase{
				fmt.Sprintf("A1 %s with an ICRC that leaves out the pad, IPv%d", operation, family),
				func(g *guest) error { return g.padNotCovered(operation, family) },
			})
		}
	}
	for _, f := range faultCases() {
		if !strings.HasPrefix(f.name, opFetchAdd) {
			continue
		}
		for _, operation := range []string{opFetchAdd, opCompareSwap} {
			f := f
			template := f.request
			f.request = func(p pair) request {
				r := template(p)
				r.Operation = operation
				return r
			}
			for _, requester := range []string{"xroce", "rxe"} {
				cases = append(cases, wireCase{
					fmt.Sprintf("A19 %s%s, requester %s", operation, strings.TrimPrefix(f.name, opFetchAdd), requester),
					func(g *guest) error { return g.atomicNAK(f, requester) },
				})
			}
		}
	}
	for _, operation := range []string{opCompareSwap, opFetchAdd} {
		for _, opcode := range []byte{acknowledge, atomicAcknowledge} {
			for _, requester := range []string{"xroce", "rxe"} {
				cases = append(cases, wireCase{
					fmt.Sprintf("A19 %s by %s, NAK in %s", operation, requester, answerNames[opcode]),
					func(g *guest) error { return g.forgedNAK(operation, requester, opcode) },
				})
			}
		}
	}
	return cases
}

// caseNames are those of all cases that contain the text; they are about rdma_rxe.
func caseNames(left, only string) (names []string) {
	if left != "rxe" {
		return nil
	}
	for _, c := range allCases() {
		if strings.Contains(c.name, only) {
			names = append(names, c.name)
		}
	}
	return names
}

// cases runs those of the plan, and sums up what was seen of every cell.
func (g *guest) cases() {
	for _, c := range allCases() {
		if slices.Contains(g.plan.Cases, c.name) {
			g.one("case", c.name, nil, func() error { return c.run(g) })
		}
	}
	for _, sender := range []byte{macV0, macV1} {
		t := g.icrc[sender]
		name := map[byte]string{macV0: "rdma_rxe", macV1: "xroce"}[sender]
		if t == nil || t.packets == 0 {
			if n := g.audited(); n > 0 {
				g.add(result{
					Kind: "case", Name: "G7 every packet of " + name, Outcome: fails,
					Detail: fmt.Sprintf("packets: none in the captures of %d cells", n),
				}, time.Now())
			}
			continue
		}
		r := result{Kind: "case", Name: "G7 every packet of " + name, Outcome: works}
		if r.Detail = fmt.Sprintf("packets: %d in the captures of %d cells, all with the right ICRC", t.packets, t.cells); t.wrong > 0 {
			r.Outcome, r.Detail = fails, fmt.Sprintf("packets: %d in the captures of %d cells, %d of them with a wrong ICRC", t.packets, t.cells, t.wrong)
		}
		g.add(r, time.Now())
	}
}

// audited is how many cells have been run in whose captures both ends must have packets.
func (g *guest) audited() (count int) {
	for _, x := range g.report.Results {
		if x.Kind == "transfer" && x.Outcome != refused && g.left.name == "rxe" {
			count++
		}
	}
	return count
}

// writeCases writes the chapter of the document.
func writeCases(w io.Writer, cases *table) {
	if len(cases.rows) == 0 {
		return
	}
	fmt.Fprint(w, "## Cases\n\nExperiments whose right result is known from what users of software RDMA ran into, by the IDs that tests bear, too "+
		"([testing.md](testing.md)).\n\n")
	for _, c := range caseAbout {
		fmt.Fprintf(w, "- %s: %s\n", c.id, c.about)
	}
	fmt.Fprintln(w)
	cases.write(w, "case")
}

// keepSmall keeps the first small capture of each operation and requester over a network without faults.
func keepSmall(c cell) {
	if c.Loss != losses[0] || c.Size > 1<<16 {
		return
	}
	folder := filepath.Join(results, "captures")
	name := filepath.Join(folder, strings.ReplaceAll(c.Operation, " ", "-")+"-"+c.Requester+".pcap")
	_ = shell("mkdir", "-p", folder)
	_ = shell("cp", "--update=none", captureFile, name)
}

// captured are the packets of the cell that runs, once each of them has the ICRC that it ought to have.
func (g *guest) captured(both bool) (packets []dissected, err error) {
	if err := g.capture.sync(); err != nil {
		return nil, err
	}
	if err := g.audit(both); err != nil {
		return nil, err
	}
	return readPackets()
}

// packetsSoFar are all packets in the capture that runs.
func (g *guest) packetsSoFar() ([]dissected, error) {
	if err := g.capture.sync(); err != nil {
		return nil, err
	}
	return readPackets()
}

// readPackets are all packets in the capture.
func readPackets() (packets []dissected, err error) {
	err = eachFrame(captureFile, func(frame []byte) error {
		d, ok, err := dissect(bytes.Clone(frame))
		if ok && err == nil {
			packets = append(packets, d)
		}
		return err
	})
	return packets, err
}
