//go:build linux

package wire

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestLacks: the words of tcpdump.
func TestLacks(t *testing.T) {
	require.NoError(t, lacks("12 packets captured\n12 packets received by filter\n0 packets dropped by kernel\n"))
	require.ErrorContains(t, lacks("12 packets captured\n19 packets received by filter\n7 packets dropped by kernel\n"),
		"lacks 7 packets")
	require.ErrorContains(t, lacks("1 packet captured\n1 packet received by filter\n1 packet dropped by kernel\n"),
		"lacks 1 packets")
	require.ErrorContains(t, lacks("tcpdump: so and so\n"), "does not say")
}

// TestCutCapture: a capture that ends in the middle of a packet is an error.
func TestCutCapture(t *testing.T) {
	path := filepath.Join(t.TempDir(), "capture.pcap")
	whole := pcap(Forged{Family: 4, Opcode: SendOnly, PSN: 7, Payload: []byte("x")}.Frame())
	require.NoError(t, os.WriteFile(path, whole[:len(whole)-3], 0o600))
	require.Error(t, EachFrame(path, func([]byte) error { return nil }))
}
