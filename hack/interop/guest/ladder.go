//go:build linux

package guest

import (
	"errors"
	"fmt"
	"os/exec"
	"slices"
	"strings"
	"time"

	"github.com/xroce/xroce/hack/interop/plan"
	"github.com/xroce/xroce/hack/interop/report"
	"github.com/xroce/xroce/roce/link/xdp"
)

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
func (o obtained) contradicts(r plan.Rung) (all []string) {
	if r.Mode != "" && !strings.HasPrefix(o.Mode, r.Mode) {
		all = append(all, "mode "+o.Mode)
	}
	if r.Copy != "" && o.ZeroCopy != (r.Copy == "zero") {
		all = append(all, fmt.Sprintf("zero copy %v", o.ZeroCopy))
	}
	if r.MultiBuffer != "" && o.MultiBuffer != (r.MultiBuffer == "on") {
		all = append(all, fmt.Sprintf("multi-buffer %v", o.MultiBuffer))
	}
	if !o.MultiBuffer && o.MTU > 2048 {
		all = append(all, fmt.Sprintf("path MTU %d without multi-buffer", o.MTU))
	}
	return all
}

// ladder shows what the kernel has, what it and the driver of v1 give for each choice of options, and that it works.
// What the documentation says of a kernel has to be so.
func (g *guest) ladder() {
	for _, f := range xdp.Features() {
		g.alone("feature", f.Name, f.Name, func() (string, error) { return checkFeature(g.report.Kernel, f) })
	}
	if err := g.setLoss(plan.NoLoss); err != nil {
		g.add(report.Result{Kind: "rung", Name: "network without loss", Outcome: report.Fails, Detail: err.Error()},
			time.Now())
		return
	}
	if _, err := g.left.open(results); err != nil {
		g.add(report.Result{Kind: "rung", Name: g.left.name, Outcome: report.Fails, Detail: err.Error()}, time.Now())
		return
	}
	port, err := xdp.Probe("v1", xdp.ProbeOptions{NetNS: "/run/netns/n1"})
	if err = errors.Join(err, port.Obstacle); err != nil {
		g.add(report.Result{Kind: "rung", Name: "probe", Outcome: report.Fails, Detail: err.Error()}, time.Now())
	}
	for _, r := range g.plan.Rungs {
		g.alone("rung", r.String(), "opened with "+r.String(), func() (string, error) { return g.climb(r, port) })
	}
	if err := g.left.close(); err != nil {
		g.add(report.Result{Kind: "rung", Name: g.left.name + " closed", Outcome: report.Fails, Detail: err.Error()},
			time.Now())
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

// climb opens v1 with the choice and moves data both ways. A choice that should be refused and is not fails, and the
// other way round.
func (g *guest) climb(r plan.Rung, port xdp.Port) (short string, err error) {
	before := *g.right
	defer func() { *g.right = before }()
	g.right.mode, g.right.copy, g.right.multiBuffer = r.Mode, r.Copy, r.MultiBuffer
	_, err = g.right.open(results)
	defer func() {
		if closed := g.right.close(); closed != nil {
			// A refusal does not excuse it.
			short, err = "", errors.Join(err, closed)
		}
	}()
	expected := g.setting().refusal(g.right.name, "open", terms{})
	switch {
	case err != nil && outcomeOf(err) == report.Refused && expected == never:
		return "", fmt.Errorf("should not be refused: %v", err)
	case err != nil:
		return "", err
	case expected == always:
		return "", fmt.Errorf("should be refused, and gave %v", g.right.obtained)
	}
	if short, err = g.judgeObtained(r, port); err != nil {
		return "", err
	}
	if err := g.carrier(); err != nil {
		return "", err
	}
	if err := g.moveBothWays(g.right.obtained.MTU); err != nil {
		return "", err
	}
	return short, g.refuseLarger(g.right.obtained.MTU)
}

// judgeObtained compares what xroce has got with what was asked for and what was expected, and describes it.
func (g *guest) judgeObtained(r plan.Rung, port xdp.Port) (short string, err error) {
	got := g.right.obtained
	if wrong := got.contradicts(r); wrong != nil {
		return "", fmt.Errorf("obtained %s", strings.Join(wrong, ", "))
	}
	if want := largestMTU(g.plan.NetMTU, got.MultiBuffer); got.MTU != want {
		return "", fmt.Errorf("obtained path MTU %d instead of %d", got.MTU, want)
	}
	if r != (plan.Rung{}) || port.Rungs == nil {
		return got.String(), nil
	}
	wrong, note := got.differsFrom(port)
	if wrong != nil {
		return "", fmt.Errorf("obtained %v, but \"xroce devices\" expects %s", got, strings.Join(wrong, ", "))
	}
	return got.String() + note, nil
}

// moveBothWays moves data at the path MTU.
func (g *guest) moveBothWays(mtu int) error {
	for _, operation := range []string{plan.Write, plan.Read, plan.Send} {
		for _, requester := range []*end{g.right, g.left} {
			c := plan.Cell{Operation: operation, Requester: requester.name, MTU: mtu, Family: 4, Size: 64 << 10,
				Loss: plan.NoLoss}
			err := g.transfer(c)
			if err = errors.Join(err, g.clean()); err != nil {
				return fmt.Errorf("%v: %v", c, err) // what was opened is not to be refused any more
			}
		}
	}
	return nil
}

// refuseLarger asks for the next larger path MTU, which must be refused.
func (g *guest) refuseLarger(mtu int) error {
	if mtu == plan.MTUs[len(plan.MTUs)-1] {
		return nil
	}
	_, err := g.connect(g.right.name, terms{mtu: 2 * mtu, family: 4, length: 8, retry: 7, rnrRetry: 7})
	if err == nil || outcomeOf(err) != report.Refused {
		return fmt.Errorf("path MTU %d is not refused: %v", 2*mtu, err)
	}
	return g.clean()
}

// differsFrom says what "xroce devices" expects otherwise. Open may obtain a better rung than the driver tells, since
// it tries each: kernels do not compare what a program needs with what the driver tells. That is a note only.
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
