package queue

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/xroce/xroce/internal/enum"
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
	CompareSwap            Opcode = 5
	FetchAdd               Opcode = 6
	LocalInvalidate        Opcode = 7
	BindWindow             Opcode = 8
	SendWithInvalidate     Opcode = 9
	Flush                  Opcode = 14
	AtomicWrite            Opcode = 15
	// RegisterRegion is fast registration, which libibverbs does not have; the value is that of the kernel's IB_WR_REG_MR.
	RegisterRegion Opcode = 32
)

// operation is what is known about an Opcode.
type operation struct {
	name      string
	completed WCOpcode
	inline    bool // its data may be inline
	list      bool // it takes scatter/gather elements
	word      bool // its local memory is one word of 8 bytes
	aligned   bool // its remote address is one of a word
	answered  bool // the peer answers it with a response of its own, not with an acknowledgement
	local     bool // nothing of it goes to the peer
}

var operations = [RegisterRegion + 1]operation{
	RDMAWrite:              {name: "RDMA WRITE", completed: WCRDMAWrite, inline: true, list: true},
	RDMAWriteWithImmediate: {name: "RDMA WRITE with immediate", completed: WCRDMAWrite, inline: true, list: true},
	Send:                   {name: "SEND", completed: WCSend, inline: true, list: true},
	SendWithImmediate:      {name: "SEND with immediate", completed: WCSend, inline: true, list: true},
	RDMARead:               {name: "RDMA READ", completed: WCRDMARead, list: true, answered: true},
	CompareSwap:            {name: "compare-and-swap", completed: WCCompareSwap, list: true, word: true, aligned: true, answered: true},
	FetchAdd:               {name: "fetch-and-add", completed: WCFetchAdd, list: true, word: true, aligned: true, answered: true},
	LocalInvalidate:        {name: "local invalidate", completed: WCLocalInvalidate, local: true},
	BindWindow:             {name: "bind memory window", completed: WCBindWindow, local: true},
	SendWithInvalidate:     {name: "SEND with invalidate", completed: WCSend, inline: true, list: true},
	Flush:                  {name: "FLUSH", completed: WCFlush, answered: true},
	AtomicWrite:            {name: "atomic write", completed: WCAtomicWrite, inline: true, list: true, word: true, aligned: true, answered: true},
	RegisterRegion:         {name: "register memory region", completed: WCRegisterRegion, local: true},
}

var unknownOperation operation

func (o Opcode) operation() *operation {
	if int(o) < len(operations) {
		return &operations[o]
	}
	return &unknownOperation
}

// Known says whether o is an operation that the engine executes.
func (o Opcode) Known() bool { return o.operation().name != "" }

// Answered says that the peer answers the operation with a response of its own, which an acknowledgement cannot replace.
func (o Opcode) Answered() bool { return o.operation().answered }

// Local says that nothing of the operation goes to the peer.
func (o Opcode) Local() bool { return o.operation().local }

// Completed is the WCOpcode of a finished send request of operation o.
func (o Opcode) Completed() WCOpcode { return o.operation().completed }

func (o Opcode) String() string {
	if o.Known() {
		return o.operation().name
	}
	return fmt.Sprintf("opcode %d", uint8(o))
}

// MarshalText returns the text of String, for logs and JSON.
func (o Opcode) MarshalText() ([]byte, error) { return []byte(o.String()), nil }

// UnmarshalText takes what MarshalText returns.
func (o *Opcode) UnmarshalText(text []byte) error { return enum.Parse(o, text) }

// SendFlags modify a send work request; the values are those of enum ibv_send_flags.
type SendFlags uint8

