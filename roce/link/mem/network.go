// Package mem is an Ethernet switch in memory: devices of one process exchange frames without a kernel.
//
// It is deterministic: with a manual clock, every run from the same seed delivers the same frames at the same
// times, faults included. Without one it is live: frames arrive at once and any number of goroutines may use
// it, which is what programs want that test their own verbs code without root.
//
// Way of a frame: Publish hands it to the network; Kick decides its fate (the intercept function first, then the
// seeded faults) and puts it into the queue of the device whose address it carries, now or when the clock
// reaches its time of arrival; Receive lends it to the reader, Release returns its buffer to the pool.
//
// It is the engine's own and changes as that needs; programs use package verbs.
package mem

import (
	"container/heap"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/xroce/xroce/internal/lockorder"
	"github.com/xroce/xroce/roce"
)

// Faults are the odds, 0 to 1, of what may happen to a frame.
type Faults struct {
	Drop, Duplicate, Reorder, Corrupt float64

	// Delay makes a frame late by up to LongestDelay, far more than Reorder does: a retransmission may overtake it.
	// Burst loses it and all that follow for up to LongestBurst. Both need a manual clock.
	Delay, Burst               float64
	LongestDelay, LongestBurst time.Duration

	// Spare, if not 0, is how often the same packet may be lost, damaged or made late, however bad the network is: so a
	// peer with more resends than that always gets it through. A packet is told by its QPN, opcode and PSN.
	Spare int
}

// packetID tells a packet and its resends from others.
type packetID struct {
	qpn    roce.QPN
	opcode roce.Opcode
	psn    roce.PSN
}

// Verdict is what an intercept function decides about a frame.
type Verdict struct {
	Drop      bool
	Duplicate bool
	Late      bool // others overtake it
	// Delay is added to the time of arrival. It needs a manual clock.
	Delay time.Duration
}

// Options describe a network; the zero value is a live one without faults.
type Options struct {
	Seed   uint64
	Faults Faults
	// Manual gives the network a clock that stands still until AdvanceTo.
	Manual bool
	// NoFD leaves out the descriptors of the queues: whoever waits for frames sleeps in the Go runtime instead of
	// poll(2), as testing/synctest needs it.
	NoFD bool
	// Latency is the time from Kick to arrival on a manual clock; 0 means one microsecond.
	Latency time.Duration
	// Scatter delivers each frame to a random queue of its device instead of to the one that has the number of
	// the sender's, which is how veth does it.
	Scatter bool
	// Intercept, if not nil, sees every frame before the faults do. packet is nil if the frame is not RoCE.
	// It runs under the network's lock and must not call into the network.
	Intercept func(frame []byte, packet *roce.Packet) Verdict
	// Tap, if not nil, sees every frame that is delivered, in order of delivery, under the same rule.
	Tap func(at time.Duration, frame []byte)
}

// Network is a switch.
type Network struct {
	options Options

	mu       lockorder.Mutex[lockorder.Memory]
	random   *rand.Rand
	now      time.Duration
	devices  map[roce.MAC]*Device
	made     int // devices so far
	flight   arrivals
	order    uint64
	held     arrival       // a reordered frame of a live network: it arrives behind the next one
	dark     time.Duration // a burst loses every frame until then
	harmed   uint64
	suffered map[packetID]int // how often each packet was harmed, if Faults.Spare needs it
	pool     [][]byte
	packet   roce.Packet
	spread   func(roce.QPN) int // or nil
}

// NewNetwork makes a network.
func NewNetwork(o Options) *Network {
	if o.Latency == 0 {
		o.Latency = time.Microsecond
	}
	return &Network{
		options: o,
		random:  rand.New(rand.NewPCG(o.Seed, 0x6c696e6b)),
		devices: make(map[roce.MAC]*Device),
		now:     time.Nanosecond,
	}
}

// SetFaults changes the odds from now on.
func (n *Network) SetFaults(f Faults) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.options.Faults = f
}

// SetIntercept replaces the intercept function.
func (n *Network) SetIntercept(f func(frame []byte, packet *roce.Packet) Verdict) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.options.Intercept = f
}

// SetSpread makes the devices choose the queue of a frame by the QPN that it is for, as a NIC does by a hash: f(QPN)
// modulo the number of queues, or, if that is negative, where the frame would have arrived otherwise. f runs under the
// network's lock and must not call into the network. Nil ends it.
func (n *Network) SetSpread(f func(roce.QPN) int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.spread = f
}

// Now is the reading of the manual clock.
func (n *Network) Now() time.Duration {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.now
}

// NextArrival is when the next frame in flight arrives.
func (n *Network) NextArrival() (time.Duration, bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if len(n.flight) == 0 {
		return 0, false
	}
	return n.flight[0].at, true
}

// Harmed is how many frames the faults have lost, damaged or made late so far.
func (n *Network) Harmed() uint64 {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.harmed
}

// AdvanceTo sets the manual clock and delivers what arrives until then.
func (n *Network) AdvanceTo(t time.Duration) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for len(n.flight) > 0 && n.flight[0].at <= t {
		a := heap.Pop(&n.flight).(*arrival)
		n.now = max(n.now, a.at)
		n.deliver(a.frame, a.queue)
	}
	n.now = max(n.now, t)
}

