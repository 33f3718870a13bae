//go:build linux

package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"slices"
	"strings"
	"time"

	"github.com/xroce/xroce/roce/link/xdp"
)

// rung is one choice of verbs.Options; empty is what they have by default. Native and generic mode take the rung with frags where kernel and
// driver give it, and no choice of options leaves it out.
type rung struct{ mode, copy, multiBuffer string }

func (r rung) String() string {
	var parts []string
	for _, part := range []string{r.mode, map[string]string{"copy": "copy", "zero": "zero copy"}[r.copy], r.multiBuffer} {
		if part != "" {
			parts = append(parts, part)
		}
	}
	if r.multiBuffer != "" {
		parts[len(parts)-1] = "multi-buffer " + r.multiBuffer
	}
	return cmp.Or(strings.Join(parts, ", "), "default")
}

func rungs(brief bool) (all []rung) {
	all = []rung{{}, {mode: "generic"}}
	if brief {
		return all
	}
	for _, mode := range []string{"native", "generic"} {
		for _, copying := range []string{"copy", "zero"} {
			for _, multiBuffer := range []string{"on", "off"} {
				all = append(all, rung{mode, copying, multiBuffer})
			}
		}
	}
	return all
}

// obtained is what an end made of xroce got for it.
type obtained struct {
	Mode        string `json:"mode"`
	ZeroCopy    bool   `json:"zero_copy"`
	MultiBuffer bool   `json:"multi_buffer"`
	MTU         int    `json:"mtu"` // the active MTU
}

func (o obtained) String() string {
	copying := "copy"
	if o.ZeroCopy {
		copying = "zero copy"
	}
	return fmt.Sprintf("%s, %s, path MTU %d", o.Mode, copying, o.MTU)
}

// contradicts says what of a rung differs from what was asked for.
func (o obtained) contradicts(r rung) (all []string) {
	if r.mode != "" && !strings.HasPrefix(o.Mode, r.mode) {
		all = append(all, "mode "+o.Mode)
	}
	if r.copy != "" && o.ZeroCopy != (r.copy == "zero") {
		all = append(all, fmt.Sprintf("zero copy %v", o.ZeroCopy))
	}
	if r.multiBuffer != "" && o.MultiBuffer != (r.multiBuffer == "on") {
		all = append(all, fmt.Sprintf("multi-buffer %v", o.MultiBuffer))
	}
	if !o.MultiBuffer && o.MTU > 2048 {
		all = append(all, fmt.Sprintf("path MTU %d without multi-buffer", o.MTU))
	}
	return all
}

// ladder shows what the kernel has, what it and the driver of v1 give for each choice of options, and that it works. What the
// documentation says of a kernel has to be so.
func (g *guest) ladder() {
	for _, f := range xdp.Features() {
		g.alone("feature", f.Name, f.Name, func() (string, error) { return checkFeature(g.report.Kernel, f) })
	}
	if err := g.setLoss(losses[0]); err != nil {
		g.add(result{Kind: "rung", Name: "network without loss", Outcome: fails, Detail: err.Error()}, time.Now())
		return
	}
	if _, err := g.left.open(results); err != nil {
		g.add(result{Kind: "rung", Name: g.left.name, Outcome: fails, Detail: err.Error()}, time.Now())
		return
	}
	port, err := xdp.Probe("v1", xdp.ProbeOptions{NetNS: "/run/netns/n1"})
	if err = errors.Join(err, port.Obstacle); err != nil {
		g.add(result{Kind: "rung", Name: "probe", Outcome: fails, Detail: err.Error()}, time.Now())
	}
	for _, r := range rungs(g.plan.Brief) {
		if strings.Contains(r.String(), g.plan.Only) {
			g.alone("rung", r.String(), "opened with "+r.String(), func() (string, error) { return g.climb(r, port) })
		}
	}
	if err := g.left.close(); err != nil {
		g.add(result{Kind: "rung", Name: g.left.name + " closed", Outcome: fails, Detail: err.Error()}, time.Now())
	}
}

// checkFeature compares what a kernel has with what the feature says of kernels.
func checkFeature(kernel string, f xdp.Feature) (string, error) {
	has := f.Err == nil
	if !has && !errors.Is(f.Err, xdp.ErrNotSupported) {
		return "", fmt.Errorf("not known: %w", f.Err)
	}
	if should := atLeast(kernel, f.Since); has != should {
		return "", fmt.Errorf("%s is said to have it, and this kernel says: %v", f.Since, f.Err)
	}
	if !has {
		return "no", nil
	}
	return "yes", nil
}

// atLeast compares a kernel's release with "Linux 6.6".
func atLeast(kernel, since string) bool {
	var have, want [2]int
	_, _ = fmt.Sscanf(kernel, "%d.%d", &have[0], &have[1])
	_, _ = fmt.Sscanf(since, "Linux %d.%d", &want[0], &want[1])
	return slices.Compare(have[:], want[:]) >= 0
}

