//go:build linux

package guest

import (
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"time"

	"github.com/xroce/xroce/hack/interop/plan"
	"github.com/xroce/xroce/hack/interop/report"
)

// since is what the emulator did after an earlier time.
func since(d, before report.Disturbance) report.Disturbance {
	less := func(a, b report.Emulated) report.Emulated {
		return report.Emulated{Packets: a.Packets - b.Packets, Changed: max(0, a.Changed-b.Changed)}
	}
	return report.Disturbance{FromRxe: less(d.FromRxe, before.FromRxe), ToRxe: less(d.ToRxe, before.ToRxe)}
}

// netem are the settings of the network emulator. Packets that are not the reordered ones are late, so that those
// overtake.
var netem = map[string][]string{
	plan.Lost:       {"loss", "1%"},
	plan.Reordered:  {"delay", "1ms", "reorder", "3%"},
	plan.Duplicated: {"duplicate", "3%"},
}

// setLoss puts the emulator into both directions. What an AF_XDP socket sends passes no queueing discipline, so both
// are at v0, and what arrives there goes through another device first.
func (g *guest) setLoss(loss string) error {
	if loss == g.loss {
		return nil
	}
	if g.loss != plan.NoLoss {
		for _, at := range [][]string{{"v0", "root"}, {"ifb0", "root"}, {"v0", "clsact"}} {
			if err := shell("tc", "qdisc", "del", "dev", at[0], at[1]); err != nil {
				return err
			}
		}
	}
	g.loss = loss
	if loss == plan.NoLoss {
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

// participles say what happens to a packet.
var participles = map[string]string{plan.Lost: "lost", plan.Reordered: "reordered", plan.Duplicated: "duplicated"}

// judge says what is to be noted of a cell that works, or that it was not what it is called. In a transfer all
// packets may happen to be left alone, in a bulk transfer not.
func judge(d *report.Disturbance, kind, loss string) (note string, err error) {
	for _, x := range []struct {
		direction string
		report.Emulated
	}{{"from rdma_rxe", d.FromRxe}, {"to rdma_rxe", d.ToRxe}} {
		switch {
		case x.Packets <= 0:
			err = errors.Join(err, fmt.Errorf("no packet %s has passed the network emulator", x.direction))
		case kind == "bulk" && x.Changed == 0:
			err = errors.Join(err, fmt.Errorf("none of %d packets %s was %s", x.Packets, x.direction, participles[loss]))
		}
	}
	switch {
	case err != nil:
		return "", err
	case d.None():
		return "nothing was " + participles[loss], nil
	case kind == "bulk":
		return fmt.Sprintf("(%s were %d of %d packets from rdma_rxe and %d of %d to it)", participles[loss], d.FromRxe.Changed, d.FromRxe.Packets,
			d.ToRxe.Changed, d.ToRxe.Packets), nil
	}
	return "", nil
}

// watchEmulator begins to count; the function that it returns says what there was since then, nil without an emulator.
func (g *guest) watchEmulator() func() (*report.Disturbance, error) {
	if g.loss == plan.NoLoss {
		return func() (*report.Disturbance, error) { return nil, nil }
	}
	before, err := readEmulator(g.loss)
	return func() (*report.Disturbance, error) {
		after, afterErr := readEmulator(g.loss)
		if err := errors.Join(err, afterErr); err != nil {
			return nil, err
		}
		d := since(after, before)
		return &d, nil
	}
}

// readEmulator asks the filters before and after the emulators, and again until nothing has passed in between:
// duplicates are a difference of their counters.
func readEmulator(loss string) (d report.Disturbance, err error) {
	const egress, qdiscs, ingress = 0, 2, 1
	commands := [][]string{
		egress: {"filter", "show", "dev", "v0", "egress"}, ingress: {"filter", "show", "dev", "v0", "ingress"}, qdiscs: {"qdisc", "show"},
	}
	commands = append(commands, commands[egress], commands[ingress])
	for range 50 {
		var texts [5][]byte
		for i, args := range commands {
			if texts[i], err = exec.Command("tc", append([]string{"-s", "-j"}, args...)...).Output(); err != nil {
				return d, fmt.Errorf("tc %s: %w", args, err)
			}
		}
		before, err := parseEmulator(loss, texts[qdiscs], texts[egress], texts[ingress])
		if err != nil {
			return d, err
		}
		if d, err = parseEmulator(loss, texts[qdiscs], texts[3+egress], texts[3+ingress]); err != nil || d == before || loss != plan.Duplicated {
			return d, err
		}
	}
	return d, errors.New("packets come to the network emulator all the time")
}

// parseEmulator takes the counters from what tc says. Netem counts what it drops, and as a requeue what it sends ahead
// (net/sched/sch_netem.c). Duplicates have no counter: they are how many more packets it has sent, or
// still has, than came to the filter in front of it.
func parseEmulator(loss string, qdiscs, egress, ingress []byte) (d report.Disturbance, err error) {
	type counters struct{ Packets, Drops, Requeues, Qlen int }
	var all []struct {
		counters
		Kind, Dev string
	}
	if err := json.Unmarshal(qdiscs, &all); err != nil {
		return d, fmt.Errorf("tc: %w", err)
	}
	for _, x := range []struct {
		device string
		filter []byte
		into   *report.Emulated
	}{{"v0", egress, &d.FromRxe}, {"ifb0", ingress, &d.ToRxe}} {
		var filters []struct {
			Options struct {
				Actions []struct{ Stats counters }
			}
		}
		if err := json.Unmarshal(x.filter, &filters); err != nil {
			return d, fmt.Errorf("tc: %w", err)
		}
		came, filtered, found := 0, 0, 0
		for _, f := range filters {
			for _, a := range f.Options.Actions {
				came += a.Stats.Packets
				filtered++
			}
		}
		for _, q := range all {
			if q.Dev != x.device || q.Kind != "netem" {
				continue
			}
			found++
			x.into.Packets = came
			x.into.Changed = map[string]int{plan.Lost: q.Drops, plan.Reordered: q.Requeues, plan.Duplicated: q.Packets + q.Qlen - came}[loss]
		}
		if found != 1 || filtered != 1 {
			return d, fmt.Errorf("tc tells of %d network emulators at %s and of %d filters in front of it: %s %s", found, x.device, filtered, qdiscs, x.filter)
		}
	}
	return d, nil
}

// expectedChanges is how many packets the emulator changes of those that a cell has at least.
func expectedChanges(c plan.Cell) float64 {
	rate := map[string]float64{plan.Lost: 0.01, plan.Reordered: 0.03, plan.Duplicated: 0.03}[c.Loss]
	return rate * float64(c.Count()*max(1, (c.Size+c.MTU-1)/c.MTU))
}

// judgeEmulator fails operations in all of whose cells the emulator left all packets alone, where that cannot be
// chance.
func (g *guest) judgeEmulator() {
	type row struct{ operation, requester string }
	expected, changed, cells := map[row]float64{}, map[row]int{}, map[row]int{}
	for _, x := range g.report.Results {
		if x.Kind == "transfer" && x.Disturbed != nil && x.Outcome != report.Refused {
			at := row{x.Cell.Operation, x.Cell.Requester}
			expected[at] += expectedChanges(*x.Cell)
			changed[at] += x.Disturbed.FromRxe.Changed + x.Disturbed.ToRxe.Changed
			cells[at]++
		}
	}
	const enough = 4 // of data packets; with the answers to them no run in a thousand has none
	for at, n := range expected {
		if n < enough || changed[at] > 0 {
			continue
		}
		g.add(report.Result{
			Kind: "transfer", Name: fmt.Sprintf("faults of the network for %s by %s", at.operation, at.requester), Outcome: report.Fails,
			Cell:   &plan.Cell{Operation: at.operation, Requester: at.requester},
			Detail: fmt.Sprintf("the network emulator left all packets alone in all %d cells", cells[at]),
		}, time.Now())
	}
}
