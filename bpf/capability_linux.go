package bpf

import (
	"golang.org/x/sys/unix"

	"github.com/xroce/xroce/internal/refusal"
)

// missingCapabilities returns the capabilities that loading and attaching need and
// that the calling thread lacks. CAP_SYS_ADMIN stands for CAP_BPF and CAP_NET_ADMIN
// (include/linux/capability.h: bpf_capable; kernel/bpf/syscall.c: bpf_prog_load).
func missingCapabilities() []string {
	has := refusal.Effective()
	var missing []string
	if !has(unix.CAP_BPF) && !has(unix.CAP_SYS_ADMIN) {
		missing = append(missing, "CAP_BPF")
	}
	if !has(unix.CAP_NET_ADMIN) && !has(unix.CAP_SYS_ADMIN) {
		missing = append(missing, "CAP_NET_ADMIN")
	}
	return missing
}

// look finds out what is known of a refusal. It is a variable for tests.
var look = refusal.Look

// refused makes the error of an operation that the kernel does not permit.
func refused(operation string, err error) error {
	e := &PermissionError{Operation: operation, Missing: missingCapabilities(), Err: err}
	if len(e.Missing) == 0 {
		e.Cause = look().Initial("bpf(2)")
	}
	return e
}

// unsupported makes the error of a feature that the kernel does not know. A version is named only if this kernel is
// older.
func unsupported(feature, since, option string, err error) error {
	facts := look()
	if refusal.Older(facts.Release, since) {
		return &UnsupportedError{Feature: feature, Since: since, Err: err}
	}
	return &UnsupportedError{Feature: feature, Err: &absence{facts.Absent("bpf(2)", option), err}}
}

// absence is an error number with what is known of its cause.
type absence struct {
	cause string
	error
}

func (a *absence) Error() string { return a.cause + ": " + a.error.Error() }

func (a *absence) Unwrap() error { return a.error }
