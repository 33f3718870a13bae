package netns

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"
)

func TestMain(m *testing.M) {
	if os.Getenv("NETNS_TEST_PARENT") != "" {
		parentOfSleeper()
		return
	}
	goleak.VerifyTestMain(m)
}

func newNamespace(t *testing.T) *Namespace {
	t.Helper()
	n, err := New()
	if errors.Is(err, unix.EPERM) && os.Getenv("CI") != "true" {
		t.Skip(err)
	}
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, n.Close()) })
	return n
}

// inode identifies the namespace of the calling thread.
func inode(t *testing.T, path string) uint64 {
	t.Helper()
	var s unix.Stat_t
	require.NoError(t, unix.Stat(path, &s))
	return s.Ino
}

func TestDoRunsInsideAndRestores(t *testing.T) {
	home := inode(t, "/proc/self/ns/net")
	n := newNamespace(t)
	inside := inode(t, n.Path())
	require.NotEqual(t, home, inside)

	var workers sync.WaitGroup
	for range 16 {
		workers.Go(func() {
			for range 20 {
				require.NoError(t, n.Do(func() error {
					require.Equal(t, inside, inode(t, ofThread))
					require.Equal(t, home, inode(t, "/proc/self/ns/net"), "main thread must stay")
					devices, err := net.Interfaces()
					require.NoError(t, err)
					require.Len(t, devices, 1)
					return nil
				}))
			}
		})
	}
	workers.Wait()
	requireAllThreadsIn(t, home)
}

func requireAllThreadsIn(t *testing.T, want uint64) {
	t.Helper()
	require.Eventually(t, func() bool {
		threads, err := os.ReadDir("/proc/self/task")
		require.NoError(t, err)
		for _, thread := range threads {
			var s unix.Stat_t
			err := unix.Stat("/proc/self/task/"+thread.Name()+"/ns/net", &s)
			if err == nil && s.Ino != want {
				return false
			}
		}
		return true
	}, 5*time.Second, time.Millisecond, "a thread was left in the namespace")
}

func TestDoPassesErrorsAndGoexitOn(t *testing.T) {
	n := newNamespace(t)
	sentinel := errors.New("sentinel")
	require.ErrorIs(t, n.Do(func() error { return sentinel }), sentinel)

	returned := true
	var worker sync.WaitGroup
	worker.Go(func() {
		returned = false
		_ = n.Do(func() error { runtime.Goexit(); return nil })
		returned = true
	})
	worker.Wait()
	require.False(t, returned, "Goexit of the function must end the caller of Do too")
	requireAllThreadsIn(t, inode(t, "/proc/self/ns/net"))
}

func TestDoNests(t *testing.T) {
	a, b := newNamespace(t), newNamespace(t)
	require.NoError(t, a.Do(func() error {
		return b.Do(func() error {
			require.Equal(t, inode(t, b.Path()), inode(t, ofThread))
			return nil
		})
	}))
}

func TestThreadThatCannotReturnEnds(t *testing.T) {
	n := newNamespace(t)
	var thread int
	require.NoError(t, n.Do(func() error {
		thread = unix.Gettid()
		// Without capabilities, the thread may not go back to its namespace.
		header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
		var none [2]unix.CapUserData
		return unix.Capset(&header, &none[0])
	}))
	require.Eventually(t, func() bool {
		_, err := os.Stat(fmt.Sprintf("/proc/self/task/%d", thread))
		return errors.Is(err, os.ErrNotExist)
	}, 5*time.Second, time.Millisecond)
}

func TestClosedAndMissing(t *testing.T) {
	n := newNamespace(t)
	require.NoError(t, n.Close())
	require.NoError(t, n.Close())
	require.Equal(t, -1, n.FD())
	require.ErrorIs(t, n.Do(func() error { t.Error("ran"); return nil }), os.ErrClosed)
	require.ErrorIs(t, n.Start(exec.Command("true")), os.ErrClosed)
	_, err := Open("/proc/self/ns/absent")
	require.ErrorIs(t, err, os.ErrNotExist)
}

