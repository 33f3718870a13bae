package verbs

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/xroce/xroce/roce"
	"github.com/xroce/xroce/roce/driver"
	"github.com/xroce/xroce/roce/memory"
	"github.com/xroce/xroce/roce/queue"
	"github.com/xroce/xroce/roce/transport"
)

// QPCap are the capacities of a queue pair. Fields that are 0 get a default.
type QPCap struct {
	MaxSendWR  int // requests in the send queue, 128 by default
	MaxRecvWR  int // requests in the receive queue, 128 by default
	MaxSendSGE int // elements per request, 1 by default
	MaxRecvSGE int
	MaxInline  int // bytes of inline data per request, none by default
}

// QPInitAttr describes a queue pair to make.
type QPInitAttr struct {
	SendCQ, RecvCQ *CQ
	Cap            QPCap
	QPType         QPType // QPTRC by default
	// SQSigAll makes every send request complete as if it had SendSignaled.
	SQSigAll bool
	// SRQ, if not nil, gives out the receives instead of a queue of the queue pair's own: it has no MaxRecvWR and
	// MaxRecvSGE then, and its PostRecv fails with ErrInvalid.
	SRQ *SRQ
}

// QPAttr are the attributes of a queue pair; a QPAttrMask says which of them are meant.
type QPAttr struct {
	State           QPState
	CurState        QPState
	PathMTU         MTU
	RQPSN           PSN // first PSN expected
	SQPSN           PSN // first PSN sent
	DestQPN         QPN
	AccessFlags     AccessFlags // what the peer may do at all
	AH              AHAttr
	PKeyIndex       uint16
	PortNum         uint8
	MaxRDAtomic     uint8 // READs and atomics in flight towards the peer
	MaxDestRDAtomic uint8 // READs and atomics that the peer may have in flight
	MinRNRTimer     uint8 // RNR timer code 0..31
	Timeout         uint8 // local ACK timeout: 4.096 us * 2^Timeout, 0 is never
	RetryCnt        uint8 // 0..7
	RNRRetry        uint8 // 0..7, 7 is for ever
	// EnSQDAsyncNotify asks for EventSQDrained with the transition to StateSQD.
	EnSQDAsyncNotify bool
	// SQDraining says that the queue pair is in StateSQD and has not drained yet; Modify ignores it.
	SQDraining bool
}

// QP is a queue pair. All methods may be called concurrently.
type QP struct {
	pd      *PD
	driver  *driver.QP
	init    QPInitAttr // what it was made of
	send    sender
	receive receiver // without a ring if there is an SRQ

	psn  atomic.Uint32       // the first one that Connect sends
	told atomic.Pointer[GID] // of the last Endpoint of this life
}

// drawPSN chooses the PSN that the next life starts with: what is left of the last one on the network must not fit.
func (q *QP) drawPSN() {
	q.psn.Store(rand.Uint32() & uint32(roce.PSNMask))
	q.told.Store(nil)
}

// CreateQP makes a queue pair in state RESET.
func (p *PD) CreateQP(a QPInitAttr) (*QP, error) {
	for _, cq := range []*CQ{a.SendCQ, a.RecvCQ} {
		if err := cq.check(); err != nil {
			return nil, fmt.Errorf("QP: SendCQ and RecvCQ: %w", err)
		}
	}
	var srq *driver.SRQ
	if a.SRQ != nil {
		if err := a.SRQ.check(); err != nil {
			return nil, fmt.Errorf("QP: %w", err)
		}
		srq = a.SRQ.driver
	}
	qp := &QP{pd: p, init: a}
	err := p.make(kindQP, qp, func() error {
		return qp.create(driver.QPConfig{
			Type: transport.Type(cmp.Or(a.QPType, QPTRC)), Domain: &p.domain, SendCQ: a.SendCQ.driver, RecvCQ: a.RecvCQ.driver,
			MaxSendWR: cmp.Or(a.Cap.MaxSendWR, 128), MaxRecvWR: cmp.Or(a.Cap.MaxRecvWR, 128),
			MaxSendSGE: cmp.Or(a.Cap.MaxSendSGE, 1), MaxRecvSGE: cmp.Or(a.Cap.MaxRecvSGE, 1),
			MaxInline: a.Cap.MaxInline, SignalAll: a.SQSigAll, SRQ: srq,
		})
	})
	if err != nil {
		return nil, err
	}
	return qp, nil
}

// create makes the rings, the program's ends of them, and the engine's side.
func (q *QP) create(c driver.QPConfig) (err error) {
	if err = c.MakeRings(); err != nil {
		return err
	}
	q.send.limits = queue.SendLimits{MaxSGE: c.MaxSendSGE, MaxInline: c.MaxInline}
	layout := queue.SendLayout(c.MaxSendWR, c.MaxSendSGE, c.MaxInline)
	if q.send.ring, err = queue.NewProducer(c.Send.Memory, layout); err != nil {
		return err
	}
	if c.SRQ == nil {
		layout = queue.RecvLayout(c.MaxRecvWR, c.MaxRecvSGE)
		if q.receive.ring, err = queue.NewProducer(c.Receive.Memory, layout); err != nil {
			return err
		}
	}
	if q.driver, err = q.pd.device.client.CreateQP(c); err != nil {
		return err
	}
	q.init.QPType = QPType(c.Type)
	q.drawPSN()
	q.driver.SetOwner(q)
	return nil
}

