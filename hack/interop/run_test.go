//go:build linux

package main

import (
	"testing"

	"github.com/alecthomas/kong"
	"github.com/stretchr/testify/require"
)

// TestPlan: what would come to nothing, or not be what it is called, is refused before a machine is booted.
func TestPlan(t *testing.T) {
	parse := func(args ...string) error {
		parser, err := kong.New(&commandLine{})
		require.NoError(t, err)
		_, err = parser.Parse(append([]string{"run"}, args...))
		return err
	}
	for _, good := range [][]string{
		{}, {"--full", "--parts", "cells,faults,cases,stock,ladder,bulk"}, {"--only", "SEND by xroce"}, {"--parts", "faults", "--only", "responder dies"},
		{"--parts", "stock", "--only", "events"}, {"--parts", "ladder", "--only", "generic"}, {"--parts", "cases", "--only", "A19"},
		{"--left", "xroce", "--only", "bytes, none"}, {"--left", "xroce", "--nic", "igb", "--parts", "bulk"}, {"--left", "xroce", "--parts", "faults"},
		{"--nic", "virtio", "--parts", "ladder,bulk"}, {"--parts", "faults", "--only", "FLUSH, requester rxe"},
	} {
		require.NoError(t, parse(good...), "%q", good)
	}
	for _, bad := range []struct {
		says string
		args []string
	}{
		{"no part \"cell\"", []string{"--parts", "cell"}},
		{"nothing to run", []string{"--parts", ""}},
		{"contains \"SENT\"", []string{"--only", "SENT"}},
		{"contains \"SEND by\"", []string{"--parts", "faults,ladder", "--only", "SEND by"}},
		{"nothing to run", []string{"--parts", "stock", "--nic", "igb"}},
		{"nothing to run", []string{"--parts", "brief,cases", "--left", "xroce"}},
		{"AF_XDP", []string{"--left", "xroce"}},
		{"AF_XDP", []string{"--left", "xroce", "--parts", "bulk"}},
		{"AF_XDP", []string{"--left", "xroce", "--nic", "igb", "--parts", "cells"}},
	} {
		require.ErrorContains(t, parse(bad.args...), bad.says, "%q", bad.args)
	}
}
