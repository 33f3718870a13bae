//go:build linux

package guest

import (
	"cmp"
	"fmt"
	"time"

	"github.com/xroce/xroce/hack/interop/plan"
)

// faults runs those of the plan.
func (g *guest) faults() {
	for _, f := range g.plan.Faults {
		g.one("fault", f.String(), nil, func() error {
			if f.Operation == plan.Flush {
				return g.provokeFlush(g.named(f.Requester))
			}
			return g.provoke(f)
		})
	}
}

// named is the end with that name.
func (g *guest) named(name string) *end {
	if name == g.right.name {
		return g.right
	}
	return g.left
}

// provoke runs a fault: both ends must see what it says, and the regions must be what they ought to be.
func (g *guest) provoke(f plan.Fault) error {
	t := terms{mtu: 1024, family: 4, length: plan.FaultLength, access: f.Access, retry: 3, rnrRetry: cmp.Or(f.RNRRetry, 7)}
	if t.access == nil {
		t.access = allAccess
	}
	p, err := g.connect(f.Requester, t)
	if err != nil {
		return err
	}
	err = do(
		step{p.requester, command{Do: "fill", Pieces: []piece{{0, requesterFrom, plan.FaultLength}}}},
		step{p.responder, command{Do: "fill", Pieces: []piece{{0, responderFrom, plan.FaultLength}}}},
	)
	if err != nil {
		return err
	}
	if err := p.postFault(f); err != nil {
		return err
	}
	return p.judgeFault(f)
}

// postFault posts the request, and the receive before or after it.
func (p pair) postFault(f plan.Fault) error {
	receive := step{p.responder, command{Do: "receive", Slots: []slot{{0, f.Receive}}}}
	if f.Receive > 0 && f.Late == 0 {
		if err := do(receive); err != nil {
			return err
		}
	}
	if f.Kill {
		p.responder.kill()
	}
	r := request{Operation: f.Operation, Length: f.Length}
	if f.Operation != plan.Send {
		r.Addr, r.RKey, r.CompareAdd = p.remote.Addr+uint64(f.From), p.remote.RKey, 1
	}
	if f.WrongKey {
		r.RKey ^= 0x5a5a00 // a key of another index
	}
	if err := do(step{p.requester, command{Do: "post", Requests: []request{r}}}); err != nil {
		return err
	}
	if f.Late == 0 {
		return nil
	}
	time.Sleep(f.Late)
	return do(receive)
}

// judgeFault compares what both ends see with what the fault says.
func (p pair) judgeFault(f plan.Fault) error {
	kind := plan.Xroce
	if p.responder.name == plan.Rxe {
		kind = plan.Rxe
	}
	if err := p.requester.completes("request", f.Status[kind], 20); err != nil || f.Kill {
		return err
	}
	if f.Receive > 0 {
		if err := p.responder.completes("receive", f.Received[kind], 5); err != nil {
			return err
		}
	}
	a, err := p.responder.do(command{Do: "state"})
	if err != nil {
		return err
	}
	if a.State != f.State {
		return fmt.Errorf("%s: state %s instead of %s", p.responder.name, a.State, f.State)
	}
	region := []piece{{0, responderFrom, plan.FaultLength}}
	switch {
	case f.Status[kind] == plan.StatusSuccess:
		region = []piece{{0, requesterFrom, f.Length}, {f.Length, responderFrom + f.Length, plan.FaultLength - f.Length}}
	case f.Received[kind] == plan.StatusLocLenErr || f.Received[kind] == plan.StatusLocQPOpErr:
		return nil // what the receive had room for may have been written
	}
	return do(step{p.responder, command{Do: "check", Pieces: region}})
}

// completes waits for one completion, which must have the status.
func (e *end) completes(what string, status int, seconds float64) error {
	seen, err := e.do(command{Do: "wait", Count: 1, Seconds: seconds})
	if err != nil {
		return err
	}
	if got := seen.Completions[0].Status; got != status {
		return fmt.Errorf("%s: %s: %s instead of %s", e.name, what, plan.StatusNames[got], plan.StatusNames[status])
	}
	return nil
}