// bufferSize holds the largest frame: path MTU 4096 and all headers.
const bufferSize = 4608

func (n *Network) buffer() []byte {
	if last := len(n.pool) - 1; last >= 0 {
		b := n.pool[last]
		n.pool = n.pool[:last]
		return b[:bufferSize]
	}
	return make([]byte, bufferSize)
}

// recycle takes a buffer back. Whoever still looks at it shall see that it is not his any more.
func (n *Network) recycle(b []byte) {
	b = b[:bufferSize]
	copy(b, spent[:])
	n.pool = append(n.pool, b)
}

var spent = [bufferSize]byte([]byte(strings.Repeat("\xDB", bufferSize)))

// send decides the fate of a frame. The network owns its buffer from here on.
func (n *Network) send(frame []byte, queue int) {
	var v Verdict
	if n.options.Intercept != nil {
		p := &n.packet
		if p.Parse([][]byte{frame}) != roce.DropNone {
			p = nil
		}
		v = n.options.Intercept(frame, p)
	}
	f := n.options.Faults
	if n.options.Manual && n.chance(f.Burst) {
		n.dark = n.now + time.Duration(n.random.Int64N(int64(f.LongestBurst)+1))
	}
	drop, corrupt, delay := n.now < n.dark || n.chance(f.Drop), n.chance(f.Corrupt), n.options.Manual && n.chance(f.Delay)
	if (drop || corrupt || delay) && n.spared(frame) {
		drop, corrupt, delay = false, false, false
	}
	if v.Drop || drop {
		n.harmed++
		n.recycle(frame)
		return
	}
	if v.Duplicate || n.chance(f.Duplicate) {
		twin := append(n.buffer()[:0], frame...)
		n.schedule(twin, queue, v.Delay, false)
	}
	if corrupt {
		n.harmed++
		frame[n.random.IntN(len(frame))] ^= byte(1 + n.random.IntN(255))
	}
	if delay {
		n.harmed++
		v.Delay += time.Duration(n.random.Int64N(int64(f.LongestDelay) + 1))
	}
	late := n.chance(f.Reorder) || v.Late
	if late {
		n.harmed++
	}
	n.schedule(frame, queue, v.Delay, late)
}

// spared says that a frame that is to be harmed has suffered enough, and counts it otherwise.
func (n *Network) spared(frame []byte) bool {
	limit := n.options.Faults.Spare
	var p roce.Packet
	if limit == 0 || p.Parse([][]byte{frame}) != roce.DropNone {
		return false
	}
	if n.suffered == nil {
		n.suffered = make(map[packetID]int)
	}
	id := packetID{p.DestinationQPN, p.Opcode, p.PSN}
	n.suffered[id]++
	return n.suffered[id] > limit
}

func (n *Network) chance(p float64) bool { return p > 0 && n.random.Float64() < p }

// schedule sends a frame on its way; late says that others shall overtake it.
func (n *Network) schedule(frame []byte, queue int, delay time.Duration, late bool) {
	if n.options.Manual {
		a := &arrival{frame: frame, queue: queue, order: n.order, at: n.now + n.options.Latency + delay}
		n.order++
		if late {
			a.at += time.Duration(1 + n.random.Int64N(int64(20*n.options.Latency)))
		}
		heap.Push(&n.flight, a)
		return
	}
	if late && n.held.frame == nil {
		n.held = arrival{frame: frame, queue: queue}
		return
	}
	n.deliver(frame, queue)
	if held := n.held; held.frame != nil {
		n.held = arrival{}
		n.deliver(held.frame, held.queue)
	}
}

// deliver puts a frame into the queue of the device that it is addressed to.
func (n *Network) deliver(frame []byte, queue int) {
	var to roce.MAC
	copy(to[:], frame)
	d := n.devices[to]
	if d == nil || d.down {
		n.recycle(frame)
		return
	}
	if n.options.Tap != nil {
		n.options.Tap(n.now, frame)
	}
	q := d.queues[queue%len(d.queues)]
	if n.options.Scatter {
		q = d.queues[n.random.IntN(len(d.queues))]
	}
	if n.spread != nil && n.packet.ParseHeaders([][]byte{frame}) == roce.DropNone {
		if at := n.spread(n.packet.DestinationQPN); at >= 0 {
			q = d.queues[at%len(d.queues)]
		}
	}
	q.arrive(frame)
}

// arrival is a frame on its way.
type arrival struct {
	frame []byte
	queue int // of the sender
	at    time.Duration
	order uint64
}

type arrivals []*arrival

func (h arrivals) Len() int { return len(h) }
func (h arrivals) Less(i, j int) bool {
	return h[i].at < h[j].at || h[i].at == h[j].at && h[i].order < h[j].order
}
func (h arrivals) Swap(i, j int) { h[i], h[j] = h[j], h[i] }
func (h *arrivals) Push(x any)   { *h = append(*h, x.(*arrival)) }
func (h *arrivals) Pop() any {
	last := len(*h) - 1
	a := (*h)[last]
	(*h)[last] = nil
	*h = (*h)[:last]
	return a
}
