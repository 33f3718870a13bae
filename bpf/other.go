//go:build !linux

package bpf

import (
	"fmt"
	"runtime"
)

func errOtherSystem() error {
	return fmt.Errorf("XDP: %w on %s, only on Linux", ErrNotSupported, runtime.GOOS)
}

// Load returns [ErrNotSupported] on this system.
func Load(Options) (*Program, error) { return nil, errOtherSystem() }

// FromFDs returns [ErrNotSupported] on this system.
func FromFDs(FDs) (*Program, error) { return nil, errOtherSystem() }

// Attach returns [ErrNotSupported] on this system.
func Attach(*Program, int, Mode) (*Attachment, error) { return nil, errOtherSystem() }

// RegisterSocket returns [ErrNotSupported] on this system.
func (p *Program) RegisterSocket(queue int, fd int) error { return errOtherSystem() }

// UnregisterSocket returns [ErrNotSupported] on this system.
func (p *Program) UnregisterSocket(queue int) error { return errOtherSystem() }
