package main

import (
	"encoding/json"
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

	"github.com/xroce/xroce/cmd/xroce/internal/perf"
	"github.com/xroce/xroce/internal/netlab"
)

func startPerfServer(t *testing.T, p *netlab.Pair, flags string) (server *program, port string) {
	t.Helper()
	server = newProgram(append([]string{"perf", "-p", "0"}, strings.Fields(flags)...)...)
	server.begin(t, p.B.Namespace)
	return server, awaitListening(t, server)
}

// startPerf starts a server and a client: words are the operation and the test.
func startPerf(t *testing.T, p *netlab.Pair, host, server, words, client string) (a, b *program) {
	t.Helper()
	b, port := startPerfServer(t, p, server)
	arguments := append([]string{"perf"}, strings.Fields(words)...)
	a = newProgram(append(append(arguments, host, "-p", port), strings.Fields(client)...)...)
	a.begin(t, p.A.Namespace)
	return a, b
}

// runPerf runs both to their end and returns their results.
func runPerf(t *testing.T, p *netlab.Pair, host, server, words, client string) (here, there perf.Result) {
	t.Helper()
	a, b := startPerf(t, p, host, server+" --json", words, client+" --json")
	require.Equal(t, 0, a.status(t, 60*time.Second), "%v %v", &a.stderr, &b.stderr)
	require.Equal(t, 0, b.status(t, 5*time.Second), "%v", &b.stderr)
	require.Empty(t, a.stderr.String()+errorsOf(b))
	for run, result := range map[*program]*perf.Result{a: &here, b: &there} {
		decoder := json.NewDecoder(strings.NewReader(run.stdout.String()))
		decoder.DisallowUnknownFields()
		require.NoError(t, decoder.Decode(result))
		require.False(t, decoder.More())
	}
	require.Equal(t, "client", here.Role)
	require.Equal(t, "server", there.Role)
	require.Equal(t, here.Plan, there.Plan)
	require.Equal(t, here.LocalAddress, there.RemoteAddress)
	require.Equal(t, here.PathMTU, there.PathMTU)
	require.Len(t, there.Runs, len(here.Runs))
	for i := range here.Runs {
		require.Equal(t, here.Runs[i].Local, there.Runs[i].Remote)
		require.Equal(t, here.Runs[i].Remote, there.Runs[i].Local)
	}
	return here, there
}

// TestPerf: every operation, both tests, with the data checked, and a server without flags.
func TestPerf(t *testing.T) {
	p := newPair(t, netlab.PairOptions{})
	for _, operation := range perf.Operations() {
		for _, test := range perf.Tests() {
			size := 4000
			if operation == "atomic" {
				size = 8
			}
			here, _ := runPerf(t, p, "10.9.0.2", "", operation+" "+test, fmt.Sprintf("-s %d -n 300 --verify", size))
			require.Len(t, here.Runs, 1)
			run := here.Runs[0]
			t.Logf("%s %s %+v", operation, test, run)
			require.Equal(t, "veth0", here.Device)
			require.Equal(t, "native+frags", here.XDPMode)
			require.Equal(t, 1024, here.PathMTU)
			require.Equal(t, size, run.Bytes)
			require.EqualValues(t, 300, run.Messages)
			require.InDelta(t, 300/run.Local.Seconds, run.MessagesPerSecond, 1e-6)
			require.InDelta(t, 300*float64(size)*8/1e9/run.Local.Seconds, run.GbitPerSecond, 1e-9)
			packets := uint64(300 * ((size + 1023) / 1024))
			data := run.Local.PacketsSent
			if operation == "read" {
				data = run.Remote.PacketsSent
			}
			require.GreaterOrEqual(t, data, packets, "in the run that counts, without the one before it")
			require.Less(t, data, 2*packets+300)
			require.Positive(t, run.Local.UserSeconds+run.Local.SystemSeconds)
			require.NotNil(t, run.Local.Softirq)
			if test == "bw" {
				require.Nil(t, run.Latency)
				continue
			}
			l := run.Latency
			require.EqualValues(t, 300, l.Samples)
			require.Positive(t, l.Min)
			require.LessOrEqual(t, l.Min, l.P50)
			require.LessOrEqual(t, l.P50, l.P99)
			require.LessOrEqual(t, l.P99, l.P999)
			require.LessOrEqual(t, l.P999, l.Max)
			trip, of := run.Local.Seconds*1e6/300, "round trip"
			if operation != "read" && operation != "atomic" {
				trip, of = trip/2, "half of the round trip"
			}
			require.Equal(t, of, l.Of)
			require.InEpsilon(t, trip, l.Mean, 0.02, "all of the time is in the round trips")
		}
	}
	requireFree(t, &p.A)
	requireFree(t, &p.B)
}

