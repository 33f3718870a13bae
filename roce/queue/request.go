package queue

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// Opcode is the operation of a send work request; the values are those of enum ibv_wr_opcode.
type Opcode uint8

// Operations of send work requests.
const (
	RDMAWrite              Opcode = 0
	RDMAWriteWithImmediate Opcode = 1
	Send                   Opcode = 2
	SendWithImmediate      Opcode = 3
	RDMARead               Opcode = 4
)

var opcodeNames = map[Opcode]string{
	RDMAWrite:              "RDMA WRITE",
	RDMAWriteWithImmediate: "RDMA WRITE with immediate",
	Send:                   "SEND",
	SendWithImmediate:      "SEND with immediate",
	RDMARead:               "RDMA READ",
}

// Known says whether o is an operation that the engine executes.
func (o Opcode) Known() bool { return o <= RDMARead }

func (o Opcode) String() string {
	if name, ok := opcodeNames[o]; ok {
		return name
	}
	return fmt.Sprintf("opcode %d", uint8(o))
}

// SendFlags modify a send work request; the values are those of enum ibv_send_flags.
type SendFlags uint8

// Flags of send work requests.
const (
	// SendFence holds the request back until all earlier READs of the queue are complete.
	SendFence SendFlags = 1
	// SendSignaled asks for a completion; without it only a failure makes one.
	SendSignaled SendFlags = 2
	// SendSolicited marks the message for a peer that waits for solicited completions only.
	SendSolicited SendFlags = 4
)

const knownFlags = SendFence | SendSignaled | SendSolicited

// MaxSGE is the largest number of scatter/gather elements of a work request.
const MaxSGE = 32

// MaxMessage is the largest message in bytes (IBTA: 2^31).
const MaxMessage = 1 << 31

// SGE is a scatter/gather element: Length bytes of local memory at Addr, an address within the region that
// LKey names. Length 0 means no bytes.
type SGE struct {
	Addr   uint64
	Length uint32
	LKey   uint32
}

// SendWR is a work request of a send queue. It is copied when it is posted; the memory that its SGEs name
// belongs to the engine until the request has completed.
type SendWR struct {
	WRID   uint64 // returned in the completion
	Opcode Opcode
	Flags  SendFlags
	SGList []SGE
	// ImmData goes to the peer's completion. The wire carries it in network byte order, so both ends see
	// the same number.
	ImmData uint32
	// RemoteAddr and RKey name the peer's memory for WRITE and READ.
	RemoteAddr uint64
	RKey       uint32
}

// RecvWR is a work request of a receive queue; see SendWR for who owns what.
type RecvWR struct {
	WRID   uint64
	SGList []SGE
}

// Typed reasons why a work request is refused before it reaches the ring.
var (
	ErrTooManySGEs = errors.New("too many scatter/gather elements")
	ErrOpcode      = errors.New("operation is not supported")
	ErrFlags       = errors.New("unknown flags")
	ErrTooLong     = errors.New("message is too long")
)

const (
	sendHeader = 64
	recvHeader = 16
	sgeLength  = 16
)

// SendLayout is the layout of a send queue whose requests have up to maxSGE elements.
func SendLayout(capacity, maxSGE int) Layout {
	return Layout{Capacity: capacity, Stride: sendHeader + maxSGE*sgeLength}
}

// RecvLayout is the layout of a receive queue whose requests have up to maxSGE elements.
func RecvLayout(capacity, maxSGE int) Layout {
	return Layout{Capacity: capacity, Stride: recvHeader + maxSGE*sgeLength}
}

func maxSGEs(stride uint32, header int) int { return (int(stride) - header) / sgeLength }

func checkSGList(list []SGE, limit int) error {
	if len(list) > limit {
		return fmt.Errorf("%w: %d, the queue was made for %d", ErrTooManySGEs, len(list), limit)
	}
	total := uint64(0)
	for _, s := range list {
		total += uint64(s.Length)
	}
	if total > MaxMessage {
		return fmt.Errorf("%w: %d bytes, the limit is %d", ErrTooLong, total, uint64(MaxMessage))
	}
	return nil
}

