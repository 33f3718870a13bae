//go:build linux

package bpf

import (
	"sync/atomic"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

const (
	testRingSize  = 64
	testChunkSize = 4096
)

// testSocket is an AF_XDP socket that only receives.
type testSocket struct {
	fd       int
	umem     []byte
	ring     []byte
	offsets  unix.XDPMmapOffsets
	consumer uint32
}

// newTestSocket makes a socket with UMEM, filled FILL ring and RX ring.
func newTestSocket(t testing.TB) *testSocket {
	t.Helper()
	fd, err := unix.Socket(unix.AF_XDP, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
	require.NoError(t, err)
	s := &testSocket{fd: fd}
	t.Cleanup(func() { s.close(t) })

	s.umem, err = unix.Mmap(-1, 0, testRingSize*testChunkSize, unix.PROT_READ|unix.PROT_WRITE,
		unix.MAP_ANONYMOUS|unix.MAP_PRIVATE)
	require.NoError(t, err)
	registration := unix.XDPUmemReg{
		Addr: uint64(uintptr(unsafe.Pointer(&s.umem[0]))),
		Len:  uint64(len(s.umem)),
		Size: testChunkSize,
	}
	s.setOption(t, unix.XDP_UMEM_REG, unsafe.Pointer(&registration), unsafe.Sizeof(registration))
	for _, option := range []int{unix.XDP_UMEM_FILL_RING, unix.XDP_UMEM_COMPLETION_RING, unix.XDP_RX_RING} {
		require.NoError(t, unix.SetsockoptInt(fd, unix.SOL_XDP, option, testRingSize))
	}
	size := uint32(unsafe.Sizeof(s.offsets))
	_, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(fd), unix.SOL_XDP, unix.XDP_MMAP_OFFSETS,
		uintptr(unsafe.Pointer(&s.offsets)), uintptr(unsafe.Pointer(&size)), 0)
	require.Zero(t, errno)

	fill, err := unix.Mmap(fd, unix.XDP_UMEM_PGOFF_FILL_RING, int(s.offsets.Fr.Desc)+8*testRingSize,
		unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	require.NoError(t, err)
	defer func() { require.NoError(t, unix.Munmap(fill)) }()
	for i := range testRingSize {
		*(*uint64)(unsafe.Pointer(&fill[int(s.offsets.Fr.Desc)+8*i])) = uint64(i * testChunkSize)
	}
	atomic.StoreUint32((*uint32)(unsafe.Pointer(&fill[s.offsets.Fr.Producer])), testRingSize)

	s.ring, err = unix.Mmap(fd, unix.XDP_PGOFF_RX_RING, int(s.offsets.Rx.Desc)+16*testRingSize,
		unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	require.NoError(t, err)
	return s
}

func (s *testSocket) setOption(t testing.TB, option int, value unsafe.Pointer, size uintptr) {
	t.Helper()
	_, _, errno := unix.Syscall6(unix.SYS_SETSOCKOPT, uintptr(s.fd), unix.SOL_XDP, uintptr(option), uintptr(value), size,
		0)
	require.Zero(t, errno)
}

func (s *testSocket) bind(t testing.TB, ifindex, queue int) {
	t.Helper()
	require.NoError(t, unix.Bind(s.fd, &unix.SockaddrXDP{
		Flags: unix.XDP_COPY | unix.XDP_USE_SG, Ifindex: uint32(ifindex), QueueID: uint32(queue),
	}))
}

// receive returns the next frame, put together from its descriptors, or nil. It
// does not refill: a socket serves for testRingSize descriptors.
func (s *testSocket) receive() []byte {
	var frame []byte
	for {
		producer := atomic.LoadUint32((*uint32)(unsafe.Pointer(&s.ring[s.offsets.Rx.Producer])))
		if s.consumer == producer {
			return nil
		}
		descriptor := (*unix.XDPDesc)(unsafe.Pointer(&s.ring[int(s.offsets.Rx.Desc)+16*int(s.consumer%testRingSize)]))
		frame = append(frame, s.umem[descriptor.Addr:descriptor.Addr+uint64(descriptor.Len)]...)
		s.consumer++
		atomic.StoreUint32((*uint32)(unsafe.Pointer(&s.ring[s.offsets.Rx.Consumer])), s.consumer)
		if descriptor.Options&unix.XDP_PKT_CONTD == 0 {
			return frame
		}
	}
}

// close closes the socket once; the kernel keeps the UMEM as long as it needs it.
func (s *testSocket) close(t testing.TB) {
	t.Helper()
	if s.fd < 0 {
		return
	}
	require.NoError(t, unix.Close(s.fd))
	s.fd = -1
	if s.ring != nil {
		require.NoError(t, unix.Munmap(s.ring))
	}
	if s.umem != nil {
		require.NoError(t, unix.Munmap(s.umem))
	}
}
