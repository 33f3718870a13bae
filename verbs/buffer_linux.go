package verbs

import (
	"fmt"
	"os"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/xroce/xroce/roce/memory"
)

const hugePage = 2 << 20

// mapper asks the kernel for memory. A successful mmap(2) promises nothing: the pages of a hugetlb mapping are charged
// to the control group when they are touched (mm/hugetlb_cgroup.c), and a touch beyond its limit ends the process with
// SIGBUS. So every page is made present before anybody gets the buffer.
type mapper struct {
	huge     int                       // flags of a mapping on huge pages
	populate func(buffer []byte) error // makes all pages present, or says why it cannot
}

func mapBuffer(size int) ([]byte, error) { return mapper{unix.MAP_HUGETLB, populate}.mapBuffer(size) }

func (m mapper) mapBuffer(size int) ([]byte, error) {
	if size%hugePage == 0 {
		if b, err := m.present(size, m.huge, nil); err == nil {
			return b, nil
		}
	}
	// Transparent huge pages are a hint, which kernels without them refuse.
	return m.present(size, 0, func(b []byte) { _ = unix.Madvise(b, unix.MADV_HUGEPAGE) })
}

// present maps memory and populates it.
func (m mapper) present(size, flags int, advise func([]byte)) ([]byte, error) {
	b, err := unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON|flags)
	if err != nil {
		return nil, fmt.Errorf("buffer of %d bytes: %w", size, err)
	}
	if advise != nil {
		advise(b)
	}
	if err := m.populate(b); err != nil {
		_ = unix.Munmap(b)
		return nil, fmt.Errorf("buffer of %d bytes: the system does not have the memory that it has promised: %w", size, err)
	}
	return b, nil
}

// populate makes all pages of a buffer present.
func populate(b []byte) error {
	switch err := unix.Madvise(b, unix.MADV_POPULATE_WRITE); err {
	case nil:
		return nil
	case unix.EFAULT, unix.ENOMEM, unix.EHWPOISON:
		return err // madvise(2): what a touch would have met
	}
	// Kernels before 5.14 do not know the question.
	return touch(b)
}

// touch is populate by hand.
func touch(b []byte) error {
	if memory.Touch(b, os.Getpagesize()) != memory.FaultNone {
		return syscall.EFAULT
	}
	return nil
}

func unmapBuffer(b []byte) error { return unix.Munmap(b) }
