package driver

// A copy to or from user memory waits for a page that does not come as long as the kernel does (userfaultfd(2), swap, a
// file on a network), under the lock of its shard. Nothing can end that wait: the goroutine is not in a system call,
// but in the middle of an instruction. So all queue pairs of the shard stand still, and their peers may give them up.
// What can be done is to say so: a watch that takes no lock and that the data path knows nothing of but a count of its
// turns.

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/xroce/xroce/roce/memory"
)

const (
	// watchPause is between two looks while all is well: a wake-up a second is 0.001 % of a CPU.
	watchPause = time.Second
	// suspectPause is between two looks at a shard that was seen in a copy, and suspectLooks is how many see it in the
	// same turn, at the same region, before it is told of. A turn takes less than a millisecond. Looks are counted and
	// not seconds, so that a stop of the whole process (a debugger, a frozen control group) does not count.
	suspectPause = 100 * time.Millisecond
	suspectLooks = 10
)

// watched is what was seen of a shard.
type watched struct {
	turn   uint64
	region *memory.Region // in use; nil if none was
	looks  int            // that have seen the same since
	since  time.Time
}

// look takes what the shard does now. stuck says that a copy has just been seen for too long, and over that one which
// was is done.
func (w *watched) look(turn uint64, region *memory.Region, now time.Time) (stuck, over bool) {
	if region != nil && region == w.region && turn == w.turn {
		w.looks++
		return w.looks == suspectLooks, false
	}
	over = w.looks >= suspectLooks
	if !over {
		w.since = now
	}
	w.turn, w.region, w.looks = turn, region, 0
	return false, over
}

// watch looks at the shards until ctx ends.
func (d *Device) watch(ctx context.Context) {
	seen := make([]watched, len(d.shards))
	timer := time.NewTimer(watchPause)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		}
		pause := watchPause
		for i, s := range d.shards {
			w, now := &seen[i], time.Now()
			region, since := w.region, w.since
			stuck, over := w.look(s.turns.Load(), s.user.Region(), now)
			switch {
			case stuck:
				slog.Warn("xroce: a copy waits for memory for more than a second, and so do all queue pairs of the shard: "+
					"a page of the region does not come (userfaultfd, swap, file); mlock(2) keeps pages present", d.describe(i, w.region)...)
			case over:
				slog.Warn("xroce: the memory that a copy waited for has come",
					append(d.describe(i, region), "waited", now.Sub(since).Round(suspectPause))...)
				w.since = now
			}
			if w.region != nil {
				pause = suspectPause
			}
		}
		timer.Reset(pause)
	}
}

func (d *Device) describe(shard int, r *memory.Region) []any {
	return []any{
		"device", d.link.Information().Name, "shard", shard, "key", fmt.Sprintf("%#x", r.Key()),
		"address", fmt.Sprintf("%#x", r.Address()), "bytes", r.Length(),
	}
}
