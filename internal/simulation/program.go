package simulation

import (
	"bytes"

	"fmt"
	"math/rand/v2"
	"net/netip"
	"time"

	"github.com/xroce/xroce/roce"
	"github.com/xroce/xroce/roce/link/mem"
	"github.com/xroce/xroce/verbs"
)

// Program is a random program of two devices, and the model that knows what must come out of it. Both ends of every
// connection send, write and read; receives are posted late and in lumps; some requests ask for no completion.
// Every request has bytes of its own at both ends, so the model can tell exactly which byte must be what in the end.
type Program struct {
	seed   uint64
	random *rand.Rand
	world  *World
	ends   [2]*end
	mtu    verbs.MTU
	flows  []*flow
	v6     bool
	log    string
}

// Parameters choose the kind of program.
type Parameters struct {
	Seed   uint64
	Queues int
	// WorstFault bounds the odds of each fault.
	WorstFault float64
	// Sent, if not nil, sees every frame that is sent, whatever becomes of it, and Tap every one that is delivered.
	// Neither may keep the frame.
	Sent, Tap func(at time.Duration, frame []byte)
}

const (
	queueDepth = 16
	arenaSize  = 1 << 20
	guard      = 64
	maxSGE     = 4
)

// end is one device with everything that belongs to it.
type end struct {
	device *verbs.Device
	pd     *verbs.PD
	arena  *verbs.MR
	model  []byte // what the arena must hold in the end
	next   int    // first byte of the arena that is not used yet
}

// flow is one direction of a connection: the requests that one queue pair sends to the other.
type flow struct {
	name           string
	from, to       *end
	sender         *verbs.QP
	receiver       *verbs.QP
	sendCQ, recvCQ *verbs.CQ
	requests       []request
	posted         int
	completed      []verbs.WC
	receives       []receive
	receivesPosted int
	received       []verbs.WC
}

type request struct {
	wr       verbs.SendWR
	length   int
	local    []int // arena offset of each element
	remote   int   // arena offset, of WRITE and READ
	receive  int   // index of the receive that it takes, or -1
	signaled bool
}

type receive struct {
	wr     verbs.RecvWR
	length int // bytes of the message that comes
	imm    bool
	value  uint32
	opcode verbs.WCOpcode
}

// NewProgram makes a program.
func NewProgram(p Parameters) (*Program, error) {
	random := rand.New(rand.NewPCG(p.Seed, 1))
	odds := func() float64 { return random.Float64() * p.WorstFault }
	faults := mem.Faults{Drop: odds(), Duplicate: odds(), Reorder: odds(), Corrupt: odds()}
	g := &Program{
		seed: p.Seed, random: random,
		mtu: verbs.MTU(1 + random.IntN(5)),
		v6:  random.IntN(2) == 0,
		world: NewWorld(mem.Options{
			Seed: p.Seed, Faults: faults, Scatter: p.Queues > 1 && random.IntN(2) == 0, Tap: p.Tap,
		}),
	}
	if p.Sent != nil {
		g.world.Network.SetIntercept(func(frame []byte, _ *roce.Packet) mem.Verdict {
			p.Sent(g.world.now, frame)
			return mem.Verdict{}
		})
	}
	window := []int{0, 1, 2, 5, 16, 128}[random.IntN(6)]
	g.log = fmt.Sprintf("path MTU %v, window %d, %d queues, %+v", g.mtu, window, p.Queues, faults)
	for i := range g.ends {
		e, err := g.newEnd(p, i, window)
		if err != nil {
			return nil, err
		}
		g.ends[i] = e
	}
	for i := range 1 + random.IntN(3) {
		if err := g.connect(i); err != nil {
			return nil, err
		}
	}
	for _, f := range g.flows {
		for range 1 + random.IntN(30) {
			if f.from.room() && f.to.room() {
				g.addRequest(f)
			}
		}
	}
	return g, nil
}

func (g *Program) newEnd(p Parameters, i, window int) (*end, error) {
	device, err := g.world.AddDevice(p.Seed+uint64(i)+1, mem.DeviceOptions{Queues: p.Queues}, window)
	if err != nil {
		return nil, err
	}
	pd, err := device.AllocPD()
	if err != nil {
		return nil, err
	}
	e := &end{device: device, pd: pd, next: guard}
	arena := make([]byte, arenaSize)
	for i := range arena {
		arena[i] = byte(g.random.Uint32())
	}
	e.model = bytes.Clone(arena)
	// The address is part of what goes over the wire, and a run must not depend on where the allocator
	// put the buffer.
	iova := uint64(i+1)<<32 + g.random.Uint64N(1<<20)
	e.arena, err = pd.RegMRIova(arena, iova, verbs.AccessLocalWrite|verbs.AccessRemoteWrite|verbs.AccessRemoteRead)
	return e, err
}

