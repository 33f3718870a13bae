//go:build linux

package vm

import (
	"bufio"
	"context"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

func TestMain(m *testing.M) {
	if os.Getenv("VM_TEST_PARENT") != "" {
		parentOfSleeper()
		return
	}
	os.Exit(m.Run())
}

// parentOfSleeper makes a folder and a child, names both and waits for its death.
func parentOfSleeper() {
	dir, _, err := TempDir(context.Background())
	cmd := exec.Command("sleep", "60")
	if err != nil || start(cmd) != nil {
		os.Exit(1)
	}
	os.Stdout.WriteString(dir + " " + strconv.Itoa(cmd.Process.Pid) + "\n")
	time.Sleep(time.Minute)
}

func TestNothingOutlivesAKilledProcess(t *testing.T) {
	t.Setenv("XROCE_VM", t.TempDir())
	parent := exec.Command("/proc/self/exe")
	parent.Env = append(os.Environ(), "VM_TEST_PARENT=1")
	out, err := parent.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, parent.Start())
	line, err := bufio.NewReader(out).ReadString('\n')
	require.NoError(t, err)
	dir, text, _ := strings.Cut(strings.TrimSpace(line), " ")
	child, err := strconv.Atoi(text)
	require.NoError(t, err)

	_, remove, err := TempDir(t.Context())
	require.NoError(t, err)
	remove()
	require.DirExists(t, dir, "of a process that lives")
	require.NoError(t, unix.Kill(child, 0))

	require.NoError(t, parent.Process.Kill())
	require.Error(t, parent.Wait())
	require.Eventually(t, func() bool {
		status, err := os.ReadFile("/proc/" + text + "/stat")
		// What adopts orphans here may not collect them.
		return err != nil || strings.Contains(string(status), ") Z ")
	}, time.Second, time.Millisecond, "child must die")
	own, remove, err := TempDir(t.Context())
	require.NoError(t, err)
	require.NoDirExists(t, dir)
	require.DirExists(t, own)
	remove()
	require.NoDirExists(t, own)
}

func TestChildOutlivesSchedulerThreads(t *testing.T) {
	thread := func() int {
		id := make(chan int)
		starts() <- func() { id <- unix.Gettid() }
		return <-id
	}
	first := thread()
	cmd := exec.Command("sleep", "60")
	require.NoError(t, start(cmd))
	// Ends threads of the scheduler's; the starting thread must be none of them.
	var ended sync.WaitGroup
	for range 50 {
		ended.Go(func() { runtime.LockOSThread(); time.Sleep(time.Millisecond) })
		require.Equal(t, first, thread())
	}
	ended.Wait()
	require.NoError(t, cmd.Process.Signal(unix.SIGTERM))
	require.EqualError(t, cmd.Wait(), "signal: terminated", "its parent death signal kills")
}
