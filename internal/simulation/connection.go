package simulation

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/netip"

	"github.com/xroce/xroce/roce"
	"github.com/xroce/xroce/verbs"
)

// A connection has several lives. Each begins in RESET, with PSNs of its own, and ends in one of the ways below; when
// nothing is in flight any more both queue pairs go back to RESET, or are destroyed and made anew.

// ending is how a life ends.
type ending int

const (
	endClean     ending = iota // everything is done
	endError                   // one side goes to ERR while the traffic goes on
	endReset                   // one side goes to RESET
	endViolation               // one side asks for something that is not permitted
	endDanger                  // one side takes a key away that the other one uses
	endings
)

func (e ending) String() string {
	return [...]string{"clean", "ERR", "RESET", "violation", "danger"}[e]
}

type connection struct {
	g           *Program
	number      int
	life, lives int
	sides       [2]*side
	flows       [2]*flow // flow i sends from side i
	ending      ending
	after       int  // so many requests later the end comes
	who         int  // the side that brings it about
	failing     bool // a queue pair has left RTS for good
	done        bool
}

// side is one end of a connection.
type side struct {
	end          *end
	plot         *plot
	qp           *verbs.QP
	sends, recvs *verbs.CQ
	psn          verbs.PSN
	keys         []*key
	frozen       []byte // the plot when the queue pair left RTS by our own hand: no byte may change any more
	gone         bool   // it is in RESET by our own hand
	drain        drain
}

func (g *Program) newConnection(number int) (*connection, error) {
	c := &connection{g: g, number: number, lives: 1 + g.random.IntN(3)}
	for i := range c.sides {
		e := g.ends[i]
		s := &side{end: e, psn: verbs.PSN(g.random.Uint32()) & 0xFFFFFF}
		if g.chance(3) {
			s.psn = 0xFFFFFF - verbs.PSN(g.random.IntN(20)) // wraps soon
		}
		s.plot = &plot{bytes: e.plots[number], truth: bytes.Clone(e.plots[number]), base: librarySize + number*plotSize}
		c.sides[i] = s
		if err := c.create(s); err != nil {
			return nil, err
		}
	}
	return c, c.begin()
}

func (c *connection) create(s *side) (err error) {
	g, e := c.g, s.end
	s.sends, s.recvs = e.cqs[g.random.IntN(len(e.cqs))], e.cqs[g.random.IntN(len(e.cqs))]
	s.qp, err = e.pd.CreateQP(verbs.QPInitAttr{SendCQ: s.sends, RecvCQ: s.recvs, Cap: verbs.QPCap{
		MaxSendWR: queueDepth, MaxRecvWR: receiveDepth, MaxSendSGE: maxSGE, MaxRecvSGE: maxSGE, MaxInline: maxInline,
	}})
	return err
}

// begin connects both sides and draws what the life will be.
func (c *connection) begin() error {
	g := c.g
	c.failing = false
	c.ending, c.who = ending(g.random.IntN(int(endings))), g.random.IntN(2)
	if g.chance(3) {
		c.ending = endClean
	}
	depth := [2]uint8{uint8(1 + g.random.IntN(8)), uint8(1 + g.random.IntN(8))}
	for i, s := range c.sides {
		s.frozen, s.gone, s.drain = nil, false, drain{}
		peer := c.sides[1-i]
		if err := c.connect(s, peer, i, depth[i], depth[1-i]); err != nil {
			return err
		}
	}
	for i, s := range c.sides {
		c.flows[i] = &flow{
			c: c, g: g, from: s, to: c.sides[1-i], number: 2*c.number + i, depth: int(depth[i]), budget: 1 + g.random.IntN(40),
			name: fmt.Sprintf("connection %d, %d to %d, life %d", c.number, i, 1-i, c.life),
		}
	}
	c.after = g.random.IntN(c.flows[0].budget + c.flows[1].budget)
	for _, s := range c.sides {
		if err := c.makeKeys(s); err != nil {
			return err
		}
	}
	return nil
}

