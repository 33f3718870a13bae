package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/xroce/xroce/internal/control"
	"github.com/xroce/xroce/internal/netlab"
	"github.com/xroce/xroce/verbs"
)

// observed makes an observation of a device.
func observed(path string, uptime float64, counts, drops verbs.Counts) observation {
	s := verbs.Snapshot{PID: 7, Format: verbs.SnapshotFormat, Time: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)}
	s.Device = verbs.DeviceStatus{Name: "eth0", Rung: "native+frags", Uptime: uptime, QPNBase: 0x4000, QPs: 3,
		State: "active"}
	s.Counters = verbs.TransportCounters{Counts: counts, Drops: drops}
	return observation{path: path, snapshot: s, document: json.RawMessage(`{"format":1}`)}
}

func TestStatReports(t *testing.T) {
	before := []observation{
		observed("a", 10, verbs.Counts{"sent_pkts": 100, "rcvd_bytes": 0}, verbs.Counts{"icrc_bad": 1}),
		observed("b", 10, verbs.Counts{"sent_pkts": 100}, nil),
	}
	now := []observation{
		observed("a", 12, verbs.Counts{"sent_pkts": 300, "sent_bytes": 500_000, "rcvd_bytes": 1_000_000, "retransmitted_pkts": 8},
			verbs.Counts{"icrc_bad": 1, "qp_state": 4}),
		observed("b", 2, verbs.Counts{"sent_pkts": 5}, nil),  // another device since
		observed("c", 12, verbs.Counts{"sent_pkts": 5}, nil), // a new one
	}
	now[0].snapshot.Steering = verbs.Counts{"redirected": 9, noSocket: 2, queuesAdded: 1}
	list := reports(before, now)
	require.Len(t, list, 1)
	require.InDelta(t, 2, list[0].Seconds, 1e-9)
	require.Equal(t, map[string]float64{
		"sent_pkts": 100, "sent_bytes": 250_000, "rcvd_bytes": 500_000, "retransmitted_pkts": 4, "drops": 2,
	}, list[0].Rates)
	require.Equal(t,
		"03:04:05 eth0 pid 7 qps 3 sent 100 pkt/s 2.0 Mbit/s received 0 pkt/s 4.0 Mbit/s resent 4/s dropped 2/s", list[0].line())
	require.Equal(t, strings.Join([]string{
		"DEVICE               PID MODE             QPS  SENT pkt/s     Mbit/s  RCVD pkt/s     Mbit/s RESENT/s  DROPS/s",
		"eth0                   7 native+frags       3         100        2.0           0        4.0        4        2",
		"  pass_no_socket 2",
		"  queues_added 1",
		"  drop icrc_bad 1",
		"  drop qp_state 4",
		"",
	}, "\n"), table(list))

	require.Equal(t, "eth0", list[0].Device)
	two := []statReport{list[0], list[0], list[0]}
	two[0].Network, two[0].Program = "net:[1]", "/usr/bin/one"
	two[1].Network, two[1].Program = "net:[2]", "./two\x1b[2J"
	two[2].Device = "eth1"
	tellApart(two)
	require.Contains(t, two[0].line(), "eth0 pid 7 of one in net:[1] qps 3 ")
	require.Contains(t, two[1].line(), `eth0 pid 7 of two\x1b[2J in net:[2] qps 3 `)
	require.Contains(t, two[2].line(), "eth1 pid 7 qps 3 ")
	require.Contains(t, table(two), "\n  of one in net:[1]\n")

	list[0].now.Device.State = "down"
	require.True(t, strings.HasSuffix(list[0].line(), "dropped 2/s port down"))
	require.Contains(t, table(list), "\n  port down\n")
	list[0].now.Device.State = "active"

	var out bytes.Buffer
	show := terminalPrinter(&out)
	require.NoError(t, show(list))
	require.Equal(t, "\x1b[?7l"+table(list)+"\x1b[?7h", out.String())
	for range 2 { // the second time it goes up as far as the first time
		out.Reset()
		require.NoError(t, show(list))
		require.Equal(t, "\x1b[6A\r\x1b[J\x1b[?7l"+table(list)+"\x1b[?7h", out.String())
	}
}