// check tells a queue pair that was created from nil and from a zero value.
func (q *QP) check() error {
	if q == nil || q.driver == nil {
		return fmt.Errorf("QP: %w: nil, or not made by CreateQP", ErrInvalid)
	}
	return nil
}

// QPN is the number of the queue pair; it is never 0.
func (q *QP) QPN() QPN {
	must(q.check())
	return q.driver.Number()
}

// State is the state of the queue pair.
func (q *QP) State() QPState {
	must(q.check())
	return QPState(q.driver.State())
}

// InitAttr returns what the queue pair was made of, with the capacities and the type that it got.
func (q *QP) InitAttr() QPInitAttr {
	must(q.check())
	a := q.init
	a.Cap = q.Cap()
	return a
}

// Cap returns the capacities.
func (q *QP) Cap() QPCap {
	must(q.check())
	c := q.driver.Config()
	if c.SRQ != nil {
		c.MaxRecvWR, c.MaxRecvSGE = 0, 0
	}
	return QPCap{MaxSendWR: c.MaxSendWR, MaxRecvWR: c.MaxRecvWR, MaxSendSGE: c.MaxSendSGE, MaxRecvSGE: c.MaxRecvSGE, MaxInline: c.MaxInline}
}

// resolveTimeout bounds the search for the peer's Ethernet address: the kernel asks three times, a second each
// (mcast_solicit and retrans_time_ms in net/ipv4/arp.c).
const resolveTimeout = 3 * time.Second

// Modify changes the attributes that mask names, all of them or none. With QPAV it looks for the peer's Ethernet
// address, and gives up when ctx ends or after 3 seconds, whichever comes first (ErrNoNeighbour); nothing else
// blocks.
func (q *QP) Modify(ctx context.Context, a QPAttr, mask QPAttrMask) error {
	if err := q.check(); err != nil {
		return err
	}
	if ctx == nil {
		return errNoContext
	}
	reset := mask&QPStateMask != 0 && a.State == StateReset
	if reset {
		defer q.lockPosts()()
	}
	if mask&QPAV != 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, resolveTimeout)
		defer cancel()
	}
	err := q.driver.Modify(ctx, &transport.Attributes{
		State: transport.State(a.State), CurrentState: transport.State(a.CurState), PathMTU: a.PathMTU, RQPSN: a.RQPSN, SQPSN: a.SQPSN,
		DestinationQPN: a.DestQPN, Access: memory.Access(a.AccessFlags), PKeyIndex: a.PKeyIndex, Port: a.PortNum,
		MaxRDAtomic: a.MaxRDAtomic, MaxDestRDAtomic: a.MaxDestRDAtomic, MinRNRTimer: a.MinRNRTimer,
		Timeout: a.Timeout, RetryCount: a.RetryCnt, RNRRetry: a.RNRRetry,
		EnSQDAsyncNotify: a.EnSQDAsyncNotify,
	}, (*driver.AddressVector)(&a.AH), transport.AttributeMask(mask))
	if err == nil && reset {
		q.drawPSN()
	}
	return err
}

// Query returns the attributes as they are now.
func (q *QP) Query() QPAttr {
	must(q.check())
	a, av, _ := q.driver.Query()
	return QPAttr{
		State: QPState(a.State), CurState: QPState(a.CurrentState), PathMTU: a.PathMTU, RQPSN: a.RQPSN, SQPSN: a.SQPSN,
		DestQPN: a.DestinationQPN, AccessFlags: AccessFlags(a.Access), PKeyIndex: a.PKeyIndex, PortNum: a.Port,
		MaxRDAtomic: a.MaxRDAtomic, MaxDestRDAtomic: a.MaxDestRDAtomic, MinRNRTimer: a.MinRNRTimer,
		Timeout: a.Timeout, RetryCnt: a.RetryCount, RNRRetry: a.RNRRetry, AH: AHAttr(av),
		EnSQDAsyncNotify: a.EnSQDAsyncNotify, SQDraining: a.Draining,
	}
}

// Destroy destroys the queue pair. Requests in its queues get no completion any more; when it returns, the engine
// touches none of their buffers.
func (q *QP) Destroy() error {
	if err := q.check(); err != nil {
		return err
	}
	return q.pd.device.end(q)
}

func (q *QP) destroy() error {
	if err := q.close(); err != nil {
		return err
	}
	q.pd.remove(kindQP, q)
	return nil
}

func (q *QP) close() error {
	defer q.lockPosts()()
	return q.driver.Close()
}