// TestPerfChoices: what is asked for is what is done.
func TestPerfChoices(t *testing.T) {
	p := newPair(t, netlab.PairOptions{})
	for _, c := range []struct {
		name, host, server, words, client string
		messages                          int
	}{
		{"both ways", "10.9.0.2", "", "write bw", "-b -q 4 -t 16 -n 100 -s 3000 --verify", 800},
		{"both ways, receives", "10.9.0.2", "--wait=block", "send bw", "-b -q 3 -n 100 -s 64 --inline 64 --verify", 600},
		{"READ both ways", "10.9.0.2", "--wait=poll", "read bw", "-b -q 2 -n 100 -s 3000 --verify --wait=thread", 400},
		{"one completion each", "10.9.0.2", "", "write-imm bw", "--cq-mod 1 -t 1 -n 200 -s 10 --verify", 200},
		{"IPv6, generic, smaller path MTU", "fd00:9::2", "--mode generic -m 256", "write bw", "--mode generic -n 100 -s 1000 --verify", 100},
		{"link-local", p.B.LinkLocal.Addr().String() + "%veth0", "", "send lat", "-n 100 --wait=thread --verify", 100},
		{"flags of the server", "10.9.0.2", "send bw -s 100 -q 2 -t 128 -d veth0 -x 1", "send bw", "-s 100 -q 2 -n 50 -d veth0 -x 1 --verify", 100},
		{"many queue pairs", "10.9.0.2", "", "send bw", "-q 200 -t 8 -n 10 -s 2000 --verify", 2000},
	} {
		t.Run(c.name, func(t *testing.T) {
			here, _ := runPerf(t, p, c.host, c.server, c.words, c.client)
			require.EqualValues(t, c.messages, here.Runs[0].Messages)
			if strings.Contains(c.name, "smaller") {
				require.Equal(t, 256, here.PathMTU)
				require.Equal(t, "generic+frags", here.XDPMode)
			}
			if strings.Contains(c.client, "-b") {
				require.Positive(t, here.Runs[0].Remote.Seconds)
			}
		})
	}
	requireFree(t, &p.A)
	requireFree(t, &p.B)
}

// TestPerfSweep: a row for each size, in the table and in JSON.
func TestPerfSweep(t *testing.T) {
	p := newPair(t, netlab.PairOptions{MTU: 4192})
	here, _ := runPerf(t, p, "10.9.0.2", "", "write bw", "-a -n 3 --verify")
	require.Len(t, here.Runs, 23)
	for i, run := range here.Runs {
		require.Equal(t, 2<<i, run.Bytes)
		require.EqualValues(t, 3, run.Messages)
	}
	require.Equal(t, 4096, here.PathMTU)

	a, b := startPerf(t, p, "10.9.0.2", "", "read lat", "-a -n 3")
	require.Equal(t, 0, a.status(t, 60*time.Second), a.stderr.String())
	require.Equal(t, 0, b.status(t, 5*time.Second), b.stderr.String())
	for run, role := range map[*program]string{a: "client at 10.9.0.1", b: "server at 10.9.0.2"} {
		text := run.stdout.String()
		require.Contains(t, text, "read latency, "+role)
		require.Contains(t, text, "path MTU 4096, round trip\n")
		require.Len(t, regexp.MustCompile(`(?m)^ +\d+ +3( +\d+\.\d+){7} +\d+ +\d+$`).FindAllString(text, -1), 23, text)
		require.Contains(t, text, "\n   8388608 ")
		require.Regexp(t, `here \(wait (poll|thread)\): \d+\.\d\d s of CPU in user mode, \d+\.\d\d s in the kernel, softirq \d+\.\d\d s\n`, text)
	}
	a, b = startPerf(t, p, "10.9.0.2", "", "send bw", "-D 0.3 --report-gbits")
	require.Equal(t, 0, a.status(t, 20*time.Second), a.stderr.String())
	require.Equal(t, 0, b.status(t, 5*time.Second), b.stderr.String())
	require.Contains(t, a.stdout.String(), "Gbit/s")
	require.Contains(t, b.stdout.String(), "MiB/s", "each end prints as it was told")
	require.Empty(t, a.stderr.String(), "progress is for terminals")
}

