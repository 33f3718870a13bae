package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/xroce/xroce/internal/control"
	"github.com/xroce/xroce/internal/netlab"
)

// asProgram makes the test binary behave as xroce, children of the demo included.
const asProgram = "XROCE_TEST_AS_PROGRAM"

func TestMain(m *testing.M) {
	if os.Getenv(asProgram) != "" {
		installFilter()
		main()
	}
	os.Exit(withFolder(m))
}

// withFolder runs the tests with a folder of their own for control sockets.
func withFolder(m *testing.M) int {
	folder, err := os.MkdirTemp("", "xroce-run")
	if err == nil {
		defer os.RemoveAll(folder)
		err = os.Setenv(control.Environment, folder)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return m.Run()
}

// skip skips the test, or fails it if the environment says CI=true.
func skip(t *testing.T, reason any) {
	t.Helper()
	if os.Getenv("CI") == "true" {
		t.Fatal("this test must run in CI, and cannot: ", reason)
	}
	t.Skip(reason)
}

// program is a run of xroce.
type program struct {
	command        *exec.Cmd
	stdout, stderr watchedBuffer
	ended          chan struct{}
}

func newProgram(arguments ...string) *program {
	p := &program{command: exec.Command(self, arguments...), ended: make(chan struct{})}
	p.stderr.changed = make(chan struct{}, 1)
	p.command.Env = append(os.Environ(), asProgram+"=1")
	p.command.Stdout, p.command.Stderr = &p.stdout, &p.stderr
	return p
}

// begin starts the program, in a namespace if one is given.
func (p *program) begin(t *testing.T, n *netlab.Namespace) {
	t.Helper()
	if n == nil {
		require.NoError(t, p.command.Start())
	} else {
		require.NoError(t, n.Start(p.command))
	}
	t.Cleanup(func() {
		_ = p.command.Process.Kill()
		<-p.ended
	})
	go func() {
		_ = p.command.Wait()
		close(p.ended)
	}()
}

// status waits for the end and returns the exit status, or 128 + n after signal n.
func (p *program) status(t *testing.T, limit time.Duration) int {
	t.Helper()
	select {
	case <-p.ended:
	case <-time.After(limit):
		_ = p.command.Process.Signal(syscall.SIGQUIT)
		<-p.ended
		require.Fail(t, "the program is still running", "%v: %s", p.command.Args, &p.stderr)
	}
	return p.command.ProcessState.ExitCode()
}

func (p *program) run(t *testing.T, n *netlab.Namespace) int {
	t.Helper()
	p.begin(t, n)
	return p.status(t, 60*time.Second)
}

// requireWrongUse runs xroce and checks that it refuses, in one line that holds all words.
func requireWrongUse(t *testing.T, n *netlab.Namespace, arguments []string, words ...string) {
	t.Helper()
	p := newProgram(arguments...)
	p.requireWrongUse(t, n, words...)
}

func (p *program) requireWrongUse(t *testing.T, n *netlab.Namespace, words ...string) {
	t.Helper()
	status := p.run(t, n)
	text := p.stderr.String()
	t.Logf("%v: %d %s", p.command.Args[1:], status, text)
	require.Equal(t, statusEnvironment, status)
	require.Empty(t, p.stdout.String())
	require.True(t, strings.HasPrefix(text, "xroce: "), text)
	require.Equal(t, 1, strings.Count(text, "\n"), text)
	for _, w := range words {
		require.Contains(t, text, w)
	}
}

func TestFlagErrors(t *testing.T) {
	for _, c := range []struct {
		line string
		word string
	}{
		{"", "expected one of"},
		{"frobnicate", "frobnicate"},
		{"demo --frobnicate", "--frobnicate"},
		{"demo --mode fast", `"fast"`},
		{"demo --mtu many", "many"},
		{"demo --mtu 1500", "1500 does not exist: choose"},
		{"demo --mtu 8192", "8192 does not exist: choose"},
		{"demo --iterations 0", "--iterations 0 is not in 1..100000000"},
		{"demo --file /absent", "/absent: no such file"},
		{"demo --file /dev/zero", "/dev/zero is no regular file"},
		{"demo --file /proc/self/status", "has 0 bytes, the demo needs at least 64.0 MiB"},
		{"demo surplus", "surplus"},
		{"devices --netns /absent", "/absent: no such file"},
		{"devices --netns absent", "/run/netns/absent: no such file"},
		{"devices --netns /dev/null", "/dev/null is no network namespace"},
		{"pingpong -s 0", "-s/--size 0 is not in 1..1073741824"},
		{"pingpong -r 65536", "-r/--rx-depth 65536 is not in 1..65535"},
		{"pingpong -n -1", "--iters"},
		{"pingpong -m 1000", "path MTU 1000 does not exist"},
		{"pingpong -p 65536", "65536"},
		{"pingpong --gid-idx=-2", "-g/--gid-idx -2 is not in -1..65536"},
		{"pingpong -i 2", "-i/--ib-port 2: a device has only port 1"},
		{"pingpong -i 0", "-i/--ib-port 0: a device has only port 1"},
		{"pingpong -l 1", "-l/--sl 1: RoCEv2"},
		{"pingpong -p 0 10.9.0.2", "-p/--port 0: name the port at which 10.9.0.2 waits"},
		{"pingpong --mode=", "--mode"},
		{"pingpong --netns absent", "/run/netns/absent: no such file"},
		{"perf frob", `no operation is called "frob": choose send, write, write-imm, read or atomic`},
		{"perf write frob", `no test is called "frob": choose bw or lat`},
		{"perf 10.9.0.2", `no operation is called "10.9.0.2"`},
		{"perf write bw 10.9.0.2 -s 0", "-s/--size 0 is not in 1..1073741824"},
		{"perf write bw 10.9.0.2 -n 5 -D 1", "-n/--iters and -D/--duration exclude each other"},
		{"perf write bw 10.9.0.2 --cq-mod 9 -t 8", "--cq-mod 9 is above -t/--tx-depth 8"},
		{"perf write lat 10.9.0.2 -b", "-b/--bidirectional: a latency test goes one way at a time"},
		{"perf read bw 10.9.0.2 --inline 8", "--inline 8: read carries no data in its request"},
		{"perf -q 0", "-q/--qp 0 is not in 1..16384"},
		{"perf -D never", "never"},
		{"perf -m 1000", "path MTU 1000 does not exist"},
		{"perf --wait=asleep", `"asleep"`},
		{"perf --gid-index=-2", "-x/--gid-index -2 is not in -1..65536"},
		{"perf write bw fe80::1", "fe80::1 is a link-local address"},
		{"perf write bw 10.9.0.2 -p 0", "-p/--port 0: name the port at which 10.9.0.2 waits"},
		{"perf --netns absent", "/run/netns/absent: no such file"},
		{"stat --netns absent", "/run/netns/absent: no such file"},
		{"capture -w x --netns /dev/null", "/dev/null is no network namespace"},
		{"stat -n -1", "--count"},
		{"stat --count=-1", "-n/--count -1 is below 0"},
		{"stat --interval 1ms", "--interval 1ms is below 10ms"},
		{"stat", "no process serves a device"},
		{"stat -i eth7", "no process serves eth7: there is no control socket of one in"},
		{"capture", "--write"},
		{"capture -w x -i eth7", "no process serves eth7: there is no control socket of one in"},
		{"capture -w x --qpn 0x1000000", "0x1000000"},
		{"capture -w x --qpn 0", "QPN 0x0 is not in"},
		{"capture -w x --opcode RC_SENT", "no opcode is called \"RC_SENT\""},
		{"capture -w x -c -1", "--count"},
		{"capture -w x --duration=-1s", "--duration -1s is below 0"},
		{"capture -w x -s -1", "--snaplen"},
		{"capture -w x -W 3", "-W/--rotate-files needs -C/--rotate-size"},
		{"capture -w - -C 3", "-C/--rotate-size needs a file to write to"},
		{"capture -w x --rotate-size=-1", "-C/--rotate-size -1 is not in"},
		{"capture -w x -B 1000000", "buffer of 1024000000 bytes is not in"},
		{"demo-active", "this command is for xroce demo"},
	} {
		requireWrongUse(t, nil, strings.Fields(c.line), c.word)
	}
}

func TestHelpAndVersion(t *testing.T) {
	p := newProgram("--help")
	require.Equal(t, 0, p.run(t, nil))
	require.Contains(t, p.stdout.String(), "pingpong")
	require.NotContains(t, p.stdout.String(), "demo-active")
	p = newProgram("--version")
	require.Equal(t, 0, p.run(t, nil))
	require.True(t, strings.HasPrefix(p.stdout.String(), "xroce "), p.stdout.String())

	// As commands, too.
	for _, c := range [][2]string{{"version", "--version"}, {"help", "--help"}, {"help pingpong", "pingpong --help"}} {
		command, flag := newProgram(strings.Fields(c[0])...), newProgram(strings.Fields(c[1])...)
		require.Equal(t, 0, command.run(t, nil), &command.stderr)
		require.Equal(t, 0, flag.run(t, nil), &flag.stderr)
		require.NotEmpty(t, command.stdout.String())
		require.Equal(t, flag.stdout.String(), command.stdout.String())
	}
	requireWrongUse(t, nil, []string{"help", "frobnicate"}, "frobnicate")
}

func TestExitStatus(t *testing.T) {
	require.Equal(t, 0, exitStatus(nil))
	require.Equal(t, 1, exitStatus(errors.New("x")))
	require.Equal(t, 2, exitStatus(usage("x")))
	require.Equal(t, 130, exitStatus(interruption{2}))
	require.Equal(t, "a; b", oneLine(errors.Join(errors.New("a"), errors.New("b"))))
}

func TestProgress(t *testing.T) {
	var out bytes.Buffer
	p := newProgress(&out)
	p.begin("one")
	p.update(1, 2)
	p.end()
	require.Equal(t, "one\n", out.String(), "elsewhere than on a terminal")
	out.Reset()
	p.terminal = true
	p.begin("two")
	p.update(1, 2)
	p.end()
	require.Equal(t, "\r\x1b[Ktwo ...\r\x1b[Ktwo ...  50 %\r\x1b[K", out.String())
	out.Reset()
	p.show("three", 0.25)
	p.end()
	require.Equal(t, "\r\x1b[Kthree ...  25 %\r\x1b[K", out.String())
	out.Reset()
	p.terminal = false
	p.show("four", 0.25)
	p.end()
	require.Empty(t, out.String())
}
