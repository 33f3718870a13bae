package perf

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/xroce/xroce/verbs"
)

// station is what one end has of RDMA: queue pairs, one completion queue for all of them, and memory. It belongs to one
// goroutine.
type station struct {
	plan   *Plan
	device *verbs.Device
	pd     *verbs.PD
	cq     *verbs.CQ
	waiter waiter
	memory []byte
	mr     *verbs.MR
	remote verbs.RemoteMemory
	local  verbs.Endpoint // of the first queue pair
	far    verbs.Endpoint // its peer
	mtu    verbs.MTU
	pairs  []*pair

	check checker
	size  int // bytes of a message now

	posted, completed, arrived uint64 // messages of all queue pairs in this run
}

// pair is a queue pair and what goes over it in a run.
type pair struct {
	index int
	qp    *verbs.QP

	posted    uint64 // messages
	completed uint64
	last      uint64 // no message is posted after so many
	sends     []verbs.SendWR

	arrived  uint64         // messages
	receives []verbs.RecvWR // by slot; WRID is the slot and the queue pair
	again    []verbs.RecvWR // receives that were used since the last post
}

// offer is what one end tells the other to connect the queue pairs.
type offer struct {
	Endpoints []verbs.Endpoint   `json:"endpoints"` // with the largest path MTU that this end carries
	Memory    verbs.RemoteMemory `json:"memory"`
}

// openStation makes the objects.
func openStation(plan *Plan, device *verbs.Device, wait Wait) (*station, error) {
	s := &station{plan: plan, device: device}
	if err := s.open(wait); err != nil {
		return nil, errors.Join(err, s.close())
	}
	return s, nil
}

func (s *station) open(wait Wait) (err error) {
	if s.pd, err = s.device.AllocPD(); err != nil {
		return err
	}
	if s.waiter, s.cq, err = newWaiter(s.device, wait, s.plan.completions()); err != nil {
		return err
	}
	s.check.open(s.plan)
	for i := range s.plan.QPs {
		qp, err := s.pd.CreateQP(verbs.QPInitAttr{SendCQ: s.cq, RecvCQ: s.cq, Cap: verbs.QPCap{
			MaxSendWR: s.plan.Depth, MaxRecvWR: s.plan.receives(), MaxInline: s.plan.Inline,
		}})
		if err != nil {
			return err
		}
		s.pairs = append(s.pairs, &pair{index: i, qp: qp})
	}
	if s.memory, err = verbs.AllocBuffer(s.plan.memory()); err != nil {
		return err
	}
	s.mr, err = s.pd.RegMR(s.memory, s.access()|verbs.AccessLocalWrite)
	if err != nil {
		return err
	}
	for _, p := range s.pairs {
		s.prepare(p)
	}
	return nil
}

// access are the rights of the peer.
func (s *station) access() verbs.AccessFlags {
	switch s.plan.Operation {
	case "write", "write-imm":
		return verbs.AccessRemoteWrite
	case "read":
		return verbs.AccessRemoteRead
	case "atomic":
		return verbs.AccessRemoteAtomic
	}
	return 0
}

// options are those of every connection from the local address. The path MTU is the smaller one of what both ends carry
// unless the plan names one.
func (s *station) options(local netip.Addr) verbs.ConnectOptions {
	access := s.access()
	return verbs.ConnectOptions{Address: local, AccessFlags: &access}
}

// offer describes this end to the other one.
func (s *station) offer(local, peer netip.Addr) (o offer, err error) {
	options := s.options(local)
	options.Peer = peer
	for _, p := range s.pairs {
		e, err := p.qp.Endpoint(options)
		if err != nil {
			return o, err
		}
		o.Endpoints = append(o.Endpoints, e)
	}
	o.Memory, s.local = s.mr.Remote(), o.Endpoints[0]
	return o, nil
}

// agree finds the path MTU. Both ends come to the same result.
func (s *station) agree(local, remote offer) error {
	if len(remote.Endpoints) != len(s.pairs) || remote.Memory.Length != uint64(len(s.memory)) {
		return fmt.Errorf("the other end has %d queue pairs and %d bytes of memory instead of %d and %d",
			len(remote.Endpoints), remote.Memory.Length, len(s.pairs), len(s.memory))
	}
	s.remote, s.far = remote.Memory, remote.Endpoints[0]
	here, there := local.Endpoints[0].MTU, remote.Endpoints[0].MTU
	s.mtu = min(here, there)
	asked := s.plan.PathMTUAsked
	if asked == 0 {
		return nil
	}
	if asked > s.mtu.Bytes() {
		return misused("-m is %d, and this end carries %d and the other end %d", asked, here.Bytes(), there.Bytes())
	}
	for s.mtu.Bytes() > asked {
		s.mtu--
	}
	return nil
}

// connect connects the queue pairs and posts the receives.
func (s *station) connect(ctx context.Context, local netip.Addr, remote offer) error {
	options := s.options(local)
	options.PathMTU = s.mtu
	limited, cancel := context.WithTimeout(ctx, connectLimit)
	defer cancel()
	for i, p := range s.pairs {
		if err := p.qp.Connect(limited, remote.Endpoints[i], options); err != nil {
			return err
		}
		if s.plan.operation().arrives {
			if err := p.qp.PostRecv(p.receives...); err != nil {
				return err
			}
		}
	}
	return nil
}

const connectLimit = 8 * time.Second

// close destroys whatever there is. Queue pairs of a run that did not end have requests in their queues, which get no
// completion.
func (s *station) close() error {
	var failures []error
	for _, p := range s.pairs {
		failures = append(failures, p.qp.Destroy())
	}
	if s.cq != nil {
		failures = append(failures, s.cq.Destroy(), s.waiter.close())
	}
	if s.mr != nil {
		failures = append(failures, s.mr.Dereg())
	}
	if s.pd != nil {
		failures = append(failures, s.pd.Dealloc())
	}
	if s.memory != nil {
		failures = append(failures, verbs.FreeBuffer(s.memory))
	}
	return errors.Join(failures...)
}

// explain makes an error of a completion that is not a success.
func (s *station) explain(wc *verbs.WC) error {
	_, index := number(wc.WRID)
	qp := s.pairs[index].qp
	failed := *wc
	if cause := qp.Failure(); wc.Status == verbs.WCWRFlushErr && cause.Status != verbs.WCSuccess {
		failed = cause
	}
	return errors.New(qp.Explain(failed))
}

// A WRID has the number of the message, or the slot of the receive, and the queue pair.
const qpBits = 16

func wrid(number uint64, qp int) uint64 { return number<<qpBits | uint64(qp) }

func number(wrid uint64) (number uint64, qp int) { return wrid >> qpBits, int(wrid & (1<<qpBits - 1)) }
