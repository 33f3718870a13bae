//go:build linux

package guest

import (
	"errors"
	"fmt"

	"github.com/xroce/xroce/hack/interop/plan"
)

// guard is how many bytes of the region around each message must stay as they are.
const guard = 64

// layout says where the messages of a cell lie: at the same place in both regions.
type layout struct{ count, size, stride int }

// layoutOf is the layout of a cell.
func layoutOf(c plan.Cell) layout {
	return layout{count: c.Count(), size: c.Size, stride: (c.Size+7)&^7 + guard}
}

func (l layout) at(i int) int { return guard + i*l.stride }
func (l layout) length() int  { return guard + l.count*l.stride }

// The regions begin with the pattern from these offsets on.
const (
	requesterFrom = 0
	responderFrom = patternSize/2 + 13
)

// all is the region as it was filled.
func (l layout) all(from int) []piece { return []piece{{At: 0, From: from, Length: l.length()}} }

// received is a region of the responder or, of a READ, the requester, after messages of the other one arrived.
func (l layout) received(from, sender int) (pieces []piece) {
	pieces = append(pieces, piece{0, from, guard})
	for i := range l.count {
		at := l.at(i)
		pieces = append(pieces, piece{at, sender + at, l.size}, piece{at + l.size, from + at + l.size, l.stride - l.size})
	}
	return pieces
}

// pair is the two ends of a cell by what they do.
type pair struct {
	requester, responder *end
	local, remote        endpoint // of the requester, of the responder
}

// terms are those of a connection.
type terms struct {
	mtu, family, length int
	access              []string
	special             string
	retry, rnrRetry     int
}

var allAccess = []string{"read", "write", "atomic"}

// connect makes a queue pair at each end and connects them.
func (g *guest) connect(requester string, t terms) (p pair, err error) {
	g.asked = t
	p.requester, p.responder = g.left, g.right
	if requester == g.right.name {
		p.requester, p.responder = g.right, g.left
	}
	for _, x := range []struct {
		e    *end
		into *endpoint
	}{{p.requester, &p.local}, {p.responder, &p.remote}} {
		a, err := x.e.do(command{
			Do: "create", Address: x.e.address[t.family], Length: t.length, Access: t.access, Special: t.special,
		})
		if err != nil {
			return p, err
		}
		*x.into = *a.Endpoint
	}
	g.first = p.local.PSN
	if _, err := p.requester.do(command{Do: "connect", Remote: &p.remote, MTU: t.mtu, Retry: t.retry, RNRRetry: t.rnrRetry}); err != nil {
		return p, err
	}
	_, err = p.responder.do(command{Do: "connect", Remote: &p.local, MTU: t.mtu, Retry: t.retry, RNRRetry: t.rnrRetry})
	return p, err
}

// do has ends obey commands one after the other.
func do(steps ...step) error {
	for _, s := range steps {
		if _, err := s.end.do(s.command); err != nil {
			return err
		}
	}
	return nil
}

type step struct {
	end     *end
	command command
}

const immediate = 0x01020304 // of the first message; each message has one more

