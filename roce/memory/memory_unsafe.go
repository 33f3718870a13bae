package memory

import "unsafe"

// BufferAddress is the virtual address of a buffer's first byte, the usual address of a region.
func BufferAddress(buffer []byte) uint64 {
	return uint64(uintptr(unsafe.Pointer(unsafe.SliceData(buffer))))
}
