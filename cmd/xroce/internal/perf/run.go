package perf

import (
	"context"
	"errors"
	"github.com/xroce/xroce/verbs"
	"math"
	"sync/atomic"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// limits say how long the ends that are active go on: until either is reached.
type limits struct {
	messages uint64        // of each queue pair
	within   time.Duration // 0 is no bound
}

// measured are the limits of what counts, and warmUp those of what goes before it: a tenth, and never long.
func (p *Plan) measured() limits {
	if p.Seconds > 0 {
		return limits{math.MaxUint64, time.Duration(p.Seconds * float64(time.Second))}
	}
	return limits{messages: uint64(p.Iterations)}
}

func (p *Plan) warmUp() limits {
	const longest = 250 * time.Millisecond
	l := p.measured()
	if l.within == 0 {
		return limits{(l.messages + 9) / 10, longest}
	}
	return limits{l.messages, min(l.within/10, longest)}
}

// run is one run with messages of one size, as one end sees it. Its goroutines end before finish returns.
type run struct {
	*station
	line   *line
	limits limits
	active bool // this end says when it is over: it measures
	awaits bool // messages of the peer complete receives here

	ctx    context.Context
	cancel context.CancelCauseFunc
	wake   context.Context // ends when the peer has said that all its messages are there, too
	heard  atomic.Bool     // it has
	known  bool            // the loop has seen that: it must not sleep on ctx before it has
	total  uint64          // how many those are, if known
	over   chan error      // gets nil when the peer has said that it is done

	moved   atomic.Uint64 // completions so far
	waiting atomic.Bool   // completions have to come
	watched chan struct{} // closed when the watch has ended
	stop    chan struct{}

	start     time.Time
	took      time.Duration // from the first post to the last completion of this end's messages
	histogram *hdrhistogram.Histogram
}

// longestTrip bounds what a histogram can hold.
const longestTrip = time.Minute

// startRun begins a run: the other end has come so far, too.
func startRun(l *line, s *station, lim limits, active, awaits bool, watch func(done float64)) *run {
	r := &run{
		station: s, line: l, limits: lim, active: active, awaits: awaits,
		over: make(chan error, 1), watched: make(chan struct{}), stop: make(chan struct{}), start: time.Now(),
	}
	r.ctx, r.cancel = context.WithCancelCause(l.ctx)
	wake, wakeUp := context.WithCancel(r.ctx)
	r.wake = wake
	r.waiting.Store(active || awaits)
	go func() {
		total, err := l.hear(wordSent)
		if err == nil {
			r.total = total
			r.heard.Store(true)
			wakeUp()
			_, err = l.hear(wordDone)
		}
		if err != nil {
			r.cancel(err)
		}
		wakeUp()
		r.over <- err
	}()
	go r.watch(watch)
	return r
}

// watch tells how far the run is, and ends it when nothing comes any more.
func (r *run) watch(tell func(done float64)) {
	defer close(r.watched)
	const interval = 250 * time.Millisecond
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	var last uint64
	since := time.Now()
	for {
		select {
		case <-r.stop:
			return
		case now := <-ticker.C:
			moved := r.moved.Load()
			if moved != last || !r.waiting.Load() {
				last, since = moved, now
			} else if now.Sub(since) > stallLimit {
				r.cancel(errStalled)
			}
			if r.limits.within > 0 {
				tell(float64(now.Sub(r.start)) / float64(r.limits.within))
			} else {
				tell(float64(moved) / float64(r.limits.messages) / float64(len(r.pairs)))
			}
		}
	}
}

// play has the messages go.
func (r *run) play() error {
	switch {
	case r.plan.Test == bandwidth:
		return r.stream()
	case r.active:
		return r.ping()
	case r.plan.operation().fetches:
		return r.stream() // which waits until the other end has done it all
	}
	return r.pong()
}

// finish plays, and ends together with the other end, which is told of a failure.
func (r *run) finish() error {
	err := r.play()
	r.waiting.Store(false)
	if err == nil {
		err = r.line.say(news{Word: wordDone}, nil)
	} else if r.ctx.Err() == nil || errors.Is(err, errStalled) {
		err = errors.Join(err, r.line.say(news{}, err))
	}
	if err != nil {
		r.cancel(err)
		_ = r.line.connection.SetReadDeadline(time.Unix(1, 0)) // the line is of no use any more
	}
	if heard := <-r.over; err == nil {
		err = heard
	}
	close(r.stop)
	<-r.watched
	r.cancel(nil)
	return err
}

// turn waits for completions and does what they call for. It returns without one when the peer has said its word.
func (r *run) turn() error {
	ctx := r.wake
	if r.known {
		ctx = r.ctx
	}
	wcs, err := r.waiter.wait(ctx)
	switch {
	case err == nil:
		err = r.takeAll(wcs)
	case r.ctx.Err() != nil:
		return context.Cause(r.ctx)
	case !r.known && r.heard.Load():
		err = nil
	}
	r.known = r.heard.Load()
	return err
}

// takeAll does what completions call for: what was used is posted again, what has room is posted.
func (r *run) takeAll(wcs []verbs.WC) error {
	for i := range wcs {
		if err := r.take(&wcs[i]); err != nil {
			return err
		}
	}
	for i := range wcs {
		_, index := number(wcs[i].WRID)
		if err := r.repost(r.pairs[index]); err != nil {
			return err
		}
		if err := r.refill(r.pairs[index]); err != nil {
			return err
		}
	}
	return nil
}

// expired says whether the time is over, if that is what ends the run.
func (r *run) expired(now time.Time) bool {
	return r.limits.within > 0 && now.Sub(r.start) >= r.limits.within
}
