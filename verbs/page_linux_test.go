package verbs_test

import (
	"encoding/binary"
	"fmt"
	"log/slog"
	"os"
	"runtime"
	"runtime/debug"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/xroce/xroce/roce"
	"github.com/xroce/xroce/roce/link/mem"
	"github.com/xroce/xroce/roce/memory"
	"github.com/xroce/xroce/verbs"
)

// withheld is a buffer of one page that does not come before give is called (include/uapi/linux/userfaultfd.h).
func withheld(t *testing.T) (buffer []byte, give func()) {
	t.Helper()
	const (
		userModeOnly = 1
		api          = 0xC018AA3F // UFFDIO_API: api, features, ioctls
		register     = 0xC020AA00 // UFFDIO_REGISTER: start, length, mode, ioctls
		zeroPage     = 0xC020AA04 // UFFDIO_ZEROPAGE: start, length, mode, zeroed
		version      = 0xAA
		missing      = 1
	)
	fd, _, errno := unix.Syscall(unix.SYS_USERFAULTFD, userModeOnly|unix.O_CLOEXEC, 0, 0)
	if errno == unix.ENOSYS {
		t.Skip("the kernel has no userfaultfd(2)")
	}
	require.Zero(t, errno)
	t.Cleanup(func() { require.NoError(t, unix.Close(int(fd))) })
	page := os.Getpagesize()
	argument, err := unix.Mmap(-1, 0, page, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, unix.Munmap(argument)) })
	call := func(request uintptr, words ...uint64) {
		clear(argument[:64])
		for i, w := range words {
			binary.NativeEndian.PutUint64(argument[8*i:], w)
		}
		_, _, errno := unix.Syscall(unix.SYS_IOCTL, fd, request, uintptr(memory.BufferAddress(argument)))
		require.Zero(t, errno)
	}
	buffer, err = unix.Mmap(-1, 0, page, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, unix.Munmap(buffer)) })
	start := memory.BufferAddress(buffer)
	call(api, version)
	call(register, start, uint64(page), missing)
	return buffer, func() { call(zeroPage, start, uint64(page)) }
}

// TestPageThatDoesNotCome: a copy that waits for a page for longer than a second is told of in the log, with the
// region, and again when the page has come; then everything goes on.
func TestPageThatDoesNotCome(t *testing.T) {
	log := new(records)
	defer slog.SetDefault(slog.Default())
	slog.SetDefault(slog.New(slog.NewTextHandler(log, nil)))
	da, db := memDevices(t, mem.Options{}, mem.DeviceOptions{})
	buffer, give := withheld(t)
	a, b := newEnd(t, da, make([]byte, 64), verbs.QPCap{}), newEnd(t, db, buffer, verbs.QPCap{})
	connect(t, a, b, verbs.ConnectOptions{Timeout: roce.AckTimeout(22)}) // 17 s
	// A collection of garbage may wait for the copy, and everything for the collection: none may begin, and none be
	// under way.
	defer debug.SetGCPercent(debug.SetGCPercent(-1))
	runtime.GC()
	given := time.AfterFunc(4*time.Second, give)
	begin := time.Now()
	a.mr.Bytes()[0] = 7
	go func() { _ = a.qp.PostSend(write(a, b, verbs.SendSignaled)) }()
	for !strings.Contains(log.String(), "a copy waits for memory for more than a second") && time.Since(begin) < 3500*time.Millisecond {
		time.Sleep(10 * time.Millisecond)
	}
	told := time.Since(begin)
	if given.Stop() {
		give()
	}
	require.Equal(t, verbs.WCSuccess, poll(t, a.sends).Status)
	require.Equal(t, byte(7), buffer[0])
	text := log.String()
	require.Contains(t, text, "a copy waits for memory for more than a second")
	require.Contains(t, text, "device="+db.Name())
	require.NotContains(t, text, "device="+da.Name())
	require.Contains(t, text, fmt.Sprintf("bytes=%d", len(buffer)))
	require.Greater(t, told, 900*time.Millisecond)
	require.Eventually(t, func() bool { return strings.Contains(log.String(), "has come") }, 5*time.Second, 10*time.Millisecond)
	require.Equal(t, 1, strings.Count(log.String(), "a copy waits"), "once")
}
