//go:build !linux

// Package netns holds Linux network namespaces. On this system every function returns ErrNotSupported.
package netns

import (
	"errors"
	"os/exec"
	"runtime"
)

// ErrNotSupported is returned by every function on systems other than Linux.
var ErrNotSupported = errors.New("netns: network namespaces exist on Linux only, this is " + runtime.GOOS)

// Namespace is a network namespace.
type Namespace struct{}

// New returns ErrNotSupported.
func New() (*Namespace, error) { return nil, ErrNotSupported }

// Open returns ErrNotSupported.
func Open(string) (*Namespace, error) { return nil, ErrNotSupported }

// Do returns ErrNotSupported.
func (*Namespace) Do(func() error) error { return ErrNotSupported }

// Start returns ErrNotSupported.
func (*Namespace) Start(*exec.Cmd) error { return ErrNotSupported }

// FD returns -1.
func (*Namespace) FD() int { return -1 }

// Path returns the empty string.
func (*Namespace) Path() string { return "" }

// Close does nothing.
func (*Namespace) Close() error { return nil }
