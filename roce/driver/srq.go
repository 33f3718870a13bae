package driver

// A shared receive queue gives receive requests to several QPs, in the order in which they were posted. Its QPs may be at
// home at different shards: the end that takes has a mutex of its own below the shards' locks, the end that posts has
// another one above them, so that no shard ever waits for a program that posts a long list.

import (
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/xroce/xroce/roce/memory"
	"github.com/xroce/xroce/roce/queue"
	"github.com/xroce/xroce/roce/transport"
)

// SRQConfig describes a shared receive queue to make.
type SRQConfig struct {
	Domain *memory.Domain
	MaxWR  int
	MaxSGE int
	// Limit arms the limit event from the beginning; 0 does not.
	Limit int
}

// SRQ is a shared receive queue. Its methods may be called concurrently.
type SRQ struct {
	device *Device
	id     uint32
	config SRQConfig // MaxWR and Limit are those of the creation
	owner  atomic.Value
	events eventState
	closed atomic.Bool
	qps    int // guarded by Device.mu

	post     sync.Mutex // held by whoever posts
	producer *queue.Producer

	take     sync.Mutex // held by the shard that takes a request
	consumer *queue.Consumer
	limit    int
}

// CreateSRQ makes a shared receive queue.
func (d *Device) CreateSRQ(c SRQConfig) (*SRQ, error) {
	if c.Domain == nil {
		return nil, fmt.Errorf("%w: an SRQ needs a protection domain", ErrInvalid)
	}
	if err := checkLimits([]limitCheck{{"max_srq_wr", c.MaxWR, MaxWR}, {"max_srq_sge", c.MaxSGE, queue.MaxSGE}}); err != nil {
		return nil, err
	}
	if err := checkSRQLimit(c.Limit, c.MaxWR); err != nil {
		return nil, err
	}
	s := &SRQ{device: d, config: c, limit: c.Limit}
	var err error
	if s.producer, s.consumer, err = ringPair(queue.RecvLayout(c.MaxWR, c.MaxSGE)); err != nil {
		return nil, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return nil, ErrClosed
	}
	if len(d.srqs) == MaxSRQ {
		return nil, fmt.Errorf("%w: SRQ number %d, the device has %d", ErrLimit, len(d.srqs)+1, MaxSRQ)
	}
	d.lastID++
	s.id = d.lastID
	d.srqs[s] = struct{}{}
	return s, nil
}

// checkUser says whether a QP may use the SRQ.
func (s *SRQ) checkUser(d *Device, domain *memory.Domain) error {
	switch {
	case s.device != d:
		return fmt.Errorf("%w: the SRQ belongs to another device", ErrInvalid)
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

// PostRecv posts receives until one is refused, and returns how many were posted. The requests are copied.
func (s *SRQ) PostRecv(wrs []queue.RecvWR) (posted int, err error) {
	s.post.Lock()
	defer s.post.Unlock()
	if s.closed.Load() {
		return 0, fmt.Errorf("SRQ: %w", ErrClosed)
	}
	for ; posted < len(wrs); posted++ {
		if err = s.producer.PostRecv(&wrs[posted]); err != nil {
			break
		}
	}
	return posted, err
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
		s.device.raise(AsyncEvent{Type: transport.EventSRQLimitReached, SRQ: s})
	}
}

// SRQAttributes are what Modify changes and Query returns.
type SRQAttributes struct {
	MaxWR  int // requests that the queue holds
	MaxSGE int // elements per request; Modify does not change it
	Limit  int // the armed limit; 0 after its event was raised
}

// Modify changes the capacity, if maxWR is not nil, and arms the limit, if limit is not nil: both or none. A capacity
// below the number of posted requests is refused. A limit that is above the number of posted requests raises its
// event at once: with an empty queue nothing would ever be taken that could raise it.
func (s *SRQ) Modify(maxWR, limit *int) error {
	s.post.Lock()
	defer s.post.Unlock()
	if s.closed.Load() {
		return fmt.Errorf("SRQ: %w", ErrClosed)
	}
	capacity := s.producer.Capacity()
	var producer *queue.Producer
	var consumer *queue.Consumer
	if maxWR != nil {
		if err := checkLimits([]limitCheck{{"max_srq_wr", *maxWR, MaxWR}}); err != nil {
			return err
		}
		capacity = *maxWR
		var err error
		if producer, consumer, err = ringPair(queue.RecvLayout(capacity, s.config.MaxSGE)); err != nil {
			return err
		}
	}
	s.take.Lock()
	defer s.take.Unlock()
	armed := s.limit
	if limit != nil {
		armed = *limit
	}
	if err := checkSRQLimit(armed, capacity); err != nil {
		return err
	}
	if producer != nil {
		if count, moved := s.consumer.Move(producer); !moved {
			return fmt.Errorf("%w: SRQ of %d requests, %d are posted", ErrInvalid, capacity, count)
		}
		s.producer, s.consumer = producer, consumer
	}
	if limit != nil {
		s.limit = armed
		s.checkLimit()
	}
	return nil
}

// Query returns the attributes as they are now.
func (s *SRQ) Query() SRQAttributes {
	s.take.Lock()
	defer s.take.Unlock()
	return SRQAttributes{MaxWR: s.consumer.Capacity(), MaxSGE: s.config.MaxSGE, Limit: s.limit}
}

// Close destroys the SRQ and drops what is posted. It fails while QPs use it.
func (s *SRQ) Close() error {
	d := s.device
	d.mu.Lock()
	defer d.mu.Unlock()
	if s.closed.Load() {
		return fmt.Errorf("SRQ: %w", ErrClosed)
	}
	if s.qps > 0 {
		return fmt.Errorf("SRQ: %w by %d QPs", ErrInUse, s.qps)
	}
	s.closed.Store(true)
	delete(d.srqs, s)
	d.forget(AsyncEvent{SRQ: s})
	return nil
}

// sharedReceives is an SRQ as the transport sees it from one of its QPs.
type sharedReceives SRQ

// Take implements transport.ReceiveQueue. It runs under the lock of the QP's shard.
func (s *sharedReceives) Take(wr *queue.RecvWR) (found, valid bool) { return (*SRQ)(s).takeRequest(wr) }

// Waiting implements transport.ReceiveQueue: nothing of an SRQ belongs to one QP, so a QP in the error state flushes none.
func (*sharedReceives) Waiting() int { return 0 }

// Discard implements transport.ReceiveQueue: see Waiting.
func (*sharedReceives) Discard() {}
