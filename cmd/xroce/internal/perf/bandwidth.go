package perf

import (
	"context"
	"math"
	"time"
)

// stream keeps the window of each queue pair full, if this end is active, and takes what the peer sends, if that is.
func (r *run) stream() error {
	var target uint64 // messages of all queue pairs
	if r.active {
		target = r.limits.messages
		if target != math.MaxUint64 {
			target *= uint64(len(r.pairs))
		}
		for _, p := range r.pairs {
			p.last = r.limits.messages
			if err := r.refill(p); err != nil {
				return err
			}
		}
	}
	said := false
	for turns := 0; ; turns++ {
		if !said && (r.active && r.completed == target || !r.active && r.known) {
			said = true
			if r.active {
				r.took = time.Since(r.start)
			}
			r.waiting.Store(r.awaits)
			if err := r.line.say(news{wordSent, r.posted}, nil); err != nil {
				return err
			}
		}
		if said && r.known && (!r.awaits || r.arrived == r.total) {
			return nil
		}
		if turns%pollsPerLook == 0 && r.ctx.Err() != nil {
			return context.Cause(r.ctx)
		}
		if err := r.turn(); err != nil {
			return err
		}
		r.moved.Store(r.completed + r.arrived)
		if r.active && target > r.posted && r.limits.within > 0 && r.expired(time.Now()) {
			target = r.posted
			for _, p := range r.pairs {
				p.last = p.posted
			}
		}
	}
}
