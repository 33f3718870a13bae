package simulation

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/xroce/xroce/internal/opener"
	"github.com/xroce/xroce/roce"
	"github.com/xroce/xroce/roce/link/mem"
	"github.com/xroce/xroce/verbs"
)

// Program is a random program of two devices, and the model that knows what may come out of it. It is made up while
// it runs: whatever is random comes from one source, so that a seed always gives the same run.
type Program struct {
	random      *rand.Rand
	world       *World
	ends        [2]*end
	mtu         verbs.MTU
	v6          bool
	faults      mem.Faults
	harsh       bool // the network may be so bad that requests fail for it
	scatter     bool // frames arrive at any queue of their device, which changes their order
	spread      spread
	connections []*connection
	adders      []*adder
	swappers    []*swapper
	outcomes    map[Outcome]int
	drains      int
	err         error
	log         string
}

// Parameters choose the kind of program.
type Parameters struct {
	Seed uint64
	// Queues of each device; 0 draws a number from 1 to 4.
	Queues int
	// WorstFault bounds the odds of each fault.
	WorstFault float64
	// Sent, if not nil, sees every frame that is sent, whatever becomes of it, and Tap every one that is delivered.
	// Neither may keep the frame.
	Sent, Tap func(at time.Duration, frame []byte)
}

const (
	queueDepth   = 16
	receiveDepth = 32
	maxSGE       = 4
	maxInline    = 200
	words        = 4 // of each kind, for atomics
)

// NewProgram makes a program.
func NewProgram(p Parameters) (*Program, error) {
	random := rand.New(rand.NewPCG(p.Seed, 1))
	g := &Program{
		random: random,
		mtu:    verbs.MTU(1 + random.IntN(5)),
		v6:     random.IntN(2) == 0,
		harsh:  random.IntN(8) == 0,

		outcomes: make(map[Outcome]int),
	}
	queues := p.Queues
	if queues == 0 {
		queues = 1 + random.IntN(4)
	}
	g.faults = g.drawFaults(p.WorstFault)
	g.scatter = queues > 1 && random.IntN(2) == 0
	g.world = NewWorld(mem.Options{Seed: p.Seed, Faults: g.faults, Scatter: g.scatter, Tap: p.Tap})
	g.drawSpread(queues)
	if p.Sent != nil {
		g.world.Network.SetIntercept(func(frame []byte, _ *roce.Packet) mem.Verdict {
			p.Sent(g.world.now, frame)
			return mem.Verdict{}
		})
	}
	window := []int{0, 1, 2, 5, 16, 128}[random.IntN(6)]
	// With few receive buffers the connections wait for each other.
	receive := []int{0, 64, 24}[random.IntN(3)]
	g.log = fmt.Sprintf("path MTU %v, window %d, %d receive buffers, %d queues, scatter %v, spread %+v, harsh %v, %+v",
		g.mtu, window, receive, queues, g.scatter, g.spread, g.harsh, g.faults)
	connections := 1 + random.IntN(4)
	commons := g.newCommons()
	for i := range g.ends {
		e, err := g.newEnd(p.Seed+uint64(i)+1, mem.DeviceOptions{Queues: queues, ReceiveFrames: receive}, window, connections, commons)
		if err != nil {
			return nil, err
		}
		g.ends[i] = e
	}
	for i := range connections {
		c, err := g.newConnection(i)
		if err != nil {
			return nil, err
		}
		g.connections = append(g.connections, c)
	}
	return g, nil
}

// drawFaults draws the odds of each fault. Many programs have few kinds of them, so that each is also seen alone.
func (g *Program) drawFaults(worst float64) mem.Faults {
	odds := func() float64 {
		if g.random.IntN(3) == 0 {
			return 0
		}
		return g.random.Float64() * worst
	}
	f := mem.Faults{
		Drop: odds(), Duplicate: odds(), Reorder: odds(), Corrupt: odds(), Delay: odds() / 2, Burst: odds() / 20,
		// The ACK timeouts are 1 to 34 ms, see connection.go. A burst is shorter than any of them: then it costs one
		// resend at most.
		LongestDelay: []time.Duration{2, 10, 40}[g.random.IntN(3)] * time.Millisecond, LongestBurst: 500 * time.Microsecond,
	}
	if g.harsh {
		f.LongestBurst = 300 * time.Millisecond
	} else {
		// Request and response may each be harmed three times before both get through: fewer than the seven resends.
		f.Spare = 3
	}
	return f
}

