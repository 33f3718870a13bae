//go:build linux

// Package guest runs within the virtual machine. It starts the two ends, takes them through what the plan says, and
// judges what they see and what the wire shows.
//
// Life of a cell (trial.go): setLoss puts the network emulator in place; a capture begins; transfer (or a fault, or a
// case) has both ends make and connect queue pairs, fill their regions, post, wait and compare (protocol.go has the
// commands; peer.go and peer.py are the ends that obey them); examine looks into the capture; conclude says what
// became of it; clean destroys the queue pairs; save writes the report.
package guest

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"time"

	"github.com/xroce/xroce/hack/interop/plan"
	"github.com/xroce/xroce/hack/interop/report"
	"github.com/xroce/xroce/hack/interop/wire"
)

const (
	rdAtomic = 8
	// ackTimeout is the code of both ends: 268 ms. An emulated machine on a busy host was seen to stand still for 1.1
	// s, and the usual 67 ms and 7 retries last 0.5 s.
	ackTimeout = 16
	results    = "/results"
)

// Command runs in the machine: it starts the ends and takes them through the cells.
type Command struct {
	Plan string `arg:""`
}

// guest is the state of a run within the machine.
type guest struct {
	plan        plan.Plan
	left, right *end
	loss        string
	report      report.Report
	failures    int
	saved       time.Time
	saving      time.Duration // what it took

	capture *wire.Capture        // of the cell that runs
	note    string               // of the cell that runs, for its result if it works
	asked   terms                // of the cell that runs: its last connection
	first   uint32               // of the cell that runs: the first PSN of its requester
	icrc    map[byte]*wire.Tally // by sender
}

// Run runs the plan. It fails only if the machine cannot do its work; cells that fail are in the report.
func (c *Command) Run() (err error) {
	if _, err := os.Stat("/job/script"); err != nil {
		return fmt.Errorf("it changes the network of the whole machine, so it runs only in one of internal/vm: %w", err)
	}
	g := &guest{loss: plan.NoLoss}
	text, err := os.ReadFile(c.Plan)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(text, &g.plan); err != nil {
		return err
	}
	release, err := os.ReadFile("/proc/sys/kernel/osrelease")
	if err != nil {
		return err
	}
	g.report = report.Report{
		Kernel: strings.TrimSpace(string(release)), Layout: g.plan.Layout, NIC: g.plan.NIC, Left: g.plan.Left, Copy: g.plan.Copy,
		Made: g.plan.Made, CutShort: true,
	}
	if err := writePattern(g.plan.Bulk != ""); err != nil {
		return err
	}
	if err := shell("bash", "/host/setup.sh", g.plan.Layout, fmt.Sprint(g.plan.NetMTU), g.plan.Left); err != nil {
		return err
	}
	if err := g.makeEnds(); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, g.save(true)) }()
	if g.plan.Layout == "nics" {
		time.Sleep(3 * time.Second) // igb takes that long until its link is up, and loses it again when a program is attached
	}
	if g.openEnds() {
		g.runCells()
		g.closeEnds([]*end{g.left, g.right})
	}
	if len(g.plan.Games) > 0 {
		g.stock()
	}
	if len(g.plan.Rungs) > 0 {
		g.ladder()
	}
	g.report.CutShort = false
	return nil
}

// makeEnds says how the ends are started.
func (g *guest) makeEnds() error {
	own, err := os.Executable()
	if err != nil {
		return err
	}
	xroce := func(namespace ...string) func() *exec.Cmd {
		return func() *exec.Cmd {
			args := append(slices.Clone(namespace), own, "peer", patternFile)
			return exec.Command(args[0], args[1:]...)
		}
	}
	g.right = &end{
		name: plan.Xroce, device: "v1", copy: g.plan.Copy, address: map[int]string{4: "10.0.0.2", 6: "fd00::2"},
		start: xroce("ip", "netns", "exec", "n1"),
	}
	g.left = &end{
		name: plan.Rxe, device: "rxe0", address: map[int]string{4: "10.0.0.1", 6: "fd00::1"},
		start: func() *exec.Cmd { return exec.Command("python3", "/host/peer.py", patternFile) },
	}
	if g.plan.Left == plan.Xroce {
		g.left.name, g.left.device, g.left.copy, g.left.start = plan.XroceAtV0, "v0", g.plan.Copy, xroce()
	}
	return nil
}

// openEnds starts both ends; what they say of their devices is a result, too. If one of them does not open, nothing
// can run, so that is a failure unless it is permitted.
func (g *guest) openEnds() bool {
	var opened []*end
	for _, e := range []*end{g.left, g.right} {
		begin := time.Now()
		information, err := e.open(results)
		r := report.Result{Kind: "open", Name: e.name, Outcome: report.Works, Detail: information}
		if err = g.setting().permitted(err, terms{}); err != nil {
			r.Outcome, r.Detail = conclude(err, nil)
		}
		if r.Outcome == report.Fails {
			r.Detail += fmt.Sprintf("; not run: %d transfers, %d faults, %d cases", len(g.plan.Cells), len(g.plan.Faults),
				len(g.plan.Cases))
			if g.plan.Bulk != "" {
				r.Detail += ", bulk transfers"
			}
		}
		g.add(r, begin)
		opened = append(opened, e)
		if err != nil {
			g.closeEnds(opened)
			return false
		}
	}
	return true
}

// closeEnds lets the processes end, which must do so without complaint.
func (g *guest) closeEnds(ends []*end) {
	for _, e := range ends {
		begin := time.Now()
		if err := e.close(); err != nil {
			g.add(report.Result{Kind: "open", Name: e.name + " closed", Outcome: report.Fails, Detail: err.Error()}, begin)
		}
	}
}

// runCells runs all that both ends are open for: cells, bulk transfers, faults and cases. Cells with the same network
// follow each other.
func (g *guest) runCells() {
	for _, loss := range plan.Losses {
		for _, c := range g.plan.Cells {
			if c.Loss == loss {
				g.one("transfer", c.String(), &c, func() error { return g.transfer(c) })
			}
		}
	}
	g.judgeEmulator()
	if g.plan.Bulk != "" {
		g.bulk(g.plan.Bulk)
	}
	g.faults()
	g.cases()
}

// shell runs a program, whose output is in the error.
func shell(program string, args ...string) error {
	if out, err := exec.Command(program, args...).CombinedOutput(); err != nil {
		return fmt.Errorf("%s %s: %w: %s", program, strings.Join(args, " "), err, out)
	}
	return nil
}