// Flags of send work requests.
const (
	// SendFence holds the request back until all earlier READs and atomics of the queue are complete.
	SendFence SendFlags = 1
	// SendSignaled asks for a completion; without it only a failure makes one.
	SendSignaled SendFlags = 2
	// SendSolicited marks the message for a peer that waits for solicited completions only.
	SendSolicited SendFlags = 4
	// SendInline copies the data when the request is posted: the memory may be used again as soon as the post
	// returns. It is for SEND, WRITE and atomic write. The data are SendWR.Inline, or what the SGList names: unlike in
	// libibverbs in registered memory as ever, since an address alone says nothing that could be checked.
	SendInline SendFlags = 8
)

var sendFlagsNames = []enum.Flag[SendFlags]{
	{Bit: SendFence, Name: "FENCE"},
	{Bit: SendSignaled, Name: "SIGNALED"},
	{Bit: SendSolicited, Name: "SOLICITED"},
	{Bit: SendInline, Name: "INLINE"},
}

// String names the bits, such as "FENCE|SIGNALED"; "0" is none.
func (f SendFlags) String() string { return enum.Flags(f, sendFlagsNames) }

// MarshalText returns the text of String, for logs and JSON.
func (f SendFlags) MarshalText() ([]byte, error) { return []byte(f.String()), nil }

// UnmarshalText takes what MarshalText returns.
func (f *SendFlags) UnmarshalText(text []byte) error { return enum.ParseFlags(f, text) }

const knownFlags = SendFence | SendSignaled | SendSolicited | SendInline

// MaxInline is the largest number of bytes of inline data of a work request.
const MaxInline = 1024

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
	// InvalidateRKey is the peer's key that a SEND with invalidate makes unusable, or the local key of a local
	// invalidate.
	InvalidateRKey uint32
	// RemoteAddr and RKey name the peer's memory for WRITE, READ, FLUSH and atomics. RKey is also the new key
	// of a window that is bound or of a region that is registered.
	RemoteAddr uint64
	RKey       uint32
	// CompareAdd is what a compare-and-swap compares with and a fetch-and-add adds, Swap what is stored if the
	// comparison holds; host byte order.
	CompareAdd, Swap uint64
	Bind             Bind
	Flush            FlushRange
	// Access are the rights that a fast registration grants; the bits are those of enum ibv_access_flags.
	Access uint32

	// Inline is the data of a request with SendInline that has no SGList: any memory, registered or not.
	Inline []byte
}

// Bind says what a window is bound to; its new key is SendWR.RKey.
type Bind struct {
	LKey         uint32 // of the region beneath
	Access       uint32 // what the window grants; the bits are those of enum ibv_access_flags
	Addr, Length uint64
}

// FlushRange says what a FLUSH flushes, from SendWR.RemoteAddr on.
type FlushRange struct {
	Length      uint32 // in bytes
	Placement   uint8  // how far: 1 until everybody sees it, 2 until it survives a power failure, or both
	Selectivity uint8  // 0 is the range, 1 the whole region
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
	ErrWord        = errors.New("operation needs one word of 8 bytes at an address that is a multiple of 8")
	ErrInline      = errors.New("invalid inline data")
)

const (
	sendHeader = 64
	recvHeader = 16
	sgeLength  = 16
)

// SendLayout is the layout of a send queue whose requests have up to maxSGE elements or up to maxInline bytes of inline data.
func SendLayout(capacity, maxSGE, maxInline int) Layout {
	return Layout{Capacity: capacity, Stride: sendHeader + max(maxSGE*sgeLength, (maxInline+15)&^15)}
}

// RecvLayout is the layout of a receive queue whose requests have up to maxSGE elements.
func RecvLayout(capacity, maxSGE int) Layout {
	return Layout{Capacity: capacity, Stride: recvHeader + maxSGE*sgeLength}
}

func maxSGEs(stride uint32, header int) int { return (int(stride) - header) / sgeLength }

func checkSGList(list []SGE, limit int) (total uint64, err error) {
	if len(list) > limit {
		return 0, fmt.Errorf("%w: %d, the queue was made for %d", ErrTooManySGEs, len(list), limit)
	}
	for _, s := range list {
		total += uint64(s.Length)
	}
	if total > MaxMessage {
		return 0, fmt.Errorf("%w: %d bytes, the limit is %d", ErrTooLong, total, uint64(MaxMessage))
	}
	return total, nil
}

