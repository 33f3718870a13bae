// Package xdp carries frames over AF_XDP: it joins sockets of package xsk and the steering program of package
// bpf to a link.Device on a Linux network device, and follows what the kernel knows of that device: its
// addresses, routes and neighbours.
//
// A Device owns all it has made and leaves nothing behind, however the process ends: the program is attached
// by bpf_link, which goes with its last descriptor, and so do the sockets.
//
// It is the engine's own and changes as that needs; programs use package verbs.
package xdp

import (
	"errors"
	"fmt"
	"os"

	"github.com/xroce/xroce/bpf"
	"github.com/xroce/xroce/internal/enum"
	"github.com/xroce/xroce/roce/link"
	"github.com/xroce/xroce/xsk"
)

// Mode says where the XDP program may run.
type Mode = bpf.Mode

// The modes. ModeAuto takes the first that works of native+frags, native, generic+frags and generic.
const (
	ModeAuto    = bpf.ModeAuto
	ModeNative  = bpf.ModeNative
	ModeGeneric = bpf.ModeGeneric
)

// CopyMode says how frames get between the driver and the buffers.
type CopyMode = xsk.CopyMode

// The copy modes. CopyAuto lets the kernel try zero copy first.
const (
	CopyAuto = xsk.ModeAuto
	CopyOnly = xsk.ModeCopy
	ZeroCopy = xsk.ModeZeroCopy
)

// SteeringCounter counts the frames that had one fate, see the reasons in package bpf.
type SteeringCounter = bpf.Counter

// MultiBuffer says whether a frame may lie in more than one buffer, which path MTU 4096 needs: its frames are longer
// than a page. It takes Linux 6.6 and a rung with frags, and most drivers do not combine it with zero copy.
type MultiBuffer uint8

const (
	// MultiBufferAuto allows it where the kernel and the rung do, except where the driver gives zero copy.
	MultiBufferAuto MultiBuffer = iota
	// MultiBufferOn has Open fail with ErrNotSupported where it is not available. Zero copy is still asked for first,
	// together with it.
	MultiBufferOn
	// MultiBufferOff keeps every frame in one buffer.
	MultiBufferOff
)

// String returns "auto", "on" or "off".
func (m MultiBuffer) String() string {
	switch m {
	case MultiBufferAuto:
		return "auto"
	case MultiBufferOn:
		return "on"
	case MultiBufferOff:
		return "off"
	}
	return fmt.Sprintf("MultiBuffer(%d)", uint8(m))
}

// MarshalText returns the text of String, for logs and JSON.
func (m MultiBuffer) MarshalText() ([]byte, error) { return []byte(m.String()), nil }

// UnmarshalText takes what MarshalText returns.
func (m *MultiBuffer) UnmarshalText(text []byte) error { return enum.Parse(m, text) }

// Options of Open. The zero value works.
type Options struct {
	// NetNS names the network namespace of the device, such as /run/netns/blue or /proc/1234/ns/net.
	// Empty means the namespace of the calling thread.
	NetNS string
	Mode  Mode
	Copy  CopyMode
	// MultiBuffer says whether frames may be longer than one chunk (see Device.MaximumFrame).
	MultiBuffer MultiBuffer
	// Queues is the number of queues to use, from queue 0 on; 0 means all of the device. RoCE packets that
	// the device puts into other queues go to the kernel, so with fewer than all the device has to be told to
	// use only these (ethtool -X).
	Queues int

	// ReceiveFrames and TransmitFrames are the numbers of 4 KiB chunks for each queue; 0 means the
	// default of package xsk. The rings are sized to hold them. TransmitFrames must be even except with MultiBufferOff.
	ReceiveFrames, TransmitFrames int

	// CheckOwners keeps track of who owns each chunk, which costs a few nanoseconds per frame. Close then fails if
	// a chunk ever had none or two. It is for tests.
	CheckOwners bool
}

// chunkSize is the size in bytes of a buffer for a frame or, with MultiBuffer, a part of one. Path MTU 2048
// needs 4 KiB, and more than a page is not possible in general (net/xdp/xdp_umem.c).
const chunkSize = 4096

// receiveReserve is what the kernel keeps free in front of a received frame (XDP_PACKET_HEADROOM,
// include/uapi/linux/bpf.h).
const receiveReserve = 256

