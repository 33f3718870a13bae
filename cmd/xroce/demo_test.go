package main

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/json"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/xroce/xroce/internal/netlab"
)

func itoa(n int) string { return strconv.Itoa(n) }

// zeroFile makes the smallest file that the demo takes, without content.
func zeroFile(t *testing.T) string {
	t.Helper()
	directory, err := os.MkdirTemp("", "xroce")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(directory)) })
	name := filepath.Join(directory, "file")
	require.NoError(t, os.WriteFile(name, nil, 0o644))
	require.NoError(t, os.Truncate(name, smallestFile))
	return name
}

// randomFile makes a small file of random content, whose size is no multiple of anything, and returns its hash.
func randomFile(t *testing.T) (name, sum string) {
	t.Helper()
	content := make([]byte, smallestFile+4321)
	random := rand.NewChaCha8([32]byte{7})
	_, _ = random.Read(content)
	name = filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(name, content, 0o644))
	return name, hash(content)
}

func TestDemo(t *testing.T) {
	netlab.RequireRoot(t)
	file, sum := randomFile(t)
	for _, c := range []struct {
		arguments []string
		device    deviceReport
		family    int
	}{
		{nil, deviceReport{XDPMode: "native+frags", PathMTU: 2048, NetdevMTU: 3000}, 4},
		{[]string{"--mtu", "1024", "--mode", "generic", "--ipv6"}, deviceReport{XDPMode: "generic+frags", PathMTU: 1024, NetdevMTU: 1500}, 6},
		{[]string{"--mtu", "4096"}, deviceReport{XDPMode: "native+frags", PathMTU: 4096, NetdevMTU: 4192}, 4},
	} {
		run := newProgram(append([]string{"demo", "--json", "--iterations", "500", "--file", file}, c.arguments...)...)
		status := run.run(t, nil)
		require.Equal(t, 0, status, run.stderr.String())
		var r report
		require.NoError(t, json.Unmarshal([]byte(run.stdout.String()), &r))
		t.Logf("%+v", r)
		require.Equal(t, c.device,
			deviceReport{XDPMode: r.Device.XDPMode, PathMTU: r.Device.PathMTU, NetdevMTU: r.Device.NetdevMTU})
		require.Equal(t, "veth", r.Device.Driver)
		require.True(t, r.Device.MultiBuffer)
		require.Len(t, r.Device.NotTaken, 1)
		require.Contains(t, r.Device.NotTaken[0], "zero copy: ")
		require.Equal(t, c.family == 4, r.Device.Local.Is4())
		require.Equal(t, c.family == 4, r.Device.Remote.Is4())
		require.Equal(t, fileReport{Name: file, Bytes: smallestFile + 4321, SHA256: sum}, r.File)
		for _, way := range []transferReport{r.Write, r.Read, r.TCP} {
			require.Equal(t, sum, way.SHA256)
			require.True(t, way.Matches)
			require.Equal(t, smallestFile+4321, way.Bytes)
			require.InDelta(t, float64(way.Bytes)*8/way.Seconds/1e9, way.GbitPerSecond, 1e-9)
		}
		require.GreaterOrEqual(t, r.PingPong.Iterations, 500, "a slow machine counts some that others take to warm up")
		require.False(t, r.PingPong.CutShort)
		require.Positive(t, r.PingPong.OneWayMicroseconds.P50)
		require.LessOrEqual(t, r.PingPong.OneWayMicroseconds.P50, r.PingPong.OneWayMicroseconds.P99)
		data := uint64(r.File.Bytes / r.Device.PathMTU)
		for _, side := range []sideReport{r.Active, r.Passive} {
			require.Zero(t, side.KernelPackets)
			require.Zero(t, side.XDPPassedPackets)
			require.Greater(t, side.XDPPackets, data)
		}
	}
}

// TestDemoDefaults plays the demo as make demo does.
func TestDemoDefaults(t *testing.T) {
	netlab.RequireRoot(t)
	if _, err := findToolchain(context.Background()); err != nil {
		skip(t, err)
	}
	run := newProgram("demo")
	start := time.Now()
	require.Equal(t, 0, run.run(t, nil), run.stderr.String())
	require.Less(t, time.Since(start), 30*time.Second)
	t.Log(run.stdout.String())
	for _, words := range []string{"SHA-256 equal", "half of the round trip", "kernel saw     0 packets to UDP port 4791 at the active end, 0 at the passive one"} {
		require.Contains(t, run.stdout.String(), words)
	}
}

