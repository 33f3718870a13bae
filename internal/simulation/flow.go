package simulation

import (
	"fmt"

	"github.com/xroce/xroce/verbs"
)

// flow is one direction of a life: the requests that one queue pair sends to the other, and what is known of them.
type flow struct {
	c      *connection
	g      *Program
	name   string
	number int
	from   *side
	to     *side
	depth  int // READs and atomics in flight at once
	budget int // requests to post

	requests []*request
	next     int // the oldest request that nothing is known of
	arrived  int // requests before it have certainly been executed by the peer
	over     bool
	failed   verbs.WCStatus // of the request that failed by itself
	violate  bool           // the next request is one that must fail
	violated bool
	hazard   bool // a request may fail by what we did

	messages       []*request // those that take a receive
	receives       []*receive
	receivesPosted int
	received       int
	receivedOver   bool

	targets  []*slot // at the peer
	contents []*slot // at this end, filled by READs
}

// request is a send request.
type request struct {
	wr        verbs.SendWR
	index     int
	length    int
	signaled  bool
	remote    *part  // what is written at the peer
	local     []part // what is filled here
	read      *read
	key       *key // the peer's key that it uses, if not a permanent one
	receive   *receive
	result    func(uint64) // takes the result of an atomic
	executed  func()       // called when it was certainly executed
	fails     verbs.WCStatus
	may       verbs.WCStatus // it may fail with this
	breaks    bool           // it succeeds, but the peer's queue pair fails
	breaksRcv verbs.WCStatus // how the receive fails
}

// part is a version of a slot.
type part struct {
	slot    *slot
	version int
}

type receive struct {
	wr       verbs.RecvWR
	capacity int
	slots    []*slot
	parts    []part
}

// idle says that nothing more is to come.
func (f *flow) idle() bool {
	state := f.from.qp.State()
	switch {
	case f.from.gone:
		return true
	case state == verbs.StateSQD || f.from.qp.Outstanding() > 0:
		return false
	case f.c.failing || state == verbs.StateError:
		return len(f.requests) >= f.budget
	}
	return len(f.requests) >= f.budget && f.received == len(f.messages)
}

func (f *flow) turn() error {
	if f.c.failing {
		f.budget = min(f.budget, len(f.requests)+f.g.random.IntN(2))
	}
	if f.g.chance(3) && !f.to.gone {
		for range f.g.random.IntN(4) {
			if err := f.postReceive(); err != nil {
				return err
			}
		}
	}
	if f.from.gone || f.g.chance(2) {
		if f.from.gone {
			f.budget = len(f.requests)
		}
		return nil
	}
	lump := f.g.random.IntN(5)
	if f.g.chance(10) {
		lump = queueDepth
	}
	for range lump {
		if len(f.requests) >= f.budget || f.from.qp.Outstanding() >= queueDepth || len(f.requests)-f.next >= 3*queueDepth {
			return nil
		}
		if err := f.post(); err != nil {
			return err
		}
	}
	return nil
}

func (f *flow) post() error {
	r := f.build()
	if r == nil { // no room
		f.budget = len(f.requests)
		return nil
	}
	r.index = len(f.requests)
	r.wr.WRID = workID(f.number, f.c.life, r.index)
	if r.signaled = f.g.random.IntN(4) > 0; r.signaled {
		r.wr.Flags |= verbs.SendSignaled
	}
	if f.g.chance(8) {
		r.wr.Flags |= verbs.SendFence
	}
	if f.g.chance(4) {
		r.wr.Flags |= verbs.SendSolicited
	}
	f.fence(r)
	f.requests = append(f.requests, r)
	if err := f.from.qp.PostSend(r.wr); err != nil {
		return err
	}
	if r.wr.Flags&verbs.SendInline != 0 {
		copy(f.from.end.scratch, noise[f.g.random.IntN(1<<16):])
	}
	return nil
}

// fence: behind a fence nothing changes any more what the READs before it return.
func (f *flow) fence(r *request) {
	if r.wr.Flags&verbs.SendFence == 0 {
		return
	}
	for _, before := range f.requests[f.next:] {
		if before.read != nil && before.read.newest < 0 {
			before.read.newest = len(before.read.source.versions) - 1
			if r.remote != nil && r.remote.slot == before.read.source {
				before.read.newest-- // r itself has a version already
			}
		}
	}
}