// TestPerfDisagreement: one line at each end, with both values.
func TestPerfDisagreement(t *testing.T) {
	p := newPair(t, netlab.PairOptions{})
	for _, c := range []struct{ server, words, client, atServer, atClient string }{
		{"read", "write bw", "", "the operation is read here and write at the other end", "the operation is write here and read at the other end"},
		{"-s 5", "write bw", "-s 6", "-s is 5 here and 6 at the other end", "-s is 6 here and 5 at the other end"},
		{"-q 2", "write bw", "", "-q is 2 here and 1 at the other end", "-q is 1 here and 2 at the other end"},
		{"-m 256", "write bw", "-m 512", "-m is 256 here and 512 at the other end", "-m is 512 here and 256 at the other end"},
		{"--wait=block", "write lat", "", "--wait=block: a WRITE tells nobody", "the other end: --wait=block: a WRITE tells nobody"},
	} {
		a, b := startPerf(t, p, "10.9.0.2", c.server, c.words, c.client)
		require.Equal(t, statusEnvironment, a.status(t, 5*time.Second))
		require.Equal(t, statusEnvironment, b.status(t, 5*time.Second))
		require.True(t, strings.HasPrefix(a.stderr.String(), "xroce: "+c.atClient), a.stderr.String())
		require.True(t, strings.HasPrefix(errorsOf(b), "xroce: "+c.atServer), errorsOf(b))
		require.Equal(t, 2, strings.Count(a.stderr.String()+errorsOf(b), "\n"))
		require.Empty(t, a.stdout.String()+b.stdout.String())
	}
	requireFree(t, &p.A)
	requireFree(t, &p.B)
}

// TestPerfPathMTU: the smaller end decides, and who asks for more than that is told both values.
func TestPerfPathMTU(t *testing.T) {
	p := newPair(t, netlab.PairOptions{MTU: 2200})
	runMTU := func(server, client string, want int) {
		here, _ := runPerf(t, p, "10.9.0.2", server, "write bw", "-n 10 --verify "+client)
		require.Equal(t, want, here.PathMTU)
	}
	runMTU("", "", 2048)
	runMTU("-m 512", "", 512)
	runMTU("", "-m 1024", 1024)
	inside(t, &p.B, func(h *netlink.Handle, device netlink.Link) { require.NoError(t, h.LinkSetMTU(device, 1500)) })
	runMTU("", "", 1024)
	a, b := startPerf(t, p, "10.9.0.2", "", "write bw", "-m 2048")
	require.Equal(t, statusEnvironment, a.status(t, 5*time.Second))
	require.Equal(t, statusEnvironment, b.status(t, 5*time.Second))
	require.Equal(t, "xroce: -m is 2048, and this end carries 2048 and the other end 1024\n", a.stderr.String())
	require.Equal(t, "xroce: -m is 2048, and this end carries 1024 and the other end 2048\n", errorsOf(b))
}

