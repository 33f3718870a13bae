//go:build linux

package guest

import (
	"fmt"
	"path/filepath"
	"strings"
	"time"

	"github.com/xroce/xroce/hack/interop/plan"
	"github.com/xroce/xroce/hack/interop/report"
	"github.com/xroce/xroce/hack/interop/wire"
)

// runCase runs one case.
func (g *guest) runCase(c plan.Case) error {
	switch c.Kind {
	case plan.Padded:
		return g.padded(c.Operation, c.Requester, c.MTU)
	case plan.PadNotCovered:
		return g.padNotCovered(c.Operation, c.Family)
	case plan.RefusedAtomic:
		return g.atomicNAK(*c.Fault)
	case plan.ForgedNAK:
		return g.forgedNAK(c.Operation, c.Requester, c.Opcode)
	default:
		return fmt.Errorf("no kind of cases %q", c.Kind)
	}
}

// cases runs those of the plan, and sums up what was seen of every cell.
func (g *guest) cases() {
	for _, c := range g.plan.Cases {
		g.one("case", c.String(), nil, func() error { return g.runCase(c) })
	}
	g.sumUpICRC()
}

// sumUpICRC adds a result for each end: case G7, the ICRC of every packet of all cells.
func (g *guest) sumUpICRC() {
	for _, sender := range []byte{wire.MACV0, wire.MACV1} {
		t := g.icrc[sender]
		name := map[byte]string{wire.MACV0: "rdma_rxe", wire.MACV1: "xroce"}[sender]
		if t == nil || t.Packets == 0 {
			if n := g.auditedCells(); n > 0 {
				g.add(report.Result{
					Kind: "case", Name: "G7 every packet of " + name, Outcome: report.Fails,
					Detail: fmt.Sprintf("packets: none in the captures of %d cells", n),
				}, time.Now())
			}
			continue
		}
		r := report.Result{Kind: "case", Name: "G7 every packet of " + name, Outcome: report.Works}
		if r.Detail = fmt.Sprintf("packets: %d in the captures of %d cells, all with the right ICRC", t.Packets, t.Cells); t.Wrong > 0 {
			r.Outcome, r.Detail = report.Fails, fmt.Sprintf("packets: %d in the captures of %d cells, %d of them with a wrong ICRC", t.Packets, t.Cells, t.Wrong)
		}
		g.add(r, time.Now())
	}
}

// auditedCells is how many cells have been run in whose captures both ends must have packets.
func (g *guest) auditedCells() (count int) {
	for _, x := range g.report.Results {
		if x.Kind == "transfer" && x.Outcome != report.Refused && g.left.name == plan.Rxe {
			count++
		}
	}
	return count
}

// keepSmall keeps the first small capture of each operation and requester over a network without faults.
func keepSmall(c plan.Cell) {
	if c.Loss != plan.NoLoss || c.Size > 1<<16 {
		return
	}
	folder := filepath.Join(results, "captures")
	name := filepath.Join(folder, strings.ReplaceAll(c.Operation, " ", "-")+"-"+c.Requester+".pcap")
	_ = shell("mkdir", "-p", folder)
	_ = shell("cp", "--update=none", wire.CaptureFile, name)
}

// captured are the packets of the cell that runs, once each of them has the ICRC that it ought to have.
func (g *guest) captured(both bool) (packets []wire.Packet, err error) {
	if err := g.capture.Sync(); err != nil {
		return nil, err
	}
	if err := g.audit(both); err != nil {
		return nil, err
	}
	return wire.ReadPackets()
}

// packetsSoFar are all packets in the capture that runs.
func (g *guest) packetsSoFar() ([]wire.Packet, error) {
	if err := g.capture.Sync(); err != nil {
		return nil, err
	}
	return wire.ReadPackets()
}
