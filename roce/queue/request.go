package queue

import (
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
	// RegisterRegion is fast registration, which libibverbs does not have; the value is that of the kernel's
	// IB_WR_REG_MR.
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

// Answered says that the peer answers the operation with a response of its own, which an acknowledgement cannot
// replace.
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
	sendHeader = len(SendSlot{})
	recvHeader = len(RecvSlot{})
	sgeLength  = len(SGESlot{})
)

// SendLayout is the layout of a send queue whose requests have up to maxSGE elements or up to maxInline bytes of inline
// data.
func SendLayout(capacity, maxSGE, maxInline int) Layout {
	return Layout{Capacity: capacity, Stride: sendHeader + max(maxSGE*sgeLength, (maxInline+15)&^15)}
}

// RecvLayout is the layout of a receive queue whose requests have up to maxSGE elements.
func RecvLayout(capacity, maxSGE int) Layout {
	return Layout{Capacity: capacity, Stride: recvHeader + maxSGE*sgeLength}
}

func maxSGEs(stride uint32, header int) int { return (int(stride) - header) / sgeLength }

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

// PostSend encodes wr into the next slot, checks it there and publishes it. Inline data that a list names come from
// data.
func (p *Producer) PostSend(wr *SendWR, limits SendLimits, data Gatherer) error {
	inline := wr.Flags&SendInline != 0
	switch {
	case p.Free() == 0:
		return fmt.Errorf("%w: send queue of %d requests", ErrFull, p.capacity)
	case len(wr.Inline) > 0 && !inline:
		return fmt.Errorf("%w: %d bytes without the flag SendInline", ErrInline, len(wr.Inline))
	case len(wr.Inline) > 0 && len(wr.SGList) > 0:
		return fmt.Errorf("%w: %d bytes beside a list of %d elements", ErrInline, len(wr.Inline), len(wr.SGList))
	}
	if err := checkCount(len(wr.SGList), limits.MaxSGE); err != nil {
		return err
	}
	slot := p.Slot(0)
	head, body := (*SendSlot)(slot), slot[sendHeader:]
	length := lengthOf(wr.SGList) + uint64(len(wr.Inline))
	wr.encode(head, length)
	if err := head.Check(length, limits); err != nil {
		return err
	}
	switch {
	case !inline:
		putSGList(body, wr.SGList)
	case len(wr.SGList) == 0:
		copy(body, wr.Inline)
	default:
		if err := data.Gather(wr.SGList, body[:length]); err != nil {
			return err
		}
	}
	p.Publish(1)
	return nil
}

// encode writes the head of a request with so many bytes of local data.
func (wr *SendWR) encode(head *SendSlot, length uint64) {
	immediate, address, access, quantity := wr.ImmData, wr.RemoteAddr, wr.Access, wr.CompareAdd
	switch wr.Opcode {
	case SendWithInvalidate, LocalInvalidate:
		immediate = wr.InvalidateRKey
	case BindWindow:
		immediate, address, access, quantity = wr.Bind.LKey, wr.Bind.Addr, wr.Bind.Access, wr.Bind.Length
	case Flush:
		immediate = uint32(wr.Flush.Placement) | uint32(wr.Flush.Selectivity)<<8
		quantity = uint64(wr.Flush.Length)
	}
	count := len(wr.SGList)
	if wr.Flags&SendInline != 0 {
		count = int(length)
	}
	head.SetWRID(wr.WRID)
	head.SetOpcode(uint8(wr.Opcode))
	head.SetFlags(uint8(wr.Flags))
	head.SetCount(uint16(count))
	head.SetImmediate(immediate)
	head.SetRemoteAddr(address)
	head.SetRKey(wr.RKey)
	head.SetAccess(access)
	head.SetQuantity(quantity)
	head.SetSwap(wr.Swap)
}

// Check says why a request with so many bytes of local data, named by its list or inline, cannot be executed. It looks
// at the encoded form, so it is the same for both ends: whoever posts calls it before the request is published, and the
// engine on a copy of its own.
func (s *SendSlot) Check(length uint64, limits SendLimits) error {
	opcode, flags := Opcode(s.Opcode()), SendFlags(s.Flags())
	o, inline := opcode.operation(), flags&SendInline != 0
	if err := checkLength(length); err != nil {
		return err
	}
	switch {
	case o.name == "":
		return fmt.Errorf("%w: %v", ErrOpcode, opcode)
	case flags&^knownFlags != 0:
		return fmt.Errorf("%w: %#x", ErrFlags, uint8(flags&^knownFlags))
	case inline && !o.inline:
		return fmt.Errorf("%w: %v takes no inline data", ErrInline, opcode)
	case inline && length > uint64(limits.MaxInline):
		return fmt.Errorf("%w: %d bytes, the queue was made for %d", ErrInline, length, limits.MaxInline)
	case !o.list && s.Count() > 0:
		return fmt.Errorf("%w: %d, %v takes none", ErrTooManySGEs, s.Count(), opcode)
	case o.word && length != 8:
		return fmt.Errorf("%w: the list of the %v has %d bytes", ErrWord, opcode, length)
	case o.aligned && s.RemoteAddr()%8 != 0:
		return fmt.Errorf("%w: the remote address of the %v is %#x", ErrWord, opcode, s.RemoteAddr())
	case opcode == Flush:
		return s.checkFlush()
	case inline:
		return nil
	}
	return checkCount(int(s.Count()), limits.MaxSGE)
}

