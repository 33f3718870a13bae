//go:build linux

package main

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

const (
	rdAtomic = 8
	// ackTimeout is the code of both ends: 268 ms. An emulated machine on a busy host was seen to stand still for 1.1 s, and the usual 67 ms
	// and 7 retries last 0.5 s.
	ackTimeout  = 16
	patternFile = "/tmp/pattern"
	patternSize = 48 << 20
	bulkSize    = 256 << 20
	results     = "/results"
)

// plan is what a guest is to do, in a file.
type plan struct {
	NIC    string   `json:"nic"`    // the model, or empty
	Layout string   `json:"layout"` // veth, or nics for eth0 and eth1 of the machine
	NetMTU int      `json:"net_mtu"`
	Left   string   `json:"left"`  // what is at v0: rxe, or xroce
	Copy   string   `json:"copy"`  // of xroce: "", copy, zero
	Cells  []cell   `json:"cells"` // transfers
	Faults bool     `json:"faults"`
	Cases  []string `json:"cases"` // their names
	Bulk   string   `json:"bulk"`  // of bulkSize each way: "", or the loss
	Speed  bool     `json:"speed"`
	Stock  bool     `json:"stock"`
	Ladder bool     `json:"ladder"`
	Brief  bool     `json:"brief"` // of stock and ladder a few only
	Only   string   `json:"only"`  // of faults, stock and ladder: what the name contains
	Made   made     `json:"made"`
}

// Outcomes of a cell.
const (
	works   = "works"
	refused = "refused"
	fails   = "fails"
	fault   = "rxe's fault" // what rdma_rxe does wrong, with evidence
)

// result is what became of a cell.
type result struct {
	Kind    string `json:"kind"` // transfer, fault, case, bulk, open, speed, stock, rung, feature
	Name    string `json:"name"`
	Row     string `json:"row,omitempty"`   // of a table, if that is not Name
	Short   string `json:"short,omitempty"` // what a table has in place of the outcome
	Cell    *cell  `json:"cell,omitempty"`
	Outcome string `json:"outcome"`
	Detail  string `json:"detail,omitempty"`
	// Disturbed is what the network emulator did, if there was one.
	Disturbed *disturbance `json:"disturbed,omitempty"`
	Seconds   float64      `json:"seconds"`
}

// report is what a guest leaves in results.json.
type report struct {
	Kernel string `json:"kernel"`
	Layout string `json:"layout"`
	NIC    string `json:"nic"`
	Left   string `json:"left"`
	Copy   string `json:"copy"`
	Made   made   `json:"made"`
	// CutShort says that the run has not come to its end.
	CutShort bool     `json:"cut_short,omitempty"`
	Results  []result `json:"results"`
}

// guestCommand runs in the machine: it starts the ends and takes them through the cells.
type guestCommand struct {
	Plan string `arg:""`
}

// guest is the state of a run within the machine.
type guest struct {
	plan        plan
	left, right *end
	loss        string
	report      report
	failures    int
	saved       time.Time
	saving      time.Duration // what it took

	capture *capture            // of the cell that runs
	note    string              // of the cell that runs, for its result if it works
	asked   terms               // of the cell that runs: its last connection
	first   uint32              // of the cell that runs: the first PSN of its requester
	icrc    map[byte]*tallyICRC // by sender
}

// Run runs the plan. It fails only if the machine cannot do its work; cells that fail are in the report.
func (c *guestCommand) Run() (err error) {
	if _, err := os.Stat("/job/script"); err != nil {
		return fmt.Errorf("it changes the network of the whole machine, so it runs only in one of internal/vm: %w", err)
	}
	g := &guest{loss: losses[0]}
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
	g.report.Kernel = strings.TrimSpace(string(release))
	g.report.Layout, g.report.NIC, g.report.Left, g.report.Copy = g.plan.Layout, g.plan.NIC, g.plan.Left, g.plan.Copy
	g.report.Made, g.report.CutShort = g.plan.Made, true
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
	if g.plan.Stock {
		g.stock()
	}
	if g.plan.Ladder {
		g.ladder()
	}
	if g.plan.Speed {
		g.measureSpeed()
	}
	g.report.CutShort = false
	return nil
}

