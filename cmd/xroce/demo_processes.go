package main

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"syscall"
	"time"

	"github.com/xroce/xroce/internal/netlab"
)

// Descriptors that a child inherits.
const (
	descriptorParent = 3 + iota
	descriptorPeer
	descriptorFile // of the active process, if it is to read a file
)

// child is a process of the demo, as its parent sees it.
type child struct {
	name    string
	command *exec.Cmd
	channel *channel
}

// event is a message of a child, or its end.
type event struct {
	child   *child
	message childMessage
	ended   bool
	state   *os.ProcessState
}

// children are the processes of the demo.
type children struct {
	active, passive *child
	events          chan event
	running         int
}

// startChildren starts both processes. The file, if there is one, is for the active one.
func startChildren(active, passive *netlab.Namespace, file *os.File) (*children, error) {
	c := &children{events: make(chan event)}
	activeEnd, passiveEnd, err := socketPair()
	if err != nil {
		return nil, err
	}
	defer activeEnd.Close()
	defer passiveEnd.Close()
	if c.passive, err = c.start(passive, "passive", passiveEnd); err == nil {
		files := []*os.File{activeEnd}
		if file != nil {
			files = append(files, file)
		}
		c.active, err = c.start(active, "active", files...)
	}
	if err != nil {
		c.end()
		return nil, err
	}
	return c, nil
}

func (c *children) start(n *netlab.Namespace, name string, files ...*os.File) (*child, error) {
	ours, theirs, err := socketPair()
	if err != nil {
		return nil, err
	}
	defer ours.Close()
	defer theirs.Close()
	connection, err := net.FileConn(ours)
	if err != nil {
		return nil, err
	}
	p := &child{name: name, channel: &channel{connection: connection, peer: name}}
	p.command = exec.Command(self, "demo-"+name)
	p.command.Args[0] = "xroce"
	p.command.Stderr = os.Stderr // for the trace of a panic
	p.command.ExtraFiles = append([]*os.File{theirs}, files...)
	p.command.SysProcAttr = ownGroup()
	if err := n.Start(p.command); err != nil {
		return nil, errors.Join(fmt.Errorf("start the %s process: %w", name, err), connection.Close())
	}
	c.running++
	go p.follow(c.events)
	return p, nil
}

// follow passes on what the child says, and at last that it has ended.
func (p *child) follow(events chan<- event) {
	for {
		var m childMessage
		if p.channel.receive(&m) != nil {
			break
		}
		events <- event{child: p, message: m}
	}
	_ = p.command.Wait() // its error is in the state
	_ = p.channel.connection.Close()
	events <- event{child: p, ended: true, state: p.command.ProcessState}
}

// end kills the processes that still run and waits for them.
func (c *children) end() {
	for _, p := range []*child{c.passive, c.active} {
		if p != nil {
			_ = p.command.Process.Kill() // fails if it has ended
		}
	}
	for c.running > 0 {
		if e := <-c.events; e.ended {
			c.running--
		}
	}
}

// reason says why the run failed, after an event that means so. If a process has lost its peer, the end of the peer is
// what matters, and it may be reported a moment later.
func (c *children) reason(first event) error {
	err, secondary := first.failure()
	for deadline := time.After(2 * time.Second); secondary; {
		select {
		case e := <-c.events:
			if e.ended {
				c.running--
			}
			if e.child != first.child && (e.ended || e.message.Failure != nil) {
				err, secondary = e.failure()
			}
		case <-deadline:
			return err
		}
	}
	return err
}

// failure returns the error behind an event; secondary says that it only follows from the end of another process.
func (e event) failure() (err error, secondary bool) {
	if f := e.message.Failure; f != nil {
		err := f.err()
		return fmt.Errorf("%s process: %w", e.child.name, err), f.PeerGone
	}
	how := e.state.String()
	if status, ok := e.state.Sys().(syscall.WaitStatus); ok && status.Signaled() {
		how = fmt.Sprintf("killed by signal %d (%v)", status.Signal(), status.Signal())
	}
	return fmt.Errorf("the %s process (pid %d) died: %s", e.child.name, e.state.Pid(), how), false
}
