package main

import (
	"encoding/json"
	"fmt"
	"os"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/xroce/xroce/internal/netlab"
)

// awaitListening waits until a server takes connections.
func awaitListening(t *testing.T, n *netlab.Namespace) {
	t.Helper()
	listening := func() bool {
		table := ""
		require.NoError(t, n.Do(func() error {
			table = readText(t, "/proc/thread-self/net/tcp") + readText(t, "/proc/thread-self/net/tcp6")
			return nil
		}))
		const listening = "0A" // TCP_LISTEN, include/net/tcp_states.h
		return regexp.MustCompile(fmt.Sprintf(":%04X [0-9A-F]+:0000 %s ", 18515, listening)).MatchString(table)
	}
	require.Eventually(t, listening, 10*time.Second, 5*time.Millisecond)
}

func readText(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(name)
	require.NoError(t, err)
	return string(text)
}

func startPingpong(t *testing.T, p *netlab.Pair, host string, server, client []string) (a, b *program) {
	t.Helper()
	b = newProgram(append([]string{"pingpong"}, server...)...)
	b.begin(t, p.B.Namespace)
	awaitListening(t, p.B.Namespace)
	a = newProgram(append([]string{"pingpong", host}, client...)...)
	a.begin(t, p.A.Namespace)
	return a, b
}

func TestPingpong(t *testing.T) {
	p := newPair(t, netlab.PairOptions{})
	for _, c := range []struct {
		name, host     string
		server, client string
		local          string
		mtu            int
		bytes          int64
		mode           string
	}{
		{"defaults", "10.9.0.2", "", "", "10.9.0.1", 1024, 4096 * 2000, "native+frags"},
		{"events", "10.9.0.2", "-e -n 500", "-e -n 500", "10.9.0.1", 1024, 4096 * 1000, "native+frags"},
		{"checked", "10.9.0.2", "-c -s 100001 -n 50", "-c -s 100001 -n 50 -r 3", "10.9.0.1", 1024, 100001 * 100, "native+frags"},
		{"IPv6, smaller path MTU", "fd00:9::2", "-m 256 -s 1 --mode generic", "-m 256 -s 1 --mode generic", "fd00:9::1", 256, 2000, "generic+frags"},
		{"GID by index, one end polls", "10.9.0.2", "-g 1 -d veth0", "-g 1 -d veth0 -e", "fd00:9::1", 1024, 4096 * 2000, "native+frags"},
		{"path MTU of one end", "10.9.0.2", "-m 512", "", "10.9.0.1", 512, 4096 * 2000, "native+frags"},
	} {
		t.Run(c.name, func(t *testing.T) {
			a, b := startPingpong(t, p, c.host, strings.Fields(c.server), append(strings.Fields(c.client), "--json"))
			require.Equal(t, 0, a.status(t, 20*time.Second), a.stderr.String())
			require.Equal(t, 0, b.status(t, 2*time.Second), b.stderr.String())
			require.Empty(t, a.stderr.String()+b.stderr.String())
			var r pingpongResult
			require.NoError(t, json.Unmarshal([]byte(a.stdout.String()), &r))
			t.Logf("%+v", r)
			require.Equal(t, "veth0", r.Device)
			require.Equal(t, c.mode, r.XDPMode)
			require.Equal(t, c.mtu, r.PathMTU)
			require.Equal(t, c.bytes, r.Bytes)
			require.Equal(t, c.local, r.Local.Address.String())
			require.InDelta(t, float64(r.Bytes)*8/1e6/r.Seconds, r.Mbit, 1e-6)
			require.InDelta(t, r.Seconds*1e6/float64(r.Iterations), r.RoundTrip, 1e-6)

			// The server prints like ibv_rc_pingpong.
			const address = `LID 0x0000, QPN 0x[0-9a-f]{6}, PSN 0x[0-9a-f]{6}, GID [0-9a-f.:]+\n`
			require.Regexp(t, regexp.MustCompile(`^  local address:  `+address+`  remote address: `+address+
				fmt.Sprintf(`%d bytes in \d+\.\d\d seconds = \d+\.\d\d Mbit/sec\n%d iters in \d+\.\d\d seconds = \d+\.\d\d usec/iter\n$`,
					r.Bytes, r.Iterations)), b.stdout.String())
			require.Contains(t, b.stdout.String(), fmt.Sprintf("QPN 0x%06x, PSN 0x%06x, GID %v\n", uint32(r.Local.QPN), uint32(r.Local.PSN), r.Local.Address))
		})
	}
	requireFree(t, &p.A)
	requireFree(t, &p.B)
}

func TestPingpongDisagreement(t *testing.T) {
	p := newPair(t, netlab.PairOptions{})
	a, b := startPingpong(t, p, "10.9.0.2", []string{"-s", "100"}, []string{"-s", "99"})
	require.NotZero(t, a.status(t, 5*time.Second))
	require.Equal(t, statusEnvironment, b.status(t, 5*time.Second))
	require.Contains(t, b.stderr.String(), "message 0 has 99 bytes instead of 100: both ends need the same -s")
	require.Contains(t, a.stderr.String(), "the other end is gone")

	a, b = startPingpong(t, p, "10.9.0.2", []string{"-m", "256"}, []string{"-m", "512"})
	require.Equal(t, statusEnvironment, a.status(t, 5*time.Second))
	require.NotZero(t, b.status(t, 5*time.Second))
	require.Contains(t, a.stderr.String(), "path MTU 512 is asked for here, the other end carries or asks for 256")
	require.Contains(t, b.stderr.String(), "the other end is gone")
	requireFree(t, &p.A)
}

func TestPingpongPeerDies(t *testing.T) {
	p := newPair(t, netlab.PairOptions{})
	for _, events := range []string{"--events", "--no-events"} {
		flags := []string{"-n", "1000000000"}
		if events == "--events" {
			flags = append(flags, "-e")
		}
		for _, victim := range []string{"client", "server"} {
			a, b := startPingpong(t, p, "10.9.0.2", flags, flags)
			awaitText(t, b, "remote address")
			awaitText(t, a, "remote address")
			dies, lives := a, b
			if victim == "server" {
				dies, lives = b, a
			}
			require.NoError(t, dies.command.Process.Kill())
			require.Equal(t, statusFailed, lives.status(t, 3*time.Second))
			require.Contains(t, lives.stderr.String(), "the other end is gone")
			require.Equal(t, 1, strings.Count(lives.stderr.String(), "\n"), lives.stderr.String())
			requireFree(t, &p.A)
			requireFree(t, &p.B)
		}
	}
}

// awaitText waits until the program has printed a text.
func awaitText(t *testing.T, p *program, text string) {
	t.Helper()
	require.Eventually(t, func() bool { return strings.Contains(p.stdout.String(), text) }, 10*time.Second, 5*time.Millisecond)
}

func TestPingpongInterrupted(t *testing.T) {
	p := newPair(t, netlab.PairOptions{})
	server := newProgram("pingpong")
	server.begin(t, p.B.Namespace)
	awaitListening(t, p.B.Namespace)
	requireWrongUse(t, p.B.Namespace, []string{"pingpong"}, "XDP program")
	require.NoError(t, server.command.Process.Signal(syscall.SIGINT))
	require.Equal(t, 130, server.status(t, 2*time.Second))
	require.Equal(t, "xroce: stopped by signal: interrupt\n", server.stderr.String())
	requireFree(t, &p.B)
}
