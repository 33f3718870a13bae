//go:build linux

package main

import (
	"cmp"
	"fmt"
	"strings"
	"time"
)

// faultCase is something that must go wrong in a certain way, or right in spite of something.
type faultCase struct {
	name     string
	access   []string // what the responder's region permits; allAccess by default
	rnrRetry int      // 7, which is for ever, by default
	request  func(p pair) request
	receive  int           // bytes of a receive of the responder; 0 is none
	late     time.Duration // when it is posted, after the request
	kill     bool          // the responder's process is killed before the request is posted
	// What must be seen, depending on what the responder is made of: the status of the request, that of the receive (if one is
	// there), and the state that the responder's queue pair is in afterwards.
	requester, received map[string]int
	state               string
}

const faultLength = 8192 // of both regions

// both is the same whatever the responder is.
func both(status int) map[string]int { return map[string]int{"xroce": status, "rxe": status} }

func faultCases() []faultCase {
	send := func(n int) func(pair) request {
		return func(pair) request { return request{Operation: opSend, Length: n} }
	}
	remote := func(operation string, length int, addr func(endpoint) uint64, key uint32) func(pair) request {
		return func(p pair) request {
			return request{Operation: operation, Length: length, Addr: addr(p.remote), RKey: p.remote.RKey ^ key, CompareAdd: 1}
		}
	}
	first := func(e endpoint) uint64 { return e.Addr }
	beyond := func(e endpoint) uint64 { return e.Addr + faultLength - 100 }
	before := func(e endpoint) uint64 { return e.Addr - 8 }
	const wrongKey = 0x5a5a00
	var cases []faultCase
	for _, operation := range []string{opWrite, opRead, opFetchAdd} {
		length := 3000
		if word(operation) {
			length = 8
		}
		cases = append(cases, faultCase{
			name: operation + " with a wrong rkey", request: remote(operation, length, first, wrongKey), receive: 64,
			requester: both(10), received: both(5), state: "ERR",
		}, faultCase{
			name: operation + " before the region", request: remote(operation, length, before, 0), receive: 64,
			requester: both(10), received: both(5), state: "ERR",
		}, faultCase{
			name: operation + " that the region does not permit", request: remote(operation, length, first, 0), receive: 64,
			access:    []string{map[string]string{opWrite: "read", opRead: "write", opFetchAdd: "read"}[operation]},
			requester: both(10), received: both(5), state: "ERR",
		})
	}
	return append(cases,
		faultCase{
			name: "WRITE past the end of the region", request: remote(opWrite, 3000, beyond, 0), receive: 64,
			requester: both(10), received: both(5), state: "ERR",
		},
		faultCase{
			name: "READ past the end of the region", request: remote(opRead, 3000, beyond, 0), receive: 64,
			requester: both(10), received: both(5), state: "ERR",
		},
		// rdma_rxe answers "remote operational error" where the specification has "invalid request", and its receive
		// completes with the status that goes with that.
		faultCase{
			name: "SEND that is too long", request: send(2500), receive: 1000,
			requester: map[string]int{"xroce": 9, "rxe": 11}, received: map[string]int{"xroce": 1, "rxe": 2}, state: "ERR",
		},
		faultCase{
			name: "SEND before its receive is posted", request: send(2500), receive: 4000, late: 100 * time.Millisecond,
			requester: both(0), received: both(0), state: "RTS",
		},
		faultCase{
			name: "SEND without a receive, RNR retry count 2", request: send(100), rnrRetry: 2,
			requester: both(13), state: "RTS",
		},
		faultCase{name: "responder dies", request: remote(opWrite, 3000, first, 0), kill: true, requester: both(12)},
	)
}

func faultName(what, requester string) string {
	return fmt.Sprintf("%s, requester %s", what, requester)
}

// faults runs all cases with each end as requester.
func (g *guest) faults() {
	for _, f := range faultCases() {
		for _, requester := range []*end{g.right, g.left} {
			if name := faultName(f.name, requester.name); strings.Contains(name, g.plan.Only) {
				g.one("fault", name, nil, func() error { return g.provoke(f, requester) })
			}
		}
	}
	g.flush()
}

func (g *guest) provoke(f faultCase, requester *end) error {
	t := terms{mtu: 1024, family: 4, length: faultLength, access: f.access, retry: 3, rnrRetry: cmp.Or(f.rnrRetry, 7)}
	if t.access == nil {
		t.access = allAccess
	}
	p, err := g.connect(requester.name, t)
	if err != nil {
		return err
	}
	all := []piece{{0, responderFrom, faultLength}}
	err = do(
		step{p.requester, command{Do: "fill", Pieces: []piece{{0, requesterFrom, faultLength}}}},
		step{p.responder, command{Do: "fill", Pieces: all}},
	)
	if err != nil {
		return err
	}
	receive := step{p.responder, command{Do: "receive", Slots: []slot{{0, f.receive}}}}
	if f.receive > 0 && f.late == 0 {
		if err := do(receive); err != nil {
			return err
		}
	}
	if f.kill {
		p.responder.kill()
	}
	if err := do(step{p.requester, command{Do: "post", Requests: []request{f.request(p)}}}); err != nil {
		return err
	}
	if f.late > 0 {
		time.Sleep(f.late)
		if err := do(receive); err != nil {
			return err
		}
	}
	kind := "xroce"
	if p.responder.name == "rxe" {
		kind = "rxe"
	}
	seen, err := p.requester.do(command{Do: "wait", Count: 1, Seconds: 20})
	if err != nil {
		return err
	}
	if got := seen.Completions[0].Status; got != f.requester[kind] {
		return fmt.Errorf("%s: %s instead of %s", p.requester.name, statusNames[got], statusNames[f.requester[kind]])
	}
	if f.kill {
		return nil
	}
	if f.receive > 0 {
		seen, err := p.responder.do(command{Do: "wait", Count: 1, Seconds: 5})
		if err != nil {
			return err
		}
		if got := seen.Completions[0].Status; got != f.received[kind] {
			return fmt.Errorf("%s: receive: %s instead of %s", p.responder.name, statusNames[got], statusNames[f.received[kind]])
		}
	}
	a, err := p.responder.do(command{Do: "state"})
	if err != nil {
		return err
	}
	if a.State != f.state {
		return fmt.Errorf("%s: state %s instead of %s", p.responder.name, a.State, f.state)
	}
	if f.requester[kind] == 0 {
		all = []piece{{0, requesterFrom, 2500}, {2500, responderFrom + 2500, faultLength - 2500}}
	}
	if f.received[kind] == 1 || f.received[kind] == 2 {
		return nil // what the receive had room for may have been written
	}
	return do(step{p.responder, command{Do: "check", Pieces: all}})
}
