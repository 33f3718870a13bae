package verbs

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// broken maps huge pages that are not there: the mapping succeeds, and a touch would end the process. So it is with the
// limit of a control group, too, of which nothing is reserved when the memory is mapped.
func broken(t *testing.T) []byte {
	t.Helper()
	const pages = 1 << 17 // more than any machine of ours has
	b, err := unix.Mmap(-1, 0, pages*hugePage, unix.PROT_READ|unix.PROT_WRITE,
		unix.MAP_PRIVATE|unix.MAP_ANON|unix.MAP_HUGETLB|unix.MAP_NORESERVE)
	if err == nil {
		t.Cleanup(func() { require.NoError(t, unix.Munmap(b)) })
		return b[len(b)-hugePage:]
	}
	// Without huge pages in the kernel: a file that is shorter than its mapping.
	file, err := os.Create(filepath.Join(t.TempDir(), "short"))
	require.NoError(t, err)
	defer func() { require.NoError(t, file.Close()) }()
	b, err = unix.Mmap(int(file.Fd()), 0, hugePage, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, unix.Munmap(b)) })
	return b
}

// TestAllocBufferWithoutHugePages: huge pages that are promised and not there give way to ordinary ones.
func TestAllocBufferWithoutHugePages(t *testing.T) {
	for name, ask := range map[string]func([]byte) error{"madvise": populate, "touch": touch} {
		t.Run(name, func(t *testing.T) {
			m := mapper{unix.MAP_HUGETLB | unix.MAP_NORESERVE, ask}
			b, err := m.mapBuffer(4 * hugePage)
			require.NoError(t, err)
			require.Equal(t, make([]byte, len(b)), b)
			copy(b, bytes.Repeat([]byte{1}, len(b)))
			require.NoError(t, unmapBuffer(b))
		})
	}
}

// TestPopulateLooks: both ways to ask for pages say that they are not there.
func TestPopulateLooks(t *testing.T) {
	if err := populate(broken(t)); err != unix.ENOMEM {
		require.Equal(t, unix.EFAULT, err)
	}
	require.Equal(t, unix.EFAULT, touch(broken(t)))
}

// TestAllocBufferWithoutMemory: memory of which the system has less than it has promised is an error, and nothing of it
// stays mapped.
func TestAllocBufferWithoutMemory(t *testing.T) {
	var asked []int
	var kept [][]byte
	m := mapper{0, func(b []byte) error {
		asked, kept = append(asked, len(b)), append(kept, b)
		return unix.ENOMEM
	}}
	_, err := m.mapBuffer(2 * hugePage)
	require.ErrorIs(t, err, unix.ENOMEM)
	require.ErrorContains(t, err, "buffer of 4194304 bytes: the system does not have the memory")
	require.Equal(t, []int{2 * hugePage, 2 * hugePage}, asked, "on huge pages, then on others")
	for _, b := range kept {
		require.Error(t, unix.Munmap(b), "it is still mapped")
	}
}
