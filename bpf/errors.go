package bpf

import (
	"errors"
	"fmt"
	"strings"
)

// Sentinels for errors.Is. The typed errors below carry the details.
var (
	// ErrForeignProgram: the device has an XDP program of somebody else.
	ErrForeignProgram = errors.New("foreign XDP program")
	// ErrProgramAbove: a device above has an XDP program, so that the kernel attaches none here. It is a foreign one,
	// too.
	ErrProgramAbove = fmt.Errorf("%w on a device above", ErrForeignProgram)
	// ErrPermission: a capability is missing, or the capabilities do not suffice here.
	ErrPermission = errors.New("permission denied")
	// ErrNotSupported: the kernel, the driver or the operating system lacks a feature.
	ErrNotSupported = errors.New("not supported")
	// ErrInvalid: an argument is outside of what the call accepts.
	ErrInvalid = errors.New("invalid argument")
	// ErrClosed: the program was closed.
	ErrClosed = errors.New("program is closed")
)

// ForeignProgramError says which XDP program is on the device. It was left as it is.
// It matches [ErrForeignProgram].
type ForeignProgramError struct {
	Interface string
	Ifindex   int
	ID        uint32 // program id, as ip link and bpftool show it
	Name      string // empty if it may not be read, which needs CAP_SYS_ADMIN
	Mode      string // "native", "generic" or "offload"
	Err       error  // what the kernel said to our attempt
}

func (e *ForeignProgramError) Error() string {
	name := e.Name
	if name == "" {
		name = "(name needs CAP_SYS_ADMIN)"
	}
	hint := "detach it, or stop the process that holds it"
	if strings.HasPrefix(e.Name, "xdp_dispatcher") {
		hint = "this is the dispatcher of libxdp, with which the device cannot be shared"
	}
	return fmt.Sprintf("%s (ifindex %d) has %s XDP program %s, id %d: %s: %v",
		e.Interface, e.Ifindex, e.Mode, name, e.ID, hint, e.Err)
}

// Unwrap makes the error match [ErrForeignProgram] and the errno of the kernel.
func (e *ForeignProgramError) Unwrap() []error { return []error{ErrForeignProgram, e.Err} }

// PermissionError names the capabilities that an operation lacked. It matches
// [ErrPermission].
type PermissionError struct {
	Operation string
	Missing   []string // such as "CAP_BPF"; empty if the process has all that are needed
	Cause     string   // what is known of what refuses, if nothing is missing
	Err       error
}

func (e *PermissionError) Error() string {
	cause := e.Cause
	if len(e.Missing) > 0 {
		cause = "missing " + strings.Join(e.Missing, ", ")
	}
	return fmt.Sprintf("%s: %v: %s: %v", e.Operation, ErrPermission, cause, e.Err)
}

// Unwrap makes the error match [ErrPermission] and the errno of the kernel.
func (e *PermissionError) Unwrap() []error { return []error{ErrPermission, e.Err} }

// UnsupportedError names the feature that is missing. It matches [ErrNotSupported].
type UnsupportedError struct {
	Feature string
	Since   string // first kernel with it, such as "Linux 5.18"; empty if that depends on the driver
	Err     error
}

func (e *UnsupportedError) Error() string {
	since := ""
	if e.Since != "" {
		since = " (" + e.Since + " or later has it)"
	}
	return fmt.Sprintf("%s: %v%s: %v", e.Feature, ErrNotSupported, since, e.Err)
}

// Unwrap makes the error match [ErrNotSupported] and the cause.
func (e *UnsupportedError) Unwrap() []error { return []error{ErrNotSupported, e.Err} }

// RungError says why a rung of the ladder of [Attach] was not taken.
type RungError struct {
	Rung Rung
	Err  error
}

func (e *RungError) Error() string { return fmt.Sprintf("%v: %v", e.Rung, e.Err) }

// Unwrap returns the cause.
func (e *RungError) Unwrap() error { return e.Err }

// AttachError says that no rung of the ladder could be taken, and why.
type AttachError struct {
	Interface string
	Ifindex   int
	Mode      Mode
	Rungs     []*RungError // in the order in which they were tried
}

func (e *AttachError) Error() string {
	// Rungs in a row that failed alike are told together.
	var text []string
	for i := 0; i < len(e.Rungs); {
		names, cause := e.Rungs[i].Rung.String(), e.Rungs[i].Err.Error()
		for i++; i < len(e.Rungs) && e.Rungs[i].Err.Error() == cause; i++ {
			names += ", " + e.Rungs[i].Rung.String()
		}
		text = append(text, names+": "+cause)
	}
	return fmt.Sprintf("attach to %s (ifindex %d) in mode %v: %s",
		e.Interface, e.Ifindex, e.Mode, strings.Join(text, "; "))
}

// Unwrap makes the error match the causes of all rungs.
func (e *AttachError) Unwrap() []error {
	causes := make([]error, len(e.Rungs))
	for i, rung := range e.Rungs {
		causes[i] = rung
	}
	return causes
}
