//go:build linux

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/xroce/xroce/internal/netlab"
	"github.com/xroce/xroce/roce"
)

// The measurements of a round. All but TCP and the raw ones are by the verbs.
const (
	raw         = "raw"
	rawWork     = "raw+work"
	tcp         = "TCP"
	write       = "WRITE"
	send        = "SEND"
	read        = "READ"
	short       = "64 B WRITE"
	rawPingPong = "raw ping-pong"
	pingPong    = "ping-pong"
)

var measurements = []string{raw, rawWork, tcp, write, send, read, short, rawPingPong, pingPong}

// beside marks a measurement by another build of this program (--beside).
const beside = " beside"

// plan is what a round consists of: what --only names, and behind each measurement by the verbs the same by the other
// build.
func (c *runCommand) plan() (list []string) {
	for _, what := range measurements {
		if len(c.Only) > 0 && !slices.Contains(c.Only, what) {
			continue
		}
		list = append(list, what)
		if c.Beside != "" && isVerbs(what) {
			list = append(list, what+beside)
		}
	}
	return list
}

func isVerbs(m string) bool {
	switch strings.TrimSuffix(m, beside) {
	case write, send, read, short, pingPong:
		return true
	}
	return false
}

func isPingPong(m string) bool { return m == rawPingPong || strings.TrimSuffix(m, beside) == pingPong }

// sample is what a run has measured; the active process prints it as a line of JSON.
type sample struct {
	Gigabits     float64 `json:"gigabitsPerSecond,omitempty"`
	Microseconds float64 `json:"microseconds,omitempty"`
	Skipped      string  `json:"skipped,omitempty"`
	XDPMode      string  `json:"xdpMode,omitempty"`
	Frames       uint64  `json:"frames,omitempty"` // sent, of the raw ones
}

func (s sample) value() float64 { return max(s.Gigabits, s.Microseconds) }

// lab is two namespaces with three identical pairs of devices between them. Programs that are attached to a device
// change what it does for everybody else on it (for example TSO), so that nobody shares.
type lab struct {
	*runCommand
	mode           string
	mtu, netdevMTU int
	a, b           *netlab.Namespace
	cpus           []int // one per process; none lets the scheduler choose
	probe, tcp     *netlab.Pair
	verbs          *netlab.Pair
}

// netdevMTU is Ethernet's usual one where the path MTU fits it, and else the least that the path MTU needs.
func netdevMTU(pathMTU int) int { return max(1500, pathMTU+roce.MTUOverhead) }

func (c *runCommand) newLab(mode string, mtu int) (l *lab, err error) {
	l = &lab{runCommand: c, mode: mode, mtu: mtu, netdevMTU: netdevMTU(mtu)}
	if !c.Free {
		l.cpus = usableCPUs()
	}
	if l.a, err = netlab.NewNamespace(); err != nil {
		return nil, err
	}
	if l.b, err = netlab.NewNamespace(); err != nil {
		return nil, errors.Join(err, l.a.Close())
	}
	for _, pair := range []**netlab.Pair{&l.probe, &l.tcp, &l.verbs} {
		if *pair, err = netlab.Join(l.a, l.b, netlab.PairOptions{MTU: l.netdevMTU}); err != nil {
			return nil, errors.Join(err, l.close())
		}
	}
	return l, nil
}

// usableCPUs returns the CPUs that this process may use.
func usableCPUs() (cpus []int) {
	var set unix.CPUSet
	if unix.SchedGetaffinity(0, &set) != nil {
		return nil
	}
	for cpu := 0; len(cpus) < set.Count(); cpu++ {
		if set.IsSet(cpu) {
			cpus = append(cpus, cpu)
		}
	}
	return cpus
}

// close closes the namespaces, and with them go the devices.
func (l *lab) close() error { return errors.Join(l.a.Close(), l.b.Close()) }

// attempts bounds how often a run is repeated that does not count, for example one that lost too much.
const attempts = 3

// measure runs one measurement.
func (l *lab) measure(ctx context.Context, what string) (s sample, failures []error) {
	for len(failures) < attempts {
		var err error
		if s, err = l.attempt(ctx, what); err == nil {
			return s, failures
		}
		failures = append(failures, fmt.Errorf("%s, %s, path MTU %d: %w", what, l.mode, l.mtu, err))
		if ctx.Err() != nil {
			break
		}
	}
	return s, failures
}

