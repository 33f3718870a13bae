//go:build linux

package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"

	"github.com/xroce/xroce/internal/netlab"
)

// build builds both programs, once, and returns the folder.
func build(t *testing.T) string {
	t.Helper()
	netlab.RequireRoot(t)
	folder, err := built()
	require.NoError(t, err)
	return folder
}

var programs string // the folder, once they are built

var built = sync.OnceValues(func() (_ string, err error) {
	if programs, err = os.MkdirTemp("", "bench"); err != nil {
		return "", err
	}
	output, err := exec.Command("go", "build", "-o", programs+"/", ".", "../rawprobe").CombinedOutput()
	if err != nil {
		err = fmt.Errorf("go build: %w: %s", err, output)
	}
	return programs, err
})

func TestMain(m *testing.M) {
	code := m.Run()
	if programs != "" {
		_ = os.RemoveAll(programs)
	}
	os.Exit(code)
}

// TestCase_F16 runs everything once and shortly: every measurement has a value in every cell, or the cell says why not.
func TestCase_F16(t *testing.T) {
	folder := build(t)
	var output, complaints bytes.Buffer
	command := exec.Command(filepath.Join(folder, "bench"), "--pairs", "1", "--duration", "100ms", "--mtu", "1024,4096",
		"--json")
	command.Stdout, command.Stderr = &output, &complaints
	require.NoError(t, command.Run(), "%s", &complaints)
	var r report
	require.NoError(t, json.Unmarshal(output.Bytes(), &r), "%s", &output)
	require.Equal(t, 1, r.Pairs)
	require.Equal(t, 1, r.Flows)
	require.Equal(t, 0.1, r.Seconds)
	require.NotEmpty(t, r.Machine.Kernel)
	require.Len(t, r.Cells, 4)
	for i, c := range r.Cells {
		require.Equal(t, []string{"native", "generic"}[i%2], c.Mode)
		require.Contains(t, c.XDPMode, c.Mode)
		require.Equal(t, []int{1024, 4096}[i/2], c.PathMTU)
		require.Equal(t, []int{1500, 4192}[i/2], c.NetdevMTU)
		names := map[string]float64{}
		for _, l := range c.Lines {
			require.Len(t, l.Runs, 1)
			require.Positive(t, l.Median, l.Name)
			if payload := map[bool]int{false: c.PathMTU, true: 64}[l.Name == short]; l.Unit == "Gbit/s" && l.Name != tcp {
				require.InDelta(t, l.Median*1e9, l.Megapackets*1e6*8*float64(payload), 1, l.Name)
			} else {
				require.Zero(t, l.Megapackets, l.Name)
			}
			names[l.Name] = l.Median
		}
		want := measurements
		if c.PathMTU == 4096 && c.Skipped != "" {
			require.Contains(t, c.Skipped, "path MTU 4096")
			want = []string{raw, rawWork, tcp, rawPingPong}
		} else {
			require.Empty(t, c.Skipped)
			require.InDelta(t, names[write]/names[raw], ratio(t, c, write, raw), 1e-9)
			require.InDelta(t, names[pingPong]/names[rawPingPong], ratio(t, c, pingPong, rawPingPong), 1e-9)
		}
		require.Len(t, names, len(want))
		for _, name := range want {
			require.Contains(t, names, name)
		}
	}
}

func ratio(t *testing.T, c cell, what, by string) float64 {
	t.Helper()
	for _, l := range c.Lines {
		if l.Name == what {
			return l.Ratios[by].Median
		}
	}
	require.Fail(t, "no measurement", what)
	return 0
}

// TestFailure: what was measured before something failed is not lost.
func TestFailure(t *testing.T) {
	folder := build(t)
	script := filepath.Join(folder, "script")
	const text = "#!/bin/sh\ncase \"$*\" in *'-payload 2048'*) echo broken >&2; exit 3;; esac\nexec \"${0%script}rawprobe\" \"$@\"\n"
	require.NoError(t, os.WriteFile(script, []byte(text), 0o755))
	var output, complaints bytes.Buffer
	command := exec.Command(filepath.Join(folder, "bench"), "--pairs", "1", "--duration", "50ms", "--flows", "4", "--mtu",
		"1024,2048",
		"--mode", "generic", "--rawprobe", script)
	command.Stdout, command.Stderr = &output, &complaints
	require.EqualError(t, command.Run(), "exit status 1")
	require.Contains(t, complaints.String(), "bench: raw, generic, path MTU 2048: active process: exit status 3: broken")
	require.Contains(t, output.String(), "generic XDP, path MTU 1024, netdev MTU 1500 (obtained: generic")
	require.Contains(t, output.String(), "raw ping-pong")
	require.Contains(t, output.String(), "; 4 flows\n")
	require.Regexp(t, `(?m)^ +Mpkt/s +/ raw +/ raw\+work +/ TCP +/ beside$`, output.String())
	require.Regexp(t, `(?m)^WRITE +\d+\.\d+ \(\S+\) Gbit/s +\d+\.\d{3} +\d`, output.String())
	require.Regexp(t, `(?m)^TCP +\d+\.\d+ \(\S+\) Gbit/s  +\d+\.\d\d \(`, output.String())
	require.NotContains(t, output.String(), "2048, netdev")
}

