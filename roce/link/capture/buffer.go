package capture

import (
	"encoding/binary"
	"math/bits"
	"sync/atomic"

	"github.com/xroce/xroce/roce"
)

const (
	// headerSize is what a frame takes in the buffer beside its bytes, and what its place is rounded up to, so that
	// headers never lie across the end of the ring.
	headerSize = 32
	// MinimumSize of a Buffer holds a frame of path MTU 4096 and some more.
	MinimumSize = 16 << 10
	// MaximumSize of a Buffer.
	MaximumSize = 256 << 20
)

// Buffer is a bounded queue of copied frames between one producer and one consumer, without a lock. One goroutine at a
// time is the producer and may call Add; one at a time is the consumer and may call Front and Release.
type Buffer struct {
	Filter Filter

	snap   int // bytes of a frame that are kept
	ring   []byte
	filled atomic.Uint64 // bytes ever put into the ring
	freed  atomic.Uint64 // bytes ever given back

	// Of the producer:
	room    uint64 // freed, as it was when last looked at
	missing uint64 // frames left out since the last one that was added

	leftOut atomic.Uint64
	size    uint64 // of the consumer: of the frame that Front returned
}

// NewBuffer makes a buffer of size bytes, rounded up to a power of 2 within MinimumSize and MaximumSize, for the first
// snap bytes of frames; 0 keeps all.
func NewBuffer(size, snap int, filter Filter) *Buffer {
	size = max(MinimumSize, min(size, MaximumSize))
	b := &Buffer{Filter: filter, snap: snap, ring: make([]byte, 1<<bits.Len(uint(size-1)))}
	if longest := len(b.ring) - headerSize; b.snap <= 0 || b.snap > longest {
		b.snap = longest
	}
	return b
}

// Add copies a frame, which lies in some pieces, or counts it as left out if there is no room.
func (b *Buffer) Add(time int64, mark Mark, drop roce.DropReason, segments [][]byte) {
	length := 0
	for _, s := range segments {
		length += len(s)
	}
	kept := min(length, b.snap)
	at := b.filled.Load()
	end := at + place(kept)
	if end-b.room > uint64(len(b.ring)) {
		b.room = b.freed.Load()
		if end-b.room > uint64(len(b.ring)) {
			b.missing++
			b.leftOut.Add(1)
			return
		}
	}
	h := b.ring[at&uint64(len(b.ring)-1):][:headerSize]
	binary.NativeEndian.PutUint64(h[0:], uint64(time))
	binary.NativeEndian.PutUint64(h[8:], b.missing)
	binary.NativeEndian.PutUint32(h[16:], uint32(kept))
	binary.NativeEndian.PutUint32(h[20:], uint32(length))
	h[24], h[25] = byte(mark), byte(drop)
	b.missing = 0
	at += headerSize
	for _, s := range segments {
		s = s[:min(len(s), kept)]
		kept -= len(s)
		first, second := b.span(at, len(s))
		copy(second, s[copy(first, s):])
		at += uint64(len(s))
	}
	b.filled.Store(end)
}

// place is the room that a frame takes of which so many bytes are kept.
func place(kept int) uint64 { return uint64(headerSize+kept+headerSize-1) &^ (headerSize - 1) }

// span returns length bytes of the ring, in two pieces if they lie across its end.
func (b *Buffer) span(at uint64, length int) (first, second []byte) {
	start := int(at & uint64(len(b.ring)-1))
	n := min(length, len(b.ring)-start)
	return b.ring[start : start+n], b.ring[:length-n]
}

// Front returns the oldest frame, which stays where it is until Release.
func (b *Buffer) Front() (p Packet, found bool) {
	at := b.freed.Load()
	if at == b.filled.Load() {
		return p, false
	}
	h := b.ring[at&uint64(len(b.ring)-1):][:headerSize]
	kept := int(binary.NativeEndian.Uint32(h[16:]))
	p = Packet{
		Time: int64(binary.NativeEndian.Uint64(h[0:])), LeftOut: binary.NativeEndian.Uint64(h[8:]),
		Length: int(binary.NativeEndian.Uint32(h[20:])), Mark: Mark(h[24]), Drop: roce.DropReason(h[25]),
	}
	p.Data[0], p.Data[1] = b.span(at+headerSize, kept)
	b.size = place(kept)
	return p, true
}

// Release gives the room of the frame back that Front returned last.
func (b *Buffer) Release() { b.freed.Add(b.size) }

// LeftOut is how many frames found no room. It may be called at any time by anybody.
func (b *Buffer) LeftOut() uint64 { return b.leftOut.Load() }
