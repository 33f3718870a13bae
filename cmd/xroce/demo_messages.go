package main

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"syscall"

	"github.com/xroce/xroce/internal/jsonline"
	"github.com/xroce/xroce/verbs"
)

// The demo is three processes. The parent makes the network, starts the passive and the active process, and makes the
// report. The active one moves the data, the passive one only lends its memory. Each pair of processes has a stream
// between it, which carries a JSON value a line. Streams are Unix socket pairs: they cross network namespaces.

// channel is one end of such a stream.
type channel struct {
	connection net.Conn
	peer       string // who is at the other end
}

// errPeerGone: the process at the other end of a channel has ended. The parent knows why.
var errPeerGone = errors.New("gone")

func (c *channel) send(message any) error {
	if err := jsonline.Write(c.connection, message); err != nil {
		return c.explain(err)
	}
	return nil
}

func (c *channel) receive(message any) error {
	if err := jsonline.Read(c.connection, message); err != nil {
		return c.explain(err)
	}
	return nil
}

// explain recognizes the end of the peer. The parent closes a child's channel once it has ended, also under a send.
func (c *channel) explain(err error) error {
	for _, broken := range []error{io.EOF, io.ErrUnexpectedEOF, syscall.EPIPE, syscall.ECONNRESET, net.ErrClosed} {
		if errors.Is(err, broken) {
			return fmt.Errorf("the %s process is %w", c.peer, errPeerGone)
		}
	}
	return fmt.Errorf("channel to the %s process: %w", c.peer, err)
}

// A step is a message that says how far its sender is.
type step string

// Steps.
const (
	stepConnected step = "connected" // both directions: the queue pair takes packets
	stepWritten   step = "written"   // active to passive: the file is there, hash it
	stepPingPong  step = "ping-pong" // both directions: receives are posted
	stepContinue  step = "continue"  // parent to both: the counters are read, packets to closed queue pairs do not matter
)

func (c *channel) expect(want step) error {
	var got step
	if err := c.receive(&got); err != nil {
		return err
	}
	if got != want {
		return fmt.Errorf("the %s process says %q instead of %q", c.peer, got, want)
	}
	return nil
}

// configuration is the parent's first message to a child.
type configuration struct {
	Device     string        `json:"device"`
	Mode       verbs.XDPMode `json:"mode"`
	PathMTU    verbs.MTU     `json:"pathMTU"`
	Iterations int           `json:"iterations"`
	File       demoFile      `json:"file"`
	Address    netip.Addr    `json:"address"`    // of the device, the GID to use
	TCPAddress netip.Addr    `json:"tcpAddress"` // of the other device, for TCP
}

// childMessage is what a child tells the parent; one field is set.
type childMessage struct {
	Stage    string       `json:"stage,omitempty"`
	Progress *amount      `json:"progress,omitempty"`
	Measured *measurement `json:"measured,omitempty"`
	Finished *ending      `json:"finished,omitempty"`
	Failure  *failure     `json:"failure,omitempty"`
}

// amount is how much of a stage is done.
type amount struct {
	Done  uint64 `json:"done"`
	Total uint64 `json:"total"`
}

// measurement is what a child found by RDMA.
type measurement struct {
	Side sideReport `json:"side"`
	// Only the active process has these.
	Device   deviceReport   `json:"device"`
	File     fileReport     `json:"file"`
	Write    transferReport `json:"write"`
	Read     transferReport `json:"read"`
	PingPong pingPongReport `json:"pingPong"`
}

// ending is what a child says last.
type ending struct {
	TCP transferReport `json:"tcp"` // of the active process
}

// failure is the end of a child that could not go on.
type failure struct {
	Text        string `json:"text"`
	Environment bool   `json:"environment"`
	PeerGone    bool   `json:"peerGone"`
}

func newFailure(err error) *failure {
	return &failure{Text: oneLine(err), Environment: isEnvironment(err), PeerGone: errors.Is(err, errPeerGone)}
}

func (f *failure) err() error {
	err := errors.New(f.Text)
	if f.Environment {
		return &environmentError{err}
	}
	return err
}
