//go:build linux

package xsk

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// children are the bodies of the other processes.
var children = map[string]func() error{
	"echo":       childEcho,
	"permission": childPermission,
	"memlock":    childMemlock,
	"reopen":     childReopen,
}

const (
	nobody      = 65534
	exchange    = 500 // frames that the hand-over tests exchange
	childSocket = 3   // file descriptor of the Unix socket in the child
)

// runChild runs the test binary again as nobody, with these capabilities only, in
// this network namespace, and returns what it printed when it has ended. while runs
// beside it.
func (e *end) runChild(t *testing.T, name string, capabilities []uintptr, unixSocket *os.File, while func()) string {
	t.Helper()
	var output bytes.Buffer
	command := exec.Command("/proc/self/exe") // the directory of the binary is not nobody's
	command.Env = append(os.Environ(), childVariable+"="+name, "XSK_TEST_IFINDEX="+strconv.Itoa(e.ifindex))
	command.Dir = "/"
	command.Stdout, command.Stderr = &output, &output
	if unixSocket != nil {
		command.ExtraFiles = []*os.File{unixSocket}
	}
	command.SysProcAttr = &syscall.SysProcAttr{
		Credential:  &syscall.Credential{Uid: nobody, Gid: nobody},
		AmbientCaps: capabilities,
	}
	require.NoError(t, e.run(t, command.Start))
	if while != nil {
		while()
	}
	require.NoError(t, command.Wait(), output.String())
	return output.String()
}

// effectiveCapabilities returns CapEff of this process.
func effectiveCapabilities() string {
	status, _ := os.ReadFile("/proc/self/status")
	_, rest, _ := strings.Cut(string(status), "CapEff:\t")
	capabilities, _, _ := strings.Cut(rest, "\n")
	return capabilities
}

func childInterface() int {
	ifindex, _ := strconv.Atoi(os.Getenv("XSK_TEST_IFINDEX"))
	return ifindex
}

// childEcho takes a socket over and sends every frame back, without a capability.
func childEcho() error {
	if capabilities := effectiveCapabilities(); capabilities != "0000000000000000" {
		return fmt.Errorf("has capabilities %s", capabilities)
	}
	file := os.NewFile(childSocket, "unix")
	conn, err := net.FileConn(file)
	if err != nil {
		return err
	}
	fds, err := ReceiveFDs(conn.(*net.UnixConn))
	if err != nil {
		return err
	}
	s, err := FromFDs(fds)
	if err != nil {
		return err
	}
	frames := make([]Frame, 32)
	for echoed := 0; echoed < exchange; {
		ready := []unix.PollFd{{Fd: int32(s.FD()), Events: unix.POLLIN}}
		if n, err := unix.Poll(ready, 5000); n == 0 || (err != nil && err != unix.EINTR) {
			return fmt.Errorf("poll after %d frames: %d, %w", echoed, n, err)
		}
		for _, frame := range frames[:s.Receive(frames)] {
			buffer := s.Buffer()
			if buffer == nil {
				return errors.New("no buffer")
			}
			if err := s.Commit(copy(buffer, joined(frame))); err != nil {
				return err
			}
			echoed++
		}
		s.Release()
		s.Publish()
		for s.KickPending() {
			if _, err := s.Kick(); err != nil {
				return err
			}
			s.Reap()
		}
	}
	s.Reap()
	if err := s.CheckOwners(); err != nil {
		return err
	}
	statistics, err := s.Statistics()
	if err != nil {
		return err
	}
	fmt.Printf("echoed %d, %d of %d buffers free, invalid %d", s.Counters().ReceivedFrames,
		s.FreeBuffers(), s.Info().TransmitBuffers(), statistics.TransmitInvalid+statistics.ReceiveInvalid)
	return s.Close()
}

