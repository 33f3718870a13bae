//go:build linux

package netlab

import (
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"
)

// ethtoolChannels is struct ethtool_channels of linux/ethtool.h.
type ethtoolChannels struct {
	command, _, _, _, _, receive, transmit, _, _ uint32
}

// channelsRequest is struct ifreq with a pointer in its union, which has 24 bytes.
type channelsRequest struct {
	name [unix.IFNAMSIZ]byte
	data unsafe.Pointer
	_    [16]byte
}

// SetChannels changes the numbers of queues in use, like ethtool -L. The device has at most as many as it was made
// with. A veth device refuses to have fewer receive queues than its peer has transmit queues while an XDP program is
// attached to it.
func (e *End) SetChannels(receive, transmit int) error {
	return e.Namespace.Do(func() error {
		socket, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return fmt.Errorf("netlab: open socket for ethtool: %w", err)
		}
		defer unix.Close(socket)
		channels := ethtoolChannels{command: unix.ETHTOOL_SCHANNELS, receive: uint32(receive), transmit: uint32(transmit)}
		request := channelsRequest{data: unsafe.Pointer(&channels)}
		copy(request.name[:unix.IFNAMSIZ-1], e.Name)
		_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(socket), unix.SIOCETHTOOL, uintptr(unsafe.Pointer(&request)))
		if errno != 0 {
			return fmt.Errorf("netlab: %d receive and %d transmit queues of %s: %w", receive, transmit, e.Name, errno)
		}
		return nil
	})
}