// TestStat looks at devices of this process.
func TestStat(t *testing.T) {
	pair := newPair(t, netlab.PairOptions{})
	t.Setenv(control.Environment, t.TempDir())
	var devices []*verbs.Device
	for _, e := range []*netlab.End{&pair.A, &pair.B} {
		d, err := verbs.OpenDevice(t.Context(), e.Name, verbs.Options{NetNS: e.Namespace.Path()})
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, d.Close()) })
		devices = append(devices, d)
	}
	p := newProgram("stat", "--json", "-n", "2", "--interval", "50ms", "-i", devices[0].Name())
	require.Equal(t, 0, p.run(t, nil), p.stderr.String())
	lines := strings.Split(strings.TrimSpace(p.stdout.String()), "\n")
	require.GreaterOrEqual(t, len(lines), 2)
	for _, text := range lines {
		var line struct {
			PID      int
			Device   string
			Seconds  float64
			Rates    map[string]float64
			Snapshot verbs.Snapshot
		}
		require.NoError(t, json.Unmarshal([]byte(text), &line), text)
		require.Equal(t, os.Getpid(), line.PID)
		require.Equal(t, devices[0].Name(), line.Device)
		require.GreaterOrEqual(t, line.Seconds, 0.01)
		require.Contains(t, line.Rates, "local_ack_timeout_err")
		require.Zero(t, line.Rates["sent_pkts"])
		require.Equal(t, devices[0].Information().Mode, line.Snapshot.Device.Rung)
		require.NotEmpty(t, line.Snapshot.Device.GIDs)
		require.NotNil(t, line.Snapshot.QPs)
	}
	p = newProgram("stat", "-n", "1", "--interval", "20ms")
	require.Equal(t, 0, p.run(t, nil), p.stderr.String())
	require.Regexp(t, regexp.MustCompile(`(?m)\A(^\d\d:\d\d:\d\d \S+ pid \d+ of xroce\.test in net:\[\d+\] qps 0 sent 0 pkt/s 0\.0 Mbit/s received .*$\n){2}\z`), p.stdout.String())
}

// TestStatOfStoppedProcess: one that does not answer is told, once, and others are shown.
func TestStatOfStoppedProcess(t *testing.T) {
	pair := newPair(t, netlab.PairOptions{})
	folder := t.TempDir()
	t.Setenv(control.Environment, folder)
	server := newProgram("pingpong", "-d", pair.A.Name, "-p", "0")
	server.begin(t, pair.A.Namespace)
	require.Eventually(t, func() bool {
		entries, err := os.ReadDir(folder)
		return err == nil && len(entries) == 1
	}, 20*time.Second, 5*time.Millisecond, "no control socket")
	awaitListening(t, server)
	require.NoError(t, server.command.Process.Signal(syscall.SIGSTOP))
	stopped := fmt.Sprintf("%s of process %d: no answer: is the process stopped?", pair.A.Name, server.command.Process.Pid)
	requireWrongUse(t, nil, []string{"stat"}, stopped)

	d, err := verbs.OpenDevice(t.Context(), pair.B.Name, verbs.Options{NetNS: pair.B.Namespace.Path()})
	require.NoError(t, err)
	defer func() { require.NoError(t, d.Close()) }()
	p := newProgram("stat", "-n", "1", "--interval", "20ms")
	require.Equal(t, 0, p.run(t, nil), p.stderr.String())
	require.Equal(t, "xroce: not shown: "+stopped+"\n", p.stderr.String())
	require.Equal(t, 1, strings.Count(p.stdout.String(), "\n"))
	require.Contains(t, p.stdout.String(), fmt.Sprintf(" %s pid %d ", pair.B.Name, os.Getpid()))
}

// TestCase_F8_ControlSocket: a process that is killed leaves its control socket, and the next look removes it.
func TestCase_F8_ControlSocket(t *testing.T) {
	pair := newPair(t, netlab.PairOptions{})
	folder := t.TempDir()
	t.Setenv(control.Environment, folder)
	server := newProgram("pingpong", "-d", pair.A.Name, "-p", "0")
	server.begin(t, pair.A.Namespace)
	files := func() int {
		entries, err := os.ReadDir(folder)
		require.NoError(t, err)
		return len(entries)
	}
	require.Eventually(t, func() bool { return files() == 1 }, 20*time.Second, 5*time.Millisecond, "no control socket")
	look := newProgram("stat", "--interval", "20ms")
	look.begin(t, nil)
	require.Eventually(t, func() bool { return strings.Count(look.stdout.String(), "\n") >= 2 }, 20*time.Second, 5*time.Millisecond)
	require.NoError(t, server.command.Process.Kill())
	<-server.ended
	require.Equal(t, 0, look.status(t, 20*time.Second), "it ends with the last process: %s", look.stderr.String())
	require.Equal(t, "no process serves a device any more\n", look.stderr.String())

	server = newProgram("pingpong", "-d", pair.A.Name, "-p", "0")
	server.begin(t, pair.A.Namespace)
	require.Eventually(t, func() bool { return files() == 1 }, 20*time.Second, 5*time.Millisecond, "no control socket")
	require.NoError(t, server.command.Process.Kill())
	<-server.ended
	require.Equal(t, 1, files(), "nobody was there to remove it")
	requireWrongUse(t, nil, []string{"stat"}, "no process serves a device", folder)
	require.Zero(t, files())

	server = newProgram("pingpong", "-d", pair.A.Name, "-p", "0")
	server.begin(t, pair.A.Namespace)
	require.Eventually(t, func() bool { return files() == 1 }, 20*time.Second, 5*time.Millisecond, "no control socket")
	require.NoError(t, server.command.Process.Signal(syscall.SIGTERM))
	require.Equal(t, 128+int(syscall.SIGTERM), server.status(t, 20*time.Second))
	require.Zero(t, files(), "one that ends in order removes it itself")
}