// room says whether another request of any length fits into the arena.
func (e *end) room() bool { return arenaSize-e.next > 8*4096+16*guard }

// take reserves n bytes of the arena, with guard bytes behind them.
func (e *end) take(n int) int {
	at := e.next
	e.next += n + guard
	return at
}

func (g *Program) connect(number int) error {
	type side struct {
		qp           *verbs.QP
		sends, recvs *verbs.CQ
		psn          verbs.PSN
	}
	var sides [2]side
	depth := 1 + g.random.IntN(8)
	for i, e := range g.ends {
		s := &sides[i]
		var err error
		if s.sends, err = e.device.CreateCQ(queueDepth + 1); err != nil {
			return err
		}
		if s.recvs, err = e.device.CreateCQ(4 * queueDepth); err != nil {
			return err
		}
		s.qp, err = e.pd.CreateQP(verbs.QPInitAttr{SendCQ: s.sends, RecvCQ: s.recvs, Cap: verbs.QPCap{
			MaxSendWR: queueDepth, MaxRecvWR: 4 * queueDepth, MaxSendSGE: maxSGE, MaxRecvSGE: maxSGE,
		}})
		if err != nil {
			return err
		}
		s.psn = verbs.PSN(g.random.Uint32()) & 0xFFFFFF
		if g.random.IntN(3) == 0 {
			s.psn = 0xFFFFFF - verbs.PSN(g.random.IntN(20)) // wraps soon
		}
	}
	for i := range sides {
		if err := g.toRTS(sides[i].qp, sides[i].psn, sides[1-i].qp.QPN(), sides[1-i].psn, i, depth); err != nil {
			return err
		}
	}
	for i := range sides {
		here, there := &sides[i], &sides[1-i]
		g.flows = append(g.flows, &flow{
			name: fmt.Sprintf("connection %d, %d to %d", number, i, 1-i),
			from: g.ends[i], to: g.ends[1-i], sender: here.qp, receiver: there.qp, sendCQ: here.sends, recvCQ: there.recvs,
		})
	}
	return nil
}

func (g *Program) toRTS(qp *verbs.QP, psn verbs.PSN, peer verbs.QPN, peerPSN verbs.PSN, side, depth int) error {
	address := netip.AddrFrom4([4]byte{10, 0, 0, byte(2 - side)})
	if g.v6 {
		address = netip.AddrFrom16([16]byte{0: 0xfd, 15: byte(2 - side)})
	}
	return connectQP(qp, psn, g.v6, verbs.Endpoint{
		Address: address, QPN: peer, PSN: peerPSN, MTU: g.mtu, RDAtomic: uint8(depth),
	}, g.mtu, uint8(depth))
}

// connectQP makes the three transitions with a first PSN of our own choice.
func connectQP(qp *verbs.QP, psn verbs.PSN, v6 bool, remote verbs.Endpoint, mtu verbs.MTU, depth uint8) error {
	access := verbs.AccessRemoteRead | verbs.AccessRemoteWrite
	index := 0
	if v6 {
		index = 1
	}
	if err := qp.ModifyQP(verbs.QPAttr{State: verbs.StateInit, PortNum: 1, AccessFlags: access},
		verbs.QPStateMask|verbs.QPPKeyIndex|verbs.QPPort|verbs.QPAccessFlags); err != nil {
		return err
	}
	if err := qp.ModifyQP(verbs.QPAttr{
		State: verbs.StateRTR, PathMTU: mtu, DestQPN: remote.QPN, RQPSN: remote.PSN, MaxDestRDAtomic: depth,
		MinRNRTimer: 12, AH: verbs.AHAttr{DGID: roce.GIDFromAddr(remote.Address), SGIDIndex: index},
	}, verbs.QPStateMask|verbs.QPAV|verbs.QPPathMTU|verbs.QPDestQPN|verbs.QPRQPSN|verbs.QPMaxDestRDAtomic|verbs.QPMinRNRTimer); err != nil {
		return err
	}
	return qp.ModifyQP(verbs.QPAttr{
		State: verbs.StateRTS, SQPSN: psn, Timeout: 14, RetryCnt: 7, RNRRetry: 7, MaxRDAtomic: depth,
	}, verbs.QPStateMask|verbs.QPSQPSN|verbs.QPTimeout|verbs.QPRetryCnt|verbs.QPRNRRetry|verbs.QPMaxQPRDAtomic)
}

