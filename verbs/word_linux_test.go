package verbs_test

import (
	"encoding/binary"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/xroce/xroce/roce/link/mem"
	"github.com/xroce/xroce/verbs"
)

// truncated maps two pages of a file, and then takes the second one away.
func truncated(t *testing.T) (buffer []byte, page int) {
	t.Helper()
	page = os.Getpagesize()
	file, err := os.Create(filepath.Join(t.TempDir(), "buffer"))
	require.NoError(t, err)
	defer func() { require.NoError(t, file.Close()) }()
	require.NoError(t, file.Truncate(int64(2*page)))
	buffer, err = unix.Mmap(int(file.Fd()), 0, 2*page, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, unix.Munmap(buffer)) })
	require.NoError(t, file.Truncate(int64(page)))
	return buffer, page
}

// words are the errors of all accesses to a word.
func words(mr *verbs.MR, offset int) []error {
	_, load := mr.LoadUint64(offset)
	_, add := mr.AddUint64(offset, 1)
	_, swap := mr.CompareAndSwapUint64(offset, 0, 1)
	return []error{load, add, swap, mr.StoreUint64(offset, 1)}
}

// TestWords: the program's own accesses to words work like those of sync/atomic, and whatever is wrong is an error:
// where the word is, a region that has ended, memory that is gone.
func TestWords(t *testing.T) {
	d, _ := memDevices(t, mem.Options{}, mem.DeviceOptions{})
	buffer, page := truncated(t)
	e := newEnd(t, d, make([]byte, 8), verbs.QPCap{})
	mr, err := e.pd.RegMR(buffer, allAccess)
	require.NoError(t, err)
	last := page - 8
	require.NoError(t, mr.StoreUint64(last, 1<<63+5))
	require.Equal(t, uint64(1<<63+5), binary.NativeEndian.Uint64(buffer[last:]))
	value, err := mr.LoadUint64(last)
	require.Equal(t, []any{nil, uint64(1<<63 + 5)}, []any{err, value})
	sum, err := mr.AddUint64(last, 1<<63)
	require.Equal(t, []any{nil, uint64(5)}, []any{err, sum})
	swapped, err := mr.CompareAndSwapUint64(last, 6, 7)
	require.Equal(t, []any{nil, false}, []any{err, swapped})
	swapped, err = mr.CompareAndSwapUint64(last, 5, 7)
	require.Equal(t, []any{nil, true}, []any{err, swapped})
	require.Equal(t, uint64(7), binary.NativeEndian.Uint64(buffer[last:]))

	for _, offset := range []int{page, 2*page - 8} {
		for _, err := range words(mr, offset) {
			require.ErrorIs(t, err, verbs.ErrFault)
		}
	}
	for _, offset := range []int{-8, -1, 1, 4, 2*page - 7, 2 * page, 1 << 40} {
		for _, err := range words(mr, offset) {
			require.ErrorIs(t, err, verbs.ErrInvalid, "%d", offset)
		}
	}
	require.NoError(t, mr.Dereg())
	fast, err := e.pd.AllocMR(8)
	require.NoError(t, err)
	for _, err := range words(fast, 0) {
		require.ErrorIs(t, err, verbs.ErrInvalid)
	}
	require.NoError(t, fast.Dereg())
	for _, closed := range []*verbs.MR{mr, fast} {
		for _, err := range words(closed, 0) {
			require.ErrorIs(t, err, verbs.ErrClosed)
		}
	}
	require.Equal(t, uint64(7), binary.NativeEndian.Uint64(buffer[last:]))
}

// TestWordsAndRemoteAtomics: the program and a peer add to the same word, and no addition is lost; meanwhile the region
// is registered anew again and again, which no access notices.
func TestWordsAndRemoteAtomics(t *testing.T) {
	const rounds = 2000
	a, b := partners(t)
	rights := everyAccess
	var running sync.WaitGroup
	running.Go(func() {
		for range rounds {
			_, err := b.mr.AddUint64(8, 1<<32)
			require.NoError(t, err)
			for done := false; !done; {
				old, err := b.mr.LoadUint64(8)
				require.NoError(t, err)
				done, err = b.mr.CompareAndSwapUint64(8, old, old+1<<32)
				require.NoError(t, err)
			}
			require.NoError(t, b.mr.Rereg(verbs.MRChange{Access: &rights}))
		}
	})
	for range rounds {
		require.Equal(t, verbs.WCSuccess, a.do(t, verbs.SendWR{
			Opcode: verbs.WRAtomicFetchAdd, SGList: []verbs.SGE{a.mr.SGE(0, 8)}, RemoteAddr: b.mr.Addr() + 8, RKey: b.mr.RKey(), CompareAdd: 1,
		}).Status)
	}
	running.Wait()
	sum, err := b.mr.LoadUint64(8)
	require.NoError(t, err)
	require.Equal(t, uint64(rounds+2*rounds<<32), sum)
}
