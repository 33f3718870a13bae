//go:build linux

package xdp

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// ethtoolSettings is struct ethtool_cmd of linux/ethtool.h, as far as the speed needs it.
type ethtoolSettings struct {
	command   uint32
	_         [2]uint32 // supported, advertising
	speedLow  uint16
	_         [14]byte
	speedHigh uint16
	_         [2]byte
	_         [12]byte
}

// ethtoolChannels is struct ethtool_channels of linux/ethtool.h.
type ethtoolChannels struct {
	command                            uint32
	_                                  [4]uint32 // the largest numbers
	receive, transmit, other, combined uint32
}

// ifreq is struct ifreq with a pointer in its union, which has 24 bytes.
type ifreq struct {
	name [unix.IFNAMSIZ]byte
	data unsafe.Pointer
	_    [16]byte
}

// speed asks the driver for the speed of the link in Mbit/s (ETHTOOL_GSET), through a socket of the device's namespace.
// It is 0 for a driver that does not tell, or not now.
func speed(socket int, device string) int {
	settings := ethtoolSettings{command: unix.ETHTOOL_GSET}
	query := ifreq{data: unsafe.Pointer(&settings)}
	copy(query.name[:unix.IFNAMSIZ-1], device)
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(socket), unix.SIOCETHTOOL, uintptr(unsafe.Pointer(&query)))
	const unknown = 0xFFFFFFFF // SPEED_UNKNOWN
	if n := uint32(settings.speedHigh)<<16 | uint32(settings.speedLow); errno == 0 && n != unknown {
		return int(n)
	}
	return 0
}

// receiveQueues asks the driver how many receive queues are in use (ETHTOOL_GCHANNELS), through a socket of the
// device's namespace; 0 for a driver that does not tell.
func receiveQueues(socket int, device string) int {
	channels := ethtoolChannels{command: unix.ETHTOOL_GCHANNELS}
	query := ifreq{data: unsafe.Pointer(&channels)}
	copy(query.name[:unix.IFNAMSIZ-1], device)
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(socket), unix.SIOCETHTOOL, uintptr(unsafe.Pointer(&query))); errno != 0 {
		return 0
	}
	return int(channels.receive + channels.combined)
}
