package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"

	"github.com/xroce/xroce/internal/netlab"
	"github.com/xroce/xroce/verbs"
)

// awaitListening waits until a server takes connections, and returns the port that it names.
func awaitListening(t *testing.T, server *program) (port string) {
	t.Helper()
	line := regexp.MustCompile(`^waiting for the other end at \[::\]:(\d+), with veth0\n`)
	require.Eventually(t, func() bool {
		found := line.FindStringSubmatch(server.stderr.String())
		if found != nil {
			port = found[1]
		}
		return found != nil
	}, 10*time.Second, 5*time.Millisecond, "%v", &server.stderr)
	return port
}

func startServer(t *testing.T, p *netlab.Pair, arguments ...string) (server *program, port string) {
	t.Helper()
	server = newProgram(append([]string{"pingpong"}, arguments...)...)
	server.begin(t, p.B.Namespace)
	return server, awaitListening(t, server)
}

func startPingpong(t *testing.T, p *netlab.Pair, host string, server, client []string) (a, b *program) {
	t.Helper()
	b, port := startServer(t, p, server...)
	a = newProgram(append([]string{"pingpong", host, "-p", port}, client...)...)
	a.begin(t, p.A.Namespace)
	return a, b
}

// errorsOf returns what a server says after the line about its waiting.
func errorsOf(server *program) string {
	_, text, _ := strings.Cut(server.stderr.String(), "\n")
	return text
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
		{"defaults", "10.9.0.2", "-i 1 -l 0", "", "10.9.0.1", 1024, 4096 * 2000, "native+frags"},
		{"events", "10.9.0.2", "-e -n 500", "-e -n 500", "10.9.0.1", 1024, 4096 * 1000, "native+frags"},
		{"checked", "10.9.0.2", "-c -s 100001 -n 50", "-c -s 100001 -n 50 -r 3", "10.9.0.1", 1024, 100001 * 100, "native+frags"},
		{"IPv6, smaller path MTU", "fd00:9::2", "-m 256 -s 1 --mode generic", "-m 256 -s 1 --mode generic", "fd00:9::1", 256, 2000, "generic+frags"},
		{"GID by index, one end polls", "10.9.0.2", "-g 1 -i 1 -d veth0 -p 0", "-d veth0 -i 1 -g 1 -e", "fd00:9::1", 1024, 4096 * 2000, "native+frags"},
		{"link-local", p.B.LinkLocal.Addr().String() + "%veth0", "", "", p.A.LinkLocal.Addr().String(), 1024, 4096 * 2000, "native+frags"},
		{"path MTU of one end", "10.9.0.2", "-m 512", "", "10.9.0.1", 512, 4096 * 2000, "native+frags"},
	} {
		t.Run(c.name, func(t *testing.T) {
			a, b := startPingpong(t, p, c.host, strings.Fields(c.server), append(strings.Fields(c.client), "--json"))
			require.Equal(t, 0, a.status(t, 20*time.Second), a.stderr.String())
			require.Equal(t, 0, b.status(t, 2*time.Second), b.stderr.String())
			require.Empty(t, a.stderr.String()+errorsOf(b))
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
			require.Contains(t, b.stdout.String(),
				fmt.Sprintf("QPN 0x%06x, PSN 0x%06x, GID %v\n", uint32(r.Local.QPN), uint32(r.Local.PSN), r.Local.Address))
		})
	}
	requireFree(t, &p.A)
	requireFree(t, &p.B)
}

// TestPingpongLargeMTU: path MTU 4096 comes by itself where the devices carry it, and when asked for.
func TestPingpongLargeMTU(t *testing.T) {
	p := newPair(t, netlab.PairOptions{MTU: 4192})
	for _, client := range []string{"", "-m 4096"} {
		a, b := startPingpong(t, p, "10.9.0.2", []string{"-c", "-s", "100001", "-n", "50"},
			append(strings.Fields(client), "-c", "-s", "100001", "-n", "50", "--json"))
		require.Equal(t, 0, a.status(t, 20*time.Second), a.stderr.String())
		require.Equal(t, 0, b.status(t, 2*time.Second), b.stderr.String())
		var r pingpongResult
		require.NoError(t, json.Unmarshal([]byte(a.stdout.String()), &r))
		require.Equal(t, 4096, r.PathMTU)
		require.True(t, r.MultiBuffer)
		require.Len(t, r.NotTaken, 1)
		require.Contains(t, r.NotTaken[0], "zero copy: ")
	}
	requireFree(t, &p.A)
}

