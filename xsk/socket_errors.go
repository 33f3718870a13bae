//go:build linux

package xsk

import (
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"github.com/xroce/xroce/internal/refusal"
)

func (s *Socket) fail(step, detail string, kind, err error) error {
	return &Error{
		Step: step, Interface: s.info.Interface, Queue: s.info.Queue,
		Detail: detail, Kind: kind, Err: err,
	}
}

func (s *Socket) closedError(step string) error { return s.fail(step, "", ErrClosed, nil) }

// misuse is an argument or an order of calls that cannot be right.
func (s *Socket) misuse(step, detail string) error { return s.fail(step, detail, nil, unix.EINVAL) }

// socketError explains what socket(2) said (net/xdp/xsk.c, xsk_create).
func (s *Socket) socketError(err error) error {
	switch {
	case errors.Is(err, unix.EPERM):
		return s.fail("create socket", whyRefused(), ErrPermission, err)
	case errors.Is(err, unix.EAFNOSUPPORT), errors.Is(err, unix.ENOSYS):
		return s.fail("create socket", refusal.Look().Absent("socket(AF_XDP)", "CONFIG_XDP_SOCKETS"), ErrNotSupported, err)
	}
	return s.fail("create socket", "", nil, err)
}

// whyRefused says what is known of who does not permit a socket.
func whyRefused() string {
	if !refusal.Effective()(unix.CAP_NET_RAW) {
		return "CAP_NET_RAW is missing"
	}
	return refusal.Look().Network("socket(AF_XDP)")
}

// registerError explains what XDP_UMEM_REG said (net/xdp/xdp_umem.c).
func (s *Socket) registerError(err error) error {
	size := s.info.umemSize()
	if errors.Is(err, unix.ENOBUFS) {
		limit := "unknown"
		var rlimit unix.Rlimit
		if unix.Getrlimit(unix.RLIMIT_MEMLOCK, &rlimit) == nil {
			limit = fmt.Sprintf("%d bytes", rlimit.Cur)
		}
		return s.fail("register UMEM", fmt.Sprintf(
			"the UMEM of %d bytes and what this user has locked already exceed RLIMIT_MEMLOCK, %s (raise it with ulimit -l, or give CAP_IPC_LOCK)",
			size, limit), ErrMemoryLocked, err)
	}
	return s.fail("register UMEM", fmt.Sprintf("%d bytes in chunks of %d", size, s.info.ChunkSize), nil, err)
}

// bindError explains what bind(2) said (net/xdp/xsk.c, xsk_bind, and
// net/xdp/xsk_buff_pool.c, xp_assign_dev).
func (s *Socket) bindError(err error, mode CopyMode, waited time.Duration) error {
	queue := fmt.Sprintf("queue %d of ifindex %d", s.info.Queue, s.info.Interface)
	switch {
	case errors.Is(err, unix.EBUSY):
		return s.fail("bind", fmt.Sprintf("%s is taken by another AF_XDP socket (tried for %v)",
			queue, waited.Round(time.Millisecond)), ErrQueueBusy, err)
	case errors.Is(err, unix.EPERM):
		return s.fail("bind", queue+": "+whyRefused(), ErrPermission, err)
	case errors.Is(err, unix.ENODEV):
		return s.fail("bind", fmt.Sprintf("ifindex %d does not exist in this network namespace", s.info.Interface), nil, err)
	case errors.Is(err, unix.EOPNOTSUPP) && mode == ModeZeroCopy:
		detail := queue + ": the driver has no zero copy"
		if s.info.MultiBuffer {
			detail += ", or not with multi-buffer"
		}
		return s.fail("bind", detail+" (ModeCopy always works)", ErrNotSupported, err)
	case errors.Is(err, unix.EINVAL) && s.info.MultiBuffer:
		return s.fail("bind", queue+": refused; a kernel before 6.6 has no multi-buffer, and in zero copy the MTU has to fit into the buffers", nil, err)
	case errors.Is(err, unix.EINVAL):
		return s.fail("bind", queue+": refused; the queue does not exist, or in zero copy the MTU does not fit into a chunk",
			nil, err)
	}
	return s.fail("bind", queue, nil, err)
}
