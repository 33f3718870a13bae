package verbs

import (
	"fmt"

	"golang.org/x/sys/unix"
)

const hugePage = 2 << 20

// AllocBuffer returns size bytes of zeroed memory outside the Go heap, page-aligned, all pages present, on huge pages if
// the system has some: large regions then cost the collector nothing and the CPU fewer translations. It is the caller's until FreeBuffer.
// Ordinary slices can be registered just as well.
func AllocBuffer(size int) ([]byte, error) {
	if size <= 0 {
		return nil, fmt.Errorf("buffer: %w: %d bytes", ErrInvalid, size)
	}
	const protection, flags = unix.PROT_READ | unix.PROT_WRITE, unix.MAP_PRIVATE | unix.MAP_ANON
	if size%hugePage == 0 {
		if b, err := unix.Mmap(-1, 0, size, protection, flags|unix.MAP_HUGETLB); err == nil {
			return b, nil
		}
	}
	b, err := unix.Mmap(-1, 0, size, protection, flags)
	if err != nil {
		return nil, fmt.Errorf("buffer of %d bytes: %w", size, err)
	}
	// Hints, which kernels without transparent huge pages or before 5.14 refuse: with the pages there already, no transfer
	// has to wait for them.
	_ = unix.Madvise(b, unix.MADV_HUGEPAGE)
	_ = unix.Madvise(b, unix.MADV_POPULATE_WRITE)
	return b, nil
}

// FreeBuffer gives back a buffer of AllocBuffer. It must not be registered any more, and nobody may use it.
func FreeBuffer(b []byte) error {
	if err := unix.Munmap(b); err != nil {
		return fmt.Errorf("free buffer of %d bytes at %p: %w", len(b), b, err)
	}
	return nil
}
