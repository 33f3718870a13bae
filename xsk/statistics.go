package xsk

import (
	"fmt"

	"github.com/xroce/xroce/internal/enum"
)

// MaxSegments is the longest chain of segments that Receive hands out: with 4 KiB
// chunks enough for frames of 15 KiB. A longer one is dropped and counted.
const MaxSegments = 4

// Frame is a received Ethernet frame: one segment, or with MultiBuffer up to
// MaxSegments that follow each other. The segments lie in the UMEM; they belong to
// the caller until Release and may be written to.
type Frame struct {
	Segments [][]byte
}

// Len returns the length of the frame in bytes.
func (f Frame) Len() int {
	length := 0
	for _, segment := range f.Segments {
		length += len(segment)
	}
	return length
}

// KickResult tells what became of a Kick.
type KickResult uint8

const (
	// KickNotNeeded: no system call was made; nothing waits to be sent, or the
	// driver is already at it (zero copy).
	KickNotNeeded KickResult = iota
	// KickDone: the kernel took everything that was published.
	KickDone
	// KickAgain (EAGAIN): descriptors are still queued, since the budget of one call
	// is used up, the send buffer or the completion ring is full, or the driver is
	// busy. Reap, then kick again; do not sleep and do not loop without a bound.
	KickAgain
	// KickDropped (EBUSY): the driver dropped one frame, its buffer comes back like
	// that of a sent one, and the frames behind it are still queued. Kick again.
	KickDropped
	// KickNoBuffers (ENOBUFS, ENOMEM): the kernel had no memory for the frame, which
	// is still queued. Let other work go first, then kick again.
	KickNoBuffers
)

// String returns a short description.
func (r KickResult) String() string {
	switch r {
	case KickNotNeeded:
		return "not needed"
	case KickDone:
		return "done"
	case KickAgain:
		return "again"
	case KickDropped:
		return "one frame dropped"
	case KickNoBuffers:
		return "no buffers"
	}
	return fmt.Sprintf("KickResult(%d)", uint8(r))
}

// MarshalText returns the text of String, for logs and JSON.
func (r KickResult) MarshalText() ([]byte, error) { return []byte(r.String()), nil }

// UnmarshalText takes what MarshalText returns.
func (r *KickResult) UnmarshalText(text []byte) error { return enum.Parse(r, text) }

// Statistics are the kernel's counters of the socket (XDP_STATISTICS), since Open.
type Statistics struct {
	// ReceiveDropped counts frames that were lost because no chunk was free, or because they were too long for one.
	ReceiveDropped uint64
	// ReceiveInvalid counts wrong addresses in the fill ring: a bug in this package.
	ReceiveInvalid uint64
	// TransmitInvalid counts wrong transmit descriptors: a bug in this package.
	TransmitInvalid uint64
	// ReceiveRingFull counts frames lost because the receive ring was full.
	ReceiveRingFull uint64
	// FillRingEmpty counts chunks that were wanted while the fill ring was empty:
	// Release comes too rarely, or there are too few receive frames.
	FillRingEmpty uint64
	// TransmitRingEmpty counts how often the kernel found nothing to send. Harmless.
	TransmitRingEmpty uint64
}

// Counters are this package's own counters of the socket, since Open or FromFDs.
type Counters struct {
	ReceivedFrames    uint64 // handed out by Receive
	TransmittedFrames uint64 // made visible to the kernel by Publish

	ChainsDropped      uint64 // received frames of more than MaxSegments segments
	ZeroLength         uint64 // received descriptors of length 0; their frames were dropped
	InvalidReceive     uint64 // received descriptors outside the chunks of the receive side
	InvalidCompletions uint64 // completed addresses that were not in flight

	Kicks             uint64 // sendto calls
	KicksAgain        uint64 // of these: EAGAIN
	TransmitDropped   uint64 // of these: EBUSY, each one frame that the driver dropped
	KicksNoBuffers    uint64 // of these: ENOBUFS or ENOMEM
	ReceiveWakeups    uint64 // recvfrom calls of WakeReceive
	ReceiveWakeupBusy uint64 // of these: EAGAIN, EBUSY or ENOBUFS
}
