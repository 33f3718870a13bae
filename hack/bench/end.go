//go:build linux

package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"runtime"
	"time"

	"golang.org/x/sys/unix"

	"github.com/xroce/xroce/verbs"
)

// endCommand is one end of a run. Its descriptor 3 is a stream socket to the other one.
type endCommand struct {
	What     string        `required:""`
	Passive  bool          `negatable:""`
	Device   string        `required:""`
	Address  netip.Addr    `required:""`
	Duration time.Duration `required:""`
	CPU      int           `name:"cpu" default:"-1"`
	MTU      int           `name:"mtu" required:""`
	Mode     string        `required:"" enum:"native,generic"`
	Polling  bool
	Flows    int `default:"1"` // queue pairs
}

const (
	messageSize  = 1 << 20 // of WRITE, SEND, READ and the writes of TCP
	inFlight     = 8       // messages
	pingPongSize = 8

	// Short messages are posted shortBatch at a time, the last of which asks for a completion, and shortBatches
	// batches are in flight.
	shortSize    = 64
	shortBatch   = 32
	shortBatches = 4
)

// Run runs the end.
func (c *endCommand) Run() error {
	file := os.NewFile(3, "peer")
	peer, err := net.FileConn(file)
	if err != nil {
		return fmt.Errorf("descriptor 3 is no socket to the other process: %w", err)
	}
	_ = file.Close()
	defer peer.Close()
	// The thread that posts and polls stays on one CPU, and other threads may use any.
	runtime.LockOSThread()
	if c.CPU >= 0 {
		var set unix.CPUSet
		set.Set(c.CPU)
		if err := unix.SchedSetaffinity(0, &set); err != nil {
			return fmt.Errorf("use CPU %d: %w", c.CPU, err)
		}
	}
	var s sample
	switch {
	case c.What == tcp && c.Passive:
		return c.receiveTCP(peer)
	case c.What == tcp:
		s, err = c.sendTCP(peer)
	case isVerbs(c.What):
		s, err = c.runVerbs(peer)
	default:
		return fmt.Errorf("no measurement %q", c.What)
	}
	if err != nil || c.Passive {
		return err
	}
	return json.NewEncoder(os.Stdout).Encode(s)
}

// pathMTU is the encoding of a path MTU in bytes.
func pathMTU(bytes int) (verbs.MTU, error) {
	for m := verbs.MTU256; m <= verbs.MTU4096; m++ {
		if m.Bytes() == bytes {
			return m, nil
		}
	}
	return 0, fmt.Errorf("%d is no path MTU: 256, 512, 1024, 2048 or 4096", bytes)
}

// gigabits is a rate in Gbit/s.
func gigabits(bytes int64, took time.Duration) float64 { return float64(bytes) * 8 / float64(took) }

// receiveTCP reads to the end of the stream and says how much that was.
func (c *endCommand) receiveTCP(peer net.Conn) error {
	listener, err := net.ListenTCP("tcp", net.TCPAddrFromAddrPort(netip.AddrPortFrom(c.Address, 0)))
	if err != nil {
		return err
	}
	defer listener.Close()
	if _, err := verbs.Exchange(peer, listener.Addr().String()); err != nil {
		return err
	}
	connection, err := listener.Accept()
	if err != nil {
		return err
	}
	defer connection.Close()
	buffer := make([]byte, messageSize)
	var received int64
	for {
		n, err := connection.Read(buffer)
		received += int64(n)
		if n == 0 || err != nil {
			break // the sender compares what has arrived
		}
	}
	return json.NewEncoder(connection).Encode(received)
}

func (c *endCommand) sendTCP(peer net.Conn) (s sample, err error) {
	address, err := verbs.Exchange(peer, "")
	if err != nil {
		return s, err
	}
	dialed, err := net.Dial("tcp", address)
	if err != nil {
		return s, err
	}
	defer dialed.Close()
	connection := dialed.(*net.TCPConn)
	buffer := make([]byte, messageSize)
	begin := time.Now()
	var sent, received int64
	for time.Since(begin) < c.Duration {
		n, err := connection.Write(buffer)
		sent += int64(n)
		if err != nil {
			return s, err
		}
	}
	if err := connection.CloseWrite(); err != nil {
		return s, err
	}
	if err := json.NewDecoder(connection).Decode(&received); err != nil {
		return s, err
	}
	s.Gigabits = gigabits(received, time.Since(begin))
	if received != sent {
		err = errors.New("TCP has lost something")
	}
	return s, err
}
