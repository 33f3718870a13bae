package verbs

import (
	"github.com/xroce/xroce/internal/enum"
	"github.com/xroce/xroce/roce/queue"
)

// WROpcode is the operation of a SendWR; the values are those of enum ibv_wr_opcode.
type WROpcode uint8

// Operations of a SendWR.
const (
	WRRDMAWrite        WROpcode = 0
	WRRDMAWriteWithImm WROpcode = 1 // the peer's receive completes with ImmData
	WRSend             WROpcode = 2
	WRSendWithImm      WROpcode = 3
	WRRDMARead         WROpcode = 4
	WRAtomicCmpAndSwp  WROpcode = 5  // compare-and-swap of an aligned word of 8 bytes
	WRAtomicFetchAdd   WROpcode = 6  // the same with an addition
	WRLocalInv         WROpcode = 7  // makes the key InvalidateRKey unusable; MR.InvalidateWR and MW.InvalidateWR make it
	WRBindMW           WROpcode = 8  // binds a memory window; QP.BindMW posts it
	WRSendWithInv      WROpcode = 9  // SEND that makes a key of the peer unusable
	WRFlush            WROpcode = 14 // brings what was written to the peer's memory to where others see it
	WRAtomicWrite      WROpcode = 15 // WRITE of an aligned word of 8 bytes
	// WRRegMR is fast registration, which libibverbs does not have; the value is that of the kernel's IB_WR_REG_MR.
	// MR.RegWR makes it.
	WRRegMR WROpcode = 32
)

// String is the name of the value.
func (w WROpcode) String() string { return queue.Opcode(w).String() }

// MarshalText returns the text of String, for logs and JSON.
func (w WROpcode) MarshalText() ([]byte, error) { return []byte(w.String()), nil }

// UnmarshalText takes what MarshalText returns.
func (w *WROpcode) UnmarshalText(text []byte) error { return enum.Parse(w, text) }

// SendFlags modify a SendWR; the values are those of enum ibv_send_flags.
type SendFlags uint8

// Flags of a SendWR.
const (
	// SendFence holds the request back until all earlier READs and atomics of the queue are complete.
	SendFence SendFlags = 1
	// SendSignaled asks for a completion; without it only a failure makes one.
	SendSignaled SendFlags = 2
	// SendSolicited marks the message for a peer that waits for solicited completions only (CQ.ReqNotify).
	SendSolicited SendFlags = 4
	// SendInline copies the data when the request is posted: the memory may be used again as soon as the post
	// returns. It is for SEND, WRITE and atomic write. The data are SendWR.Inline, or what the SGList names: unlike in
	// libibverbs in registered memory as ever, since an address alone says nothing that could be checked.
	SendInline SendFlags = 8
)

// String names the bits, with | between them; "0" is none.
func (s SendFlags) String() string { return queue.SendFlags(s).String() }

// MarshalText returns the text of String, for logs and JSON.
func (s SendFlags) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// UnmarshalText takes what MarshalText returns.
func (s *SendFlags) UnmarshalText(text []byte) error { return enum.ParseFlags(s, text) }

// SGE is a scatter/gather element: Length bytes of local memory at Addr, an address within the region that LKey
// names. Length 0 means no bytes. MR.SGE makes one.
type SGE struct {
	Addr   uint64
	Length uint32
	LKey   uint32
}

// SendWR is a work request of a send queue. It is copied when it is posted; the memory that its SGEs name
// belongs to the engine until the request has completed.
type SendWR struct {
	WRID   uint64 // returned in the completion
	Opcode WROpcode
	Flags  SendFlags
	SGList []SGE // at most QPCap.MaxSendSGE
	// ImmData goes to the peer's completion. The wire carries it in network byte order, so both ends see
	// the same number.
	ImmData uint32
	// InvalidateRKey is the peer's key that a SEND with invalidate makes unusable, or the local key of a local
	// invalidate.
	InvalidateRKey uint32
	// RemoteAddr and RKey name the peer's memory for WRITE, READ, FLUSH and atomics (see RemoteMemory). RKey is also
	// the new key of a window that is bound or of a region that is registered.
	RemoteAddr uint64
	RKey       uint32
	// CompareAdd is what a compare-and-swap compares with and a fetch-and-add adds, Swap what is stored if the
	// comparison holds; host byte order.
	CompareAdd, Swap uint64
	Bind             BindInfo
	Flush            FlushRange
	// Access are the rights that a fast registration grants.
	Access AccessFlags

	// Inline is the data of a request with SendInline that has no SGList: any memory, registered or not, at most
	// QPCap.MaxInline bytes.
	Inline []byte
}

// BindInfo says what a memory window is bound to; its new key is SendWR.RKey.
type BindInfo struct {
	LKey         uint32      // of the region beneath
	Access       AccessFlags // what the window grants
	Addr, Length uint64      // bytes
}

// FlushRange says what a FLUSH flushes, from SendWR.RemoteAddr on.
type FlushRange struct {
	Length      uint32 // in bytes
	Placement   uint8  // FlushPlacementGlobal, FlushPlacementPersistent, or both
	Selectivity uint8  // FlushSelectRange or FlushSelectMR
}

// What a FLUSH asks for, see FlushRange.
const (
	FlushPlacementGlobal     uint8 = 1 // everybody sees the data
	FlushPlacementPersistent uint8 = 2 // they survive a power failure
	FlushSelectRange         uint8 = 0
	FlushSelectMR            uint8 = 1 // the whole region
)

// RecvWR is a work request of a receive queue: memory for one message. See SendWR for who owns what.
type RecvWR struct {
	WRID   uint64 // returned in the completion
	SGList []SGE  // with the right AccessLocalWrite
}

// Completed is the WCOpcode of a finished send request of operation o.
func (o WROpcode) Completed() WCOpcode { return WCOpcode(queue.Opcode(o).Completed()) }
