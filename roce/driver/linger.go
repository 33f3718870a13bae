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

// linger drives the shard until no packet of a peer has come for as long as b.patience. It ends early when somebody
// else drives, or wants the CPU. Frames that are nobody's do not count: whoever sends them would keep a CPU busy with
// few of them. Where a sleeper is woken within the process (link.Waker) there is nothing to save, and in
// testing/synctest no time passes while it looks.
func (b *background) linger(s *Shard) {
	b.learn(s.admitted.Load())
	if b.patience == 0 || s.waker != nil {
		return
	}
	clock := s.device.options.Clock
	polls, admitted, last := s.polls.Load(), s.admitted.Load(), clock()
	for misses := 1; ; misses++ {
		if s.polls.Load() != polls || s.sleep.waiters.Load() > 0 || b.quit.Load() {
			return
		}
		if s.drive(backgroundTurns) {
			runtime.Gosched()
		}
		now := s.admitted.Load()
		switch {
		case now != admitted:
			admitted, last, misses = now, clock(), 0
		case misses%yieldEvery != 0:
		case time.Duration(clock()-last) >= b.patience:
			return
		case s.device.crowd.yield():
			b.patience = 0
			return
		}
	}
}

// learn draws from the last sleep, if there was one, how long to linger. admitted is how often packets of peers have
// come until now.
func (b *background) learn(admitted uint64) {
	if b.slept == 0 {
		return
	}
	if admitted != b.admitted && b.slept < mostPatience {
		b.patience = min(max(2*b.patience, leastPatience), mostPatience)
	} else if b.patience /= 2; b.patience < leastPatience {
		b.patience = 0
	}
	b.slept = 0
}
