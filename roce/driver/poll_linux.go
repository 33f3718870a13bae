package driver

import (
	"encoding/binary"
	"time"

	"golang.org/x/sys/unix"
)

// yield gives the CPU to another thread. Both ends of a connection may poll on the same CPU, where a poller that keeps
// it makes a round trip take a scheduler slice (8 ms instead of 5 us); runtime.Gosched does not help, since the other
// end is another process. The call does not block, so the Go scheduler need not know.
func yield() { _, _, _ = unix.RawSyscall(unix.SYS_SCHED_YIELD, 0, 0, 0) }

// eventfd wakes a thread from poll(2).
type eventfd struct{ fd int }

func newEventfd() (eventfd, error) {
	fd, err := unix.Eventfd(0, unix.EFD_NONBLOCK|unix.EFD_CLOEXEC)
	return eventfd{fd}, err
}

func (e eventfd) signal() {
	var one [8]byte
	binary.NativeEndian.PutUint64(one[:], 1)
	_, _ = unix.Write(e.fd, one[:]) // cannot fail: the count never nears its limit
}

func (e eventfd) drain() {
	var count [8]byte
	_, _ = unix.Read(e.fd, count[:])
}

func (e eventfd) close() { _ = unix.Close(e.fd) }

// pollSet is the argument of a poll(2).
type pollSet struct{ fds []unix.PollFd }

func (p *pollSet) reset() { p.fds = p.fds[:0] }

func (p *pollSet) add(fd int) {
	if fd >= 0 {
		p.fds = append(p.fds, unix.PollFd{Fd: int32(fd), Events: unix.POLLIN})
	}
}

// poll waits until one of the descriptors is readable or the time is over, and reports whether the first one added is
// readable; a negative timeout never ends. The call goes through the scheduler: a raw one would pin a P and stall the
// collector.
func (p *pollSet) poll(timeout time.Duration) (first bool) {
	var limit *unix.Timespec
	if timeout >= 0 {
		t := unix.NsecToTimespec(int64(timeout))
		limit = &t
	}
	n, err := unix.Ppoll(p.fds, limit, nil)
	return err == nil && n > 0 && p.fds[0].Revents != 0 // EINTR is a wake-up like any other
}