// writePattern makes the file of random bytes, always the same ones. They repeat, but at no distance that one of packets, messages or
// offsets is likely to be.
func writePattern(bulk bool) error {
	size := patternSize
	if bulk {
		size = bulkSize + patternSize
	}
	source := rand.NewChaCha8([32]byte([]byte("the same bytes in each run, xroce")))
	buffer := make([]byte, 1<<20+4099)
	_, _ = source.Read(buffer)
	f, err := os.Create(patternFile)
	if err != nil {
		return err
	}
	for range size/len(buffer) + 1 {
		if _, err := f.Write(buffer); err != nil {
			return err
		}
	}
	return f.Close()
}

// patternAt is a part of it.
func patternAt(from, length int) ([]byte, error) {
	f, err := os.Open(patternFile)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	part := make([]byte, length)
	_, err = f.ReadAt(part, int64(from))
	return part, err
}

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
		name: "xroce", device: "v1", copy: g.plan.Copy, address: map[int]string{4: "10.0.0.2", 6: "fd00::2"},
		start: xroce("ip", "netns", "exec", "n1"),
	}
	g.left = &end{
		name: "rxe", device: "rxe0", address: map[int]string{4: "10.0.0.1", 6: "fd00::1"},
		start: func() *exec.Cmd { return exec.Command("python3", "/host/peer.py", patternFile) },
	}
	if g.plan.Left == "xroce" {
		g.left.name, g.left.device, g.left.copy, g.left.start = "xroce at v0", "v0", g.plan.Copy, xroce()
	}
	return nil
}

