//go:build linux

package vm

import (
	"bytes"
	"os/exec"
	"runtime"
	"sync"
	"syscall"
	"time"
)

// starts is what the thread that starts all children reads. The kernel sends a child its parent death signal when the
// thread that made it ends, not the process (prctl(2), PR_SET_PDEATHSIG), so the thread is no thread of the
// scheduler's, which ends threads at will: its goroutine stays on it until the process ends.
var starts = sync.OnceValue(func() chan<- func() {
	functions := make(chan func())
	go func() {
		runtime.LockOSThread()
		for f := range functions {
			f()
		}
	}()
	return functions
})

// start starts a process that the kernel kills when this one dies, however it dies. A process that its context ends
// is waited for 5 s at most if children of its own hold its output.
func start(cmd *exec.Cmd) error {
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	cmd.WaitDelay = 5 * time.Second
	started := make(chan error)
	starts() <- func() { started <- cmd.Start() }
	return <-started
}

func run(cmd *exec.Cmd) error {
	if err := start(cmd); err != nil {
		return err
	}
	return cmd.Wait()
}

// output runs a process and returns what it wrote to its standard output and, apart, to its standard error.
func output(cmd *exec.Cmd) (out, trouble []byte, err error) {
	var buffers [2]bytes.Buffer
	cmd.Stdout, cmd.Stderr = &buffers[0], &buffers[1]
	err = run(cmd)
	return buffers[0].Bytes(), bytes.TrimSpace(buffers[1].Bytes()), err
}
