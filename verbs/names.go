package verbs

import (
	"errors"

	"github.com/xroce/xroce/roce"
	"github.com/xroce/xroce/roce/driver"
	"github.com/xroce/xroce/roce/link"
	"github.com/xroce/xroce/roce/link/xdp"
	"github.com/xroce/xroce/roce/memory"
	"github.com/xroce/xroce/roce/queue"
	"github.com/xroce/xroce/roce/transport"
)

// The names of the verbs. They are those of libibverbs without the prefix ibv_ or IBV_.
type (
	// GID is the address of a port: an IPv6 address, or an IPv4 address mapped into one.
	GID = roce.GID
	// QPN is the number of a queue pair, 24 bits.
	QPN = roce.QPN
	// PSN is a packet sequence number, 24 bits.
	PSN = roce.PSN
	// MTU is a path MTU in the encoding of the IBTA, 1 (256 bytes) to 5 (4096 bytes).
	MTU = roce.MTU

	// SendWR is a work request of a send queue.
	SendWR = queue.SendWR
	// RecvWR is a work request of a receive queue.
	RecvWR = queue.RecvWR
	// SGE is a scatter/gather element; MR.SGE makes one.
	SGE = queue.SGE
	// FlushRange says what a FLUSH flushes.
	FlushRange = queue.FlushRange
	// BindInfo says what a memory window is bound to.
	BindInfo = queue.Bind
	// SendFlags modify a SendWR.
	SendFlags = queue.SendFlags
	// WROpcode is the operation of a SendWR.
	WROpcode = queue.Opcode

	// WC is a work completion.
	WC = queue.WC
	// WCStatus is the outcome of a work request.
	WCStatus = queue.WCStatus
	// WCOpcode says which operation completed.
	WCOpcode = queue.WCOpcode
	// WCFlags say which optional fields of a WC are valid.
	WCFlags = queue.WCFlags

	// AccessFlags are the rights of a memory region, or of a queue pair's peer.
	AccessFlags = memory.Access
	// AccessFault is why an access to memory, or an operation on a key, failed at this end: WC.VendorErr and AsyncEvent.Fault.
	AccessFault = memory.Fault
	// QPType is the service of a queue pair.
	QPType = transport.Type
	// QPState is the state of a queue pair.
	QPState = transport.State
	// QPAttrMask says which fields of a QPAttr are set.
	QPAttrMask = transport.AttributeMask
	// AHAttr names the peer of a connected queue pair.
	AHAttr = driver.AddressVector
)

// Path MTUs.
const (
	MTU256  = roce.MTU256
	MTU512  = roce.MTU512
	MTU1024 = roce.MTU1024
	MTU2048 = roce.MTU2048
	MTU4096 = roce.MTU4096
)

// Operations of a SendWR.
const (
	WRRDMAWrite        = queue.RDMAWrite
	WRRDMAWriteWithImm = queue.RDMAWriteWithImmediate
	WRSend             = queue.Send
	WRSendWithImm      = queue.SendWithImmediate
	WRRDMARead         = queue.RDMARead
	WRAtomicCmpAndSwp  = queue.CompareSwap
	WRAtomicFetchAdd   = queue.FetchAdd
	WRLocalInv         = queue.LocalInvalidate
	WRBindMW           = queue.BindWindow
	WRSendWithInv      = queue.SendWithInvalidate
	WRFlush            = queue.Flush
	WRAtomicWrite      = queue.AtomicWrite
	WRRegMR            = queue.RegisterRegion // not in libibverbs: the kernel's fast registration
)

// Flags of a SendWR.
const (
	SendFence     = queue.SendFence
	SendSignaled  = queue.SendSignaled
	SendSolicited = queue.SendSolicited
	SendInline    = queue.SendInline
)