// Gatherer fetches inline data.
type Gatherer interface {
	// Gather copies the bytes that the list names, which are exactly as many as fit into into.
	Gather(list []SGE, into []byte) error
}

// SendLimits are what the requests of a send queue may have.
type SendLimits struct {
	MaxSGE    int
	MaxInline int // bytes
}

// PostSend checks wr, writes it into the next slot and publishes it. Inline data that a list names come from data.
func (p *Producer) PostSend(wr *SendWR, limits SendLimits, data Gatherer) error {
	length, err := checkSGList(wr.SGList, limits.MaxSGE)
	if err != nil {
		return err
	}
	own := wr.Flags&SendInline != 0 && len(wr.SGList) == 0
	if own {
		length = uint64(len(wr.Inline))
	}
	if err := wr.check(length, limits); err != nil {
		return err
	}
	if p.Free() == 0 {
		return fmt.Errorf("%w: send queue of %d requests", ErrFull, p.capacity)
	}
	s := p.Slot(0)
	immediate, quantity := wr.ImmData, wr.CompareAdd
	switch wr.Opcode {
	case SendWithInvalidate, LocalInvalidate:
		immediate = wr.InvalidateRKey
	case BindWindow:
		immediate, quantity = wr.Bind.LKey, wr.Bind.Length
	case Flush:
		immediate = uint32(wr.Flush.Placement) | uint32(wr.Flush.Selectivity)<<8
		quantity = uint64(wr.Flush.Length)
	}
	address, access := wr.RemoteAddr, wr.Access
	if wr.Opcode == BindWindow {
		address, access = wr.Bind.Addr, wr.Bind.Access
	}
	binary.NativeEndian.PutUint64(s[0:], wr.WRID)
	s[8], s[9] = uint8(wr.Opcode), uint8(wr.Flags)
	binary.NativeEndian.PutUint32(s[12:], immediate)
	binary.NativeEndian.PutUint64(s[16:], address)
	binary.NativeEndian.PutUint32(s[24:], wr.RKey)
	binary.NativeEndian.PutUint32(s[28:], access)
	binary.NativeEndian.PutUint64(s[32:], quantity)
	binary.NativeEndian.PutUint64(s[40:], wr.Swap)
	if wr.Flags&SendInline != 0 {
		binary.NativeEndian.PutUint16(s[10:], uint16(length))
		if own {
			copy(s[sendHeader:], wr.Inline)
		} else if err := data.Gather(wr.SGList, s[sendHeader:sendHeader+length]); err != nil {
			return err
		}
	} else {
		binary.NativeEndian.PutUint16(s[10:], uint16(len(wr.SGList)))
		putSGList(s[sendHeader:], wr.SGList)
	}
	p.Publish(1)
	return nil
}

