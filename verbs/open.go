package verbs

import (
	"context"

	"github.com/xroce/xroce/internal/enum"
	"github.com/xroce/xroce/roce/driver"
	"github.com/xroce/xroce/roce/link/xdp"
)

// XDPMode says where the XDP program runs.
type XDPMode uint8

// Modes of the XDP program.
const (
	XDPAuto    XDPMode = 0 // the first that works, from native with multi-buffer to generic
	XDPNative  XDPMode = 1 // in the driver
	XDPGeneric XDPMode = 2 // in the kernel's generic receive path: any driver
)

// String is the name of the value.
func (x XDPMode) String() string { return xdp.Mode(x).String() }

// MarshalText returns the text of String, for logs and JSON.
func (x XDPMode) MarshalText() ([]byte, error) { return []byte(x.String()), nil }

// UnmarshalText takes what MarshalText returns.
func (x *XDPMode) UnmarshalText(text []byte) error { return enum.Parse(x, text) }

// CopyMode says how frames get between the driver and the engine.
type CopyMode uint8

// Copy modes.
const (
	CopyAuto CopyMode = 0 // zero copy where the driver can
	CopyOnly CopyMode = 1
	ZeroCopy CopyMode = 2 // or OpenDevice fails with ErrNotSupported
)

// String is the name of the value.
func (c CopyMode) String() string { return xdp.CopyMode(c).String() }

// MarshalText returns the text of String, for logs and JSON.
func (c CopyMode) MarshalText() ([]byte, error) { return []byte(c.String()), nil }

// UnmarshalText takes what MarshalText returns.
func (c *CopyMode) UnmarshalText(text []byte) error { return enum.Parse(c, text) }

// MultiBuffer says whether frames may take more than one buffer of 4 KiB, which path MTU 4096 needs.
type MultiBuffer uint8

// Choices of MultiBuffer.
const (
	MultiBufferAuto MultiBuffer = 0 // where kernel and mode allow it, but not in place of zero copy
	MultiBufferOn   MultiBuffer = 1 // or OpenDevice fails with ErrNotSupported
	MultiBufferOff  MultiBuffer = 2 // path MTU 2048 at most
)

// String is the name of the value.
func (m MultiBuffer) String() string { return xdp.MultiBuffer(m).String() }

// MarshalText returns the text of String, for logs and JSON.
func (m MultiBuffer) MarshalText() ([]byte, error) { return []byte(m.String()), nil }

// UnmarshalText takes what MarshalText returns.
func (m *MultiBuffer) UnmarshalText(text []byte) error { return enum.Parse(m, text) }

// Options of OpenDevice; the zero value works.
type Options struct {
	// NetNS is the network namespace of the device, a path such as /run/netns/blue. Empty means that of the
	// calling thread.
	NetNS string
	// Mode and Copy choose how packets get to the engine; Device.Information tells what was obtained.
	Mode XDPMode
	Copy CopyMode
	// MultiBuffer is for path MTU 4096, which also needs a network device of MTU 4192 or more. By default it is there
	// on Linux 6.6 and later unless the driver gives zero copy.
	MultiBuffer MultiBuffer
	// Queues is how many queues of the network device are used, the first ones; 0 means all that are in use when it
	// is opened (ethtool -l). Packets that come in at another queue go to the kernel, counted as pass_no_socket in
	// Snapshot.Steering: the queue pairs that they are for get nothing, and their peers end with WCRetryExcErr. So
	// the network device has to bring them to the used queues: a NIC with a table for its hash (ethtool -X DEV equal
	// N), veth if the peer uses no more queues than this. Queues that are added later (ethtool -L) are used after the
	// device was opened again. Until then what comes in there is lost, and not counted where the driver runs no
	// program on them: Information.QueuesAdded, Explain and the log tell of them.
	Queues int
	// Window is the largest number of frames in flight per queue pair and direction; 0 means 64.
	Window int
	// NoControl leaves out the control socket, at which xroce stat asks. It is in the folder $XROCE_RUN or, without
	// that, in /run/xroce for root and in $XDG_RUNTIME_DIR/xroce for others, and only their owner can connect to it.
	// If it cannot be made, a warning is logged (log/slog) and the device works without one.
	NoControl bool

	checkOwners bool // see opener.CheckOwners
}

// OpenDevice opens the network device of that name, "eth0" for one, as an RDMA device: it attaches the XDP program
// and binds an AF_XDP socket to each queue. Packets that are not for this process stay with the kernel. It needs root
// or the capabilities CAP_NET_ADMIN, CAP_NET_RAW and CAP_BPF. Everything is undone by Close, and by the end of the
// process.
//
// It takes up to two seconds for each queue that another process is giving up, and waits for a NIC that loses its
// carrier when the program is attached. These waits end with ctx, and OpenDevice fails; a device that is open has
// nothing to do with ctx any more.
func OpenDevice(ctx context.Context, name string, o Options) (*Device, error) {
	if ctx == nil {
		return nil, errNoContext
	}
	l, err := xdp.Open(ctx, name, xdp.Options{
		NetNS: o.NetNS, Mode: xdp.Mode(o.Mode), Copy: xdp.CopyMode(o.Copy),
		MultiBuffer: xdp.MultiBuffer(o.MultiBuffer), Queues: o.Queues, CheckOwners: o.checkOwners,
	})
	if err != nil {
		return nil, err
	}
	d, err := newDevice(l, driver.Options{Window: o.Window})
	if err == nil && !o.NoControl {
		d.serveControl()
	}
	return d, err
}
