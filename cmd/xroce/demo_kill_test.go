package main

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/xroce/xroce/internal/netlab"
	"github.com/xroce/xroce/internal/netns"
)

// players are the processes of a running demo.
type players struct {
	run             *program
	active, passive int
	ends            []unix.PollFd // of both, readable once the process has ended, reaped or not (pidfd_open(2))
	namespaces      map[string]bool
}

// startDemo starts a demo with so many round trips, and waits until it is in the stage.
func startDemo(t *testing.T, iterations int, stage string) *players {
	t.Helper()
	netlab.RequireRoot(t)
	p := &players{namespaces: map[string]bool{}}
	p.run = newProgram("demo", "--json", "--iterations", itoa(iterations), "--file", zeroFile(t))
	lines := &p.run.stderr
	p.run.begin(t, nil)
	for deadline := time.After(20 * time.Second); !strings.Contains(lines.String(), stage); {
		select {
		case <-lines.changed:
		case <-p.run.ended:
			require.Fail(t, "the demo ended", lines.String())
		case <-deadline:
			require.Fail(t, "the demo did not come to "+stage, lines.String())
		}
	}
	_, err := fmt.Sscanf(lines.String(), "started the active process %d and the passive process %d", &p.active, &p.passive)
	require.NoError(t, err, lines.String())
	for _, pid := range []int{p.active, p.passive} {
		n, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/net", pid))
		require.NoError(t, err)
		p.namespaces[n] = true
		pidfd, err := unix.PidfdOpen(pid, 0)
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, unix.Close(pidfd)) })
		p.ends = append(p.ends, unix.PollFd{Fd: int32(pidfd), Events: unix.POLLIN})
	}
	require.Len(t, p.namespaces, 2)
	return p
}

// requireGone checks that the children are gone, and that nobody is in their namespaces.
func (p *players) requireGone(t *testing.T, limit time.Duration) {
	t.Helper()
	gone := func() bool {
		processes, err := filepath.Glob("/proc/[0-9]*")
		require.NoError(t, err)
		for _, process := range processes {
			n, err := os.Readlink(process + "/ns/net")
			if err == nil && p.namespaces[n] {
				return false
			}
		}
		ended, err := unix.Poll(p.ends, 0)
		require.NoError(t, err)
		return ended == len(p.ends)
	}
	require.Eventually(t, gone, limit, 5*time.Millisecond)
}

// requireOneErrorLine checks the only line that begins like an error.
func (p *players) requireOneErrorLine(t *testing.T, words string) {
	t.Helper()
	text := p.run.stderr.String()
	require.Equal(t, 1, strings.Count(text, "xroce: "), text)
	last := text[strings.LastIndex(strings.TrimSpace(text), "\n")+1:]
	require.True(t, strings.HasPrefix(last, "xroce: "), text)
	require.Contains(t, last, words)
}

// endless is a number of round trips that takes longer than any test.
const endless = 100_000_000

const (
	stageStart    = "started the active process"
	stagePingPong = "SEND and RECV"
)

func TestDemoChildKilled(t *testing.T) {
	for _, stage := range []string{stageStart, stagePingPong} {
		for _, name := range []string{"active", "passive"} {
			p := startDemo(t, endless, stage)
			pid := map[string]int{"active": p.active, "passive": p.passive}[name]
			require.NoError(t, syscall.Kill(pid, syscall.SIGKILL))
			start := time.Now()
			require.Equal(t, statusFailed, p.run.status(t, 3*time.Second))
			t.Log(time.Since(start))
			p.requireOneErrorLine(t, fmt.Sprintf("the %s process (pid %d) died: killed by signal 9 (killed)", name, pid))
			require.Empty(t, p.run.stdout.String())
			p.requireGone(t, 2*time.Second)
		}
	}
}

func TestDemoParentKilled(t *testing.T) {
	for _, stage := range []string{stageStart, stagePingPong} {
		p := startDemo(t, endless, stage)
		require.NoError(t, p.run.command.Process.Kill())
		start := time.Now()
		p.requireGone(t, 2*time.Second)
		t.Log(time.Since(start))
	}
}

func TestDemoInterrupted(t *testing.T) {
	for _, s := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM} {
		p := startDemo(t, endless, stagePingPong)
		require.NoError(t, p.run.command.Process.Signal(s))
		require.Equal(t, 128+int(s), p.run.status(t, 2*time.Second))
		p.requireOneErrorLine(t, "stopped by signal: "+s.String())
		p.requireGone(t, 2*time.Second)
	}
}

// TestDemoKernelSeesPacket sends one datagram to port 4791 through the kernel while the demo is running.
func TestDemoKernelSeesPacket(t *testing.T) {
	p := startDemo(t, 100_000, stagePingPong)
	n, err := netns.Open(fmt.Sprintf("/proc/%d/ns/net", p.active))
	require.NoError(t, err)
	require.NoError(t, sendDatagram(n, netip.MustParseAddrPort("10.9.0.2:4791")))
	require.NoError(t, n.Close())
	require.Equal(t, statusFailed, p.run.status(t, 20*time.Second))
	p.requireOneErrorLine(t, "the kernel of the active process saw 1 packets to UDP port 4791 instead of none; "+
		"the kernel of the passive process saw 1 packets")
	var r report
	require.NoError(t, json.Unmarshal([]byte(p.run.stdout.String()), &r), "the report is there all the same")
	require.Equal(t, []uint64{1, 1}, []uint64{r.Active.KernelPackets, r.Passive.KernelPackets})
	require.Equal(t, []uint64{0, 1}, []uint64{r.Active.XDPPassedPackets, r.Passive.XDPPassedPackets})
}

// TestReason checks that the cause is reported, and not what follows from it.
func TestReason(t *testing.T) {
	lost := childMessage{Failure: newFailure(fmt.Errorf("the passive process is %w", errPeerGone))}
	cause := childMessage{Failure: newFailure(usage("no such thing"))}
	c := &children{active: &child{name: "active"}, passive: &child{name: "passive"}, events: make(chan event, 1)}
	c.events <- event{child: c.passive, message: cause}
	err := c.reason(event{child: c.active, message: lost})
	require.EqualError(t, err, "passive process: no such thing")
	require.Equal(t, statusEnvironment, exitStatus(err))

	err = c.reason(event{child: c.active, message: lost})
	require.EqualError(t, err, "active process: the passive process is gone")
	require.Equal(t, statusFailed, exitStatus(err))
}
