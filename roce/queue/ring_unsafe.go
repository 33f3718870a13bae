package queue

import (
	"fmt"
	"sync/atomic"
	"unsafe"
)

// indexWords returns the index words of a ring. They are the only words that both ends touch at once; the
// slots are ordered by them (release on store, acquire on load: both are what sync/atomic gives).
func indexWords(memory []byte) (producer, consumer, arm *atomic.Uint32, err error) {
	base := unsafe.Pointer(unsafe.SliceData(memory))
	if uintptr(base)%8 != 0 {
		return nil, nil, nil, fmt.Errorf("queue: memory at %p is not aligned to 8 bytes", base)
	}
	at := func(offset uintptr) *atomic.Uint32 { return (*atomic.Uint32)(unsafe.Add(base, offset)) }
	return at(producerOffset), at(consumerOffset), at(armOffset), nil
}