// TestCase_F10_Socket: a privileged process opens, an unprivileged one sends and
// receives, and when it has ended the opener goes on with the same socket.
func TestCase_F10_Socket(t *testing.T) {
	a, b := newPair(t, 1, 9000)
	options := Options{MultiBuffer: true, CheckOwners: true}
	near := a.receiver(t, false, options)
	far := b.receiver(t, true, options)

	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	require.NoError(t, err)
	ours, theirs := os.NewFile(uintptr(pair[0]), "ours"), os.NewFile(uintptr(pair[1]), "theirs")
	defer theirs.Close()
	conn, err := net.FileConn(ours)
	require.NoError(t, err)
	require.NoError(t, ours.Close())
	defer conn.Close()

	frames, want := make([]Frame, 32), make([]byte, 8192)
	length := func(sequence int) int { return 64 + sequence*61%4107 }
	output := b.runChild(t, "echo", nil, theirs, func() {
		require.NoError(t, SendFDs(conn.(*net.UnixConn), far.FDs()))
		sent, received := 0, 0
		deadline := time.Now().Add(10 * time.Second)
		for received < exchange && time.Now().Before(deadline) {
			for sent < exchange && sent-received < 50 {
				send(t, near, uint64(sent), length(sent))
				sent++
			}
			near.Publish()
			kickAll(t, near)
			near.Reap()
			for _, frame := range frames[:near.Receive(frames)] {
				requireFrame(t, want[:length(received)], frame, uint64(received))
				received++
			}
			near.Release()
			time.Sleep(100 * time.Microsecond)
		}
		require.Equal(t, exchange, received)
	})
	require.Equal(t, "echoed 500, 256 of 256 buffers free, invalid 0", output)
	requireNoLoss(t, far)

	// Take it over in turn: everything is at home again.
	fds := far.FDs()
	duplicate := FDs{Info: fds.Info}
	duplicate.Socket, err = unix.FcntlInt(uintptr(fds.Socket), unix.F_DUPFD_CLOEXEC, 0)
	require.NoError(t, err)
	duplicate.UMEM, err = unix.FcntlInt(uintptr(fds.UMEM), unix.F_DUPFD_CLOEXEC, 0)
	require.NoError(t, err)
	again, err := FromFDs(duplicate)
	require.NoError(t, err)
	require.Equal(t, far.Info(), again.Info())
	send(t, near, 7, 4170)
	near.Publish()
	kickAll(t, near)
	requireFrame(t, want[:4170], receive(t, again, 1)[0], 7)

	// While frames are out, nobody else can take over; and the descriptors stay ours.
	_, err = FromFDs(fds)
	require.ErrorIs(t, err, unix.EBUSY)
	require.ErrorContains(t, err, "the kernel has 1022 of the 1024 receive frames")
	again.Release()
	send(t, again, 8, 100)
	again.Publish()
	_, err = FromFDs(fds)
	require.ErrorIs(t, err, unix.EBUSY)
	require.ErrorContains(t, err, "1 transmit descriptors are in flight")
	kickAll(t, again)
	requireIdle(t, again)
	require.NoError(t, again.Close())
	_, err = far.Statistics()
	require.NoError(t, err)
}

// Descriptors and descriptions that do not belong together.
func TestFromFDsRefused(t *testing.T) {
	a, _ := newPair(t, 1, 1500)
	s := a.mustOpen(t, Options{})
	files, mappings := openFiles(t), socketMappings(t)

	wrong := s.FDs()
	wrong.Info.FillRing = 77
	_, err := FromFDs(wrong)
	require.ErrorIs(t, err, ErrInvalidOptions)

	wrong = s.FDs()
	wrong.Socket = wrong.UMEM
	_, err = FromFDs(wrong)
	require.ErrorIs(t, err, ErrInvalidOptions)
	require.ErrorContains(t, err, "is not an AF_XDP socket")

	wrong = s.FDs()
	wrong.UMEM = wrong.Socket
	_, err = FromFDs(wrong)
	require.ErrorContains(t, err, "is not a memfd")

	wrong = s.FDs()
	wrong.Info.ReceiveFrames /= 2
	_, err = FromFDs(wrong)
	require.ErrorContains(t, err, "memfd has 6291456 bytes, the description says 4194304")

	wrong = s.FDs()
	wrong.Info.TransmitRing, wrong.Info.CompletionRing = 1<<16, 1<<16
	_, err = FromFDs(wrong)
	require.ErrorContains(t, err, "map rings")

	// A memfd that its maker could still truncate under us.
	wrong = s.FDs()
	wrong.UMEM, err = unix.MemfdCreate("xsk-test", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	require.NoError(t, err)
	require.NoError(t, unix.Ftruncate(wrong.UMEM, 6291456))
	_, err = FromFDs(wrong)
	require.ErrorContains(t, err, "not sealed against shrinking")
	require.NoError(t, unix.Close(wrong.UMEM))

	require.Equal(t, files, openFiles(t))
	require.Equal(t, mappings, socketMappings(t))
	require.ErrorIs(t, unix.Ftruncate(s.FDs().UMEM, 0), unix.EPERM)
}

// What is not a hand-over is refused, and descriptors that came with it are closed.
func TestReceiveFDsRefused(t *testing.T) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	require.NoError(t, err)
	var ends [2]*net.UnixConn
	for i, fd := range pair {
		file := os.NewFile(uintptr(fd), "unix")
		conn, err := net.FileConn(file)
		require.NoError(t, err)
		require.NoError(t, file.Close())
		ends[i] = conn.(*net.UnixConn)
		defer ends[i].Close()
	}
	files := openFiles(t)
	_, err = ends[0].Write([]byte("hello"))
	require.NoError(t, err)
	_, err = ReceiveFDs(ends[1])
	require.ErrorContains(t, err, "0 file descriptors instead of 2")

	_, _, err = ends[0].WriteMsgUnix(make([]byte, infoSize), unix.UnixRights(0, 1), nil)
	require.NoError(t, err)
	_, err = ReceiveFDs(ends[1])
	require.ErrorContains(t, err, "decode info")
	require.Equal(t, files, openFiles(t))

	require.NoError(t, ends[0].Close())
	_, err = ReceiveFDs(ends[1])
	require.Error(t, err)
}

