//go:build linux

package xsk

import (
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// A flag that this kernel does not know stands for XDP_USE_SG on an old one.
func TestCheckMultiBuffer(t *testing.T) {
	requireRoot(t)
	require.NoError(t, CheckMultiBuffer())
	require.NoError(t, checkBindFlag(0))
	require.ErrorIs(t, checkBindFlag(1<<15), unix.EINVAL)
}