// connect makes the three transitions.
func (c *connection) connect(s, peer *side, number int, send, receive uint8) error {
	g := c.g
	address, index := netip.AddrFrom4([4]byte{10, 0, 0, byte(2 - number)}), 0
	if g.v6 {
		address, index = netip.AddrFrom16([16]byte{0: 0xfd, 15: byte(2 - number)}), 1
	}
	access := verbs.AccessRemoteRead | verbs.AccessRemoteWrite | verbs.AccessRemoteAtomic | verbs.AccessFlushGlobal
	if err := s.qp.Modify(context.Background(), verbs.QPAttr{State: verbs.StateInit, PortNum: 1, AccessFlags: access},
		verbs.QPStateMask|verbs.QPPKeyIndex|verbs.QPPort|verbs.QPAccessFlags); err != nil {
		return err
	}
	if err := s.qp.Modify(context.Background(), verbs.QPAttr{
		State: verbs.StateRTR, PathMTU: g.mtu, DestQPN: peer.qp.QPN(), RQPSN: peer.psn, MaxDestRDAtomic: receive,
		MinRNRTimer: []uint8{1, 12, 16, 20}[g.random.IntN(4)], // 0.01, 0.64, 2.56 and 10.24 ms
		AH:          verbs.AHAttr{DGID: roce.GIDFromAddr(address), SGIDIndex: index},
	}, verbs.QPStateMask|verbs.QPAV|verbs.QPPathMTU|verbs.QPDestQPN|verbs.QPRQPSN|verbs.QPMaxDestRDAtomic|verbs.QPMinRNRTimer); err != nil {
		return err
	}
	retries := uint8(7)
	if g.harsh {
		retries = uint8(g.random.IntN(8))
	}
	return s.qp.Modify(context.Background(), verbs.QPAttr{
		State: verbs.StateRTS, SQPSN: s.psn, MaxRDAtomic: send, RetryCnt: retries, RNRRetry: 7,
		Timeout: uint8(8 + g.random.IntN(6)), // 1 to 34 ms
	}, verbs.QPStateMask|verbs.QPSQPSN|verbs.QPTimeout|verbs.QPRetryCnt|verbs.QPRNRRetry|verbs.QPMaxQPRDAtomic)
}

func (c *connection) turn() error {
	if c.done {
		return nil
	}
	for _, s := range c.sides {
		c.failing = c.failing || s.qp.State() == verbs.StateError
	}
	if err := c.interfere(); err != nil {
		return err
	}
	for i, f := range c.flows {
		if err := f.turn(); err != nil {
			return fmt.Errorf("%s: %w", f.name, err)
		}
		if err := c.turnDrain(c.sides[i], f); err != nil {
			return fmt.Errorf("%s: SQD: %w", f.name, err)
		}
	}
	for _, f := range c.flows {
		if !f.idle() {
			return nil
		}
	}
	return c.finish()
}

// interfere brings the life's end about when its time has come.
func (c *connection) interfere() error {
	if c.failing || len(c.flows[0].requests)+len(c.flows[1].requests) < c.after {
		return nil
	}
	s := c.sides[c.who]
	switch c.ending {
	case endError:
		c.failing = true
		return c.stop(s, verbs.StateError)
	case endReset:
		// What is complete by now stays in the CQ, nothing else comes: look at once.
		c.failing = true
		if err := c.stop(s, verbs.StateReset); err != nil {
			return err
		}
		err := c.g.drain()
		s.gone = true
		return err
	case endViolation:
		if f := c.flows[c.who]; !f.violate {
			f.violate, f.budget = true, max(f.budget, len(f.requests)+1+c.g.random.IntN(3))
		}
	case endDanger:
		c.ending = endClean
		return c.endanger(s)
	}
	return nil
}

// stop moves a queue pair out of RTS. From then on no byte of its plot may change.
func (c *connection) stop(s *side, state verbs.QPState) error {
	if err := s.qp.Modify(context.Background(), verbs.QPAttr{State: state}, verbs.QPStateMask); err != nil {
		return err
	}
	if s.frozen == nil {
		s.frozen = bytes.Clone(s.plot.bytes)
	}
	return nil
}

