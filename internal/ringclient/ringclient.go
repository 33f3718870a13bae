// Package ringclient is a small client of the engine's port, for the tests of package driver: it posts and polls in
// rings with the codec of package queue, without package verbs.
package ringclient

import (
	"fmt"
	"runtime"
	"sync"

	"github.com/xroce/xroce/roce/queue"
)

// Engine is the engine's side of a queue pair, as a client uses it after it has posted (driver.QP).
type Engine interface {
	Ring()
	queue.Gatherer
}

// QP is the client's side of a queue pair. Its methods may be called concurrently.
type QP struct {
	mu      sync.Mutex
	engine  Engine
	send    *queue.Producer
	receive *queue.Producer
	limits  queue.SendLimits
}

// Size is what a queue pair was made for.
type Size struct{ MaxSendWR, MaxRecvWR, MaxSendSGE, MaxRecvSGE, MaxInline int }

// NewQP makes the client's side of a queue pair whose rings are in memory.
func NewQP(e Engine, send, receive []byte, s Size) (q *QP, err error) {
	q = &QP{engine: e, limits: queue.SendLimits{MaxSGE: s.MaxSendSGE, MaxInline: s.MaxInline}}
	if q.send, err = queue.NewProducer(send, queue.SendLayout(s.MaxSendWR, s.MaxSendSGE, s.MaxInline)); err != nil {
		return nil, err
	}
	if q.receive, err = queue.NewProducer(receive, queue.RecvLayout(s.MaxRecvWR, s.MaxRecvSGE)); err != nil {
		return nil, err
	}
	return q, nil
}

// PostSend posts requests until one is refused, and returns how many were posted.
func (q *QP) PostSend(wrs []queue.SendWR) (posted int, err error) {
	q.mu.Lock()
	for ; err == nil && posted < len(wrs); posted++ {
		if err = q.send.PostSend(&wrs[posted], q.limits, q.engine); err != nil {
			break
		}
	}
	q.mu.Unlock()
	if posted > 0 {
		q.engine.Ring()
	}
	return posted, err
}

// PostRecv posts receives until one is refused, and returns how many were posted.
func (q *QP) PostRecv(wrs []queue.RecvWR) (posted int, err error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for ; posted < len(wrs); posted++ {
		if err := q.receive.PostRecv(&wrs[posted]); err != nil {
			return posted, err
		}
	}
	return posted, nil
}

// Outstanding is the number of posted send requests that are not complete.
func (q *QP) Outstanding() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.send.Used()
}

// Completer is the engine's side of a completion queue, as a client uses it (driver.CQ).
type Completer interface {
	DrivePolled()
	Arm()
	Over() error
}

// CQ is the client's side of a completion queue, and something to wait for (driver.Waitable). Its methods may be called
// concurrently.
type CQ struct {
	mu     sync.Mutex
	engine Completer
	ring   *queue.Consumer
}

// NewCQ makes the client's side of a completion queue whose ring is in memory.
func NewCQ(e Completer, memory []byte, capacity int) (*CQ, error) {
	ring, err := queue.NewConsumer(memory, queue.CompletionLayout(capacity))
	if err != nil {
		return nil, fmt.Errorf("CQ: %w", err)
	}
	return &CQ{engine: e, ring: ring}, nil
}

// Take takes what there is, without driving.
func (c *CQ) Take(wcs []queue.WC) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.ring.ReadCompletions(wcs)
}

// Poll takes what there is, and drives if there is nothing. If there is still nothing, other goroutines get their turn.
func (c *CQ) Poll(wcs []queue.WC) (int, error) {
	err := c.engine.Over()
	if n := c.Take(wcs); n > 0 || err != nil {
		return n, err
	}
	c.engine.DrivePolled()
	n := c.Take(wcs)
	if n == 0 {
		runtime.Gosched()
	}
	return n, nil
}

// Notify asks for one notification of the next completion.
func (c *CQ) Notify(solicitedOnly bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ring.Arm(solicitedOnly)
}

// Ready says that there is a completion.
func (c *CQ) Ready() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.ring.Available(0) > 0
}

// Over says why nothing comes any more.
func (c *CQ) Over() error { return c.engine.Over() }

// Arm has the next completion wake who waits.
func (c *CQ) Arm() { c.engine.Arm() }