// TestPerfStranger: what is no client does not end a server, and one of another version is told so.
func TestPerfStranger(t *testing.T) {
	p := newPair(t, netlab.PairOptions{})
	server, port := startPerfServer(t, p, "")
	talk := func(text string) {
		require.NoError(t, p.A.Namespace.Do(func() error {
			connection, err := net.Dial("tcp", "10.9.0.2:"+port)
			require.NoError(t, err)
			_, err = io.WriteString(connection, text)
			require.NoError(t, err)
			_, _ = io.Copy(io.Discard, connection) // until it is turned away
			return connection.Close()
		}))
	}
	talk("GET / HTTP/1.1\r\n\r\n")
	require.Eventually(t, func() bool {
		return strings.Contains(errorsOf(server), `not an xroce perf client: it sent "GET / HTTP/1.1\r\n`)
	}, 2*time.Second, time.Millisecond, "%v", &server.stderr)
	talk(`{"program":"xroce perf","version":99}` + "\n")
	require.Equal(t, statusEnvironment, server.status(t, 5*time.Second))
	require.True(t, strings.HasSuffix(server.stderr.String(), "\nxroce: xroce perf speaks version 1 here and 99 at the other end\n"), &server.stderr)

	server, port = startPerfServer(t, p, "")
	talk(`{"program":"xroce perf","version":1,"wish":{"operation":"write","test":"bw","qps":-1}}` + "\n")
	require.Equal(t, statusEnvironment, server.status(t, 5*time.Second))
	require.Contains(t, errorsOf(server), "xroce: -q/--qp -1 is not in")

	client := newProgram("perf", "send", "bw", "10.9.0.2", "-p", port)
	require.Equal(t, statusFailed, client.run(t, p.A.Namespace))
	require.Contains(t, client.stderr.String(), "xroce: no perf waits at 10.9.0.2:"+port)
	requireFree(t, &p.A)
	requireFree(t, &p.B)
}

// awaitRun waits until a client is in the middle of its run.
func awaitRun(t *testing.T, client *program) {
	t.Helper()
	awaitText(t, client, "CPU s/GiB")
	time.Sleep(400 * time.Millisecond) // longer than what goes before
}

// TestPerfPeerDies: the other end says so at once, and leaves nothing behind.
func TestPerfPeerDies(t *testing.T) {
	p := newPair(t, netlab.PairOptions{})
	for _, words := range []string{"write bw", "send bw", "send lat", "write lat", "read lat"} {
		for _, wait := range []string{"poll", "block"} {
			if words == "write lat" && wait == "block" {
				continue
			}
			for _, victim := range []string{"client", "server"} {
				flags := "--wait=" + wait
				a, b := startPerf(t, p, "10.9.0.2", flags, words, flags+" -D 60")
				awaitRun(t, a)
				dies, lives := a, b
				if victim == "server" {
					dies, lives = b, a
				}
				require.NoError(t, dies.command.Process.Kill())
				require.Equal(t, statusFailed, lives.status(t, noticed), "%s %s %s", words, wait, victim)
				require.Contains(t, lives.stderr.String(), "xroce: the other end is gone: ")
				require.Equal(t, 1, strings.Count(lives.stderr.String(), "xroce: "), lives.stderr.String())
				requireFree(t, &p.A)
				requireFree(t, &p.B)
			}
		}
	}
}

// noticed is how soon an end ends when it is told, or the other one is gone: before the stall limit, which would be another
// reason.
const noticed = stallLimit / 2

// TestPerfInterrupted: ^C ends either end, waiting or measuring, and the other one says why it ends.
func TestPerfInterrupted(t *testing.T) {
	p := newPair(t, netlab.PairOptions{})
	server, _ := startPerfServer(t, p, "")
	require.NoError(t, server.command.Process.Signal(syscall.SIGINT))
	require.Equal(t, 130, server.status(t, noticed))
	require.Equal(t, "xroce: stopped by signal: interrupt\n", errorsOf(server))
	for _, words := range []string{"write bw", "send lat", "write lat"} {
		for _, stop := range []string{"client", "server"} {
			a, b := startPerf(t, p, "10.9.0.2", "", words, "-D 60")
			awaitRun(t, a)
			stopped, other := a, b
			if stop == "server" {
				stopped, other = b, a
			}
			require.NoError(t, stopped.command.Process.Signal(syscall.SIGINT))
			require.Equal(t, 130, stopped.status(t, noticed))
			require.True(t, strings.HasSuffix(stopped.stderr.String(), "xroce: stopped by signal: interrupt\n"), &stopped.stderr)
			require.Equal(t, statusFailed, other.status(t, noticed))
			require.Contains(t, other.stderr.String(), "xroce: the other end is gone: ")
			requireFree(t, &p.A)
			requireFree(t, &p.B)
		}
	}
}
