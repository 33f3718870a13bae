//go:build linux

package main

import (
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

// ring is one of the four rings that are shared with the kernel (Documentation/networking/af_xdp.rst). Of the two
// indices one is ours, and local runs ahead of it until it is published.
type ring[T any] struct {
	producer, consumer *atomic.Uint32
	entries            []T
	local              uint32
}

// mapRing maps a ring, which stays until the process ends.
func mapRing[T any](fd int, page int64, size int, offset unix.XDPRingOffset) (ring[T], error) {
	var entry T
	length := int(offset.Desc) + size*int(unsafe.Sizeof(entry))
	memory, err := unix.Mmap(fd, page, length, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_POPULATE)
	if err != nil {
		return ring[T]{}, err
	}
	return ring[T]{
		producer: (*atomic.Uint32)(unsafe.Pointer(&memory[offset.Producer])),
		consumer: (*atomic.Uint32)(unsafe.Pointer(&memory[offset.Consumer])),
		entries:  unsafe.Slice((*T)(unsafe.Pointer(&memory[offset.Desc])), size),
	}, nil
}

// put writes an entry of a ring that we produce; there must be room.
func (r *ring[T]) put(entry T) {
	r.entries[r.local%uint32(len(r.entries))] = entry
	r.local++
}

func (r *ring[T]) publish() { r.producer.Store(r.local) }

// pending counts the entries that the kernel has not taken yet.
func (r *ring[T]) pending() uint32 { return r.local - r.consumer.Load() }

// available counts the entries of a ring that we consume.
func (r *ring[T]) available() uint32 { return r.producer.Load() - r.local }

func (r *ring[T]) take() T {
	entry := r.entries[r.local%uint32(len(r.entries))]
	r.local++
	return entry
}

func (r *ring[T]) release() { r.consumer.Store(r.local) }

func registerMemory(fd int, memory []byte) error {
	registration := unix.XDPUmemReg{Addr: uint64(uintptr(unsafe.Pointer(&memory[0]))), Len: uint64(len(memory)),
		Size: chunkSize}
	_, _, errno := unix.Syscall6(unix.SYS_SETSOCKOPT, uintptr(fd), unix.SOL_XDP, unix.XDP_UMEM_REG,
		uintptr(unsafe.Pointer(&registration)), unsafe.Sizeof(registration), 0)
	return errorOf(errno)
}

// socketOption reads an option of an AF_XDP socket.
func socketOption[T any](fd, option int) (value T, err error) {
	length := uint32(unsafe.Sizeof(value))
	_, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(fd), unix.SOL_XDP, uintptr(option),
		uintptr(unsafe.Pointer(&value)), uintptr(unsafe.Pointer(&length)), 0)
	return value, errorOf(errno)
}

func errorOf(errno unix.Errno) error {
	if errno != 0 {
		return errno
	}
	return nil
}
