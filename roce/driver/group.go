package driver

import (
	"slices"
	"sync/atomic"

	"github.com/xroce/xroce/internal/lockorder"
)

// Waitable is what a goroutine can block on: a CQ until it has completions, a channel until it has events. Its methods
// are called by several goroutines at once, without a lock of the driver.
type Waitable interface {
	// Ready says that there is something to take.
	Ready() bool
	// Over says why it will not become ready any more, if so.
	Over() error
	// Arm makes the group wake when it becomes ready.
	Arm()
}

// Group is a set of CQs that goroutines wait for together, with the shards where progress is made for them. A CQ is a
// group of its own. Its methods may be called concurrently.
type Group struct {
	device   *Device
	shards   shardSet
	sleepers sleepers
}

// NewGroup makes an empty group; CQConfig.Group adds CQs to it.
func (d *Device) NewGroup() *Group { return &Group{device: d} }

// Wake makes whoever is blocked in Wait look again.
func (g *Group) Wake() { g.sleepers.wake() }

// DrivePolled drives the shards on behalf of a poller, which renews the lease on them.
func (g *Group) DrivePolled() {
	for i, set := 0, g.shards.bits.Load(); set != 0; i, set = i+1, set>>1 {
		if set&1 != 0 {
			s := g.device.shards[i]
			s.polls.Add(1)
			if s.drivePolled() {
				s.polls.Add(1) // it may have taken as long as many empty ones: a kick of 32 frames of 4 KiB is 50 to 90 us
			}
		}
	}
}

// GiveBack ends the lease on the shards of whoever has polled them.
func (g *Group) GiveBack() {
	for i, set := 0, g.shards.bits.Load(); set != 0; i, set = i+1, set>>1 {
		if set&1 != 0 {
			g.device.shards[i].giveBack()
		}
	}
}

// shardSet is a set of shards, a bit each, with how many queues of QPs at home there are the reason.
type shardSet struct {
	bits   atomic.Uint64
	mu     lockorder.Mutex[lockorder.ShardSet] // guards counts
	counts [maxShards]uint16
}

// add reports whether the shard is a new one.
func (a *shardSet) add(s *Shard) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.counts[s.index]++
	bit := uint64(1) << s.index
	return a.bits.Or(bit)&bit == 0
}

// remove undoes an add.
func (a *shardSet) remove(s *Shard) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.counts[s.index]--; a.counts[s.index] == 0 {
		a.bits.And(^(uint64(1) << s.index))
	}
}

// sleepers are the goroutines that are blocked on something.
type sleepers struct {
	mu   lockorder.Mutex[lockorder.Sleepers]
	list []*waiter
}

// wake wakes all of them.
func (l *sleepers) wake() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, w := range l.list {
		w.wake()
	}
}

func (l *sleepers) add(w *waiter) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.list = append(l.list, w)
}

func (l *sleepers) remove(w *waiter) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if i := slices.Index(l.list, w); i >= 0 {
		l.list = slices.Delete(l.list, i, i+1)
	}
}