// check says whether a request with so many bytes of local data can be executed at all.
func (wr *SendWR) check(length uint64, limits SendLimits) error {
	o := wr.Opcode.operation()
	inline := wr.Flags&SendInline != 0
	switch {
	case o.name == "":
		return fmt.Errorf("%w: %v", ErrOpcode, wr.Opcode)
	case wr.Flags&^knownFlags != 0:
		return fmt.Errorf("%w: %#x", ErrFlags, uint8(wr.Flags&^knownFlags))
	case inline && !o.inline:
		return fmt.Errorf("%w: %v takes no inline data", ErrInline, wr.Opcode)
	case len(wr.Inline) > 0 && !inline:
		return fmt.Errorf("%w: %d bytes without the flag SendInline", ErrInline, len(wr.Inline))
	case len(wr.Inline) > 0 && len(wr.SGList) > 0:
		return fmt.Errorf("%w: %d bytes beside a list of %d elements", ErrInline, len(wr.Inline), len(wr.SGList))
	case !o.list && len(wr.SGList) > 0:
		return fmt.Errorf("%w: %d, %v takes none", ErrTooManySGEs, len(wr.SGList), wr.Opcode)
	case inline && length > uint64(limits.MaxInline):
		return fmt.Errorf("%w: %d bytes, the queue was made for %d", ErrInline, length, limits.MaxInline)
	case o.word && length != 8:
		return fmt.Errorf("%w: the list of the %v has %d bytes", ErrWord, wr.Opcode, length)
	case o.aligned && wr.RemoteAddr%8 != 0:
		return fmt.Errorf("%w: the remote address of the %v is %#x", ErrWord, wr.Opcode, wr.RemoteAddr)
	case wr.Opcode == Flush && (wr.Flush.Placement == 0 || wr.Flush.Placement > 3 || wr.Flush.Selectivity > 1):
		return fmt.Errorf("%w: FLUSH with placement %d and selectivity %d", ErrFlags, wr.Flush.Placement, wr.Flush.Selectivity)
	case wr.Opcode == Flush && wr.Flush.Length > MaxMessage:
		return fmt.Errorf("%w: FLUSH of %d bytes, the limit is %d", ErrTooLong, wr.Flush.Length, uint64(MaxMessage))
	}
	return nil
}

// PostRecv checks wr, writes it into the next slot and publishes it.
func (p *Producer) PostRecv(wr *RecvWR) error {
	if _, err := checkSGList(wr.SGList, maxSGEs(p.stride, recvHeader)); err != nil {
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

// ReadSend copies the i-th request that was not released into wr, whose SGList and Inline must have the capacity
// for the queue's largest list and data and are reused. It returns false if the request cannot be right (wr then holds
// what could be read); the copy is all that the engine ever looks at.
func (c *Consumer) ReadSend(i int, wr *SendWR) bool {
	s := c.Slot(i)
	list, inline := wr.SGList, wr.Inline[:0]
	*wr = SendWR{
		WRID:   binary.NativeEndian.Uint64(s[0:]),
		Opcode: Opcode(s[8]),
		Flags:  SendFlags(s[9]),
		RKey:   binary.NativeEndian.Uint32(s[24:]),
		Access: binary.NativeEndian.Uint32(s[28:]),
		Swap:   binary.NativeEndian.Uint64(s[40:]),
	}
	count := int(binary.NativeEndian.Uint16(s[10:]))
	immediate, quantity := binary.NativeEndian.Uint32(s[12:]), binary.NativeEndian.Uint64(s[32:])
	address := binary.NativeEndian.Uint64(s[16:])
	switch wr.Opcode {
	case SendWithInvalidate, LocalInvalidate:
		wr.InvalidateRKey, wr.RemoteAddr = immediate, address
	case BindWindow:
		wr.Bind = Bind{LKey: immediate, Access: wr.Access, Addr: address, Length: quantity}
	case Flush:
		wr.RemoteAddr = address
		wr.Flush = FlushRange{Length: uint32(quantity), Placement: uint8(immediate), Selectivity: uint8(immediate >> 8)}
	default:
		wr.ImmData, wr.RemoteAddr, wr.CompareAdd = immediate, address, quantity
	}
	limits := SendLimits{MaxSGE: cap(list), MaxInline: cap(inline)}
	if wr.Flags&SendInline != 0 {
		wr.SGList, wr.Inline = list[:0], inline
		if count > cap(inline) || count > len(s)-sendHeader {
			return false
		}
		wr.Inline = append(inline, s[sendHeader:sendHeader+count]...)
		return wr.check(uint64(count), limits) == nil
	}
	var ok bool
	wr.SGList, ok = getSGList(list, s[sendHeader:], count)
	wr.Inline = inline
	if !ok {
		return false
	}
	length, err := checkSGList(wr.SGList, limits.MaxSGE)
	return err == nil && wr.check(length, limits) == nil
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
