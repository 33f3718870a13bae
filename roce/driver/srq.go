package driver

// A shared receive queue gives receive requests to several QPs, in the order in which they were posted. Its QPs may be
// at home at different shards: the end that takes has a mutex of its own below the shards' locks. The end that posts is
// the client's, so no shard ever waits for a program that posts a long list.

import (
	"fmt"
	"sync/atomic"

	"github.com/xroce/xroce/internal/lockorder"
	"github.com/xroce/xroce/roce/memory"
	"github.com/xroce/xroce/roce/queue"
	"github.com/xroce/xroce/roce/transport"
)

// SRQ is the engine's end of a shared receive queue. Its methods may be called concurrently.
type SRQ struct {
	client *Client
	id     uint32
	config SRQConfig // MaxWR and Limit are those of the creation; the ring is guarded by take
	owner  atomic.Value
	events eventState
	closed atomic.Bool
	qps    int // guarded by Device.mu

	take     lockorder.Mutex[lockorder.Take] // held by the shard that takes a request
	consumer *queue.Consumer
	limit    int
}

// CreateSRQ makes a shared receive queue.
func (client *Client) CreateSRQ(c SRQConfig) (*SRQ, error) {
	if c.Domain == nil {
		return nil, fmt.Errorf("%w: an SRQ needs a protection domain", ErrInvalid)
	}
	if err := c.checkLimits(); err != nil {
		return nil, err
	}
	if err := checkSRQLimit(c.Limit, c.MaxWR); err != nil {
		return nil, err
	}
	s := &SRQ{client: client, config: c, limit: c.Limit}
	var err error
	if s.consumer, err = queue.NewConsumer(c.Ring.Memory, queue.RecvLayout(c.MaxWR, c.MaxSGE)); err != nil {
		return nil, err
	}
	d := client.device
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := client.admits("SRQ", len(client.srqs), client.limits.SRQs); err != nil {
		return nil, err
	}
	if len(d.srqs) == MaxSRQ {
		return nil, fmt.Errorf("%w: SRQ number %d, the device has %d", ErrLimit, len(d.srqs)+1, MaxSRQ)
	}
	d.lastID++
	s.id = d.lastID
	d.srqs[s], client.srqs[s] = struct{}{}, struct{}{}
	return s, nil
}

// checkUser says whether a QP may use the SRQ.
func (s *SRQ) checkUser(c *Client, domain *memory.Domain) error {
	switch {
	case s.client.device != c.device:
		return fmt.Errorf("%w: the SRQ belongs to another device", ErrInvalid)
	case s.client != c:
		return fmt.Errorf("%w: the SRQ belongs to another client", ErrInvalid)
	case s.config.Domain != domain:
		return fmt.Errorf("%w: a QP and its SRQ in two protection domains", ErrNotSupported)
	}
	return nil
}

func checkSRQLimit(limit, maxWR int) error {
	if limit < 0 || limit > maxWR {
		return fmt.Errorf("%w: srq_limit is %d, the SRQ holds %d requests", ErrInvalid, limit, maxWR)
	}
	return nil
}

// SetOwner attaches a value that Owner returns.
func (s *SRQ) SetOwner(o any) { s.owner.Store(o) }

// Owner is what SetOwner has attached, or nil.
func (s *SRQ) Owner() any { return s.owner.Load() }

// Over says why nothing is taken any more, if so.
func (s *SRQ) Over() error {
	if s.closed.Load() {
		return fmt.Errorf("SRQ: %w", ErrClosed)
	}
	return nil
}

// takeRequest gives the oldest request to a QP. It runs under the lock of the QP's shard.
func (s *SRQ) takeRequest(wr *queue.RecvWR) (found, valid bool) {
	s.take.Lock()
	defer s.take.Unlock()
	if s.consumer.Available(0) == 0 {
		return false, false
	}
	valid = s.consumer.ReadRecv(0, wr)
	s.consumer.Release(1)
	s.checkLimit()
	return true, valid
}

// checkLimit raises the limit event if fewer requests are left than the limit, and takes the limit back. The caller
// holds take.
func (s *SRQ) checkLimit() {
	if s.limit > 0 && s.consumer.Available(s.limit-1) < s.limit {
		s.limit = 0
		s.client.events.raise(AsyncEvent{Type: transport.EventSRQLimitReached, SRQ: s})
	}
}

