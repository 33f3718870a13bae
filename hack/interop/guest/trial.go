//go:build linux

package guest

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/xroce/xroce/hack/interop/plan"
	"github.com/xroce/xroce/hack/interop/report"
	"github.com/xroce/xroce/hack/interop/wire"
)

// one runs one cell, fault or case and notes what became of it. The capture is kept if it fails. c is nil if it is
// not a cell.
func (g *guest) one(kind, name string, c *plan.Cell, run func() error) {
	begin := time.Now()
	loss := plan.NoLoss
	if c != nil {
		loss = c.Loss
	}
	err := g.setLoss(loss)
	g.capture, g.note, g.asked = wire.StartCapture(kind == "bulk"), "", terms{}
	watched := g.watchEmulator()
	if err == nil {
		err = g.setting().permitted(run(), g.asked)
	}
	disturbed, unknown := watched() // before the capture ends, which sends packets of its own
	err, wrong := g.examine(kind, name, c, err)
	if err == nil {
		if err = unknown; disturbed != nil {
			g.note, err = judge(disturbed, kind, loss)
		}
	}
	// Whose packets are wrong explains what else fails.
	if wrong != nil && err != nil {
		err = fmt.Errorf("%v; %v", wrong, err)
	} else if wrong != nil {
		err = wrong
	}
	if c != nil && g.audited(kind, name) && outcomeOf(err) != report.Refused {
		keepSmall(*c)
	}
	counters := ""
	if err != nil && outcomeOf(err) == report.Fails {
		counters = g.counters()
	}
	r := report.Result{Kind: kind, Name: name, Cell: c, Disturbed: disturbed}
	r.Outcome, r.Detail = conclude(err, g.clean())
	r.Detail = cmp.Or(r.Detail, g.note)
	if r.Outcome == report.Fails {
		g.keepFailure(r, counters)
	}
	g.add(r, begin)
}

// alone is for what opens its devices itself: it runs it and notes what became of it. The capture is kept if it
// fails. Row is what a table has of it, short what it has in place of the outcome.
func (g *guest) alone(kind, row, name string, run func() (short string, err error)) {
	begin := time.Now()
	r := report.Result{Kind: kind, Row: row, Name: name}
	capture := wire.StartCapture(false)
	var err error
	r.Short, err = run()
	_ = capture.Stop(err != nil)
	r.Outcome, r.Detail = conclude(err, nil)
	if r.Outcome == report.Fails {
		g.keepFailure(r, "")
	}
	g.add(r, begin)
}

// audited says whether every packet of the cell must have the right ICRC. rdma_rxe's FLUSH has not.
func (g *guest) audited(kind, name string) bool {
	return g.left.name == plan.Rxe && (kind == "transfer" || kind == "fault" && !strings.HasPrefix(name, plan.Flush))
}

// examine ends the capture and looks into it. err is what became of the cell so far, and failed what became of it
// with the capture in view; wrong is what is wrong with the packets.
func (g *guest) examine(kind, name string, c *plan.Cell, err error) (failed, wrong error) {
	wrong = g.capture.Stop(kind != "bulk" || err != nil)
	if kind == "bulk" {
		wrong = nil // the capture is for people only
	}
	if wrong != nil {
		return err, wrong
	}
	// Only a capture in which nothing is missing can tell how many messages there were.
	countable := kind == "transfer" && c.Requester == plan.Rxe && c.Loss == plan.NoLoss && c.Size <= 1<<16
	switch {
	case err != nil && c != nil:
		err = g.blame(*c, err)
	case err == nil && countable:
		packets, read := wire.ReadPackets()
		if err = read; err == nil {
			err = checkMSN(packets, c.Count())
		}
	}
	if g.audited(kind, name) && outcomeOf(err) != report.Refused {
		wrong = g.audit(kind == "transfer" && err == nil)
	}
	return err, wrong
}

// keepFailure keeps what a person needs to understand a failure.
func (g *guest) keepFailure(r report.Result, counters string) {
	folder := filepath.Join(results, fmt.Sprintf("failure-%03d", g.failures))
	g.failures++
	_ = os.MkdirAll(folder, 0o755)
	_ = os.WriteFile(filepath.Join(folder, "cell"), []byte(r.Name+"\n"+r.Detail+"\n"+counters), 0o644)
	_ = shell("cp", wire.CaptureFile, folder)
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

// counters are those of both ends, in text.
func (g *guest) counters() string {
	text := ""
	for _, e := range []*end{g.left, g.right} {
		if a, err := e.do(command{Do: "counters"}); err == nil {
			text += fmt.Sprintf("%s: %v\n", e.name, a.Counters)
		}
	}
	return text
}

// add notes a result and prints it.
func (g *guest) add(r report.Result, begin time.Time) {
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

// save writes what has come out so far. It is to take a twentieth of the time at most: what came out since the last
// time is lost if the machine dies.
func (g *guest) save(now bool) error {
	begin := time.Now()
	if !now && begin.Sub(g.saved) < 20*g.saving {
		return nil
	}
	err := g.report.Save(results)
	g.saved = time.Now()
	g.saving = g.saved.Sub(begin)
	return err
}
