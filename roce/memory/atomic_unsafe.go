package memory

import (
	"sync/atomic"
	"unsafe"
)

// lastWord is the offset of the last whole word of b at an address that is a multiple of 8, or -1.
func lastWord(b []byte) int {
	end := (BufferAddress(b) + uint64(len(b))) &^ 7
	if end < BufferAddress(b)+8 {
		return -1
	}
	return int(end - 8 - BufferAddress(b))
}

// storeWord stores eight bytes at an aligned address in one go.
func storeWord(at []byte, word [8]byte) {
	atomic.StoreUint64((*uint64)(unsafe.Pointer(unsafe.SliceData(at))), *(*uint64)(unsafe.Pointer(&word)))
}

// wordOf is b, which has eight bytes, as a word, or nil if its address is not a multiple of 8.
func wordOf(b []byte) *uint64 {
	p := unsafe.Pointer((*[8]byte)(b))
	if uintptr(p)%8 != 0 {
		return nil
	}
	return (*uint64)(p)
}
