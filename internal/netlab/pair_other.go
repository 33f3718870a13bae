//go:build !linux

package netlab

import "github.com/xroce/xroce/internal/netns"

// NewPair returns netns.ErrNotSupported.
func NewPair(PairOptions) (*Pair, error) { return nil, netns.ErrNotSupported }

// Join returns netns.ErrNotSupported.
func Join(_, _ *Namespace, _ PairOptions) (*Pair, error) { return nil, netns.ErrNotSupported }

// Close does nothing.
func (p *Pair) Close() error { return nil }