// climb opens v1 with the choice and moves data both ways. A choice that should be refused and is not fails, and the other way round.
func (g *guest) climb(r rung, port xdp.Port) (short string, err error) {
	before := *g.right
	defer func() { *g.right = before }()
	g.right.mode, g.right.copy, g.right.multiBuffer = r.mode, r.copy, r.multiBuffer
	_, err = g.right.open(results)
	defer func() {
		if closed := g.right.close(); closed != nil {
			// A refusal does not excuse it.
			short, err = "", errors.Join(err, closed)
		}
	}()
	expected := g.setting().refusal(g.right.name, "open", terms{})
	switch {
	case err != nil && outcomeOf(err) == refused && expected == never:
		return "", fmt.Errorf("should not be refused: %v", err)
	case err != nil:
		return "", err
	case expected == always:
		return "", fmt.Errorf("should be refused, and gave %v", g.right.obtained)
	}
	got := g.right.obtained
	if wrong := got.contradicts(r); wrong != nil {
		return "", fmt.Errorf("obtained %s", strings.Join(wrong, ", "))
	}
	if want := largestMTU(g.plan.NetMTU, got.MultiBuffer); got.MTU != want {
		return "", fmt.Errorf("obtained path MTU %d instead of %d", got.MTU, want)
	}
	short = got.String()
	if r == (rung{}) && port.Rungs != nil {
		wrong, note := got.differsFrom(port)
		if wrong != nil {
			return "", fmt.Errorf("obtained %v, but \"xroce devices\" expects %s", got, strings.Join(wrong, ", "))
		}
		short += note
	}
	if err := g.carrier(); err != nil {
		return "", err
	}
	for _, operation := range []string{opWrite, opRead, opSend} {
		for _, requester := range []*end{g.right, g.left} {
			c := cell{Operation: operation, Requester: requester.name, MTU: got.MTU, Family: 4, Size: 64 << 10, Loss: losses[0]}
			err := g.transfer(c)
			if err = errors.Join(err, g.clean()); err != nil {
				return "", fmt.Errorf("%v: %v", c, err) // what was opened is not to be refused any more
			}
		}
	}
	if got.MTU < mtus[len(mtus)-1] {
		_, err := g.connect(g.right.name, terms{mtu: 2 * got.MTU, family: 4, length: 8, retry: 7, rnrRetry: 7})
		if err == nil || outcomeOf(err) != refused {
			return "", fmt.Errorf("path MTU %d is not refused: %v", 2*got.MTU, err)
		}
		if err := g.clean(); err != nil {
			return "", err
		}
	}
	return short, nil
}

// differsFrom says what "xroce devices" expects otherwise. Open may obtain a better rung than the driver tells, since it tries each: kernels do
// not compare what a program needs with what the driver tells. That is a note only.
func (o obtained) differsFrom(port xdp.Port) (all []string, note string) {
	place := slices.IndexFunc(port.Rungs, func(r xdp.Rung) bool { return r.String() == o.Mode })
	better := place < 0 // or multi-buffer with it
	expected := port.MultiBuffer == nil
	switch {
	case better && o.MultiBuffer && !expected:
		note = fmt.Sprintf(" (`xroce devices` expects %v without multi-buffer)", port.Rungs[0])
	case better:
		note = fmt.Sprintf(" (`xroce devices` expects %v)", port.Rungs[0])
	case place > 0 && port.DriverTells:
		all = append(all, fmt.Sprintf("%v, as the driver tells", port.Rungs[0]))
	}
	if port.DriverTells && port.ZeroCopy != o.ZeroCopy {
		all = append(all, fmt.Sprintf("zero copy %v, as the driver tells", port.ZeroCopy))
	}
	if expected != o.MultiBuffer && !(better && o.MultiBuffer) {
		all = append(all, fmt.Sprintf("multi-buffer %v", expected))
	}
	if port.ActiveMTU.Bytes() != o.MTU {
		all = append(all, fmt.Sprintf("path MTU %d", port.ActiveMTU.Bytes()))
	}
	return all, note
}

// carrier waits until v1 has a carrier: NICs lose it for seconds when a program is attached.
func (g *guest) carrier() error {
	for range 100 {
		state, err := exec.Command("ip", "netns", "exec", "n1", "cat", "/sys/class/net/v1/operstate").Output()
		if err != nil {
			return err
		}
		if strings.TrimSpace(string(state)) == "up" {
			return nil
		}
		time.Sleep(100 * time.Millisecond)
	}
	return errors.New("v1 has no carrier after 10 s")
}

// writeLadder writes what each kernel and driver gave.
func writeLadder(w io.Writer, reports []report) {
	var features, rungs table
	for _, r := range reports {
		for _, x := range r.Results {
			x.Detail = oneLine(x.Detail)
			switch x.Kind {
			case "feature":
				if r.Layout == "veth" {
					features.add(x.Row, r.Kernel, x)
				}
			case "rung":
				rungs.add(r.Devices()+": "+x.row(), r.Kernel, x)
			}
		}
	}
	if len(features.rows)+len(rungs.rows) == 0 {
		return
	}
	fmt.Fprint(w, "## Attach ladder\n\nWhat `xroce features` says of each kernel, which is compared with the versions that it names, and what xroce "+
		"obtained when it was opened with each choice of mode, copy mode and multi-buffer: the rung, how frames are copied, the largest path MTU. "+
		"Where it was opened, WRITE, READ and SEND of 64 KiB went both ways at that path MTU and were compared, and a larger one is refused. "+
		"\"Default\" is nothing asked for, and is compared with what `xroce devices` expects without opening.\n\n")
	features.write(w, "feature")
	rungs.write(w, "choice")
}