func TestPingpongDisagreement(t *testing.T) {
	p := newPair(t, netlab.PairOptions{})
	for _, c := range []struct{ server, client, atServer, atClient string }{
		{"-n 5", "-n 10", "-n is 5 here and 10 at the other end", "-n is 10 here and 5 at the other end"},
		{"-s 100", "-s 99", "-s is 100 here and 99 at the other end", "-s is 99 here and 100 at the other end"},
		{"-c", "", "-c is given here and not at the other end", "-c is given at the other end and not here"},
		{"-m 256", "-m 512", "-m is 256 here and 512 at the other end", "-m is 512 here and 256 at the other end"},
	} {
		a, b := startPingpong(t, p, "10.9.0.2", strings.Fields(c.server), strings.Fields(c.client))
		require.Equal(t, statusEnvironment, a.status(t, 5*time.Second))
		require.Equal(t, statusEnvironment, b.status(t, 5*time.Second))
		require.Equal(t, "xroce: "+c.atClient+"\n", a.stderr.String())
		require.Equal(t, "xroce: "+c.atServer+"\n", errorsOf(b))
		require.Empty(t, a.stdout.String()+b.stdout.String())
	}
	requireFree(t, &p.A)
}

func TestPingpongTerms(t *testing.T) {
	here := pingpongTerms{PathMTU: 1024, Endpoint: verbs.Endpoint{MTU: verbs.MTU1024}}
	there := pingpongTerms{Endpoint: verbs.Endpoint{MTU: verbs.MTU512}}
	require.EqualError(t, here.differ(&there), "-m is 1024 here, and the other end carries only 512")
	require.EqualError(t, there.differ(&here), "-m is 1024 at the other end, and this one carries only 512")
	here.PathMTU = 0
	require.NoError(t, here.differ(&there))
	require.NoError(t, there.differ(&here))
}

// TestPingpongStranger: what is no client of a server is told so and does not end it, and neither is what is no
// server a client's undoing.
func TestPingpongStranger(t *testing.T) {
	p := newPair(t, netlab.PairOptions{})
	server, port := startServer(t, p, "-p", "0", "-n", "7")
	require.NotEqual(t, "18515", port)
	for i, said := range []struct{ sent, told string }{
		{"GET / HTTP/1.1\r\n\r\n", `it sent "GET / HTTP/1.1\r\n`},
		{`{"program":"another"}` + "\n", `it sent "{\"program\":\"another\"}\n"`},
		{strings.Repeat("\x00", 5000), `it sent "` + strings.Repeat(`\x00`, 60) + `" (exchange`},
		{"0000:000011:123456", `it sent "0000:000011:123456" (exchange`},
		{"", "it sent nothing (exchange"},
	} {
		require.NoError(t, p.A.Namespace.Do(func() error {
			connection, err := net.Dial("tcp", "10.9.0.2:"+port)
			if err != nil {
				return err
			}
			_, err = io.WriteString(connection, said.sent)
			if err == nil {
				// The server may have turned it away already.
				_ = connection.(*net.TCPConn).CloseWrite()
			}
			_, _ = io.Copy(io.Discard, connection) // until it is turned away
			return errors.Join(err, connection.Close())
		}))
		var lines []string
		require.Eventually(t, func() bool {
			lines = strings.Split(errorsOf(server), "\n")
			return len(lines) == i+2 // the last is empty
		}, time.Second, time.Millisecond)
		require.Contains(t, lines[i], "not an xroce pingpong client: "+said.told)
		require.True(t, strings.HasPrefix(lines[i], "10.9.0.1:"), lines[i])
	}
	client := newProgram("pingpong", "10.9.0.2", "-p", port, "-n", "7")
	require.Equal(t, 0, client.run(t, p.A.Namespace), client.stderr.String())
	require.Equal(t, 0, server.status(t, 2*time.Second))

	var listener net.Listener
	require.NoError(t, p.B.Namespace.Do(func() (err error) {
		listener, err = net.Listen("tcp", "10.9.0.2:0")
		return err
	}))
	defer listener.Close()
	go func() {
		if connection, err := listener.Accept(); err == nil {
			_, _ = io.WriteString(connection, "SSH-2.0-x\r\n")
			_, _ = io.Copy(io.Discard, connection)
			_ = connection.Close()
		}
	}()
	_, port, _ = net.SplitHostPort(listener.Addr().String())
	client = newProgram("pingpong", "10.9.0.2", "-p", port)
	require.Equal(t, statusFailed, client.run(t, p.A.Namespace))
	require.Contains(t, client.stderr.String(),
		"xroce: 10.9.0.2:"+port+`: not an xroce pingpong server: it sent "SSH-2.0-x\r\n"`)
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
			time.Sleep(50 * time.Millisecond) // messages have gone both ways
			dies, lives := a, b
			if victim == "server" {
				dies, lives = b, a
			}
			require.NoError(t, dies.command.Process.Kill())
			require.Equal(t, statusFailed, lives.status(t, 3*time.Second))
			require.Contains(t, lives.stderr.String(), "the other end is gone")
			require.Regexp(t, `(?m)^[1-9]\d* iters in `, lives.stdout.String(), "what was measured until then")
			require.Equal(t, 1, strings.Count(lives.stderr.String(), "xroce: "), lives.stderr.String())
			requireFree(t, &p.A)
			requireFree(t, &p.B)
		}
	}
}