// transfer runs a cell: all its messages are posted at once, and afterwards both regions must be what they ought to
// be, guards included.
func (g *guest) transfer(c plan.Cell) error {
	l := layoutOf(c)
	t := terms{mtu: c.MTU, family: c.Family, length: l.length(), access: allAccess, retry: 7, rnrRetry: 7}
	if c.Operation == plan.AtomicWrite {
		t.special = c.Operation
	}
	p, err := g.connect(c.Requester, t)
	if err != nil {
		return err
	}
	err = do(
		step{p.requester, command{Do: "fill", Pieces: l.all(requesterFrom)}},
		step{p.responder, command{Do: "fill", Pieces: l.all(responderFrom)}},
	)
	if err != nil {
		return err
	}
	if c.Operation == plan.CompareSwap || c.Operation == plan.FetchAdd {
		return p.atomics(c, l)
	}
	keys, err := p.prepare(c, l)
	if err != nil {
		return err
	}
	var requests []request
	for i := range l.count {
		r := request{
			Operation: c.Operation, At: l.at(i), Length: l.size, Immediate: immediate + uint32(i),
			Addr: p.remote.Addr + uint64(l.at(i)), RKey: p.remote.RKey,
		}
		if c.Operation == plan.SendInv {
			r.Invalidate = keys[i]
		}
		requests = append(requests, r)
	}
	if err := do(step{p.requester, command{Do: "post", Requests: requests}}); err != nil {
		return err
	}
	if err := p.succeed(l.count); err != nil {
		return err
	}
	if plan.Consumes(c.Operation) {
		if err := p.received(c, l, keys); err != nil {
			return err
		}
	}
	mine, theirs := l.all(requesterFrom), l.received(responderFrom, requesterFrom)
	if c.Operation == plan.Read {
		mine, theirs = l.received(requesterFrom, responderFrom), l.all(responderFrom)
	}
	return do(step{p.requester, command{Do: "check", Pieces: mine}},
		step{p.responder, command{Do: "check", Pieces: theirs}})
}

// prepare has the responder post the receives of a cell, and bind the windows whose keys the messages invalidate.
func (p pair) prepare(c plan.Cell, l layout) (keys []uint32, err error) {
	var receives, windows []slot
	for i := range l.count {
		// Receives have more room than the messages need.
		receives = append(receives, slot{l.at(i), l.size + 16})
		windows = append(windows, slot{l.at(i), max(8, l.size)})
	}
	if c.Operation == plan.SendInv {
		a, err := p.responder.do(command{Do: "window", Slots: windows})
		if err != nil {
			return nil, err
		}
		keys = a.Keys
	}
	if plan.Consumes(c.Operation) {
		err = do(step{p.responder, command{Do: "receive", Slots: receives}})
	}
	return keys, err
}

// received compares the completions of the receives with what they must say.
func (p pair) received(c plan.Cell, l layout, keys []uint32) error {
	a, err := p.responder.do(command{Do: "wait", Count: l.count, Seconds: patience})
	if err != nil {
		return err
	}
	for i, got := range a.Completions {
		want := completion{Receive: true, Place: i, Length: l.size}
		switch c.Operation {
		case plan.SendImm, plan.WriteImm:
			want.Immediate = immediate + uint32(i)
		case plan.SendInv:
			want.Invalidated = keys[i]
		}
		if got != want {
			return fmt.Errorf("%s: completion %+v instead of %+v", p.responder.name, got, want)
		}
	}
	return nil
}

const patience = 60 // seconds

// statusError says that a request, in its turn, was completed with another status than success.
type statusError struct {
	status int
	text   string
}

func (s *statusError) Error() string { return s.text }

// succeed waits until all requests are complete, in order.
func (p pair) succeed(count int) error {
	a, err := p.requester.do(command{Do: "wait", Count: count, Seconds: patience})
	for i, got := range a.Completions {
		if got.Status != plan.StatusSuccess || got.Receive || got.Place != i {
			failed := fmt.Sprintf("%s: completion of request %d: %s, %+v", p.requester.name, i, plan.StatusNames[got.Status],
				got)
			if got.Receive || got.Place != i {
				return errors.New(failed)
			}
			return &statusError{got.Status, failed}
		}
	}
	return err
}

