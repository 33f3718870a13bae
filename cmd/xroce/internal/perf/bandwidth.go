package perf

import (
	"context"
	"time"
)

// stream keeps the window of each queue pair full, if this end is active, and takes what the peer sends, if that is.
func (r *run) stream() error {
	if r.active {
		for _, p := range r.pairs {
			p.last = r.limits.messages
			if err := r.refill(p); err != nil {
				return err
			}
		}
	}
	said := false
	for turns := 0; ; turns++ {
		posted, completed, arrived := r.counts()
		if !said && (r.active && completed == posted && r.full() || !r.active && r.heard.Load()) {
			said = true
			if r.active {
				r.took = time.Since(r.start)
			}
			r.waiting.Store(r.awaits)
			if err := r.line.say(news{wordSent, posted}, nil); err != nil {
				return err
			}
		}
		if said && r.heard.Load() && (!r.awaits || arrived == r.total) {
			return nil
		}
		if turns%pollsPerLook == 0 && r.ctx.Err() != nil {
			return context.Cause(r.ctx)
		}
		if err := r.turn(); err != nil {
			return err
		}
		if r.active && r.expired(time.Now()) {
			for _, p := range r.pairs {
				p.last = p.posted
			}
		}
	}
}

// full says that no message is left to be posted.
func (r *run) full() bool {
	for _, p := range r.pairs {
		if p.posted < p.last {
			return false
		}
	}
	return true
}

// counts returns the numbers of messages of all queue pairs.
func (r *run) counts() (posted, completed, arrived uint64) {
	for _, p := range r.pairs {
		posted, completed, arrived = posted+p.posted, completed+p.completed, arrived+p.arrived
	}
	r.moved.Store(completed + arrived)
	return posted, completed, arrived
}
