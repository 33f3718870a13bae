package verbs_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/xroce/xroce/internal/netlab"
	"github.com/xroce/xroce/verbs"
)

// withDescriptors runs f while the process can open only so many more descriptors.
func withDescriptors(t *testing.T, more int, f func()) {
	var old unix.Rlimit
	require.NoError(t, unix.Getrlimit(unix.RLIMIT_NOFILE, &old))
	var free []int // the lowest free ones, the next more of them
	for range more + 1 {
		fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC)
		require.NoError(t, err)
		free = append(free, fd)
	}
	for _, fd := range free {
		require.NoError(t, unix.Close(fd))
	}
	require.NoError(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: uint64(free[more]), Max: old.Max}))
	defer func() { require.NoError(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &old)) }()
	f()
}

// TestTooFewDescriptors: a process that is short of descriptors is told so, and can open the device as soon as it is
// not.
func TestTooFewDescriptors(t *testing.T) {
	netlab.RequireRoot(t)
	pair, err := netlab.NewPair(netlab.PairOptions{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, pair.Close()) })
	open := func() error {
		d, err := verbs.OpenDevice(t.Context(), pair.A.Name, verbs.Options{NetNS: pair.A.Namespace.Path()})
		if err != nil {
			return err
		}
		return d.Close()
	}
	refused := 0
	for more := range 40 {
		withDescriptors(t, more, func() {
			if err := open(); err != nil {
				refused++
				require.ErrorIs(t, err, unix.EMFILE, "%d descriptors", more)
				require.NotErrorIs(t, err, verbs.ErrNotSupported)
			}
		})
	}
	require.Greater(t, refused, 10)
	require.NoError(t, open())
}
