// Package netns holds network namespaces by a descriptor alone, runs functions inside them and starts
// processes in them.
//
// A namespace made here has no name and no mount: the kernel removes it, with all devices and programs in
// it, as soon as the last descriptor, socket and process is gone. So nothing is left behind however the process
// ends (net/core/net_namespace.c, cleanup_net).
package netns

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// ofThread is the namespace of the calling thread. /proc/self would be that of the main thread.
const ofThread = "/proc/thread-self/ns/net"

// Namespace is a network namespace kept alive by a descriptor. Its methods may be called concurrently.
type Namespace struct {
	file *os.File

	mu      sync.Mutex
	starter *starter // made by the first Start
	closed  bool
}

// New makes a network namespace. It holds nothing but a loopback device that is down.
func New() (*Namespace, error) {
	var file *os.File
	err := onThread(
		func() error { return unix.Unshare(unix.CLONE_NEWNET) },
		func() (err error) { file, err = os.Open(ofThread); return err },
	)
	if err != nil {
		return nil, fmt.Errorf("netns: new network namespace: %w", explain(err))
	}
	return &Namespace{file: file}, nil
}

// Open opens the network namespace that path names, such as /run/netns/blue, /proc/1234/ns/net or the Path of
// a Namespace. A path that names something else gives os.ErrInvalid.
func Open(path string) (*Namespace, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("netns: %w", err)
	}
	if kind, err := unix.IoctlRetInt(int(file.Fd()), unix.NS_GET_NSTYPE); err != nil || kind != unix.CLONE_NEWNET {
		_ = file.Close()
		return nil, fmt.Errorf("netns: %s is no network namespace: %w", path, os.ErrInvalid)
	}
	return &Namespace{file: file}, nil
}

// Do runs f inside the namespace and returns its error. f runs on a goroutine of its own that is locked to
// its OS thread; goroutines that f starts run outside. If f calls [runtime.Goexit], as the Fatal methods of
// package testing do, so does Do; if f panics, the process ends.
func (n *Namespace) Do(f func() error) error {
	return onThread(n.enter, f)
}

// Start starts cmd inside the namespace. The kernel kills the process when the present one dies, however it
// dies, and when the namespace is closed. A SysProcAttr.Pdeathsig that is set already is kept.
func (n *Namespace) Start(cmd *exec.Cmd) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.closed {
		return fmt.Errorf("netns: start %s: %w", cmd.Path, os.ErrClosed)
	}
	if n.starter == nil {
		s, err := newStarter(n.enter)
		if err != nil {
			return err
		}
		n.starter = s
	}
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	if cmd.SysProcAttr.Pdeathsig == 0 {
		cmd.SysProcAttr.Pdeathsig = syscall.SIGKILL
	}
	return n.starter.start(cmd)
}

// FD is the descriptor of the namespace, owned by n, or -1 once n is closed.
func (n *Namespace) FD() int { return int(n.file.Fd()) }

// Path names the namespace for as long as n is open; it is valid in the present process only.
func (n *Namespace) Path() string { return fmt.Sprintf("/proc/self/fd/%d", n.FD()) }

// Close gives the namespace up and kills the processes that Start has started. The namespace itself lives on
// while other descriptors, sockets or processes hold it.
func (n *Namespace) Close() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.closed {
		return nil
	}
	n.closed = true
	if n.starter != nil {
		n.starter.stop()
	}
	return n.file.Close()
}

func (n *Namespace) enter() error {
	connection, err := n.file.SyscallConn()
	if err != nil {
		return fmt.Errorf("netns: %w", err)
	}
	var entered error
	if err := connection.Control(func(fd uintptr) {
		entered = unix.Setns(int(fd), unix.CLONE_NEWNET)
	}); err != nil {
		return fmt.Errorf("netns: %w", os.ErrClosed)
	}
	if entered != nil {
		return fmt.Errorf("netns: enter network namespace: %w", explain(entered))
	}
	return nil
}

func explain(err error) error {
	if errors.Is(err, unix.EPERM) {
		return fmt.Errorf("needs root (CAP_SYS_ADMIN): %w", err)
	}
	return err
}

// onThread calls enter, which changes the namespace of the thread, and f on a locked thread, and restores the
// thread's namespace. A thread that cannot be restored stays locked, so that the runtime ends it.
func onThread(enter, f func() error) error {
	var (
		err      error
		finished bool
		done     = make(chan struct{})
	)
	locked(func() {
		defer close(done)
		home, openErr := os.Open(ofThread)
		if openErr != nil {
			err, finished = openErr, true
			runtime.UnlockOSThread()
			return
		}
		defer home.Close()
		// Deferred, as f may end the goroutine.
		defer func() {
			if unix.Setns(int(home.Fd()), unix.CLONE_NEWNET) == nil {
				runtime.UnlockOSThread()
			}
		}()
		if err = enter(); err == nil {
			err = f()
		}
		finished = true
	})
	<-done
	if !finished {
		runtime.Goexit()
	}
	return err
}

// locked runs f on a new goroutine that is locked to an OS thread. The thread ends with the goroutine unless f
// unlocks it. It is never the process's main thread: that one's namespace is what /proc/self/ns/net and
// /proc/net show to everybody, and it cannot end before the process.
func locked(f func()) {
	go func() {
		runtime.LockOSThread()
		if unix.Gettid() != unix.Getpid() {
			f()
			return
		}
		// While this goroutine holds the main thread, the other one cannot get it.
		defer runtime.UnlockOSThread()
		held := make(chan struct{})
		locked(func() { defer close(held); f() })
		<-held
	}()
}
