package queue

import (
	"sync/atomic"
	"unsafe"
)

// aligned says whether words of 8 bytes in memory can be atomic.
func aligned(memory []byte) bool { return uintptr(unsafe.Pointer(unsafe.SliceData(memory)))%8 == 0 }

// wordsOf returns the words of a ring. The memory is aligned and long enough.
func wordsOf(memory []byte) words {
	return words{
		producer: word32(memory, ringProducer), consumer: word32(memory, ringConsumer),
		arm: word32(memory, ringArm), state: word32(memory, ringState),
	}
}

func word32(memory []byte, offset uintptr) *atomic.Uint32 {
	return (*atomic.Uint32)(unsafe.Add(unsafe.Pointer(unsafe.SliceData(memory)), offset))
}

// doorbellWordsOf returns the words of doorbells. The memory is aligned and long enough.
func doorbellWordsOf(memory []byte) doorbellWords {
	base := unsafe.Pointer(unsafe.SliceData(memory))
	return doorbellWords{
		asleep:  word32(memory, doorbellAsleep),
		summary: (*[doorbellSummaryCount]atomic.Uint64)(unsafe.Add(base, doorbellSummary)),
		bits:    (*[doorbellBitsCount]atomic.Uint64)(unsafe.Add(base, doorbellBits)),
	}
}
