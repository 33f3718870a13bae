//go:build linux

// Command rawprobe measures what AF_XDP itself carries between two network devices, as the ceiling for anything built
// on it. It shares no code with the packages that are measured against it: system calls, and a redirect program of
// ten instructions.
//
// A run is two processes, each in the network namespace of its device, with the two ends of a stream socket as
// descriptor 3, over which they say that they are ready and what they have counted. One is started with -role
// receive. The result is a line of JSON from the other one.
//
// The frames have the length of RoCEv2 packets of RC over IPv4 with as much payload, and an EtherType that no
// protocol has, so that the kernel's stack does nothing with those that are not redirected.
package main

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"net"
	"os"
	"runtime"
	"time"

	"golang.org/x/sys/unix"
)

type options struct {
	device   string
	peer     net.HardwareAddr
	generic  bool
	receive  bool
	test     string
	payload  int
	work     bool
	duration time.Duration
	cpu      int
}

// result is what a run prints.
type result struct {
	Gigabits     float64 `json:"gigabitsPerSecond,omitempty"` // payload
	Frames       uint64  `json:"frames,omitempty"`            // sent
	Lost         uint64  `json:"lost"`
	Microseconds float64 `json:"microseconds,omitempty"` // median round trip
	P99          float64 `json:"p99Microseconds,omitempty"`
}

// maximumLoss is the share of the frames that may be lost: above it, frames were submitted, not carried.
const maximumLoss = 0.001

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "rawprobe:", err)
		os.Exit(1)
	}
}

func run() error {
	o, err := parse()
	if err != nil {
		return err
	}
	peer, err := inherited()
	if err != nil {
		return err
	}
	defer peer.Close()
	// The thread that has the rings stays on one CPU, and other threads may use any.
	runtime.LockOSThread()
	if o.cpu >= 0 {
		var set unix.CPUSet
		set.Set(o.cpu)
		if err := unix.SchedSetaffinity(0, &set); err != nil {
			return fmt.Errorf("use CPU %d: %w", o.cpu, err)
		}
	}
	s, err := openSocket(o)
	if err != nil {
		return err
	}
	defer s.close()
	if err := meet(peer); err != nil {
		return err
	}
	p := &probe{options: o, socket: s, peer: json.NewDecoder(peer), toPeer: json.NewEncoder(peer)}
	switch {
	case o.receive && o.test == "stream":
		return p.receiveStream()
	case o.receive:
		return p.answerPings()
	}
	var r result
	if o.test == "stream" {
		r, err = p.sendStream()
	} else {
		r, err = p.ping()
	}
	if err == nil {
		err = s.invalid()
	}
	if err != nil {
		return err
	}
	return json.NewEncoder(os.Stdout).Encode(r)
}

func parse() (o options, err error) {
	flag.StringVar(&o.device, "device", "", "network device, of which queue 0 is used")
	peer := flag.String("peer", "", "Ethernet address of the other end")
	flag.BoolVar(&o.generic, "generic", false, "generic XDP instead of native")
	role := flag.String("role", "send", "send or receive")
	flag.StringVar(&o.test, "test", "stream", "stream or pingpong")
	flag.IntVar(&o.payload, "payload", 1024, "bytes of payload per frame")
	flag.BoolVar(&o.work, "work", false, "copy the payload and take its CRC-32 at both ends")
	flag.DurationVar(&o.duration, "duration", time.Second, "time to measure for")
	flag.IntVar(&o.cpu, "cpu", -1, "CPU to stay on")
	flag.Parse()
	if o.peer, err = net.ParseMAC(*peer); err != nil || len(o.peer) != 6 {
		return o, fmt.Errorf("-peer %q is no Ethernet address", *peer)
	}
	o.receive = *role == "receive"
	switch {
	case o.device == "":
		return o, errors.New("-device is missing")
	case *role != "send" && *role != "receive":
		return o, fmt.Errorf("-role %q is not send or receive", *role)
	case o.test != "stream" && o.test != "pingpong":
		return o, fmt.Errorf("-test %q is not stream or pingpong", o.test)
	case o.payload < minimumPayload || o.payload > maximumPayload:
		return o, fmt.Errorf("-payload %d is not in %d..%d", o.payload, minimumPayload, maximumPayload)
	case o.duration <= 0 || flag.NArg() > 0:
		return o, errors.New("-duration must be positive, and there are no arguments")
	}
	return o, nil
}

func inherited() (net.Conn, error) {
	file := os.NewFile(3, "peer")
	defer file.Close()
	connection, err := net.FileConn(file)
	if err != nil {
		return nil, fmt.Errorf("descriptor 3 is no socket to the other process: %w", err)
	}
	return connection, nil
}

// meet waits until the other process has its socket.
func meet(peer net.Conn) error {
	var answer [1]byte
	if _, err := peer.Write([]byte{1}); err != nil {
		return err
	}
	if _, err := peer.Read(answer[:]); err != nil {
		return fmt.Errorf("the other process is gone: %w", err)
	}
	return nil
}

// yield lets another thread of this CPU run. Both ends may share one.
func yield() { _, _, _ = unix.RawSyscall(unix.SYS_SCHED_YIELD, 0, 0, 0) }