// SRQAttributes are what Modify changes and Query returns.
type SRQAttributes struct {
	MaxWR  int // requests that the queue holds
	MaxSGE int // elements per request; Modify does not change it
	Limit  int // the armed limit; 0 after its event was raised
}

// SRQReplacement is a ring that takes the place of another one.
type SRQReplacement struct {
	Ring  Ring // of the layout queue.RecvLayout(MaxWR, the MaxSGE of the SRQ)
	MaxWR int
	First uint32 // the index in the old ring of what comes first in this one (queue.Producer.Move)
}

// Modify has the engine go on in another ring, if replacement is not nil, and arms the limit, if limit is not nil: both
// or none. The client has copied everything that was posted into the new ring and posts nothing meanwhile; what was
// taken since then the engine leaves out there. A limit that is above the number of posted requests raises its event at
// once: with an empty queue nothing would ever be taken that could raise it.
func (s *SRQ) Modify(replacement *SRQReplacement, limit *int) error {
	var consumer *queue.Consumer
	if replacement != nil {
		var err error
		layout := queue.RecvLayout(replacement.MaxWR, s.config.MaxSGE)
		if consumer, err = queue.NewConsumer(replacement.Ring.Memory, layout); err != nil {
			return err
		}
	}
	old, err := s.modify(replacement, consumer, limit)
	old.release()
	return err
}

// modify returns the ring that is of no use any more.
func (s *SRQ) modify(replacement *SRQReplacement, consumer *queue.Consumer, limit *int) (old Ring, err error) {
	s.take.Lock()
	defer s.take.Unlock()
	if err := s.Over(); err != nil {
		return old, err
	}
	armed, capacity := s.limit, s.consumer.Capacity()
	if limit != nil {
		armed = *limit
	}
	if consumer != nil {
		capacity = consumer.Capacity()
	}
	if err := checkSRQLimit(armed, capacity); err != nil {
		return old, err
	}
	if consumer != nil {
		if !consumer.SkipTo(s.consumer, replacement.First) {
			return old, fmt.Errorf("%w: more requests were taken than the new ring of the SRQ has", ErrInvalid)
		}
		old = s.config.Ring
		s.consumer, s.config.Ring = consumer, replacement.Ring
	}
	if limit != nil {
		s.limit = armed
		s.checkLimit()
	}
	return old, nil
}

// Query returns the attributes as they are now.
func (s *SRQ) Query() SRQAttributes {
	s.take.Lock()
	defer s.take.Unlock()
	return SRQAttributes{MaxWR: s.consumer.Capacity(), MaxSGE: s.config.MaxSGE, Limit: s.limit}
}

// Close destroys the SRQ and drops what is posted. It fails while QPs use it.
func (s *SRQ) Close() error {
	if err := s.close(); err != nil {
		return err
	}
	s.config.Ring.release()
	return nil
}

func (s *SRQ) close() error {
	d := s.client.device
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := s.Over(); err != nil {
		return err
	}
	if s.qps > 0 {
		return fmt.Errorf("SRQ: %w by %d QPs", ErrInUse, s.qps)
	}
	s.take.Lock() // nobody is about to look
	defer s.take.Unlock()
	s.closed.Store(true)
	delete(d.srqs, s)
	delete(s.client.srqs, s)
	s.client.events.forget(AsyncEvent{SRQ: s})
	return nil
}

// sharedReceives is an SRQ as the transport sees it from one of its QPs.
type sharedReceives SRQ

// Take implements transport.ReceiveQueue. It runs under the lock of the QP's shard.
func (s *sharedReceives) Take(wr *queue.RecvWR) (found, valid bool) { return (*SRQ)(s).takeRequest(wr) }

// Waiting implements transport.ReceiveQueue: nothing of an SRQ belongs to one QP, so a QP in the error state flushes
// none.
func (*sharedReceives) Waiting() int { return 0 }

// Discard implements transport.ReceiveQueue: see Waiting.
func (*sharedReceives) Discard() {}
