package memory

import (
	"fmt"
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

// LoadUint64 loads the aligned word at offset atomically, in host byte order. It is how a program sees that a
// peer's write has arrived: if the word is the last of the message, everything before it is there too.
func (r *Region) LoadUint64(offset uint64) (uint64, error) {
	if offset > r.Length() || r.Length()-offset < 8 {
		return 0, fmt.Errorf("memory: word at offset %d of a region of %d bytes", offset, r.Length())
	}
	word := wordOf(r.buffer[offset : offset+8])
	if word == nil {
		return 0, fmt.Errorf("memory: word at offset %d is not aligned to 8 bytes", offset)
	}
	return atomic.LoadUint64(word), nil
}