// length draws a message length: often on or next to a boundary between packets.
func (g *Program) length() int {
	mtu := g.mtu.Bytes()
	switch g.random.IntN(6) {
	case 0:
		return g.random.IntN(9)
	case 1:
		return max(0, g.random.IntN(6)*mtu+g.random.IntN(3)-1)
	case 2:
		return g.random.IntN(mtu + 1)
	}
	return g.random.IntN(5 * mtu)
}

func (g *Program) addRequest(f *flow) {
	opcode := []verbs.WROpcode{
		verbs.WRSend, verbs.WRSendWithImm, verbs.WRRDMAWrite, verbs.WRRDMAWriteWithImm, verbs.WRRDMARead,
	}[g.random.IntN(5)]
	r := request{length: g.length(), receive: -1, signaled: g.random.IntN(4) > 0}
	id := uint64(len(f.requests))
	r.wr = verbs.SendWR{WRID: id, Opcode: opcode, ImmData: g.random.Uint32()}
	if r.signaled {
		r.wr.Flags |= verbs.SendSignaled
	}
	if g.random.IntN(8) == 0 {
		r.wr.Flags |= verbs.SendFence
	}
	r.wr.SGList, r.local = g.scatter(f.from, r.length)
	switch opcode {
	case verbs.WRRDMAWrite, verbs.WRRDMAWriteWithImm:
		r.remote = f.to.take(r.length)
		g.put(f.to, []int{r.remote}, []int{r.length}, f.from, r)
	case verbs.WRRDMARead:
		r.remote = f.to.take(r.length)
		at := r.remote
		for i, s := range r.wr.SGList {
			copy(f.from.model[r.local[i]:r.local[i]+int(s.Length)], f.to.model[at:])
			at += int(s.Length)
		}
	}
	r.wr.RemoteAddr, r.wr.RKey = f.to.arena.Addr()+uint64(r.remote), f.to.arena.RKey()
	if opcode != verbs.WRRDMAWrite && opcode != verbs.WRRDMARead {
		g.addReceive(f, &r)
	}
	f.requests = append(f.requests, r)
}

// addReceive adds the receive that a request will take, with room for at least its message.
func (g *Program) addReceive(f *flow, r *request) {
	v := receive{length: r.length, opcode: verbs.WCRecv, value: r.wr.ImmData, imm: r.wr.Opcode != verbs.WRSend}
	capacity := r.length + g.random.IntN(3)*g.random.IntN(100)
	var at []int
	v.wr.WRID = uint64(len(f.receives))
	v.wr.SGList, at = g.scatter(f.to, capacity)
	if r.wr.Opcode == verbs.WRRDMAWriteWithImm {
		v.opcode = verbs.WCRecvRDMAWithImm
	} else {
		sizes := make([]int, len(at))
		for i, s := range v.wr.SGList {
			sizes[i] = int(s.Length)
		}
		g.put(f.to, at, sizes, f.from, *r)
	}
	r.receive = len(f.receives)
	f.receives = append(f.receives, v)
}

// scatter splits length bytes of the arena into a list, some of whose elements may be empty.
func (g *Program) scatter(e *end, length int) (list []verbs.SGE, at []int) {
	left := length
	for count := 1 + g.random.IntN(maxSGE); count > 0; count-- {
		n := left
		if count > 1 {
			n = g.random.IntN(left + 1)
		}
		offset := e.take(n)
		list = append(list, e.arena.SGE(offset, n))
		at = append(at, offset)
		left -= n
	}
	return list, at
}

// put tells the model that a request's local bytes go to the given places of the other end.
func (g *Program) put(to *end, at, sizes []int, from *end, r request) {
	var data []byte
	for i, s := range r.wr.SGList {
		data = append(data, from.model[r.local[i]:r.local[i]+int(s.Length)]...)
	}
	for i := range at {
		n := copy(to.model[at[i]:at[i]+sizes[i]], data)
		data = data[n:]
	}
}

// Run runs the program to its end and checks what came out.
func (g *Program) Run() error {
	if err := g.world.Run(10*time.Minute, g.turn); err != nil {
		return g.explain(err)
	}
	for _, f := range g.flows {
		if err := f.check(); err != nil {
			return g.explain(err)
		}
	}
	for i, e := range g.ends {
		if at := difference(e.arena.Bytes(), e.model); at >= 0 {
			return g.explain(fmt.Errorf("device %d: byte %d of the arena is %#x, the model has %#x",
				i, at, e.arena.Bytes()[at], e.model[at]))
		}
	}
	return g.close()
}

