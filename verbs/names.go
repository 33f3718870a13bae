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

// The names of the verbs. They are those of libibverbs without the prefix ibv_ or IBV_. What the wire has is in package
// roce.
type (
	// GID is the address of a port: an IPv6 address, or an IPv4 address mapped into one.
	GID = roce.GID
	// QPN is the number of a queue pair, 24 bits.
	QPN = roce.QPN
	// PSN is a packet sequence number, 24 bits.
	PSN = roce.PSN
	// MTU is a path MTU in the encoding of the IBTA, 1 (256 bytes) to 5 (4096 bytes).
	MTU = roce.MTU
)

// Path MTUs.
const (
	MTU256  = roce.MTU256
	MTU512  = roce.MTU512
	MTU1024 = roce.MTU1024
	MTU2048 = roce.MTU2048
	MTU4096 = roce.MTU4096
)

// Limits of every device that bound one object.
const (
	MaxSGE      = 32      // scatter/gather elements of a work request
	MaxQPWR     = 1 << 16 // requests of a send or receive queue
	MaxCQE      = 1 << 20 // completions of a CQ
	MaxMsgSize  = 1 << 31 // bytes of a message (IBTA)
	MaxRDAtomic = 128     // READs and atomics in flight
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