// awaitText waits until the program has printed a text.
func awaitText(t *testing.T, p *program, text string) {
	t.Helper()
	require.Eventually(t, func() bool { return strings.Contains(p.stdout.String(), text) }, 10*time.Second,
		5*time.Millisecond)
}

func TestPingpongInterrupted(t *testing.T) {
	p := newPair(t, netlab.PairOptions{})
	server, _ := startServer(t, p)
	requireWrongUse(t, p.B.Namespace, []string{"pingpong"}, "veth0 serves another xroce process, pid "+
		itoa(server.command.Process.Pid)+" (XDP program xdp_roce, id ", ": a device serves one process at a time")
	require.NoError(t, server.command.Process.Signal(syscall.SIGINT))
	require.Equal(t, 130, server.status(t, 2*time.Second))
	require.Equal(t, "xroce: stopped by signal: interrupt\n", errorsOf(server))
	requireFree(t, &p.B)
}

// TestPingpongRouteMTU: both ends take the path MTU that the route of one of them carries.
func TestPingpongRouteMTU(t *testing.T) {
	p := newPair(t, netlab.PairOptions{})
	inside(t, &p.A, func(h *netlink.Handle, device netlink.Link) {
		require.NoError(t, h.RouteReplace(&netlink.Route{
			LinkIndex: device.Attrs().Index, MTU: 1000, Scope: netlink.SCOPE_LINK,
			Dst: &net.IPNet{IP: p.B.IPv4().AsSlice(), Mask: net.CIDRMask(32, 32)},
		}))
	})
	a, b := startPingpong(t, p, p.B.IPv4().String(), []string{"-n", "50"}, []string{"-n", "50", "--json"})
	require.Equal(t, 0, a.status(t, 20*time.Second), a.stderr.String())
	require.Equal(t, 0, b.status(t, 5*time.Second), b.stderr.String())
	var r pingpongResult
	require.NoError(t, json.Unmarshal([]byte(a.stdout.String()), &r))
	require.Equal(t, 512, r.PathMTU)
}

// TestPingpongCutShort: what was measured until ^C is told.
func TestPingpongCutShort(t *testing.T) {
	p := newPair(t, netlab.PairOptions{})
	for _, flags := range []string{"", "-e --json"} {
		arguments := append([]string{"-n", "1000000000", "-s", "64"}, strings.Fields(flags)...)
		a, b := startPingpong(t, p, "10.9.0.2", []string{"-n", "1000000000", "-s", "64"}, arguments)
		awaitText(t, b, "remote address")
		time.Sleep(200 * time.Millisecond)
		require.NoError(t, a.command.Process.Signal(syscall.SIGINT))
		require.Equal(t, 130, a.status(t, 5*time.Second))
		require.Equal(t, "xroce: stopped by signal: interrupt\n", a.stderr.String())
		require.Equal(t, statusFailed, b.status(t, 5*time.Second))
		if flags == "" {
			require.Regexp(t, `\d+ bytes in \d+\.\d\d seconds = \d+\.\d\d Mbit/sec\n[1-9]\d* iters in \d+\.\d\d seconds = \d+\.\d\d usec/iter\n$`, a.stdout.String())
			continue
		}
		var r pingpongResult
		require.NoError(t, json.Unmarshal([]byte(a.stdout.String()), &r))
		require.True(t, r.CutShort)
		require.Positive(t, r.Iterations)
		require.Equal(t, int64(2*64*r.Iterations), r.Bytes)
		require.InDelta(t, r.Seconds*1e6/float64(r.Iterations), r.RoundTrip, 1e-6)
	}
}

// TestPingpongWithoutLoopback: a server hears clients of both families also where lo is down, as in a new namespace.
func TestPingpongWithoutLoopback(t *testing.T) {
	p := newPair(t, netlab.PairOptions{})
	inside(t, &p.B, func(h *netlink.Handle, _ netlink.Link) {
		lo, err := h.LinkByName("lo")
		require.NoError(t, err)
		addresses, err := h.AddrList(lo, netlink.FAMILY_ALL)
		require.NoError(t, err)
		for i := range addresses {
			require.NoError(t, h.AddrDel(lo, &addresses[i]))
		}
		require.NoError(t, h.LinkSetDown(lo))
	})
	for _, host := range []string{"fd00:9::2", "10.9.0.2"} {
		server := newProgram("pingpong", "-n", "10", "-p", "0")
		server.begin(t, p.B.Namespace)
		waiting := regexp.MustCompile(`^waiting for the other end at \S+:(\d+), with veth0\n`)
		require.Eventually(t, func() bool { return waiting.MatchString(server.stderr.String()) }, 10*time.Second,
			5*time.Millisecond)
		port := waiting.FindStringSubmatch(server.stderr.String())[1]
		client := newProgram("pingpong", host, "-p", port, "-n", "10")
		require.Equal(t, 0, client.run(t, p.A.Namespace), &client.stderr)
		require.Equal(t, 0, server.status(t, 5*time.Second), &server.stderr)
	}
}
