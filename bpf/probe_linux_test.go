package bpf

import (
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// TestProbe: a kernel that has everything says so; and what is found out of bpf_link does not depend on whether the
// program of this package can be loaded, as kernels from 5.9 to 5.17 cannot.
func TestProbe(t *testing.T) {
	requireRoot(t)
	require.Equal(t, Support{}, Probe())

	old := probe(func(Options) (*Program, error) { return nil, explainLoad("load XDP program", unix.EINVAL) })
	require.ErrorIs(t, old.Program, ErrNotSupported)
	require.ErrorIs(t, old.Frags, ErrNotSupported)
	require.NoError(t, old.Link)
}