// finish checks a life that is over and begins the next one.
func (c *connection) finish() error {
	g := c.g
	for _, s := range c.sides {
		if s.qp.State() == verbs.StateRTS && g.chance(2) {
			if err := c.stop(s, verbs.StateError); err != nil {
				return err
			}
		}
	}
	if err := g.drain(); err != nil {
		return err
	}
	for _, f := range c.flows {
		if err := f.finish(); err != nil {
			return fmt.Errorf("%s: at the end: %w", f.name, err)
		}
	}
	for i, s := range c.sides {
		if err := s.qp.Modify(context.Background(), verbs.QPAttr{State: verbs.StateReset}, verbs.QPStateMask); err != nil {
			return err
		}
		if err := c.dropKeys(s); err != nil {
			return fmt.Errorf("connection %d, side %d: %w", c.number, i, err)
		}
		if s.frozen != nil {
			if at := difference(s.plot.bytes, s.frozen); at >= 0 {
				return fmt.Errorf("connection %d, side %d: byte %d changed after the queue pair had left RTS", c.number, i, s.plot.base+at)
			}
		}
		if err := s.plot.forget(); err != nil {
			return fmt.Errorf("connection %d, side %d, end of life %d: %w", c.number, i, c.life, err)
		}
	}
	if c.life+1 == c.lives {
		c.done = true
		return nil
	}
	c.life++
	for _, s := range c.sides {
		// What is still on its way from the earlier lives is far from the PSNs of this one.
		s.psn = (s.psn + verbs.PSN(1<<20+g.random.IntN(1<<20))) & 0xFFFFFF
		if g.chance(3) {
			if err := s.qp.Destroy(); err != nil {
				return err
			}
			if err := c.create(s); err != nil {
				return err
			}
		}
	}
	return c.begin()
}

func (c *connection) String() string {
	text := fmt.Sprintf("connection %d, life %d of %d, ends with %v of side %d", c.number, c.life, c.lives, c.ending, c.who)
	for i, f := range c.flows {
		text += fmt.Sprintf("\n\t%d to %d: %d of %d requests posted, %d complete, violates %v; %d receives posted, %d complete; sender %v (SQD %d), PSN %v",
			i, 1-i, len(f.requests), f.budget, f.next, f.violate, f.receivesPosted, f.received, c.sides[i].qp.State(), c.sides[i].drain.phase,
			c.sides[i].psn)
	}
	return text
}

// drain is a visit to SQD.
type drain struct {
	phase int // see turnDrain
	turns int // left in SQD after it has drained
}

const (
	running = iota
	draining
	drained
)

// turnDrain sends a queue pair to SQD now and then, and back when it has drained.
func (c *connection) turnDrain(s *side, f *flow) error {
	g := c.g
	state := s.qp.State()
	switch {
	case s.gone || state == verbs.StateError:
		s.drain.phase = running
	case s.drain.phase == running:
		if !c.failing && g.chance(300) {
			s.drain.phase = draining
			return s.qp.Modify(context.Background(), verbs.QPAttr{State: verbs.StateSQD}, verbs.QPStateMask)
		}
	case s.drain.phase == draining:
		if s.qp.Query().SQDraining {
			if err := c.resume(s); err != nil && !errors.Is(err, verbs.ErrTransition) {
				return err
			}
			return nil
		}
		if err := g.drain(); err != nil {
			return err
		}
		if s.qp.State() == verbs.StateSQD { // and not ERR by now
			g.drains++
			s.drain = drain{phase: drained, turns: g.random.IntN(50)}
		}
	case s.drain.turns > 0:
		s.drain.turns--
	case g.chance(2) && f.depth > 1:
		f.depth = 1 + g.random.IntN(f.depth) // the peer still grants what it did
		return s.qp.Modify(context.Background(), verbs.QPAttr{MaxRDAtomic: uint8(f.depth), Timeout: uint8(8 + g.random.IntN(6))},
			verbs.QPMaxQPRDAtomic|verbs.QPTimeout)
	default:
		return c.resume(s)
	}
	return nil
}

func (c *connection) resume(s *side) error {
	err := s.qp.Modify(context.Background(), verbs.QPAttr{State: verbs.StateRTS}, verbs.QPStateMask)
	if err == nil {
		s.drain.phase = running
	}
	return err
}