// atomics does all on one word, the first one of the responder's region, so that the value of each result is known:
// an atomic that is executed twice, or out of order, shows.
func (p pair) atomics(c plan.Cell, l layout) error {
	a, err := p.responder.do(command{Do: "load", At: guard})
	if err != nil {
		return err
	}
	start := a.Word
	const add = 0x0000000100000001
	var requests []request
	for i := range l.count {
		r := request{Operation: c.Operation, At: l.at(i), Length: 8, Addr: p.remote.Addr + guard, RKey: p.remote.RKey}
		if r.CompareAdd = add; c.Operation == plan.CompareSwap {
			r.CompareAdd, r.Swap = start+uint64(i)*add, start+uint64(i+1)*add
		}
		requests = append(requests, r)
	}
	if err := do(step{p.requester, command{Do: "post", Requests: requests}}); err != nil {
		return err
	}
	if err := p.succeed(l.count); err != nil {
		return err
	}
	for i := range l.count {
		a, err := p.requester.do(command{Do: "load", At: l.at(i)})
		if err != nil {
			return err
		}
		if want := start + uint64(i)*add; a.Word != want {
			return fmt.Errorf("%s: result %d is %#x instead of %#x", p.requester.name, i, a.Word, want)
		}
	}
	if a, err = p.responder.do(command{Do: "load", At: guard}); err != nil {
		return err
	}
	if want := start + uint64(l.count)*add; a.Word != want {
		return fmt.Errorf("%s: the word is %#x instead of %#x", p.responder.name, a.Word, want)
	}
	rest := []piece{{0, responderFrom, guard}, {guard + 8, responderFrom + guard + 8, l.length() - guard - 8}}
	return do(step{p.responder, command{Do: "check", Pieces: rest}})
}

// bulk moves bulkSize each way with a hash at the end, which is a comparison with the pattern at both ends.
func (g *guest) bulk(loss string) {
	const messages = 256 // of 1 MiB, see shorten
	size := bulkSize / messages
	for _, operation := range []string{plan.Write, plan.Read} {
		for _, requester := range []*end{g.right, g.left} {
			c := plan.Cell{Operation: operation, Requester: requester.name, MTU: g.bulkMTU(), Family: 4, Size: size, Loss: loss}
			name := fmt.Sprintf("%d MiB in %d messages: %s", bulkSize>>20, messages, c)
			g.one("bulk", name, &c, func() error { return g.moveBulk(c, messages) })
		}
	}
}

// bulkMTU is the largest path MTU that the network devices carry.
func (g *guest) bulkMTU() int {
	best := plan.MTUs[0]
	for _, m := range plan.MTUs {
		if m+96 <= g.plan.NetMTU {
			best = m
		}
	}
	return best
}

func (g *guest) moveBulk(c plan.Cell, messages int) error {
	l := layout{count: 1, size: bulkSize, stride: bulkSize}
	p, err := g.connect(c.Requester,
		terms{mtu: c.MTU, family: c.Family, length: bulkSize, access: allAccess, retry: 7, rnrRetry: 7})
	if err != nil {
		return err
	}
	source, target := p.requester, p.responder
	if c.Operation == plan.Read {
		source, target = target, source
	}
	full := []piece{{0, patternSize, l.size}}
	err = do(
		step{source, command{Do: "fill", Pieces: full}},
		step{target, command{Do: "fill", Pieces: []piece{{0, 0, l.size}}}},
	)
	if err != nil {
		return err
	}
	var requests []request
	for i := range messages {
		at := i * c.Size
		requests = append(requests,
			request{Operation: c.Operation, At: at, Length: c.Size, Addr: p.remote.Addr + uint64(at), RKey: p.remote.RKey})
	}
	if err := do(step{p.requester, command{Do: "post", Requests: requests}}); err != nil {
		return err
	}
	a, err := p.requester.do(command{Do: "wait", Count: messages, Seconds: 1200})
	for i, got := range a.Completions {
		if got.Status != plan.StatusSuccess || got.Place != i {
			return fmt.Errorf("%s: completion of request %d: %s", p.requester.name, i, plan.StatusNames[got.Status])
		}
	}
	if err != nil {
		return err
	}
	return do(step{p.requester, command{Do: "check", Pieces: full}}, step{p.responder, command{Do: "check", Pieces: full}})
}
