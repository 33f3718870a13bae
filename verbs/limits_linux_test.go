package verbs_test

import (
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/xroce/xroce/internal/support"
	"github.com/xroce/xroce/roce/link/mem"
	"github.com/xroce/xroce/verbs"
)

// TestCase_D14_RegionSize: a region of the largest size is registered, one byte more is not. The memory is only an
// address range.
func TestCase_D14_RegionSize(t *testing.T) {
	a, _ := pair(t, mem.Options{})
	size := a.device.QueryDevice().MaxMRSize
	buffer, err := unix.Mmap(-1, 0, int(size)+4096, unix.PROT_NONE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_NORESERVE)
	if errors.Is(err, unix.ENOMEM) {
		t.Skipf("this system cannot map %d bytes of address space: %v", size, err)
	}
	require.NoError(t, err)
	defer func() { require.NoError(t, unix.Munmap(buffer)) }()
	mr, err := a.pd.RegMR(buffer[:size], 0)
	require.NoError(t, err)
	require.NoError(t, mr.Dereg())
	_, err = a.pd.RegMR(buffer[:size+1], 0)
	require.ErrorIs(t, err, verbs.ErrLimit)
	require.ErrorContains(t, err, fmt.Sprint(size))
	require.ErrorContains(t, err, fmt.Sprint(size+1))
	support.Limit(t, "bytes of a region", err)
}