// PostSend checks wr, writes it into the next slot and publishes it.
func (p *Producer) PostSend(wr *SendWR) error {
	if !wr.Opcode.Known() {
		return fmt.Errorf("%w: %v", ErrOpcode, wr.Opcode)
	}
	if wr.Flags&^knownFlags != 0 {
		return fmt.Errorf("%w: %#x", ErrFlags, uint8(wr.Flags&^knownFlags))
	}
	if err := checkSGList(wr.SGList, maxSGEs(p.stride, sendHeader)); err != nil {
		return err
	}
	if p.Free() == 0 {
		return fmt.Errorf("%w: send queue of %d requests", ErrFull, p.capacity)
	}
	s := p.Slot(0)
	binary.NativeEndian.PutUint64(s[0:], wr.WRID)
	s[8] = uint8(wr.Opcode)
	s[9] = uint8(wr.Flags)
	binary.NativeEndian.PutUint16(s[10:], uint16(len(wr.SGList)))
	binary.NativeEndian.PutUint32(s[12:], wr.ImmData)
	binary.NativeEndian.PutUint64(s[16:], wr.RemoteAddr)
	binary.NativeEndian.PutUint32(s[24:], wr.RKey)
	putSGList(s[sendHeader:], wr.SGList)
	p.Publish(1)
	return nil
}

// PostRecv checks wr, writes it into the next slot and publishes it.
func (p *Producer) PostRecv(wr *RecvWR) error {
	if err := checkSGList(wr.SGList, maxSGEs(p.stride, recvHeader)); err != nil {
		return err
	}
	if p.Free() == 0 {
		return fmt.Errorf("%w: receive queue of %d requests", ErrFull, p.capacity)
	}
	s := p.Slot(0)
	binary.NativeEndian.PutUint64(s[0:], wr.WRID)
	binary.NativeEndian.PutUint16(s[8:], uint16(len(wr.SGList)))
	putSGList(s[recvHeader:], wr.SGList)
	p.Publish(1)
	return nil
}

func putSGList(b []byte, list []SGE) {
	for i, s := range list {
		e := b[i*sgeLength : (i+1)*sgeLength]
		binary.NativeEndian.PutUint64(e[0:], s.Addr)
		binary.NativeEndian.PutUint32(e[8:], s.Length)
		binary.NativeEndian.PutUint32(e[12:], s.LKey)
	}
}

// getSGList copies up to cap(into) elements; a larger count, which only a hostile producer writes, is reported.
func getSGList(into []SGE, b []byte, count int) ([]SGE, bool) {
	if count > cap(into) || count*sgeLength > len(b) {
		return into[:0], false
	}
	into = into[:count]
	for i := range into {
		e := b[i*sgeLength : (i+1)*sgeLength]
		into[i] = SGE{
			Addr:   binary.NativeEndian.Uint64(e[0:]),
			Length: binary.NativeEndian.Uint32(e[8:]),
			LKey:   binary.NativeEndian.Uint32(e[12:]),
		}
	}
	return into, true
}

// ReadSend copies the i-th request that was not released into wr, whose SGList must have the capacity for
// the queue's largest list and is reused. It returns false if the request cannot be right (wr then holds what
// could be read); the copy is all that the engine ever looks at.
func (c *Consumer) ReadSend(i int, wr *SendWR) bool {
	s := c.Slot(i)
	wr.WRID = binary.NativeEndian.Uint64(s[0:])
	wr.Opcode = Opcode(s[8])
	wr.Flags = SendFlags(s[9])
	count := int(binary.NativeEndian.Uint16(s[10:]))
	wr.ImmData = binary.NativeEndian.Uint32(s[12:])
	wr.RemoteAddr = binary.NativeEndian.Uint64(s[16:])
	wr.RKey = binary.NativeEndian.Uint32(s[24:])
	var ok bool
	wr.SGList, ok = getSGList(wr.SGList, s[sendHeader:], count)
	return ok && wr.Opcode.Known() && wr.Flags&^knownFlags == 0
}

// ReadRecv copies the i-th receive request that was not released; see ReadSend.
func (c *Consumer) ReadRecv(i int, wr *RecvWR) bool {
	s := c.Slot(i)
	wr.WRID = binary.NativeEndian.Uint64(s[0:])
	count := int(binary.NativeEndian.Uint16(s[8:]))
	var ok bool
	wr.SGList, ok = getSGList(wr.SGList, s[recvHeader:], count)
	return ok
}
