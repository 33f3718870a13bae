package driver

// Before the background sleeps, it goes on looking for a while if that has paid lately. A frame that ends a sleep in
// poll(2) finds its thread only after a wake-up, 30 to 35 us on another CPU, and on veth it is the sender's system call
// that pays for it. How long the background looks follows the sleeps, as the kernel does it for virtual CPUs
// (halt_poll_ns, virt/kvm/kvm_main.c): a sleep that a little more patience would have saved makes it longer, and a long
// sleep makes it shorter, so that an idle device costs nothing.

import (
	"runtime"
	"time"
)

const (
	leastPatience = 20 * time.Microsecond
	mostPatience  = 200 * time.Microsecond
)

// linger drives the shard until nothing has come for as long as b.patience. It ends early when somebody else drives, or
// wants the CPU. Where a sleeper is woken within the process (link.Waker) there is nothing to save, and in testing/synctest
// no time passes while it looks.
func (b *background) linger(s *Shard) {
	if b.patience == 0 || s.waker != nil {
		return
	}
	clock := s.device.options.Clock
	polls, last := s.polls.Load(), clock()
	for misses := 1; ; misses++ {
		switch {
		case s.polls.Load() != polls || s.sleep.waiters.Load() > 0 || b.quit.Load():
			return
		case s.drive(backgroundTurns):
			runtime.Gosched()
			last, misses = clock(), 0
		case misses%yieldEvery != 0:
		case time.Duration(clock()-last) >= b.patience:
			return
		case s.device.crowd.yield():
			b.patience = 0
			return
		}
	}
}

// slept notes how long the background has slept until something was to be done, and so how long it lingers next time.
func (b *background) slept(d time.Duration) {
	if d < mostPatience {
		b.patience = min(max(2*b.patience, leastPatience), mostPatience)
	} else if b.patience /= 2; b.patience < leastPatience {
		b.patience = 0
	}
}
