package memory

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// mapFile maps two pages of a file.
func mapFile(t *testing.T, protection int) (buffer []byte, file *os.File) {
	file, err := os.OpenFile(filepath.Join(t.TempDir(), "buffer"), os.O_RDWR|os.O_CREATE, 0o600)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, file.Close()) })
	size := 2 * os.Getpagesize()
	require.NoError(t, file.Truncate(int64(size)))
	buffer, err = unix.Mmap(int(file.Fd()), 0, size, protection, unix.MAP_SHARED)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, unix.Munmap(buffer)) })
	return buffer, file
}

// TestFaultingBuffer: memory that cannot be accessed is a fault of the access, not the end of the process.
func TestFaultingBuffer(t *testing.T) {
	table, domain := NewTable(1), new(Domain)
	user := table.NewUser()
	buffer, file := mapFile(t, unix.PROT_READ|unix.PROT_WRITE)
	page := uint64(os.Getpagesize())
	region, err := table.Register(domain, buffer, 0, LocalWrite)
	require.NoError(t, err)
	at := func(address, length uint64) Range { return Range{Key: region.Key(), Address: address, Length: length} }
	write := func(r Range, final bool) Fault {
		return user.Write(&Principal{Domain: domain}, LocalWrite, r, [][]byte{make([]byte, r.Length)}, final)
	}
	read := func(r Range) Fault { return user.Read(&Principal{Domain: domain}, 0, r, make([]byte, r.Length)) }
	require.Equal(t, FaultNone, write(at(0, 2*page), true))

	require.NoError(t, file.Truncate(int64(page)))
	for _, final := range []bool{false, true} {
		require.Equal(t, FaultBuffer, write(at(page, 8), final))
		require.Equal(t, FaultBuffer, write(at(page-8, 16), final))
		require.Equal(t, FaultBuffer, write(at(2*page-3, 3), final))
		require.Equal(t, FaultNone, write(at(page-8, 8), final))
	}
	require.Equal(t, FaultBuffer, read(at(page, 8)))
	require.Equal(t, FaultBuffer, read(at(0, 2*page)))
	require.Equal(t, FaultNone, read(at(0, page)))
	require.Equal(t, FaultNone, user.Check(&Principal{Domain: domain}, LocalWrite, at(page, 8)), "the registration knows nothing of it")

	require.Nil(t, user.region.Load(), "Deregister would wait for ever")
	require.NoError(t, table.Deregister(region))
}

// TestFinalWordIsNotEarly: the last word is written after the bytes behind it, so it never is if those cannot be.
func TestFinalWordIsNotEarly(t *testing.T) {
	table, domain := NewTable(1), new(Domain)
	user := table.NewUser()
	buffer, file := mapFile(t, unix.PROT_READ|unix.PROT_WRITE)
	page := os.Getpagesize()
	require.NoError(t, file.Truncate(int64(page)))
	region, err := table.Register(domain, buffer, 0, LocalWrite)
	require.NoError(t, err)
	r := Range{Key: region.Key(), Address: uint64(page - 16), Length: 16 + 3}
	data := [][]byte{[]byte("before..finalwo"), []byte("rd+++")[:4]}
	require.Equal(t, FaultBuffer, user.Write(&Principal{Domain: domain}, LocalWrite, r, data, true))
	require.Equal(t, "before..\x00\x00\x00\x00\x00\x00\x00\x00", string(buffer[page-16:page]))
}

// TestReadOnlyBuffer: the same for a page that must not be written.
func TestReadOnlyBuffer(t *testing.T) {
	table, domain := NewTable(1), new(Domain)
	user := table.NewUser()
	buffer, _ := mapFile(t, unix.PROT_READ)
	region, err := table.Register(domain, buffer, 0, LocalWrite)
	require.NoError(t, err)
	r := Range{Key: region.Key(), Length: 64}
	require.Equal(t, FaultBuffer, user.Write(&Principal{Domain: domain}, LocalWrite, r, [][]byte{make([]byte, 64)}, true))
	require.Equal(t, FaultNone, user.Read(&Principal{Domain: domain}, 0, r, make([]byte, 64)))
}

// TestFaultingAtomics: the same for atomics and for the program's own accesses.
func TestFaultingAtomics(t *testing.T) {
	b := newBench(t)
	buffer, file := mapFile(t, unix.PROT_READ|unix.PROT_WRITE)
	page := uint64(os.Getpagesize())
	require.NoError(t, file.Truncate(int64(page)))
	region, err := b.table.Register(b.domain, buffer, 0, LocalWrite|RemoteWrite|RemoteAtomic)
	require.NoError(t, err)
	swap, add, store := b.atomics(b.p, Range{region.Key(), page - 8, 8})
	require.Equal(t, [3]Fault{}, [3]Fault{swap, add, store})
	swap, add, store = b.atomics(b.p, Range{region.Key(), page, 8})
	require.Equal(t, [3]Fault{FaultBuffer, FaultBuffer, FaultBuffer}, [3]Fault{swap, add, store})
	requireWords(t, region, page, FaultBuffer)
	require.Equal(t, FaultNone, region.StoreUint64(page-8, 4))
	require.NoError(t, b.table.Deregister(region))

	if raceEnabled {
		return // the detector does the atomics in C, where a page that can be read but not written ends the process
	}
	readOnly, _ := mapFile(t, unix.PROT_READ)
	region, err = b.table.Register(b.domain, readOnly, 0, LocalWrite|RemoteWrite|RemoteAtomic)
	require.NoError(t, err)
	swap, add, store = b.atomics(b.p, Range{region.Key(), 0, 8})
	require.Equal(t, [3]Fault{FaultBuffer, FaultBuffer, FaultBuffer}, [3]Fault{swap, add, store})
	require.Equal(t, FaultBuffer, region.StoreUint64(0, 1))
	word, fault := region.LoadUint64(0)
	require.Equal(t, []any{uint64(0), FaultNone}, []any{word, fault})
	require.NoError(t, b.table.Deregister(region))
}

// TestOtherPanicsGoOn: a defect in the code is no fault of the buffer.
func TestOtherPanicsGoOn(t *testing.T) {
	require.Panics(t, func() {
		ok := true
		defer survive(&ok, false)
		var list []int
		_ = list[len(list)]
	})
}

// TestTouch: every page is asked for, and one that is not there is told.
func TestTouch(t *testing.T) {
	buffer, file := mapFile(t, unix.PROT_READ|unix.PROT_WRITE)
	page := os.Getpagesize()
	buffer[0], buffer[1], buffer[page] = 1, 2, 3
	require.Equal(t, FaultNone, Touch(buffer, page))
	require.Equal(t, []byte{0, 2, 0}, []byte{buffer[0], buffer[1], buffer[page]})
	require.NoError(t, file.Truncate(int64(page)))
	require.Equal(t, FaultBuffer, Touch(buffer, page))
	require.Equal(t, FaultNone, Touch(buffer[:page], page))
}
