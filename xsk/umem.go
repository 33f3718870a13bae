//go:build linux

// Life of the memory. The UMEM is one memfd, cut into chunks:
//
//	| receive chunk 0 | 1 | ... | transmit buffer 0 | 1 | ... |
//
// The parts never mix: however far the application lags behind in receiving, it
// can still send (an acknowledgement, say). A transmit buffer is one chunk, or two
// neighbours with multi-buffer, which is why a frame is written as one slice even
// where it goes out as two descriptors.
//
// A memfd and not anonymous memory, since the socket may be handed to another
// process, which maps the same pages. It is sealed against shrinking: otherwise
// that process could truncate it and kill this one by SIGBUS.

package xsk

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

type umem struct {
	fd     int
	memory []byte // whole pages; the registered part is Info.umemSize
}

// memorySize returns the length of the memfd: the registered part in whole pages.
func memorySize(info Info) int {
	page := os.Getpagesize()
	return (info.umemSize() + page - 1) / page * page
}

const umemSeals = unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_SEAL

// newUMEM makes the memory; size is in whole pages.
func newUMEM(size int) (umem, error) {
	fd, err := unix.MemfdCreate("xsk-umem", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return umem{}, fmt.Errorf("memfd_create: %w", err)
	}
	u := umem{fd: fd}
	if err := unix.Ftruncate(fd, int64(size)); err != nil {
		u.close()
		return umem{}, fmt.Errorf("ftruncate to %d bytes: %w", size, err)
	}
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, umemSeals); err != nil {
		u.close()
		return umem{}, fmt.Errorf("add seals: %w", err)
	}
	if err := u.mapMemory(size); err != nil {
		u.close()
		return umem{}, err
	}
	return u, nil
}

// openUMEM maps memory that another process made. The caller keeps fd on error.
func openUMEM(fd, size int) (umem, error) {
	u := umem{fd: fd}
	seals, err := unix.FcntlInt(uintptr(fd), unix.F_GET_SEALS, 0)
	if err != nil {
		return umem{}, fmt.Errorf("file descriptor %d is not a memfd: %w", fd, err)
	}
	if seals&unix.F_SEAL_SHRINK == 0 {
		return umem{}, fmt.Errorf("memfd %d is not sealed against shrinking: %w", fd, unix.EPERM)
	}
	var status unix.Stat_t
	if err := unix.Fstat(fd, &status); err != nil {
		return umem{}, fmt.Errorf("fstat of the memfd: %w", err)
	}
	if status.Size != int64(size) {
		return umem{}, fmt.Errorf("memfd has %d bytes, the description says %d: %w", status.Size, size, unix.EINVAL)
	}
	if err := u.mapMemory(size); err != nil {
		return umem{}, err
	}
	return u, nil
}

func (u *umem) mapMemory(size int) error {
	memory, err := unix.Mmap(u.fd, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_POPULATE)
	if err != nil {
		return fmt.Errorf("mmap of %d bytes: %w", size, err)
	}
	u.memory = memory
	return nil
}

// unmap releases the mapping but not the file descriptor.
func (u *umem) unmap() {
	if u.memory != nil {
		_ = unix.Munmap(u.memory)
		u.memory = nil
	}
}

func (u *umem) close() {
	u.unmap()
	_ = unix.Close(u.fd)
}