// maximumFrame is the longest frame in bytes that the buffers take in both directions, whatever the MTU.
func maximumFrame(multiBuffer bool) int {
	if multiBuffer {
		return 2 * (chunkSize - receiveReserve)
	}
	return chunkSize - receiveReserve
}

func (o Options) validate() error {
	wrong := func(format string, values ...any) error {
		return fmt.Errorf("%w: "+format, append([]any{ErrInvalidOptions}, values...)...)
	}
	const most = 1 << 20
	switch {
	case o.Mode > ModeGeneric:
		return wrong("mode %v does not exist", o.Mode)
	case o.Copy > ZeroCopy:
		return wrong("copy mode %v does not exist", o.Copy)
	case o.Queues < 0:
		return wrong("%d queues", o.Queues)
	case o.ReceiveFrames < 0 || o.ReceiveFrames > most:
		return wrong("%d receive frames, want 1 to %d, or 0 for the default", o.ReceiveFrames, most)
	case o.TransmitFrames < 0 || o.TransmitFrames > most:
		return wrong("%d transmit frames, want 1 to %d, or 0 for the default", o.TransmitFrames, most)
	case o.MultiBuffer > MultiBufferOff:
		return wrong("multi-buffer %v does not exist", o.MultiBuffer)
	case o.MultiBuffer != MultiBufferOff && o.TransmitFrames%2 != 0:
		return wrong("%d transmit frames, want an even number: with multi-buffer a frame takes two", o.TransmitFrames)
	}
	return nil
}

// What is wrong with the use of a device or with the machine, and not with this package. The errors of Open
// wrap one of these, or link.ErrDown, and the cause.
var (
	// ErrInvalidOptions: Options are out of range. Nothing was done.
	ErrInvalidOptions = errors.New("invalid options")
	// ErrNoDevice: there is no network device of this name in the namespace.
	ErrNoDevice = errors.New("no such network device")
	// ErrUnsuitable: this network device, as it is set up now, cannot carry RoCE.
	ErrUnsuitable = errors.New("unsuitable network device")
	// ErrPermission: a capability is missing, which the text names, or the capabilities do not suffice here.
	ErrPermission = errors.New("missing capability")
	// ErrTaken: another program or socket has the device or one of its queues.
	ErrTaken = errors.New("device is taken")
	// ErrNotSupported: the kernel, the driver or the operating system lacks a feature, which the text names.
	ErrNotSupported = fmt.Errorf("not supported here: %w", errors.ErrUnsupported)
)

// IsEnvironment says that an error is due to how xroce was called or to the machine it runs on, so that its text
// is all that the user needs. Any other error is a defect, or a fault of the system.
func IsEnvironment(err error) bool {
	for _, known := range []error{
		ErrInvalidOptions, ErrNoDevice, ErrUnsuitable, ErrPermission, ErrTaken, ErrNotSupported,
		link.ErrDown, link.ErrNoNeighbour,
	} {
		if errors.Is(err, known) {
			return true
		}
	}
	return false
}

// classify adds the sentinel of this package that belongs to an error of xsk or bpf. Their texts say it already.
func classify(err error) error {
	for _, known := range []struct {
		causes []error
		kind   error
	}{
		{[]error{xsk.ErrPermission, bpf.ErrPermission, xsk.ErrMemoryLocked, os.ErrPermission}, ErrPermission},
		{[]error{xsk.ErrQueueBusy, bpf.ErrForeignProgram}, ErrTaken},
		{[]error{xsk.ErrNotSupported, bpf.ErrNotSupported}, ErrNotSupported},
		{[]error{xsk.ErrInvalidOptions, bpf.ErrInvalid}, ErrInvalidOptions},
	} {
		for _, cause := range known.causes {
			if errors.Is(err, cause) {
				return &classified{error: err, kind: known.kind}
			}
		}
	}
	if attach := (*bpf.AttachError)(nil); errors.As(err, &attach) {
		return &classified{error: err, kind: ErrUnsuitable}
	}
	return err
}

// classified is an error that is of a kind which its text does not repeat.
type classified struct {
	error
	kind error
}

func (c *classified) Unwrap() []error { return []error{c.error, c.kind} }