func TestOpenNotANamespace(t *testing.T) {
	before := descriptors(t)
	for _, path := range []string{"/proc/self/ns/uts", "/dev/null", "/proc"} {
		_, err := Open(path)
		require.ErrorIs(t, err, os.ErrInvalid)
		require.ErrorContains(t, err, path+" is no network namespace")
	}
	require.Equal(t, before, descriptors(t))
}

func TestStartRunsInside(t *testing.T) {
	n := newNamespace(t)
	for range 3 {
		cmd := exec.Command("readlink", "/proc/self/ns/net")
		var out strings.Builder
		cmd.Stdout = &out
		require.NoError(t, n.Start(cmd))
		require.NoError(t, cmd.Wait())
		require.Equal(t, fmt.Sprintf("net:[%d]\n", inode(t, n.Path())), out.String())
	}
	require.Error(t, n.Start(exec.Command("/does/not/exist")))
}

func TestChildOutlivesSchedulerThreads(t *testing.T) {
	n := newNamespace(t)
	cmd := exec.Command("sleep", "60")
	require.NoError(t, n.Start(cmd))
	// Ends threads of the scheduler's; the starting thread must be none of them.
	var ended sync.WaitGroup
	for range 20 {
		ended.Go(func() { runtime.LockOSThread(); time.Sleep(time.Millisecond) })
	}
	ended.Wait()
	time.Sleep(50 * time.Millisecond)
	require.NoError(t, cmd.Process.Signal(unix.Signal(0)), "child must live")

	require.NoError(t, n.Close())
	err := cmd.Wait()
	var exit *exec.ExitError
	require.ErrorAs(t, err, &exit)
	require.Equal(t, "signal: killed", exit.String())
}

// parentOfSleeper starts a process in a namespace, prints its number and waits to be killed.
func parentOfSleeper() {
	n, err := New()
	if err != nil {
		panic(err)
	}
	cmd := exec.Command("sleep", "60")
	if err := n.Start(cmd); err != nil {
		panic(err)
	}
	fmt.Println(cmd.Process.Pid)
	_, _ = io.Copy(io.Discard, os.Stdin)
}

func TestChildDiesWithParent(t *testing.T) {
	newNamespace(t)
	parent := exec.Command(os.Args[0])
	parent.Env = append(os.Environ(), "NETNS_TEST_PARENT=1")
	in, err := parent.StdinPipe()
	require.NoError(t, err)
	defer in.Close()
	out, err := parent.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, parent.Start())
	line, err := bufio.NewReader(out).ReadString('\n')
	require.NoError(t, err)
	var pid int
	_, err = fmt.Sscan(line, &pid)
	require.NoError(t, err)
	pidfd, err := unix.PidfdOpen(pid, 0)
	require.NoError(t, err)
	defer unix.Close(pidfd)

	require.NoError(t, parent.Process.Kill())
	_ = parent.Wait()
	// A pidfd is readable once its process has ended (pidfd_open(2)).
	ready, err := unix.Poll([]unix.PollFd{{Fd: int32(pidfd), Events: unix.POLLIN}}, 5000)
	require.NoError(t, err)
	require.Equal(t, 1, ready, "the child outlived its parent")
}

func TestNothingLeaks(t *testing.T) {
	newNamespace(t)
	before := descriptors(t)
	for range 30 {
		n, err := New()
		require.NoError(t, err)
		require.NoError(t, n.Do(func() error { return nil }))
		cmd := exec.Command("true")
		require.NoError(t, n.Start(cmd))
		require.NoError(t, cmd.Wait())
		require.NoError(t, n.Close())
	}
	require.Equal(t, before, descriptors(t))
	goleak.VerifyNone(t)
}

func descriptors(t *testing.T) int {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	require.NoError(t, err)
	return len(entries)
}
