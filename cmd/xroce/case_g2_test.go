package main

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

var fullSize = flag.Bool("full", false, "run the cases whose full size takes long at full size")

// size is the size of a case.
func size(test, full int) int {
	if *fullSize {
		return full
	}
	return test
}

// TestCase_G2: of three processes under load, a client, a server and the one that has started both, each with its own
// part of the work, some are killed, in every order and at any time. All of them end by themselves or by that within
// 5 seconds, none stays in the kernel, and the kernel has nothing to complain of.
func TestCase_G2(t *testing.T) {
	log := openKernelLog(t)
	orders := [][3]int{{0, 1, 2}, {0, 2, 1}, {1, 0, 2}, {1, 2, 0}, {2, 0, 1}, {2, 1, 0}}
	var slowest time.Duration
	for point := range size(6, 50) {
		stage := []string{stageStart, stagePingPong}[rand.IntN(2)]
		p := startDemo(t, endless, stage)
		time.Sleep(rand.N(200 * time.Millisecond))
		order := orders[point%len(orders)]
		kills := 1 + rand.IntN(3)
		name := fmt.Sprintf("%d of %v killed, %s", kills, order, stage)
		for _, who := range order[:kills] {
			pid := []int{p.run.command.Process.Pid, p.active, p.passive}[who]
			if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
				require.ErrorIs(t, err, syscall.ESRCH, name) // it has ended by itself
			}
			time.Sleep(rand.N(20 * time.Millisecond))
		}
		begin := time.Now()
		status := p.run.status(t, 5*time.Second)
		p.requireGone(t, 5*time.Second)
		slowest = max(slowest, time.Since(begin))
		require.NotZero(t, status, name)
	}
	t.Logf("the slowest end took %v", slowest)
	log.requireQuiet(t)
}

// kernelLog is what the kernel has to say from now on.
type kernelLog struct{ file *os.File }

// openKernelLog returns nil where the log may not be read.
func openKernelLog(t *testing.T) *kernelLog {
	t.Helper()
	fd, err := unix.Open("/dev/kmsg", unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err == nil {
		_, err = unix.Seek(fd, 0, io.SeekEnd)
	}
	if err != nil {
		t.Log("the kernel's log is not read: ", err)
		return nil
	}
	l := &kernelLog{os.NewFile(uintptr(fd), "/dev/kmsg")}
	t.Cleanup(func() { l.file.Close() })
	return l
}

// complaints begin or are within what the kernel says when something is wrong with it, whoever is to blame.
var complaints = []string{
	"BUG", "WARNING", "Oops", "general protection", "blocked for more than", "soft lockup", "rcu_preempt", "unregister_netdevice",
	"refcount", "use-after-free", "Call Trace", "hung",
}

func (l *kernelLog) requireQuiet(t *testing.T) {
	t.Helper()
	if l == nil {
		return
	}
	connection, err := l.file.SyscallConn()
	require.NoError(t, err)
	buffer := make([]byte, 8192) // a record per read
	require.NoError(t, connection.Read(func(fd uintptr) bool {
		for {
			n, err := unix.Read(int(fd), buffer)
			if errors.Is(err, unix.EPIPE) {
				continue // some were overwritten
			} else if err != nil {
				require.ErrorIs(t, err, unix.EAGAIN)
				return true
			}
			_, text, _ := bytes.Cut(buffer[:n], []byte(";")) // Documentation/ABI/testing/dev-kmsg
			for _, c := range complaints {
				require.NotContains(t, string(text), c, strings.TrimSpace(string(text)))
			}
		}
	}))
}
