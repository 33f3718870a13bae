package verbs

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/xroce/xroce/internal/lockorder"
	"github.com/xroce/xroce/roce/memory"
)

// AllocBuffer returns size bytes of zeroed memory outside the Go heap, page-aligned, on huge pages if the system has
// enough of them for a size that is a multiple of 2 MiB: large regions then cost the collector nothing and the CPU
// fewer translations. All pages are there when it returns; it fails if the system does not have them. The buffer is the
// caller's until FreeBuffer. Ordinary slices can be registered just as well. AllocBuffer and FreeBuffer may be called
// concurrently.
func AllocBuffer(size int) ([]byte, error) {
	if size <= 0 {
		return nil, fmt.Errorf("buffer: %w: %d bytes", ErrInvalid, size)
	}
	b, err := mapBuffer(size)
	if err != nil {
		return nil, err
	}
	allocated.add(b)
	return b, nil
}

// FreeBuffer gives back a buffer of AllocBuffer, the whole of it. Nobody may use it any more. It fails with ErrInUse,
// and changes nothing, while memory regions are registered in it, or mapped for fast registration, and with ErrInvalid
// if AllocBuffer has made no such buffer or it was freed already.
func FreeBuffer(b []byte) error {
	if err := allocated.remove(b); err != nil {
		return fmt.Errorf("free buffer of %d bytes at %#x: %w", len(b), memory.BufferAddress(b), err)
	}
	if err := unmapBuffer(b); err != nil {
		return fmt.Errorf("free buffer of %d bytes at %#x: %w", len(b), memory.BufferAddress(b), err)
	}
	return nil
}

// allocated are the buffers of the process that AllocBuffer has made and FreeBuffer has not taken back.
var allocated buffers

// buffers knows who uses which buffer, on whatever device: an address that is given back is soon that of another
// buffer, which the peers of a region that was left behind would read and write.
type buffers struct {
	mu   lockorder.Mutex[lockorder.Buffers]
	list []*allocation // in the order of their addresses
}

type allocation struct {
	start   uint64
	bytes   []byte
	regions int // that lie in it
}

// find returns where in the list the buffer is that has the first byte of b, or else where it would be.
func (l *buffers) find(b []byte) (at int, found bool) {
	address := memory.BufferAddress(b)
	return slices.BinarySearchFunc(l.list, address, func(a *allocation, address uint64) int {
		if a.start < address && address-a.start < uint64(len(a.bytes)) {
			return 0
		}
		return cmp.Compare(a.start, address)
	})
}

func (l *buffers) add(b []byte) {
	l.mu.Lock()
	defer l.mu.Unlock()
	at, _ := l.find(b)
	l.list = slices.Insert(l.list, at, &allocation{start: memory.BufferAddress(b), bytes: b})
}

func (l *buffers) remove(b []byte) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	at, found := l.find(b)
	if !found {
		return fmt.Errorf("%w: AllocBuffer has made no such buffer, or it was freed", ErrInvalid)
	}
	switch a := l.list[at]; {
	case a.start != memory.BufferAddress(b) || len(a.bytes) != len(b):
		return fmt.Errorf("%w: it is a part of the buffer of %d bytes at %#x", ErrInvalid, len(a.bytes), a.start)
	case a.regions > 0:
		return fmt.Errorf("%w by %d memory regions: end them first, by MR.Dereg", ErrInUse, a.regions)
	}
	l.list = slices.Delete(l.list, at, at+1)
	return nil
}

// enter notes that a region lies in b, if b lies in one of the buffers.
func (l *buffers) enter(b []byte) { l.count(b, 1) }

// leave undoes enter.
func (l *buffers) leave(b []byte) { l.count(b, -1) }

func (l *buffers) count(b []byte, n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if at, found := l.find(b); found {
		l.list[at].regions += n
	}
}