// Devices are the two devices, as long as the program runs.
func (g *Program) Devices() (devices [2]*verbs.Device) {
	for i, e := range g.ends {
		devices[i] = e.device
	}
	return devices
}

// Outcome is how a send request may end.
type Outcome struct {
	Opcode verbs.WROpcode
	Status verbs.WCStatus
}

// Outcomes says how many send requests ended in which way.
func (g *Program) Outcomes() map[Outcome]int { return g.outcomes }

// Drains is how many times a queue pair drained in SQD.
func (g *Program) Drains() int { return g.drains }

// Moves is how many times queue pairs moved from one shard to another.
func (g *Program) Moves() (moves uint64) {
	for _, e := range g.ends {
		moves += opener.Counters(e.device).Transport.Moves
	}
	return moves
}

// Run runs the program to its end and checks what came out.
func (g *Program) Run() error {
	err := g.world.Run(time.Hour, g.turn)
	if err == nil {
		err = g.err
	}
	if err == nil {
		err = g.check()
	}
	if err != nil {
		return g.explain(err)
	}
	return g.close()
}

// turn lets every connection act, polls now and then, and says whether all is done.
func (g *Program) turn() (done bool) {
	for _, e := range g.ends {
		for _, cq := range e.cqs {
			if g.random.IntN(3) > 0 {
				_, err := g.poll(e, cq, 1+g.random.IntN(8))
				g.fail(err)
			}
		}
	}
	g.turnSpread()
	done = true
	for _, c := range g.connections {
		g.fail(c.turn())
		done = done && c.done
	}
	return done || g.err != nil
}

// fail keeps the first error.
func (g *Program) fail(err error) {
	if g.err == nil {
		g.err = err
	}
}

// orderly are the reasons to drop a packet that nobody has damaged: what is late, early, or meant for an earlier life.
var orderly = []roce.DropReason{
	roce.DropOutOfSequence, roce.DropStaleResponse, roce.DropUnexpectedResponse, roce.DropDuplicateUnanswerable,
	roce.DropQPState, roce.DropUnknownQPN,
}

// check looks at everything once more when all is over.
func (g *Program) check() error {
	for _, a := range g.adders {
		if err := a.check(); err != nil {
			return err
		}
	}
	for _, s := range g.swappers {
		if err := s.check(); err != nil {
			return err
		}
	}
	naks, restarts := uint64(0), uint64(0)
	damaged := g.faults.Corrupt > 0
	for i, e := range g.ends {
		if err := e.check(); err != nil {
			return fmt.Errorf("device %d: %w", i, err)
		}
		counters := opener.Counters(e.device)
		naks += counters.Transport.SentSequenceNAKs
		if n := counters.Transport.CompletionsDropped + counters.Link.ReceiveDropped; n > 0 {
			return fmt.Errorf("device %d: %d completions and received frames dropped", i, n)
		}
		for reason, n := range counters.Transport.Drops {
			if n > 0 && !damaged && !slices.Contains(orderly, roce.DropReason(reason)) {
				return fmt.Errorf("device %d: %d packets dropped: %v", i, n, roce.DropReason(reason))
			}
		}
	}
	for _, c := range g.connections {
		restarts += uint64(c.life)
	}
	// One NAK per gap, and a gap needs a frame that was lost or late. What is left of earlier lives may make another.
	if most := 2*g.world.Network.Harmed() + 16*restarts; naks > most && !g.scatter && g.spread.phases <= 1 {
		return fmt.Errorf("%d NAKs of the sequence were sent, %d frames were harmed: at most %d", naks, g.world.Network.Harmed(), most)
	}
	return nil
}

func (g *Program) explain(err error) error {
	text := g.log
	for _, c := range g.connections {
		text += "\n" + c.String()
	}
	for i, e := range g.ends {
		text += fmt.Sprintf("\ndevice %d: %+v", i, opener.Counters(e.device))
	}
	return fmt.Errorf("%w\n%s", err, text)
}

// close destroys everything; nothing may be in use any more.
func (g *Program) close() error {
	for _, c := range g.connections {
		for _, s := range c.sides {
			if err := s.qp.Destroy(); err != nil {
				return err
			}
		}
	}
	for _, e := range g.ends {
		if err := e.close(); err != nil {
			return err
		}
	}
	return nil
}

// chance is true once in so many times.
func (g *Program) chance(oneIn int) bool { return g.random.IntN(oneIn) == 0 }
