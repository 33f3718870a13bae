package main

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/xroce/xroce/internal/control"
	"github.com/xroce/xroce/internal/netlab"
	"github.com/xroce/xroce/verbs"
)

// TestNetNSEverywhere: every command that takes a device finds it in another namespace.
func TestNetNSEverywhere(t *testing.T) {
	p := newPair(t, netlab.PairOptions{})
	folder := t.TempDir()
	t.Setenv(control.Environment, folder)
	var path [2]string
	for i, n := range []*netlab.Namespace{p.A.Namespace, p.B.Namespace} {
		path[i] = "/proc/" + itoa(sleeper(t, n)) + "/ns/net"
	}
	server := newProgram("pingpong", "--netns", path[1], "-p", "0", "-n", "1000000000")
	server.begin(t, nil)
	port := awaitListening(t, server)
	client := newProgram("pingpong", "10.9.0.2", "--netns", path[0], "-p", port, "-n", "1000000000")
	client.begin(t, nil)
	awaitText(t, server, "remote address")

	pid := []string{itoa(client.command.Process.Pid), itoa(server.command.Process.Pid)}
	for i := range path {
		stat := newProgram("stat", "-n", "1", "--interval", "20ms", "--netns", path[i])
		require.Equal(t, 0, stat.run(t, nil), &stat.stderr)
		require.Regexp(t, `^\d\d:\d\d:\d\d veth0 pid `+pid[i]+` qps 1 .*\n$`, stat.stdout.String())
		capture := newProgram("capture", "-i", "veth0", "-w", filepath.Join(folder, "x.pcapng"), "-c", "1", "--netns", path[i])
		require.Equal(t, 0, capture.run(t, nil), &capture.stderr)
		written, err := os.ReadFile(filepath.Join(folder, "x.pcapng"))
		require.NoError(t, err)
		require.Contains(t, string(written), "process "+pid[i]+",")
		require.NotContains(t, string(written), "process "+pid[1-i]+",")
	}
	requireWrongUse(t, nil, []string{"stat", "--netns", "/proc/self/ns/net"}, "no process serves a device in network namespace /proc/self/ns/net")
	require.NoError(t, client.command.Process.Signal(syscall.SIGINT))
	require.Equal(t, 130, client.status(t, 5*time.Second))
}

// TestStatOfOthers: who may not look is told who may.
func TestStatOfOthers(t *testing.T) {
	p := newPair(t, netlab.PairOptions{})
	folder := t.TempDir()
	require.NoError(t, os.Chmod(filepath.Dir(folder), 0o755))
	t.Setenv(control.Environment, folder)
	d, err := verbs.OpenDevice(t.Context(), p.A.Name, verbs.Options{NetNS: p.A.Namespace.Path()})
	require.NoError(t, err)
	defer func() { require.NoError(t, d.Close()) }()
	for _, arguments := range [][]string{{"stat"}, {"capture", "-w", "-"}} {
		asNobody(t, nil, arguments...).requireWrongUse(t, nil, "permission denied", "only the user who runs it and root may look: run it as root")
		require.NoError(t, os.Chmod(folder, 0o700))
		asNobody(t, nil, arguments...).requireWrongUse(t, nil, "permission denied", "only its owner and root may look: run it as root")
		require.NoError(t, os.Chmod(folder, 0o755))
		run := asNobody(t, nil, arguments...)
		run.command.Env = append(run.command.Env, control.Environment+"=", "XDG_RUNTIME_DIR=")
		run.requireWrongUse(t, nil, "set XROCE_RUN to that of the processes to look at, or run it as root to see those of root")
		run = asNobody(t, nil, arguments...)
		run.command.Env = append(run.command.Env, control.Environment+"=", "XDG_RUNTIME_DIR=/absent")
		run.requireWrongUse(t, nil, "in /absent/xroce; processes of root are seen by root only: run it as root")
	}
}