func TestReportText(t *testing.T) {
	text := func(r report) string {
		var out bytes.Buffer
		require.NoError(t, r.print(&out))
		return out.String()
	}
	r := report{Device: deviceReport{NetdevMTU: 3000}, PingPong: pingPongReport{Iterations: 7, Bytes: 8}}
	require.Contains(t, text(r), "7 round trips of 8 bytes, both ends polling\n")
	require.Contains(t, text(r), ", copy, one buffer a frame, path MTU 0, ")
	require.NotContains(t, text(r), "not taken")
	r.Device.MultiBuffer, r.Device.NotTaken = true, []string{"native: why not", "zero copy: why not"}
	require.Contains(t, text(r), ", copy, multi-buffer, path MTU 0, ")
	require.Regexp(t, "\nnot taken +native: why not\nnot taken +zero copy: why not\nfile ", text(r))
	require.Contains(t, text(r), ", TCP at netdev MTU 3000 over an identical pair of devices without XDP\n")
	r.PingPong.CutShort = true
	require.Contains(t, text(r), "7 round trips of 8 bytes, cut short by the limit of 10s, both ends polling\n")
}

func TestArchive(t *testing.T) {
	root := t.TempDir()
	long := strings.Repeat("n", 101)
	for name, content := range map[string]string{"bin/go": "go", "src/a/b.go": strings.Repeat("x", 513), "src/" + long: "", "doc/no": ""} {
		require.NoError(t, os.MkdirAll(filepath.Dir(filepath.Join(root, name)), 0o755))
		require.NoError(t, os.WriteFile(filepath.Join(root, name), []byte(content), 0o644))
	}
	a, err := newArchive(root)
	require.NoError(t, err)
	require.Equal(t, 512+512+512+1024+1024, a.size)
	memory := make([]byte, a.size)
	require.NoError(t, a.write(memory))
	got := map[string]int{}
	for r := tar.NewReader(bytes.NewReader(memory)); ; {
		h, err := r.Next()
		if err == io.EOF {
			break
		}
		require.NoError(t, err)
		content, err := io.ReadAll(r)
		require.NoError(t, err)
		got[h.Name] = len(content)
	}
	require.Equal(t, map[string]int{"go/bin/go": 2, "go/src/a/b.go": 513}, got)

	require.Error(t, demoFile{Toolchain: root, Size: a.size}.load(make([]byte, a.size+1), nil),
		"the toolchain has changed")
	_, _, err = chooseFile(context.Background(), "/absent")
	require.ErrorIs(t, err, errUsage)
}

func TestCheckMemory(t *testing.T) {
	available, ok := availableMemory()
	require.True(t, ok)
	require.NoError(t, demoFile{Size: int(available / 4)}.checkMemory())
	require.ErrorContains(t, demoFile{Size: int(available)}.checkMemory(), "choose a smaller --file")
}

func TestVerdict(t *testing.T) {
	good := func() *report {
		way := transferReport{SHA256: "a", Matches: true}
		side := sideReport{XDPPackets: 1}
		return &report{File: fileReport{SHA256: "a"}, Write: way, Read: way, TCP: way, Active: side, Passive: side}
	}
	require.NoError(t, good().verdict())
	for want, spoil := range map[string]func(*report){
		"RDMA WRITE: SHA-256 b arrived instead of a":                 func(r *report) { r.Write.Matches, r.Write.SHA256 = false, "b" },
		"RDMA READ: SHA-256 b arrived instead of a":                  func(r *report) { r.Read.Matches, r.Read.SHA256 = false, "b" },
		"the kernel of the passive process saw 3 packets":            func(r *report) { r.Passive.KernelPackets = 3 },
		"the XDP program of the active process redirected no packet": func(r *report) { r.Active.XDPPackets = 0 },
	} {
		r := good()
		spoil(r)
		require.ErrorContains(t, r.verdict(), want)
		require.Equal(t, statusFailed, exitStatus(r.verdict()))
	}
}
