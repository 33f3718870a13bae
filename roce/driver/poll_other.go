//go:build !linux

package driver

import (
	"runtime"
	"time"
)

// Without eventfd and ppoll, waiting is sleeping for short times: enough for tests over link/mem.

func yield() { runtime.Gosched() }

type eventfd struct{ fd int }

func newEventfd() (eventfd, error) { return eventfd{-1}, nil }
func (e eventfd) signal()          {}
func (e eventfd) drain()           {}
func (e eventfd) close()           {}

type pollSet struct{}

func (p *pollSet) reset()  {}
func (p *pollSet) add(int) {}

func (p *pollSet) poll(timeout time.Duration) (first bool) {
	const step = time.Millisecond
	if timeout < 0 || timeout > step {
		timeout = step
	}
	time.Sleep(timeout)
	return false
}