// openEnds starts both ends; what they say of their devices is a result, too. If one of them does not open, nothing can run, so that is a
// failure but where it is permitted.
func (g *guest) openEnds() bool {
	var opened []*end
	for _, e := range []*end{g.left, g.right} {
		begin := time.Now()
		information, err := e.open(results)
		r := result{Kind: "open", Name: e.name, Outcome: works, Detail: information}
		if err = g.setting().permitted(err, terms{}); err != nil {
			r.Outcome, r.Detail = conclude(err, nil)
		}
		if r.Outcome == fails {
			r.Detail += fmt.Sprintf("; not run: %d transfers, %d cases", len(g.plan.Cells), len(g.plan.Cases))
			if g.plan.Faults {
				r.Detail += ", faults"
			}
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

func (g *guest) closeEnds(ends []*end) {
	for _, e := range ends {
		begin := time.Now()
		if err := e.close(); err != nil {
			g.add(result{Kind: "open", Name: e.name + " closed", Outcome: fails, Detail: err.Error()}, begin)
		}
	}
}

func (g *guest) runCells() {
	for _, loss := range losses {
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
	if g.plan.Faults {
		g.faults()
	}
	g.cases()
}

// one runs one cell, with a capture that is kept if it fails.
func (g *guest) one(kind, name string, c *cell, run func() error) {
	begin := time.Now()
	loss := losses[0]
	if c != nil {
		loss = c.Loss
	}
	err := g.setLoss(loss)
	g.capture, g.note, g.asked = startCapture(kind == "bulk"), "", terms{}
	watched := g.watchEmulator()
	if err == nil {
		err = g.setting().permitted(run(), g.asked)
	}
	disturbed, unknown := watched() // before the capture ends, which sends packets of its own
	// Only a capture in which nothing is missing can tell how many messages there were.
	counts := err == nil && kind == "transfer" && c.Requester == "rxe" && c.Loss == losses[0] && c.Size <= 1<<16
	whole := g.left.name == "rxe" && (kind == "transfer" || kind == "fault" && !strings.HasPrefix(name, opFlush))
	captured := g.capture.stop(kind != "bulk" || err != nil)
	if kind == "bulk" {
		captured = nil // which is for people only
	}
	if err != nil && c != nil && captured == nil {
		err = g.blame(*c, err)
	}
	if counts && captured == nil {
		packets, read := readPackets()
		if err = read; err == nil {
			err = checkMSN(packets, c.count())
		}
	}
	if captured == nil && whole && outcomeOf(err) != refused {
		captured = g.audit(kind == "transfer" && err == nil)
	}
	if err == nil {
		if err = unknown; disturbed != nil {
			g.note, err = disturbed.judge(kind, loss)
		}
	}
	// Whose packets are wrong explains what else fails.
	if captured != nil && err != nil {
		err = fmt.Errorf("%v; %v", captured, err)
	} else if captured != nil {
		err = captured
	}
	outcome := outcomeOf(err)
	if whole && c != nil && outcome != refused {
		keepSmall(*c)
	}
	counters := ""
	if err != nil && outcome == fails {
		counters = g.counters()
	}
	r := result{Kind: kind, Name: name, Cell: c, Disturbed: disturbed}
	r.Outcome, r.Detail = conclude(err, g.clean())
	r.Detail = cmp.Or(r.Detail, g.note)
	if r.Outcome == fails {
		folder := filepath.Join(results, fmt.Sprintf("failure-%03d", g.failures))
		g.failures++
		_ = os.MkdirAll(folder, 0o755)
		_ = os.WriteFile(filepath.Join(folder, "cell"), []byte(name+"\n"+r.Detail+"\n"+counters), 0o644)
		_ = shell("cp", captureFile, folder)
	}
	g.add(r, begin)
}

// clean destroys the queue pairs, and starts an end anew that is dead.
func (g *guest) clean() (err error) {
	for _, e := range []*end{g.left, g.right} {
		killed := e.killed
		_, failed := e.do(command{Do: "destroy"})
		if errors.Is(failed, errDead) {
			e.kill()
			_, opened := e.open(results)
			if failed = errors.Join(failed, opened); killed {
				failed = opened
			}
		}
		err = errors.Join(err, failed)
	}
	return err
}

func (g *guest) counters() string {
	text := ""
	for _, e := range []*end{g.left, g.right} {
		if a, err := e.do(command{Do: "counters"}); err == nil {
			text += fmt.Sprintf("%s: %v\n", e.name, a.Counters)
		}
	}
	return text
}

func (g *guest) add(r result, begin time.Time) {
	r.Seconds = time.Since(begin).Seconds()
	g.report.Results = append(g.report.Results, r)
	if err := g.save(false); err != nil {
		fmt.Println("results:", err)
	}
	fmt.Printf("%-11s %5.1f s  %s", r.Outcome, r.Seconds, r.Name)
	if text := cmp.Or(r.Detail, r.Short); text != "" {
		fmt.Printf(": %s", text)
	}
	fmt.Println()
}

func shell(program string, args ...string) error {
	if out, err := exec.Command(program, args...).CombinedOutput(); err != nil {
		return fmt.Errorf("%s %s: %w: %s", program, strings.Join(args, " "), err, out)
	}
	return nil
}

// netem are the settings of the network emulator. Packets that are not the reordered ones are late, so that those overtake.
var netem = map[string][]string{
	losses[1]: {"loss", "1%"},
	losses[2]: {"delay", "1ms", "reorder", "3%"},
	losses[3]: {"duplicate", "3%"},
}

// setLoss puts the emulator into both directions. What an AF_XDP socket sends passes no queueing discipline, so both are at v0, and
// what arrives there goes through another device first.
func (g *guest) setLoss(loss string) error {
	if loss == g.loss {
		return nil
	}
	if g.loss != losses[0] {
		for _, at := range [][]string{{"v0", "root"}, {"ifb0", "root"}, {"v0", "clsact"}} {
			if err := shell("tc", "qdisc", "del", "dev", at[0], at[1]); err != nil {
				return err
			}
		}
	}
	g.loss = loss
	if loss == losses[0] {
		return nil
	}
	if err := shell("tc", "qdisc", "add", "dev", "v0", "clsact"); err != nil {
		return err
	}
	// The filters count what comes to the emulators.
	err := shell("tc", "filter", "add", "dev", "v0", "egress", "matchall", "action", "pass")
	err = errors.Join(err, shell("tc", "filter", "add", "dev", "v0", "ingress", "matchall", "action", "mirred", "egress", "redirect", "dev", "ifb0"))
	for _, device := range []string{"v0", "ifb0"} {
		err = errors.Join(err, shell("tc", append([]string{"qdisc", "add", "dev", device, "root", "netem", "limit", "10000"}, netem[loss]...)...))
	}
	return err
}
