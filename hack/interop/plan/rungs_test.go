//go:build linux

package plan

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestRungs(t *testing.T) {
	require.Len(t, rungs(false), 10)
	require.Equal(t, "default", Rung{}.String())
	require.Equal(t, "generic", Rung{Mode: "generic"}.String())
	require.Equal(t, "native, zero copy, multi-buffer off", Rung{"native", "zero", "off"}.String())
}
