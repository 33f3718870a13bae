package driver

// The state of a device and of what is on it, for those who look from outside. Everything is read under the lock that
// guards it, for one object at a time and never two locks: traffic goes on meanwhile, and the parts are not of one
// moment.

import (
	"cmp"
	"maps"
	"slices"

	"github.com/xroce/xroce/roce"
	"github.com/xroce/xroce/roce/link"
	"github.com/xroce/xroce/roce/transport"
)

// Objects are how many objects there are, and the range of QPNs.
type Objects struct {
	QPs, CQs, SRQs int
	QPNBase        roce.QPN
	QPNCount       int
}

// Objects counts the objects of the device.
func (d *Device) Objects() Objects {
	d.mu.Lock()
	defer d.mu.Unlock()
	return Objects{QPs: d.qpCount, CQs: len(d.cqs), SRQs: len(d.srqs), QPNBase: d.numbers.base, QPNCount: int(d.numbers.count)}
}

// ShardCounters are the counts of a shard and of its queue.
type ShardCounters struct {
	Transport transport.Counters
	Link      link.Counters
	Queue     link.Queue
}

// ShardCounters returns the counts of each shard.
func (d *Device) ShardCounters() []ShardCounters {
	list := make([]ShardCounters, len(d.shards))
	for i, s := range d.shards {
		t, l := s.counters()
		list[i] = ShardCounters{Transport: t, Link: l, Queue: s.queue}
	}
	return list
}

// QPStatus is a queue pair.
type QPStatus struct {
	QPN            roce.QPN
	Type           transport.Type
	Home           int    // index of its shard
	SendCQ, RecvCQ uint32 // CQStatus.ID
	SRQ            uint32 // SRQStatus.ID, 0 without one
	Transport      transport.Status
	Attributes     transport.Attributes
}

// CQStatus is a completion queue.
type CQStatus struct {
	ID       uint32
	Capacity int
	Waiting  int  // completions inside
	QPs      int  // queues of QPs that complete there
	Channel  bool // somebody is notified
	Overrun  bool
}

// SRQStatus is a shared receive queue.
type SRQStatus struct {
	ID     uint32
	MaxWR  int
	Posted int
	Limit  int
	QPs    int
}

// QPs returns the queue pairs.
func (d *Device) QPs() []*QP {
	var list []*QP
	for i := range d.numbers.qps {
		if q := d.numbers.qps[i].Load(); q != nil {
			list = append(list, q)
		}
	}
	return list
}

// CQs describes the completion queues, in the order in which they were made.
func (d *Device) CQs() []CQStatus {
	d.mu.Lock()
	cqs := keys(d.cqs)
	d.mu.Unlock()
	var list []CQStatus
	for _, c := range cqs {
		list = append(list, c.status())
	}
	slices.SortFunc(list, func(a, b CQStatus) int { return cmp.Compare(a.ID, b.ID) })
	return list
}

// SRQs describes the shared receive queues, in the order in which they were made.
func (d *Device) SRQs() []SRQStatus {
	d.mu.Lock()
	srqs := keys(d.srqs)
	users := make([]int, len(srqs))
	for i, q := range srqs {
		users[i] = q.qps
	}
	d.mu.Unlock()
	var list []SRQStatus
	for i, q := range srqs {
		list = append(list, q.status(users[i]))
	}
	slices.SortFunc(list, func(a, b SRQStatus) int { return cmp.Compare(a.ID, b.ID) })
	return list
}

// Status describes the queue pair.
func (q *QP) Status() QPStatus {
	s := QPStatus{QPN: q.number, Type: q.config.Type, SendCQ: q.config.SendCQ.id, RecvCQ: q.config.RecvCQ.id}
	if q.config.SRQ != nil {
		s.SRQ = q.config.SRQ.id
	}
	q.control.Lock()
	defer q.control.Unlock()
	home := q.lock()
	defer home.unlock()
	s.Home, s.Transport, s.Attributes = home.index, q.transport.Status(), q.transport.Attributes()
	return s
}

func (c *CQ) status() CQStatus {
	s := CQStatus{ID: c.id, Channel: c.notifier != nil, Overrun: c.overrun.Load()}
	c.mu.Lock()
	s.QPs = c.qps.uses
	c.mu.Unlock()
	c.produce.Lock()
	defer c.produce.Unlock()
	s.Capacity = c.producer.Capacity()
	if !c.closed.Load() { // otherwise the ring is not the engine's any more
		s.Waiting = c.producer.Used()
	}
	return s
}

func (s *SRQ) status(users int) SRQStatus {
	s.take.Lock()
	defer s.take.Unlock()
	status := SRQStatus{ID: s.id, MaxWR: s.consumer.Capacity(), Limit: s.limit, QPs: users}
	if !s.closed.Load() {
		status.Posted = s.consumer.Available(status.MaxWR)
	}
	return status
}

func keys[K comparable](m map[K]struct{}) []K { return slices.Collect(maps.Keys(m)) }