// Statuses of a WC.
const (
	WCSuccess        = queue.WCSuccess
	WCLocLenErr      = queue.WCLocLenErr
	WCLocQPOpErr     = queue.WCLocQPOpErr
	WCLocProtErr     = queue.WCLocProtErr
	WCWRFlushErr     = queue.WCWRFlushErr
	WCMWBindErr      = queue.WCMWBindErr
	WCBadRespErr     = queue.WCBadRespErr
	WCLocAccessErr   = queue.WCLocAccessErr
	WCRemInvReqErr   = queue.WCRemInvReqErr
	WCRemAccessErr   = queue.WCRemAccessErr
	WCRemOpErr       = queue.WCRemOpErr
	WCRetryExcErr    = queue.WCRetryExcErr
	WCRNRRetryExcErr = queue.WCRNRRetryExcErr
	WCFatalErr       = queue.WCFatalErr
	WCGeneralErr     = queue.WCGeneralErr
)

// Opcodes of a WC.
const (
	WCSend            = queue.WCSend
	WCRDMAWrite       = queue.WCRDMAWrite
	WCRDMARead        = queue.WCRDMARead
	WCCompSwap        = queue.WCCompareSwap
	WCFetchAdd        = queue.WCFetchAdd
	WCBindMW          = queue.WCBindWindow
	WCLocalInv        = queue.WCLocalInvalidate
	WCFlush           = queue.WCFlush
	WCAtomicWrite     = queue.WCAtomicWrite
	WCRegMR           = queue.WCRegisterRegion
	WCRecv            = queue.WCRecv
	WCRecvRDMAWithImm = queue.WCRecvRDMAWithImmediate
)

// Flags of a WC.
const (
	WCWithImm = queue.WCWithImmediate  // ImmData is valid
	WCWithInv = queue.WCWithInvalidate // InvalidatedRKey is valid
	// WCPeerRequest marks a QP.Failure that a request of the peer has caused: Opcode is the peer's, WRID means nothing.
	WCPeerRequest = queue.WCPeerRequest
)

// Rights.
const (
	AccessLocalWrite   = memory.LocalWrite
	AccessRemoteWrite  = memory.RemoteWrite
	AccessRemoteRead   = memory.RemoteRead
	AccessRemoteAtomic = memory.RemoteAtomic
	AccessMWBind       = memory.BindWindow
	AccessZeroBased    = memory.ZeroBased
	AccessOnDemand     = memory.OnDemand
	AccessHugeTLB      = memory.HugeTLB
	AccessFlushGlobal  = memory.FlushGlobal
	// AccessRelaxedOrdering is accepted and has no meaning here, as on every device that does not have it.
	AccessRelaxedOrdering = memory.RelaxedOrdering
	// AccessFlushPersistent is refused for regions: their memory is lost with the power.
	AccessFlushPersistent = memory.FlushPersistent
)

// Faults of an access to memory or of an operation on a key.
const (
	FaultNone      = memory.FaultNone
	FaultKey       = memory.FaultKey       // nothing has this key, or an lkey names a window
	FaultDomain    = memory.FaultDomain    // it belongs to another protection domain
	FaultOwner     = memory.FaultOwner     // it is a type 2 window that another queue pair has bound
	FaultAccess    = memory.FaultAccess    // it does not grant the right, or the rights asked for do not fit
	FaultBounds    = memory.FaultBounds    // the range is not within the region
	FaultAlignment = memory.FaultAlignment // the memory of an atomic is not aligned to 8 bytes
	FaultBuffer    = memory.FaultBuffer    // the memory itself cannot be accessed: unmapped, read-only, truncated file
	FaultState     = memory.FaultState     // the key is not free, not valid, not mapped, or not of a kind for the operation
	FaultBound     = memory.FaultBound     // windows are bound to the region
)

// What a FLUSH asks for, see FlushRange.
const (
	FlushPlacementGlobal     uint8 = 1 // everybody sees the data
	FlushPlacementPersistent uint8 = 2 // they survive a power failure
	FlushSelectRange         uint8 = 0
	FlushSelectMR            uint8 = 1 // the whole region
)

// QPTRC is the reliable connection.
const QPTRC = transport.RC

// States of a queue pair.
const (
	StateReset = transport.StateReset
	StateInit  = transport.StateInit
	StateRTR   = transport.StateRTR
	StateRTS   = transport.StateRTS
	StateSQD   = transport.StateSQD
	StateError = transport.StateError
)