func (g *Program) explain(err error) error {
	for _, f := range g.flows {
		err = fmt.Errorf("%w\n%s: %d requests, %d posted, %d completions; %d receives, %d posted, %d completed; sender %v, receiver %v",
			err, f.name, len(f.requests), f.posted, len(f.completed), len(f.receives), f.receivesPosted, len(f.received),
			f.sender.State(), f.receiver.State())
	}
	for i, e := range g.ends {
		err = fmt.Errorf("%w\ndevice %d: %+v", err, i, e.device.Counters())
	}
	return fmt.Errorf("%s\n%w", g.log, err)
}

// turn lets every flow post and poll a little, and says whether all is done.
func (g *Program) turn() bool {
	done := true
	for _, f := range g.flows {
		g.advance(f)
		done = done && f.done()
	}
	return done
}

func (g *Program) advance(f *flow) {
	if g.random.IntN(3) == 0 {
		for range g.random.IntN(4) {
			if f.receivesPosted < len(f.receives) && f.receiver.PostRecv(f.receives[f.receivesPosted].wr) == nil {
				f.receivesPosted++
			}
		}
	}
	for range g.random.IntN(3) {
		if f.posted < len(f.requests) && f.sender.PostSend(f.requests[f.posted].wr) == nil {
			f.posted++
		}
	}
	var wcs [8]verbs.WC
	n, _ := f.sendCQ.Poll(wcs[:])
	f.completed = append(f.completed, wcs[:n]...)
	n, _ = f.recvCQ.Poll(wcs[:])
	f.received = append(f.received, wcs[:n]...)
}

func (f *flow) signaled() (ids []uint64) {
	for _, r := range f.requests {
		if r.signaled {
			ids = append(ids, r.wr.WRID)
		}
	}
	return ids
}

func (f *flow) failed() bool {
	return f.sender.State() == verbs.StateError || f.receiver.State() == verbs.StateError
}

func (f *flow) done() bool {
	if f.failed() {
		return true
	}
	// The last requests may have asked for no completion: the queue pair itself knows when it is idle.
	return f.posted == len(f.requests) && len(f.received) >= len(f.receives) && len(f.completed) >= len(f.signaled()) &&
		f.sender.Outstanding() == 0
}

// check compares the completions with those that must have come, in order.
func (f *flow) check() error {
	want := f.signaled()
	if len(f.completed) != len(want) {
		return fmt.Errorf("%s: %d completions of sends, must be %d; last %+v", f.name, len(f.completed), len(want), last(f.completed))
	}
	for i, wc := range f.completed {
		r := f.requests[want[i]]
		if wc.WRID != want[i] || wc.Status != verbs.WCSuccess || wc.Opcode != r.wr.Opcode.Completed() {
			return fmt.Errorf("%s: completion %d is %+v, must be success of request %d", f.name, i, wc, want[i])
		}
		if wc.Opcode == verbs.WCRDMARead && int(wc.ByteLen) != r.length {
			return fmt.Errorf("%s: completion %d is %+v, READ had %d bytes", f.name, i, wc, r.length)
		}
	}
	if len(f.received) != len(f.receives) {
		return fmt.Errorf("%s: %d receives completed, must be %d", f.name, len(f.received), len(f.receives))
	}
	for i, wc := range f.received {
		v := f.receives[i]
		if wc.WRID != uint64(i) || wc.Status != verbs.WCSuccess || wc.Opcode != v.opcode || int(wc.ByteLen) != v.length ||
			(wc.Flags&verbs.WCWithImm != 0) != v.imm || v.imm && wc.ImmData != v.value {
			return fmt.Errorf("%s: receive %d is %+v, must be %+v", f.name, i, wc, v)
		}
	}
	return nil
}

func last(wcs []verbs.WC) verbs.WC {
	if len(wcs) == 0 {
		return verbs.WC{}
	}
	return wcs[len(wcs)-1]
}

func difference(a, b []byte) int {
	for i := range a {
		if a[i] != b[i] {
			return i
		}
	}
	return -1
}

// close destroys everything; nothing may be in use any more.
func (g *Program) close() error {
	for _, f := range g.flows {
		if err := f.sender.Destroy(); err != nil {
			return err
		}
	}
	for _, f := range g.flows {
		if err := f.sendCQ.Destroy(); err != nil {
			return err
		}
		if err := f.recvCQ.Destroy(); err != nil {
			return err
		}
	}
	for _, e := range g.ends {
		if err := e.arena.Dereg(); err != nil {
			return err
		}
		if err := e.pd.Dealloc(); err != nil {
			return err
		}
		if err := e.device.Close(); err != nil {
			return err
		}
	}
	return nil
}
