//go:build linux

package xsk

import (
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"
)

// getOption reads a SOL_XDP option and returns the length in bytes that the kernel
// wrote: an older kernel knows shorter forms of the structures.
func getOption[T any](fd, option int, value *T) (int, error) {
	length := uint32(unsafe.Sizeof(*value))
	_, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(fd), unix.SOL_XDP, uintptr(option),
		uintptr(unsafe.Pointer(value)), uintptr(unsafe.Pointer(&length)), 0)
	if errno != 0 {
		return 0, errno
	}
	return int(length), nil
}

// registerUMEM tells the kernel about the memory, which it pins.
func registerUMEM(fd int, memory []byte, info Info) error {
	registration := unix.XDPUmemReg{
		Addr: uint64(uintptr(unsafe.Pointer(&memory[0]))),
		Len:  uint64(info.umemSize()),
		Size: uint32(info.ChunkSize),
	}
	_, _, errno := unix.Syscall6(unix.SYS_SETSOCKOPT, uintptr(fd), unix.SOL_XDP, unix.XDP_UMEM_REG,
		uintptr(unsafe.Pointer(&registration)), unsafe.Sizeof(registration), 0)
	if errno != 0 {
		return errno
	}
	return nil
}

// ringOffsets asks where in the mappings the indices and entries are.
func ringOffsets(fd int) (unix.XDPMmapOffsets, error) {
	var offsets unix.XDPMmapOffsets
	length, err := getOption(fd, unix.XDP_MMAP_OFFSETS, &offsets)
	if err == nil && length != int(unsafe.Sizeof(offsets)) {
		// Before 5.4 there is no flags word and no need_wakeup.
		err = unix.EOPNOTSUPP
	}
	return offsets, err
}

// zeroCopy asks what bind chose.
func zeroCopy(fd int) bool {
	var flags uint32
	_, err := getOption(fd, unix.XDP_OPTIONS, &flags)
	return err == nil && flags&unix.XDP_OPTIONS_ZEROCOPY != 0
}

// ethtoolChannels is struct ethtool_channels of linux/ethtool.h.
type ethtoolChannels struct {
	command                                             uint32
	maxReceive, maxTransmit, maxOther, maxCombined      uint32
	receiveCount, transmitCount, otherCount, bothCounts uint32
}

// ifreq is struct ifreq with a pointer in its union, which has 24 bytes.
type ifreq struct {
	name [unix.IFNAMSIZ]byte
	data unsafe.Pointer
	_    [16]byte
}

// channelCount asks the driver (ETHTOOL_GCHANNELS).
func channelCount(ifindex int) (receive, transmit int, err error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, 0, fmt.Errorf("socket: %w", err)
	}
	defer unix.Close(fd)
	request, err := unix.NewIfreq("")
	if err != nil {
		return 0, 0, err
	}
	request.SetUint32(uint32(ifindex))
	if err := unix.IoctlIfreq(fd, unix.SIOCGIFNAME, request); err != nil {
		return 0, 0, fmt.Errorf("name of ifindex %d: %w", ifindex, err)
	}
	channels := ethtoolChannels{command: unix.ETHTOOL_GCHANNELS}
	query := ifreq{data: unsafe.Pointer(&channels)}
	copy(query.name[:unix.IFNAMSIZ-1], request.Name())
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.SIOCETHTOOL, uintptr(unsafe.Pointer(&query)))
	if errno != 0 && errno != unix.EOPNOTSUPP {
		return 0, 0, fmt.Errorf("channels of %s: %w", request.Name(), errno)
	}
	receive = int(channels.receiveCount + channels.bothCounts)
	transmit = int(channels.transmitCount + channels.bothCounts)
	return max(receive, 1), max(transmit, 1), nil
}
