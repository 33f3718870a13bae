//go:build linux

package xsk

import (
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

// descriptor is an entry of the RX and TX rings: address in the UMEM, length,
// options (XDP_PKT_CONTD).
type descriptor = unix.XDPDesc

// ringMemory returns the length in bytes of the mapping of a ring.
func ringMemory[E any](offsets unix.XDPRingOffset, entries int) int {
	var entry E
	return int(offsets.Desc) + entries*int(unsafe.Sizeof(entry))
}

// ringAt lays a ring over its mapping. The memory is not the garbage collector's;
// whoever unmaps it must not use the ring any more.
func ringAt[E any](memory []byte, offsets unix.XDPRingOffset, entries int) ring[E] {
	_ = memory[ringMemory[E](offsets, entries)-1]
	word := func(offset uint64) *atomic.Uint32 {
		return (*atomic.Uint32)(unsafe.Pointer(&memory[offset]))
	}
	return ring[E]{
		producer: word(offsets.Producer),
		consumer: word(offsets.Consumer),
		flags:    word(offsets.Flags),
		entries:  unsafe.Slice((*E)(unsafe.Pointer(&memory[offsets.Desc])), entries),
	}
}