// postReceive posts the next receive, if there is room. Some are posted before the message that they are for is known.
func (f *flow) postReceive() error {
	if f.receivesPosted-f.received >= receiveDepth-1 || f.receivesPosted >= len(f.messages)+4 {
		return nil
	}
	if f.receivesPosted == len(f.receives) && (f.c.failing || len(f.requests) >= f.budget || f.addReceive(f.g.length()) == nil) {
		return nil
	}
	r := f.receives[f.receivesPosted]
	r.wr.WRID = receiveID | workID(f.number, f.c.life, f.receivesPosted)
	f.receivesPosted++
	return f.to.qp.PostRecv(r.wr)
}

// addReceive makes a receive with room for n bytes at least. It returns nil if memory is used up.
func (f *flow) addReceive(n int) *receive {
	r := &receive{capacity: n + f.g.random.IntN(3)*f.g.random.IntN(100)}
	for _, size := range f.g.split(r.capacity) {
		at := f.to.plot.reserve(size)
		if at < 0 {
			return nil
		}
		s := f.to.plot.slot(at, size)
		r.slots = append(r.slots, s)
		r.wr.SGList = append(r.wr.SGList, f.to.end.arena.SGE(s.place, size))
	}
	f.receives = append(f.receives, r)
	return r
}

// complete takes a completion of the send queue.
func (f *flow) complete(wc *verbs.WC) error {
	index := int(wc.WRID & 0xFFFFFFFF)
	if index < f.next || index >= len(f.requests) {
		return fmt.Errorf("%d requests posted, %d complete already", len(f.requests), f.next)
	}
	for ; f.next < index; f.next++ {
		if before := f.requests[f.next]; before.signaled || f.over {
			return fmt.Errorf("request %d had no completion", f.next)
		}
		if err := f.succeed(f.requests[f.next]); err != nil {
			return err
		}
	}
	f.next = index + 1
	r := f.requests[index]
	if wc.Status != verbs.WCSuccess {
		f.g.outcomes[Outcome{r.wr.Opcode, wc.Status}]++
		if state := f.from.qp.State(); state != verbs.StateError && state != verbs.StateReset {
			return fmt.Errorf("request %d failed, the queue pair is in %v", index, state)
		}
	}
	switch {
	case wc.Status == verbs.WCWRFlushErr:
		f.over = true
		return nil
	case f.over:
		return fmt.Errorf("request %d behind one that failed", index)
	case wc.Status != verbs.WCSuccess:
		f.over, f.failed = true, wc.Status
		return f.fail(r, wc.Status)
	case !r.signaled:
		return fmt.Errorf("request %d asked for no completion", index)
	case wc.Opcode != r.wr.Opcode.Completed():
		return fmt.Errorf("request %d is a %v", index, r.wr.Opcode)
	case len(r.local) > 0 && int(wc.ByteLen) != r.length:
		return fmt.Errorf("request %d has %d bytes", index, r.length)
	case f.from.drain.phase == drained:
		return fmt.Errorf("request %d completed after the queue had drained", index)
	}
	return f.succeed(r)
}

// fail says whether a request may have failed with a status.
func (f *flow) fail(r *request, status verbs.WCStatus) error {
	switch state := f.to.qp.State(); {
	case status != verbs.WCRetryExcErr && status != verbs.WCLocProtErr && state != verbs.StateError && state != verbs.StateReset:
		return fmt.Errorf("request %d was refused by a queue pair in %v", r.index, state)
	case status == r.fails || r.may != 0 && status == r.may:
		return nil
	case status == verbs.WCRetryExcErr && r.may != 0 && r.read != nil:
		return nil // a repeated READ of a region that is gone gets no answer
	case status == verbs.WCRetryExcErr && (f.g.harsh || f.to.gone || state != verbs.StateRTS && state != verbs.StateSQD):
		return nil
	}
	return fmt.Errorf("request %d, %v of %d bytes, must not fail: %+v", r.index, r.wr.Opcode, r.length, r.wr)
}

