package perf

import (
	"context"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// ping makes round trips, one at a time, and notes how long each takes.
func (r *run) ping() error {
	r.histogram = hdrhistogram.New(1, int64(longestTrip), 3)
	p := r.pairs[0]
	for before, n := r.start, uint64(0); n < r.limits.messages && !r.expired(before); n++ {
		if err := r.trip(p, n); err != nil {
			return err
		}
		now := time.Now()
		if err := r.histogram.RecordValue(min(int64(now.Sub(before)), int64(longestTrip))); err != nil {
			return err
		}
		before = now
		r.moved.Store(n + 1)
		if n%pollsPerLook == 0 && r.ctx.Err() != nil {
			return context.Cause(r.ctx)
		}
	}
	r.took = time.Since(r.start)
	if err := r.drain(p); err != nil {
		return err
	}
	r.waiting.Store(false)
	if err := r.line.say(news{wordSent, p.posted}, nil); err != nil {
		return err
	}
	select {
	case <-r.wake.Done():
	case <-r.ctx.Done():
	}
	if r.ctx.Err() != nil {
		return context.Cause(r.ctx)
	}
	return nil
}

// trip makes one round trip.
func (r *run) trip(p *pair, n uint64) error {
	if err := r.send(p); err != nil {
		return err
	}
	if !r.plan.operation().fetches {
		_, err := r.arrival(p, n)
		return err
	}
	for p.completed <= n {
		if err := r.turn(); err != nil {
			return err
		}
	}
	return nil
}

// pong answers each message by one, until the peer has said how many there were.
func (r *run) pong() error {
	p := r.pairs[0]
	for n := uint64(0); ; n++ {
		came, err := r.arrival(p, n)
		if err != nil {
			return err
		}
		if !came {
			break
		}
		if err := r.send(p); err != nil {
			return err
		}
		r.moved.Store(n + 1)
	}
	if err := r.drain(p); err != nil {
		return err
	}
	return r.line.say(news{wordSent, p.posted}, nil)
}

// send posts one message. The completions of earlier ones are taken on the way; here only if there is no room.
func (r *run) send(p *pair) error {
	for p.posted-p.completed >= uint64(r.plan.Depth) {
		if err := r.turn(); err != nil {
			return err
		}
	}
	return r.post(p, 1)
}

// drain waits until the engine needs no message any more.
func (r *run) drain(p *pair) error {
	for p.completed < p.posted {
		if err := r.turn(); err != nil {
			return err
		}
	}
	return nil
}

// arrival waits for message n of the peer, and says whether it came: not if the peer has sent no more than n.
func (r *run) arrival(p *pair, n uint64) (bool, error) {
	if r.check.marked {
		return r.written(p, n)
	}
	for p.arrived <= n {
		if r.known && r.total <= n {
			return false, nil
		}
		if err := r.turn(); err != nil {
			return false, err
		}
	}
	return true, nil
}

// written waits until message n is in memory, which nothing but its last byte tells. Polling the completion queue
// drives the engine meanwhile.
func (r *run) written(p *pair, n uint64) (bool, error) {
	at := r.plan.sink(p.index, n)
	for polls := 1; ; polls++ {
		last, err := r.check.marker(r.station, at)
		if err != nil {
			return false, err
		}
		if last == mark(n) {
			break
		}
		if polls%pollsPerLook == 0 {
			if r.ctx.Err() != nil {
				return false, context.Cause(r.ctx)
			}
			if r.known = r.heard.Load(); r.known && r.total <= n {
				return false, nil
			}
		}
		wcs, err := r.waiter.poll()
		if err == nil {
			err = r.takeAll(wcs)
		}
		if err != nil {
			return false, err
		}
	}
	if r.check.verify {
		return true, r.check.compare(r.station, at, p.index, n, n)
	}
	return true, nil
}