// childPermission has no capability at all.
func childPermission() error {
	_, err := Open(Options{Interface: childInterface()})
	fmt.Printf("%t %v", errors.Is(err, ErrPermission), err)
	return nil
}

// TestCase_F10_Permission: without a capability the error says which.
func TestCase_F10_Permission(t *testing.T) {
	a, _ := newPair(t, 1, 1500)
	require.Equal(t, "true xsk: create socket: CAP_NET_RAW is missing: operation not permitted",
		a.runChild(t, "permission", nil, nil, nil))
}

// childMemlock has CAP_NET_RAW and may lock 64 KiB.
func childMemlock() error {
	limit := unix.Rlimit{Cur: 64 << 10, Max: 64 << 10}
	if err := unix.Setrlimit(unix.RLIMIT_MEMLOCK, &limit); err != nil {
		return err
	}
	_, err := Open(Options{Interface: childInterface()})
	fmt.Printf("%t %v\n", errors.Is(err, ErrMemoryLocked), err)
	s, err := Open(Options{Interface: childInterface(), ReceiveFrames: 8, TransmitFrames: 4})
	if err != nil {
		return err
	}
	fmt.Print("48 KiB fit, send buffer ", s.Info().SendBuffer)
	return s.Close()
}

func TestMemoryLocked(t *testing.T) {
	a, _ := newPair(t, 1, 1500)
	output := a.runChild(t, "memlock", []uintptr{unix.CAP_NET_RAW}, nil, nil)
	require.Equal(t, "true xsk: register UMEM: the UMEM of 6291456 bytes and what this user has locked already exceed RLIMIT_MEMLOCK, "+
		"65536 bytes (raise it with ulimit -l, or give CAP_IPC_LOCK): no buffer space available\n"+
		"48 KiB fit, send buffer 65536", output)
}

// childReopen may lock one UMEM and a third, and opens one after the other.
func childReopen() error {
	limit := unix.Rlimit{Cur: 8 << 20, Max: 8 << 20}
	if err := unix.Setrlimit(unix.RLIMIT_MEMLOCK, &limit); err != nil {
		return err
	}
	for range 10 {
		s, err := Open(Options{Interface: childInterface()})
		if err != nil {
			return err
		}
		if err := s.Close(); err != nil {
			return err
		}
	}
	s, err := Open(Options{Interface: childInterface()})
	if err != nil {
		return err
	}
	_, err = Open(Options{Interface: childInterface(), BindTimeout: 100 * time.Millisecond})
	fmt.Print(errors.Is(err, ErrMemoryLocked))
	return s.Close()
}

// The kernel counts the memory of a socket that was closed for a while yet. Whoever may lock no more than one opens
// the next one all the same, but not a second one.
func TestMemoryLockedComesBack(t *testing.T) {
	a, _ := newPair(t, 1, 1500)
	require.Equal(t, "true", a.runChild(t, "reopen", []uintptr{unix.CAP_NET_RAW}, nil, nil))
}
