//go:build !linux

package main

import (
	"github.com/xroce/xroce/internal/netlab"
	"github.com/xroce/xroce/internal/netns"
)

type sniffer struct{}

func newSniffer(*netlab.Namespace) (*sniffer, error) { return nil, netns.ErrNotSupported }

func (*sniffer) count() (uint64, error) { return 0, netns.ErrNotSupported }

func (*sniffer) close() error { return nil }

func proveSniffers(*netlab.Pair, [2]*sniffer) error { return netns.ErrNotSupported }