// succeed draws the consequences of a request's success.
func (f *flow) succeed(r *request) error {
	if r.fails != 0 {
		return fmt.Errorf("request %d, %v, must fail with %v", r.index, r.wr.Opcode, r.fails)
	}
	f.g.outcomes[Outcome{r.wr.Opcode, verbs.WCSuccess}]++
	if err := f.arrive(r.index); err != nil {
		return err
	}
	for _, p := range r.local {
		if err := p.slot.learn(p.version); err != nil {
			return fmt.Errorf("request %d, %v, returned something wrong: %w", r.index, r.wr.Opcode, err)
		}
	}
	if r.result != nil {
		r.result(wordAt(r.local[0].slot.bytes))
	} else if r.read != nil && r.read.newest < 0 {
		r.read.newest = len(r.read.source.versions) - 1
	}
	if r.key != nil {
		r.key.uses--
	}
	if r.executed != nil {
		r.executed()
	}
	return nil
}

// arrive notes that the peer has executed all requests up to one.
func (f *flow) arrive(index int) error {
	for ; f.arrived <= index; f.arrived++ {
		r := f.requests[f.arrived]
		var parts []part
		if r.remote != nil {
			parts = append(parts, *r.remote)
		}
		if r.receive != nil {
			parts = append(parts, r.receive.parts...)
		}
		for _, p := range parts {
			p.slot.settle(p.version)
			if err := p.slot.check(); err != nil {
				return fmt.Errorf("request %d, %v, was executed, but %w", f.arrived, r.wr.Opcode, err)
			}
		}
	}
	return nil
}

// receive takes a completion of the receive queue at the other end.
func (f *flow) receive(wc *verbs.WC) error {
	index := int(wc.WRID & 0xFFFFFFFF)
	if index != f.received || index >= f.receivesPosted {
		return fmt.Errorf("receive %d of %d must be next", f.received, f.receivesPosted)
	}
	f.received++
	if wc.Status == verbs.WCWRFlushErr {
		f.receivedOver = true
		if state := f.to.qp.State(); state != verbs.StateError && state != verbs.StateReset {
			return fmt.Errorf("flushed in %v", state)
		}
		return nil
	}
	if f.receivedOver || index >= len(f.messages) {
		return fmt.Errorf("no message belongs to it: %d sent, flushed %v", len(f.messages), f.receivedOver)
	}
	r := f.messages[index]
	if wc.Status != verbs.WCSuccess {
		f.receivedOver = true
		if wc.Status != r.breaksRcv {
			return fmt.Errorf("request %d, %v, must not fail", r.index, r.wr.Opcode)
		}
		return nil
	}
	want := verbs.WC{WRID: wc.WRID, QPN: wc.QPN, Opcode: verbs.WCRecv, ByteLen: uint32(r.length)}
	switch r.wr.Opcode {
	case verbs.WRRDMAWriteWithImm:
		want.Opcode = verbs.WCRecvRDMAWithImm
		fallthrough
	case verbs.WRSendWithImm:
		want.Flags, want.ImmData = verbs.WCWithImm, r.wr.ImmData
	case verbs.WRSendWithInv:
		want.Flags, want.InvalidatedRKey = verbs.WCWithInv, r.wr.InvalidateRKey
	}
	want.PSN, want.Syndrome, want.Timestamp = wc.PSN, wc.Syndrome, wc.Timestamp
	if *wc != want || r.fails != 0 || r.breaks {
		return fmt.Errorf("must be %+v", want)
	}
	return f.arrive(r.index)
}

// finish checks a life in which nothing can happen any more.
func (f *flow) finish() error {
	state := f.from.qp.State()
	if f.from.gone {
		return nil
	}
	// Nothing is outstanding. What failed or was flushed would have told, so the rest succeeded.
	for ; f.next < len(f.requests); f.next++ {
		r := f.requests[f.next]
		if r.signaled || f.over {
			return fmt.Errorf("request %d had no completion", f.next)
		}
		if err := f.succeed(r); err != nil {
			return err
		}
	}
	if !f.to.gone && f.to.qp.State() == verbs.StateError && f.received != f.receivesPosted {
		return fmt.Errorf("%d receives, %d complete", f.receivesPosted, f.received)
	}
	reverse := f.c.flows[1-f.c.sideOf(f.from)]
	if state == verbs.StateError && f.from.frozen == nil && f.failed == 0 && !reverse.hazard {
		return fmt.Errorf("the queue pair is in the error state for no reason")
	}
	return nil
}

func (c *connection) sideOf(s *side) int {
	if s == c.sides[0] {
		return 0
	}
	return 1
}