// TestBeside: another build measures the same beside this one, of what was asked for.
func TestBeside(t *testing.T) {
	folder := build(t)
	script := filepath.Join(t.TempDir(), "other")
	text := "#!/bin/sh\necho \"$*\" >>\"$0.calls\"\nexec " + filepath.Join(folder, "bench") + " \"$@\"\n"
	require.NoError(t, os.WriteFile(script, []byte(text), 0o755))
	command := exec.Command(filepath.Join(folder, "bench"), "--pairs", "2", "--duration", "50ms", "--mtu", "1024",
		"--mode", "generic",
		"--only", "64 B WRITE,ping-pong", "--beside", script, "--json")
	output, err := command.Output()
	require.NoError(t, err)
	var r report
	require.NoError(t, json.Unmarshal(output, &r))
	var names []string
	for _, l := range r.Cells[0].Lines {
		names = append(names, l.Name)
		require.Len(t, l.Runs, 2)
	}
	require.Equal(t, []string{short, short + beside, pingPong, pingPong + beside}, names)
	require.Positive(t, ratio(t, r.Cells[0], short, short+beside))
	calls, err := os.ReadFile(script + ".calls")
	require.NoError(t, err)
	require.Equal(t, 8, bytes.Count(calls, []byte("\n")), "%s", calls) // two ends of two measurements in two rounds
	wrong, err := exec.Command(filepath.Join(folder, "bench"), "--only", "WRITES").CombinedOutput()
	require.Error(t, err)
	require.Contains(t, string(wrong), `--only: no measurement "WRITES": raw, raw+work, TCP, WRITE`)
}

// TestInterrupt: a signal ends it at once, with one line.
func TestInterrupt(t *testing.T) {
	folder := build(t)
	command := exec.Command(filepath.Join(folder, "bench"), "--pairs", "1", "--duration", "1m", "--mtu", "1024", "--mode",
		"generic")
	complaints, err := command.StderrPipe()
	require.NoError(t, err)
	require.NoError(t, command.Start())
	lines := bufio.NewScanner(complaints)
	require.True(t, lines.Scan())
	require.Equal(t, "generic, path MTU 1024: round 1 of 1", lines.Text())
	require.NoError(t, command.Process.Signal(os.Interrupt))
	start := time.Now()
	require.True(t, lines.Scan())
	require.Equal(t, "bench: interrupt signal received", lines.Text())
	require.False(t, lines.Scan())
	require.EqualError(t, command.Wait(), "exit status 1")
	require.Less(t, time.Since(start), 30*time.Second, "a run takes a minute")
}

// TestRawIsDelivered: what the probe says it has carried is what the kernel has seen arrive, at the length of an RC
// packet.
func TestRawIsDelivered(t *testing.T) {
	folder := build(t)
	for _, c := range []struct {
		mode string
		mtu  int
		what string
	}{{"native", 4096, rawWork}, {"generic", 1024, raw}} {
		l, err := (&runCommand{RawProbe: filepath.Join(folder, "rawprobe"), Duration: 100 * time.Millisecond, Flows: 1}).newLab(c.mode, c.mtu)
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, l.close()) })
		s, failures := l.measure(t.Context(), c.what)
		require.Less(t, len(failures), attempts, "%v", failures)
		require.Positive(t, s.Frames)
		var seen netlink.LinkStatistics
		require.NoError(t, l.b.Do(func() error {
			device, err := netlink.LinkByName(l.probe.B.Name)
			if err == nil {
				seen = *device.Attrs().Statistics
			}
			return err
		}))
		// Repetitions and the kernel's own few (neighbour discovery) come on top; up to 0.1 % may be lost behind the
		// count.
		require.GreaterOrEqual(t, seen.RxPackets, s.Frames)
		require.GreaterOrEqual(t, seen.RxBytes, s.Frames*uint64(c.mtu+44))
		if len(failures) == 0 {
			require.Less(t, seen.RxPackets, s.Frames+100)
			// No rate without the time that it took.
			require.LessOrEqual(t, s.Gigabits*1e9*0.1, 1.001*float64(s.Frames)*float64(c.mtu)*8)
		}
	}
}

// TestEndsThatFail: a run that cannot work is tried again, and then says why.
func TestEndsThatFail(t *testing.T) {
	folder := build(t)
	l, err := (&runCommand{RawProbe: filepath.Join(folder, "rawprobe"), Duration: 100 * time.Millisecond, Flows: 1}).newLab("native", 1024)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, l.close()) })
	l.mtu = 4096
	_, failures := l.measure(t.Context(), raw)
	require.Len(t, failures, attempts)
	require.ErrorContains(t, failures[0], "payload of 4096 bytes needs an MTU of 4140, veth0 has 1500")

	l.RawProbe = filepath.Join(folder, "missing")
	_, failures = l.measure(t.Context(), raw)
	require.Len(t, failures, attempts)
	require.ErrorIs(t, failures[0], os.ErrNotExist)
}
