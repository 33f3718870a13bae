package verbs

// The words of verbs are those of the ring, field by field (TestWordsOfTheRing), so that a list of them is one of the
// ring's without a copy.

import (
	"unsafe"

	"github.com/xroce/xroce/roce/queue"
)

func ringSends(wrs []SendWR) []queue.SendWR {
	return unsafe.Slice((*queue.SendWR)(unsafe.Pointer(unsafe.SliceData(wrs))), len(wrs))
}

func ringRecvs(wrs []RecvWR) []queue.RecvWR {
	return unsafe.Slice((*queue.RecvWR)(unsafe.Pointer(unsafe.SliceData(wrs))), len(wrs))
}

func ringCompletions(wcs []WC) []queue.WC {
	return unsafe.Slice((*queue.WC)(unsafe.Pointer(unsafe.SliceData(wcs))), len(wcs))
}

// completionOf is a completion of the ring.
func completionOf(wc queue.WC) WC { return *(*WC)(unsafe.Pointer(&wc)) }
