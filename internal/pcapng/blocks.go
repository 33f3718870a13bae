package pcapng

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"io"
	"iter"
	"time"
)

// Block is a piece of a capture as it is in the file, its type and lengths included.
type Block []byte

// Type is the kind of the block.
func (b Block) Type() uint32 { return binary.LittleEndian.Uint32(b) }

// SetInterface changes the interface of a packet.
func (b Block) SetInterface(i int) { binary.LittleEndian.PutUint32(b[8:], uint32(i)) }

// maximumBlock is far more than what a Writer makes of the longest frame.
const maximumBlock = 1 << 20

// leastBlock is what the kinds of blocks have at least that are looked into: their fixed part, type and lengths
// included.
var leastBlock = map[uint32]int{SectionHeader: 28, InterfaceDescription: 20, InterfaceStatistics: 24,
	EnhancedPacket: 32}

// Reader takes a capture apart that a Writer has made.
type Reader struct {
	in    *bufio.Reader
	block []byte
}

// NewReader reads a capture.
func NewReader(r io.Reader) *Reader { return &Reader{in: bufio.NewReaderSize(r, bufferSize)} }

// Peek returns the next byte without taking it.
func (r *Reader) Peek() (byte, error) {
	next, err := r.in.Peek(1)
	if err != nil {
		return 0, err
	}
	return next[0], nil
}

// Rest is what was not read yet.
func (r *Reader) Rest() io.Reader { return r.in }

// Next returns the next block, which is valid until the next call. The error is io.EOF where the capture ends, and
// io.ErrUnexpectedEOF where it ends within a block.
func (r *Reader) Next() (Block, error) {
	var head [8]byte
	if _, err := io.ReadFull(r.in, head[:]); err != nil {
		return nil, err
	}
	kind, length := binary.LittleEndian.Uint32(head[:]), int(binary.LittleEndian.Uint32(head[4:]))
	if length < max(12, leastBlock[kind]) || length > maximumBlock || length%4 != 0 {
		return nil, fmt.Errorf("pcapng: block of type %#x with a length of %d bytes", kind, length)
	}
	if cap(r.block) < length {
		r.block = make([]byte, length)
	}
	r.block = r.block[:length]
	copy(r.block, head[:])
	if _, err := io.ReadFull(r.in, r.block[len(head):]); err != nil {
		if err == io.EOF {
			err = io.ErrUnexpectedEOF
		}
		return nil, err
	}
	if end := int(binary.LittleEndian.Uint32(r.block[length-4:])); end != length {
		return nil, fmt.Errorf("pcapng: block of type %#x with lengths of %d and %d bytes", kind, length, end)
	}
	return r.block, nil
}

// Statistics takes a block apart that WriteStatistics has made.
func (b Block) Statistics() (s Statistics) {
	s.Interface = int(binary.LittleEndian.Uint32(b[8:]))
	for code, value := range b.options(20) {
		if code == optionComment {
			s.Comment = string(value)
		}
		if len(value) != 8 {
			continue
		}
		count := binary.LittleEndian.Uint64(value)
		at := time.Duration(count<<32 | count>>32)
		switch code {
		case statisticsStart:
			s.Start = at
		case statisticsEnd:
			s.End = at
		case statisticsReceived:
			s.Received = count
		case statisticsDropped:
			s.Dropped = count
		case statisticsDelivered:
			s.Delivered = count
		}
	}
	return s
}

// LeftOut is Packet.LeftOut of a packet.
func (b Block) LeftOut() uint64 {
	kept := int(binary.LittleEndian.Uint32(b[20:]))
	if kept > len(b)-32 {
		return 0
	}
	for code, value := range b.options(28 + (kept+3)&^3) {
		if code == packetLeftOut && len(value) == 8 {
			return binary.LittleEndian.Uint64(value)
		}
	}
	return 0
}

// options are those of a block, from an offset on.
func (b Block) options(offset int) iter.Seq2[int, []byte] {
	return func(yield func(int, []byte) bool) {
		for rest := b[min(offset, len(b)-4) : len(b)-4]; len(rest) >= 4; {
			code, length := int(binary.LittleEndian.Uint16(rest)), int(binary.LittleEndian.Uint16(rest[2:]))
			rest = rest[4:]
			if code == optionEnd || length > len(rest) || !yield(code, rest[:length]) {
				return
			}
			rest = rest[min((length+3)&^3, len(rest)):]
		}
	}
}