func (s *SendSlot) checkFlush() error {
	placement, selectivity := uint8(s.Immediate()), uint8(s.Immediate()>>8)
	if placement == 0 || placement > 3 || selectivity > 1 {
		return fmt.Errorf("%w: FLUSH with placement %d and selectivity %d", ErrFlags, placement, selectivity)
	}
	if s.Quantity() > MaxMessage {
		return fmt.Errorf("%w: FLUSH of %d bytes, the limit is %d", ErrTooLong, s.Quantity(), uint64(MaxMessage))
	}
	return nil
}

// Check says why a receive whose list names so many bytes cannot be executed; see SendSlot.Check.
func (s *RecvSlot) Check(length uint64, maxSGE int) error {
	if err := checkCount(int(s.Count()), maxSGE); err != nil {
		return err
	}
	return checkLength(length)
}

func checkCount(count, limit int) error {
	if count > limit {
		return fmt.Errorf("%w: %d, the queue was made for %d", ErrTooManySGEs, count, limit)
	}
	return nil
}

func checkLength(length uint64) error {
	if length > MaxMessage {
		return fmt.Errorf("%w: %d bytes, the limit is %d", ErrTooLong, length, uint64(MaxMessage))
	}
	return nil
}

// lengthOf is how many bytes a list names.
func lengthOf(list []SGE) (length uint64) {
	for i := range list {
		length += uint64(list[i].Length)
	}
	return length
}

// PostRecv encodes wr into the next slot, checks it there and publishes it.
func (p *Producer) PostRecv(wr *RecvWR) error {
	if p.Free() == 0 {
		return fmt.Errorf("%w: receive queue of %d requests", ErrFull, p.capacity)
	}
	limit := maxSGEs(p.stride, recvHeader)
	if err := checkCount(len(wr.SGList), limit); err != nil {
		return err
	}
	slot := p.Slot(0)
	head := (*RecvSlot)(slot)
	head.SetWRID(wr.WRID)
	head.SetCount(uint16(len(wr.SGList)))
	if err := head.Check(lengthOf(wr.SGList), limit); err != nil {
		return err
	}
	putSGList(slot[recvHeader:], wr.SGList)
	p.Publish(1)
	return nil
}

func putSGList(b []byte, list []SGE) {
	for i := range list {
		e, s := (*SGESlot)(b[i*sgeLength:]), &list[i]
		e.SetAddr(s.Addr)
		e.SetLength(s.Length)
		e.SetLKey(s.LKey)
	}
}

// getSGList copies up to cap(into) elements; a larger count, which only a hostile producer writes, is reported.
func getSGList(into []SGE, b []byte, count int) ([]SGE, bool) {
	if count > cap(into) || count*sgeLength > len(b) {
		return into[:0], false
	}
	into = into[:count]
	for i := range into {
		e := (*SGESlot)(b[i*sgeLength:])
		into[i] = SGE{Addr: e.Addr(), Length: e.Length(), LKey: e.LKey()}
	}
	return into, true
}

// ReadSend copies the i-th request that was not released into wr, whose SGList and Inline must have the capacity
// for the queue's largest list and data and are reused. It returns false if the request cannot be right (wr then holds
// what could be read); the copy is all that the engine ever looks at.
func (c *Consumer) ReadSend(i int, wr *SendWR) bool {
	slot := c.Slot(i)
	head, body := *(*SendSlot)(slot), slot[sendHeader:] // a copy: the other end may still write
	limits := SendLimits{MaxSGE: cap(wr.SGList), MaxInline: cap(wr.Inline)}
	wr.decode(&head)
	count := int(head.Count())
	if wr.Flags&SendInline != 0 {
		if count > limits.MaxInline || count > len(body) {
			return false
		}
		wr.Inline = append(wr.Inline, body[:count]...)
		return head.Check(uint64(count), limits) == nil
	}
	var ok bool
	wr.SGList, ok = getSGList(wr.SGList, body, count)
	return ok && head.Check(lengthOf(wr.SGList), limits) == nil
}

// decode takes everything out of the head of a request. The lists are empty then.
func (wr *SendWR) decode(head *SendSlot) {
	*wr = SendWR{
		WRID: head.WRID(), Opcode: Opcode(head.Opcode()), Flags: SendFlags(head.Flags()),
		RKey: head.RKey(), Access: head.Access(), Swap: head.Swap(),
		SGList: wr.SGList[:0], Inline: wr.Inline[:0],
	}
	immediate, quantity, address := head.Immediate(), head.Quantity(), head.RemoteAddr()
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
}

// ReadRecv copies the i-th receive request that was not released; see ReadSend.
func (c *Consumer) ReadRecv(i int, wr *RecvWR) bool {
	slot := c.Slot(i)
	head := *(*RecvSlot)(slot)
	wr.WRID = head.WRID()
	limit := cap(wr.SGList)
	var ok bool
	wr.SGList, ok = getSGList(wr.SGList, slot[recvHeader:], int(head.Count()))
	return ok && head.Check(lengthOf(wr.SGList), limit) == nil
}
