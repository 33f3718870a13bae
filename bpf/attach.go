package bpf

import (
	"fmt"
	"slices"

	"github.com/cilium/ebpf/link"

	"github.com/xroce/xroce/internal/enum"
)

// Mode says which rungs of the ladder [Attach] may take.
type Mode uint8

const (
	// ModeAuto tries native, then generic mode.
	ModeAuto Mode = iota
	// ModeNative runs the program in the driver, before a socket buffer exists.
	ModeNative
	// ModeGeneric runs it in the network stack: any device, one copy more.
	ModeGeneric
)

// String returns "auto", "native" or "generic".
func (m Mode) String() string {
	switch m {
	case ModeAuto:
		return "auto"
	case ModeNative:
		return "native"
	case ModeGeneric:
		return "generic"
	}
	return fmt.Sprintf("mode(%d)", uint8(m))
}

// MarshalText returns the text of String, for logs and JSON.
func (m Mode) MarshalText() ([]byte, error) { return []byte(m.String()), nil }

// UnmarshalText takes what MarshalText returns.
func (m *Mode) UnmarshalText(text []byte) error { return enum.Parse(m, text) }

// ladder returns the rungs of the mode, best first.
func (m Mode) ladder() ([]Rung, error) {
	switch m {
	case ModeAuto:
		return []Rung{RungNativeFrags, RungNative, RungGenericFrags, RungGeneric}, nil
	case ModeNative:
		return []Rung{RungNativeFrags, RungNative}, nil
	case ModeGeneric:
		return []Rung{RungGenericFrags, RungGeneric}, nil
	}
	return nil, fmt.Errorf("%w: %v", ErrInvalid, m)
}

// Rung is one way of being attached. With frags the program accepts frames in
// several buffers, which a large MTU needs.
type Rung uint8

// The rungs of the ladder, best first. The zero value is none of them.
const (
	RungNativeFrags Rung = iota + 1
	RungNative
	RungGenericFrags
	RungGeneric
)

// String returns "native+frags", "native", "generic+frags" or "generic".
func (r Rung) String() string {
	switch r {
	case RungNativeFrags:
		return "native+frags"
	case RungNative:
		return "native"
	case RungGenericFrags:
		return "generic+frags"
	case RungGeneric:
		return "generic"
	}
	return fmt.Sprintf("rung(%d)", uint8(r))
}

// MarshalText returns the text of String, for logs and JSON.
func (r Rung) MarshalText() ([]byte, error) { return []byte(r.String()), nil }

// UnmarshalText takes what MarshalText returns.
func (r *Rung) UnmarshalText(text []byte) error { return enum.Parse(r, text) }

// Native reports whether the program runs in the driver.
func (r Rung) Native() bool { return r == RungNativeFrags || r == RungNative }

// Frags reports whether the program accepts frames in several buffers.
func (r Rung) Frags() bool { return r == RungNativeFrags || r == RungGenericFrags }

func (r Rung) valid() bool { return r >= RungNativeFrags && r <= RungGeneric }

// Attachment is a program on a device, held by a bpf_link.
type Attachment struct {
	program *Program
	link    link.Link
	ifindex int
	rung    Rung
	skipped []*RungError
}

// Ifindex returns the index of the device, in the network namespace in which the
// program was attached.
func (a *Attachment) Ifindex() int { return a.ifindex }

// Rung returns the rung obtained.
func (a *Attachment) Rung() Rung { return a.rung }

// Skipped says why each better rung of the mode was not taken, best first.
func (a *Attachment) Skipped() []*RungError { return slices.Clone(a.skipped) }

// Close lets go of the link. The program leaves the device, unless another
// process holds the link too. Closing twice is allowed. The [Program] remains
// and can be attached again.
func (a *Attachment) Close() error {
	a.program.mu.Lock()
	defer a.program.mu.Unlock()
	return a.close()
}

// close is Close under the lock of the program.
func (a *Attachment) close() error {
	if a.link == nil {
		return nil
	}
	err := a.link.Close()
	a.link = nil
	if a.program.attachment == a {
		a.program.attachment = nil
	}
	return err
}

// fd returns the descriptor of the link, under the lock of the program.
func (a *Attachment) fd() int {
	return a.link.(interface{ FD() int }).FD()
}
