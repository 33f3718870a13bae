//go:build linux

package xdp

import (
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/xroce/xroce/internal/netlab"
)

// setChannels changes the numbers of queues in use, like ethtool -L.
func setChannels(t *testing.T, e netlab.End, receive, transmit uint32) error {
	t.Helper()
	return e.Namespace.Do(func() error {
		socket, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		require.NoError(t, err)
		defer unix.Close(socket)
		channels := struct{ command, maxima, _, _, _, receive, transmit, _, _ uint32 }{
			command: unix.ETHTOOL_SCHANNELS, receive: receive, transmit: transmit,
		}
		request := struct {
			name [unix.IFNAMSIZ]byte
			data unsafe.Pointer
			_    [16]byte
		}{data: unsafe.Pointer(&channels)}
		copy(request.name[:], e.Name)
		_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(socket), unix.SIOCETHTOOL, uintptr(unsafe.Pointer(&request)))
		if errno != 0 {
			return errno
		}
		return nil
	})
}