// attempt starts the two processes of a run, active and passive, and reads what the active one prints.
func (l *lab) attempt(ctx context.Context, what string) (s sample, err error) {
	// Opening a device and connecting take well under a second.
	ctx, cancel := context.WithTimeoutCause(ctx, 3*l.Duration+20*time.Second, errors.New("the run takes too long"))
	defer cancel()
	ends, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return s, os.NewSyscallError("socketpair", err)
	}
	var output bytes.Buffer
	var complaints [2]bytes.Buffer
	var commands [2]*exec.Cmd
	for side, name := range []string{"active", "passive"} {
		socket := os.NewFile(uintptr(ends[side]), name)
		defer socket.Close()
		command := l.command(ctx, what, side)
		command.ExtraFiles = []*os.File{socket}
		command.Stderr = &complaints[side]
		// Without a limit, Wait waits for whoever holds the pipes.
		command.WaitDelay = time.Second
		if side == 0 {
			command.Stdout = &output
		}
		commands[side] = command
	}
	var failures [2]error
	namespaces := []*netlab.Namespace{l.a, l.b}
	for side, command := range commands {
		if err := namespaces[side].Start(command); err != nil {
			cancel()
			failures[side] = err
			commands[side] = nil
			break
		}
		// Only the child keeps its end, so that the other one sees when it is gone.
		_ = command.ExtraFiles[0].Close()
	}
	for side, command := range commands {
		if command == nil || command.Process == nil {
			continue
		}
		if err := command.Wait(); err != nil {
			failures[side] = fmt.Errorf("%s process: %w: %s", []string{"active", "passive"}[side], err,
				bytes.TrimSpace(complaints[side].Bytes()))
		}
	}
	if err := errors.Join(failures[:]...); err != nil {
		if ctx.Err() != nil {
			err = errors.Join(context.Cause(ctx), err)
		}
		return s, err
	}
	if err := json.Unmarshal(output.Bytes(), &s); err != nil {
		return s, fmt.Errorf("the active process says %q: %w", output.Bytes(), err)
	}
	if s.Skipped == "" && s.value() <= 0 {
		return s, fmt.Errorf("the active process says %q: no value", output.Bytes())
	}
	return s, nil
}

// command returns the process of a side, 0 active and 1 passive.
func (l *lab) command(ctx context.Context, what string, side int) *exec.Cmd {
	cpu := -1
	if len(l.cpus) > 1 {
		cpu = l.cpus[side]
	}
	ends := func(p *netlab.Pair) (own, other *netlab.End) {
		if side == 0 {
			return &p.A, &p.B
		}
		return &p.B, &p.A
	}
	if what == raw || what == rawWork || what == rawPingPong {
		own, other := ends(l.probe)
		arguments := []string{
			"-device", own.Name, "-peer", other.HardwareAddr.String(), "-role", []string{"send", "receive"}[side],
			"-duration", l.Duration.String(), "-cpu", strconv.Itoa(cpu), "-payload", strconv.Itoa(l.mtu),
			"-work=" + strconv.FormatBool(what == rawWork), "-generic=" + strconv.FormatBool(l.mode == "generic"),
		}
		if what == rawPingPong {
			arguments = append(arguments, "-test", "pingpong", "-payload", strconv.Itoa(pingPongSize))
		}
		return exec.CommandContext(ctx, l.RawProbe, arguments...)
	}
	pair := l.verbs
	if what == tcp {
		pair = l.tcp
	}
	own, _ := ends(pair)
	program := "/proc/self/exe"
	if strings.HasSuffix(what, beside) {
		program, what = l.Beside, strings.TrimSuffix(what, beside)
	}
	return exec.CommandContext(ctx, program, "end",
		"--what", what, "--passive="+strconv.FormatBool(side == 1), "--device", own.Name, "--address", own.IPv4().String(),
		"--duration", l.Duration.String(), "--cpu", strconv.Itoa(cpu), "--mtu", strconv.Itoa(l.mtu), "--mode", l.mode,
		"--polling="+strconv.FormatBool(l.Polling), "--flows", strconv.Itoa(l.Flows),
	)
}
