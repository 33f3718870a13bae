//go:build linux

package xsk

import (
	"errors"
	"fmt"
	"math"

	"golang.org/x/sys/unix"

	"github.com/xroce/xroce/internal/refusal"
)

// CheckMultiBuffer says whether the kernel has multi-buffer (Linux 6.6, see
// Options.MultiBuffer): nil, ErrNotSupported, or why it cannot be found out, such as
// ErrPermission. It needs CAP_NET_RAW and binds nothing.
func CheckMultiBuffer() error {
	err := checkBindFlag(unix.XDP_USE_SG)
	if errors.Is(err, unix.EINVAL) {
		return &Error{
			Step: "probe multi-buffer", Detail: "this kernel has no multi-buffer AF_XDP" + since("Linux 6.6"),
			Kind: ErrNotSupported, Err: err,
		}
	}
	return err
}

// CheckNeedWakeup says whether the kernel has AF_XDP sockets that tell when they have to be woken (Linux 5.4), which
// Open needs, in the same way.
func CheckNeedWakeup() error {
	err := checkBindFlag(unix.XDP_USE_NEED_WAKEUP)
	if errors.Is(err, unix.EINVAL) {
		return &Error{
			Step: "probe need_wakeup", Detail: "this kernel's AF_XDP has no need_wakeup" + since("Linux 5.4"),
			Kind: ErrNotSupported, Err: err,
		}
	}
	return err
}

// since names the kernel that a feature came with, if this one is older.
func since(version string) string {
	if refusal.Older(refusal.Release(), version) {
		return " (" + version + " or later has it)"
	}
	return ", although " + refusal.Release() + " is new enough"
}

// checkBindFlag tries to bind to an interface that does not exist: the kernel looks at
// the flags first, so it answers EINVAL if it does not know one, and otherwise ENODEV
// (net/xdp/xsk.c, xsk_bind).
func checkBindFlag(flag uint16) error {
	fd, err := unix.Socket(unix.AF_XDP, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return (&Socket{}).socketError(err)
	}
	defer unix.Close(fd)
	err = unix.Bind(fd, &unix.SockaddrXDP{Flags: flag, Ifindex: math.MaxInt32})
	switch {
	case errors.Is(err, unix.ENODEV):
		return nil
	case err == nil:
		return fmt.Errorf("xsk: an interface of index %d exists", math.MaxInt32)
	}
	return err
}