// Bits of a QPAttrMask.
const (
	QPStateMask       = transport.MaskState
	QPCurState        = transport.MaskCurrentState
	QPEnSQDNotify     = transport.MaskEnSQDNotify
	QPAccessFlags     = transport.MaskAccess
	QPPKeyIndex       = transport.MaskPKeyIndex
	QPPort            = transport.MaskPort
	QPAV              = transport.MaskAV
	QPPathMTU         = transport.MaskPathMTU
	QPTimeout         = transport.MaskTimeout
	QPRetryCnt        = transport.MaskRetryCount
	QPRNRRetry        = transport.MaskRNRRetry
	QPRQPSN           = transport.MaskRQPSN
	QPMaxQPRDAtomic   = transport.MaskMaxRDAtomic
	QPMinRNRTimer     = transport.MaskMinRNRTimer
	QPSQPSN           = transport.MaskSQPSN
	QPMaxDestRDAtomic = transport.MaskMaxDestRDAtomic
	QPDestQPN         = transport.MaskDestinationQPN
)

// Limits of every device.
const (
	MaxSGE      = queue.MaxSGE
	MaxQPWR     = driver.MaxWR
	MaxCQE      = driver.MaxCQE
	MaxMsgSize  = queue.MaxMessage
	MaxRDAtomic = transport.MaxRDAtomic
)

// Errors. They come wrapped, with the values that clash; test with errors.Is.
var (
	ErrNoDevice       = xdp.ErrNoDevice       // no network device of this name
	ErrUnsuitable     = xdp.ErrUnsuitable     // the network device cannot carry RoCE
	ErrPermission     = xdp.ErrPermission     // a capability is missing, which the text names
	ErrTaken          = xdp.ErrTaken          // another program has the network device or one of its queues
	ErrInvalidOptions = xdp.ErrInvalidOptions // options of OpenDevice are out of range
	ErrDown           = link.ErrDown          // the network device is down or gone
	ErrNoNeighbour    = link.ErrNoNeighbour   // nobody answers at the peer's address

	ErrClosed         = driver.ErrClosed        // the object was destroyed or the device closed
	ErrInUse          = driver.ErrInUse         // objects that depend on it exist (EBUSY)
	ErrInvalid        = driver.ErrInvalid       // an argument makes no sense (EINVAL)
	ErrLimit          = driver.ErrLimit         // more than the device can do (EINVAL)
	ErrState          = driver.ErrState         // the queue pair is in the wrong state (EINVAL)
	ErrPathMTU        = driver.ErrPathMTU       // the path MTU does not fit the device
	ErrNoGID          = driver.ErrNoGID         // no such entry in the GID table
	ErrNotSupported   = errors.ErrUnsupported   // not implemented, or not by this kernel or driver
	ErrTransition     = transport.ErrTransition // Modify: no such transition, or attributes missing or extra
	ErrAttribute      = transport.ErrAttribute  // Modify: an attribute is out of range
	ErrQueueFull      = queue.ErrFull           // no free slot (ENOMEM)
	ErrTooManySGEs    = queue.ErrTooManySGEs
	ErrMessageTooLong = queue.ErrTooLong
	ErrOpcode         = queue.ErrOpcode  // the operation of a SendWR is not known
	ErrSendFlags      = queue.ErrFlags   // a SendWR has flags that are unknown or do not fit its operation
	ErrAtomic         = queue.ErrWord    // an atomic needs 8 bytes at both ends, the remote ones aligned
	ErrInline         = queue.ErrInline  // inline data without the flag, beside a list, of an operation that takes none, or too much
	ErrAccessFlags    = memory.ErrAccess // access flags do not fit each other
	ErrEmptyBuffer    = memory.ErrEmptyBuffer
	ErrFault          = memory.ErrFault   // memory that is registered cannot be accessed (EFAULT)
	ErrAddress        = memory.ErrAddress // the region would reach beyond the end of the address space
)
