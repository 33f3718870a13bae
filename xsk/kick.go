//go:build linux

// Life of a kick. Publish only moves an index in shared memory; the kernel looks at it
// when sendto is called (or poll). In copy mode that is necessary for every batch,
// and sendto runs the whole send path before it returns, on a veth even the receive
// path of the other end: about 1 us for a small frame, 20 to 40 us for 16 frames of
// 4 KiB. So it does not belong under the lock that guards the socket's rings: publish
// under the lock, kick after it, by whoever wins a second lock, for as long as
// KickPending.

package xsk

import (
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// waker is all that a kick needs. It never touches the private state of the rings, so
// it runs beside the goroutine that uses them.
type waker struct {
	fd             int
	producer       *atomic.Uint32 // of the TX ring
	consumer       *atomic.Uint32
	transmitFlags  *atomic.Uint32
	fillFlags      *atomic.Uint32
	kicks          counter
	again          counter
	dropped        counter
	noBuffers      counter
	receiveWakeups counter
	receiveBusy    counter
}

func (w *waker) init(fd int, transmit ring[descriptor], fill ring[uint64]) {
	w.fd = fd
	w.producer, w.consumer, w.transmitFlags = transmit.producer, transmit.consumer, transmit.flags
	w.fillFlags = fill.flags
}

func (w *waker) pending() bool { return w.producer.Load() != w.consumer.Load() }

// KickPending reports whether frames are published that the kernel has not taken.
func (s *Socket) KickPending() bool {
	s.life.RLock()
	defer s.life.RUnlock()
	return !s.closed.Load() && s.wake.pending()
}

// Kick makes the kernel send what is published, if it has to be told. It never waits.
// It is one system call that may take long (see Options.TransmitBudget) and covers the
// frames of everybody who published before.
//
// After a result other than KickDone frames may still be queued: see KickResult. The
// errors are ErrDown, ErrClosed and whatever else the kernel says.
func (s *Socket) Kick() (KickResult, error) {
	s.life.RLock()
	defer s.life.RUnlock()
	if s.closed.Load() {
		return KickNotNeeded, s.closedError("kick")
	}
	w := &s.wake
	if w.transmitFlags.Load()&unix.XDP_RING_NEED_WAKEUP == 0 || !w.pending() {
		return KickNotNeeded, nil
	}
	w.kicks.Add(1)
	switch errno := w.call(unix.SYS_SENDTO); errno {
	case 0:
		return KickDone, nil
	case unix.EAGAIN:
		w.again.Add(1)
		return KickAgain, nil
	case unix.EBUSY:
		w.dropped.Add(1)
		return KickDropped, nil
	case unix.ENOBUFS, unix.ENOMEM:
		w.noBuffers.Add(1)
		return KickNoBuffers, nil
	default:
		return KickNotNeeded, s.wakeError("kick", errno)
	}
}

// WakeReceive makes the driver look into the FILL ring, if it has to be told: in zero
// copy it may have gone to sleep on an empty one. In copy mode it does nothing. Call
// it after Release; poll on FD has the same effect.
func (s *Socket) WakeReceive() (KickResult, error) {
	s.life.RLock()
	defer s.life.RUnlock()
	if s.closed.Load() {
		return KickNotNeeded, s.closedError("wake receive")
	}
	w := &s.wake
	if w.fillFlags.Load()&unix.XDP_RING_NEED_WAKEUP == 0 {
		return KickNotNeeded, nil
	}
	w.receiveWakeups.Add(1)
	switch errno := w.call(unix.SYS_RECVFROM); errno {
	case 0:
		return KickDone, nil
	case unix.EAGAIN, unix.EBUSY, unix.ENOBUFS:
		w.receiveBusy.Add(1)
		return KickAgain, nil
	default:
		return KickNotNeeded, s.wakeError("wake receive", errno)
	}
}

// call does sendto or recvfrom without data. It is Syscall6 and not RawSyscall6: the
// call runs the send path and with it up to 0.1 ms and more, in which a raw one would
// keep the garbage collector and the goroutines of this thread waiting.
func (w *waker) call(number uintptr) unix.Errno {
	for {
		_, _, errno := unix.Syscall6(number, uintptr(w.fd), 0, 0, unix.MSG_DONTWAIT, 0, 0)
		if errno != unix.EINTR {
			return errno
		}
	}
}

// wakeError explains the errors of xsk_check_common (net/xdp/xsk.c).
func (s *Socket) wakeError(step string, errno unix.Errno) error {
	switch errno {
	case unix.ENETDOWN:
		return s.fail(step, "", ErrDown, errno)
	case unix.ENXIO:
		return s.fail(step, "the interface was deleted or has left its network namespace", ErrClosed, errno)
	}
	return s.fail(step, "", nil, errno)
}
