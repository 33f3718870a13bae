package main

import (
	"bytes"
	"context"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/xroce/xroce/internal/control"
	"github.com/xroce/xroce/internal/netlab"
	"github.com/xroce/xroce/internal/opener"
	"github.com/xroce/xroce/internal/pcapng/pcapngtest"
	"github.com/xroce/xroce/roce"
	"github.com/xroce/xroce/verbs"
)

// talkers are two devices of this process with a queue pair each, which are connected.
type talkers struct {
	devices [2]*verbs.Device
	qps     [2]*verbs.QP
	mrs     [2]*verbs.MR
	cqs     [2]*verbs.CQ
}

func newTalkers(t *testing.T) *talkers {
	t.Helper()
	pair := newPair(t, netlab.PairOptions{})
	t.Setenv(control.Environment, t.TempDir())
	var k talkers
	check := func(err error) { t.Helper(); require.NoError(t, err) }
	var endpoints [2]verbs.Endpoint
	for i, e := range []*netlab.End{&pair.A, &pair.B} {
		d, err := verbs.OpenDevice(t.Context(), e.Name, verbs.Options{NetNS: e.Namespace.Path()})
		check(err)
		t.Cleanup(func() { check(d.Close()) })
		pd, err := d.AllocPD()
		check(err)
		t.Cleanup(func() { check(pd.Dealloc()) })
		k.devices[i] = d
		k.mrs[i], err = pd.RegMR(make([]byte, 1<<20), verbs.AccessLocalWrite|verbs.AccessRemoteWrite)
		check(err)
		t.Cleanup(func() { check(k.mrs[i].Dereg()) })
		k.cqs[i], err = d.CreateCQ(verbs.CQInitAttr{CQE: 16})
		check(err)
		t.Cleanup(func() { check(k.cqs[i].Destroy()) })
		k.qps[i], err = pd.CreateQP(verbs.QPInitAttr{SendCQ: k.cqs[i], RecvCQ: k.cqs[i]})
		check(err)
		t.Cleanup(func() { check(k.qps[i].Destroy()) })
		endpoints[i], err = k.qps[i].Endpoint(verbs.ConnectOptions{})
		check(err)
	}
	for i, q := range k.qps {
		check(q.Connect(t.Context(), endpoints[1-i], verbs.ConnectOptions{Timeout: roce.AckTimeout(20)}))
	}
	return &k
}

// write moves some bytes by RDMA WRITE.
func (k *talkers) write(t *testing.T, bytes int) {
	t.Helper()
	require.NoError(t, k.qps[0].PostSend(verbs.SendWR{
		Opcode: verbs.WRRDMAWrite, Flags: verbs.SendSignaled, SGList: []verbs.SGE{k.mrs[0].SGE(0, bytes)},
		RemoteAddr: k.mrs[1].Addr(), RKey: k.mrs[1].RKey(),
	}))
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	require.NoError(t, k.cqs[0].Wait(ctx))
	var wc [1]verbs.WC
	n, err := k.cqs[0].Poll(wc[:])
	require.NoError(t, err)
	require.Equal(t, 1, n)
	require.Equal(t, verbs.WCSuccess, wc[0].Status)
}

// startCapture begins a capture into a file. When it returns, packets are captured.
func startCapture(t *testing.T, file string, arguments ...string) *program {
	t.Helper()
	p := newProgram(append([]string{"capture", "-w", file}, arguments...)...)
	p.begin(t, nil)
	require.Eventually(t, func() bool {
		info, err := os.Stat(file)
		return err == nil && info.Size() > 0
	}, 20*time.Second, time.Millisecond, "%v", &p.stderr)
	return p
}

func readCapture(t *testing.T, file string) pcapngtest.Capture {
	t.Helper()
	content, err := os.ReadFile(file)
	require.NoError(t, err)
	return pcapngtest.Read(t, bytes.NewReader(content))
}

// TestCase_F7_Capture: what tcpdump does not see, of both ends in one file; ^C completes it.
func TestCase_F7_Capture(t *testing.T) {
	k := newTalkers(t)
	folder := t.TempDir()
	all := startCapture(t, filepath.Join(folder, "all"))
	one := startCapture(t, filepath.Join(folder, "one"),
		"--qpn", k.qps[0].QPN().String(), "--opcode", "rc_acknowledge", "--opcode", "RC_RDMA_WRITE_F*", "-s", "64", "-i", k.devices[0].Name())
	four := startCapture(t, filepath.Join(folder, "four"), "-c", "4")
	for range 20 {
		k.write(t, 5000)
	}
	require.Equal(t, 0, four.status(t, 20*time.Second), "it ends by itself: %s", &four.stderr)
	require.Equal(t, "4 packets captured, 0 left out\n", four.stderr.String())
	require.Len(t, readCapture(t, filepath.Join(folder, "four")).Packets, 4)
	for _, p := range []*program{all, one} {
		require.NoError(t, p.command.Process.Signal(os.Interrupt))
		require.Equal(t, 0, p.status(t, 20*time.Second), "%s", &p.stderr)
		require.Empty(t, p.stdout.String())
	}

	c := readCapture(t, filepath.Join(folder, "all"))
	require.Len(t, c.Interfaces, 2)
	var inbound, outbound [2]uint64
	var packet roce.Packet
	opcodes := make(map[string]int)
	for _, p := range c.Packets {
		require.Equal(t, roce.DropNone, packet.Parse([][]byte{p.Frame}))
		require.InDelta(t, 0, time.Since(p.At).Seconds(), 60)
		require.Empty(t, p.Comment)
		if p.Outbound {
			outbound[p.Interface]++
			opcodes[packet.Opcode.String()]++
		} else {
			inbound[p.Interface]++
		}
	}
	var devices [2]int // by interface
	for i, d := range k.devices {
		for at, n := range c.Interfaces {
			if n.Statistics.PacketsReceived == opener.Counters(d).Link.Received+opener.Counters(d).Link.Transmitted &&
				outbound[at] == opener.Counters(d).Link.Transmitted {
				devices[at] = i
			}
		}
	}
	for at, i := range devices {
		l := opener.Counters(k.devices[i]).Link
		require.Equal(t, l.Transmitted, outbound[at])
		require.Equal(t, l.Received, inbound[at])
		require.Equal(t, k.devices[i].Name(), c.Interfaces[at].Name)
		require.Contains(t, c.Interfaces[at].Description, "process "+itoa(os.Getpid()))
		require.Zero(t, c.Interfaces[at].Statistics.PacketsDropped)
	}
	require.Equal(t, 20, opcodes["RC_RDMA_WRITE_FIRST"])
	require.Equal(t, itoa(len(c.Packets))+" packets captured, 0 left out\n", all.stderr.String())

	c = readCapture(t, filepath.Join(folder, "one"))
	want := opener.Counters(k.devices[0]).Transport
	first, acknowledgements := uint64(0), uint64(0)
	for _, p := range c.Packets {
		require.LessOrEqual(t, len(p.Frame), 64)
		if c.Interfaces[p.Interface].Statistics.PacketsReceived == 0 {
			continue
		}
		if p.Length > 1000 {
			first++
		} else {
			acknowledgements++
		}
	}
	devicesOfName := uint64(len(c.Interfaces)) // both ends may have the same name
	require.Equal(t, want.Sent()["RC_RDMA_WRITE_FIRST"]*devicesOfName, first)
	require.Equal(t, want.Received()["RC_ACKNOWLEDGE"]*devicesOfName, acknowledgements)
}

// TestCaptureToPipe: packets come while the capture goes on.
func TestCaptureToPipe(t *testing.T) {
	k := newTalkers(t)
	p := newProgram("capture", "-w", "-", "--duration", "700ms")
	p.begin(t, nil)
	waitFor := func(bytes int) {
		t.Helper()
		require.Eventually(t, func() bool { return len(p.stdout.String()) >= bytes }, 20*time.Second, 5*time.Millisecond, "%s", &p.stderr)
	}
	waitFor(100) // the header
	k.write(t, 100_000)
	waitFor(100_000)
	require.Equal(t, 0, p.status(t, 20*time.Second), "%s", &p.stderr)
	c := pcapngtest.Read(t, strings.NewReader(p.stdout.String()))
	require.Greater(t, len(c.Packets), 2*100)
	require.Contains(t, p.stderr.String(), itoa(len(c.Packets))+" packets captured, 0 left out\n")
}

// TestCaptureIntoFIFO: one that nobody reads any more, one that nobody reads on, and one that nobody has opened end
// the capture, with an error, and not later than they should.
func TestCaptureIntoFIFO(t *testing.T) {
	k := newTalkers(t)
	name := filepath.Join(t.TempDir(), "fifo")
	require.NoError(t, unix.Mkfifo(name, 0o600))
	begin := func(arguments ...string) *program {
		p := newProgram(append([]string{"capture", "-w", name}, arguments...)...)
		p.begin(t, nil)
		return p
	}
	open := func() *os.File { // waits for the capture
		reader, err := os.Open(name)
		require.NoError(t, err)
		_, err = io.ReadFull(reader, make([]byte, 28))
		require.NoError(t, err)
		return reader
	}

	p := begin()
	require.NoError(t, open().Close())
	k.write(t, 5000)
	require.Equal(t, 1, p.status(t, 20*time.Second))
	require.Contains(t, p.stderr.String(), "broken pipe")

	p = begin("--duration", "200ms")
	reader := open()
	for range 10 {
		k.write(t, 1<<20)
	}
	require.Equal(t, 1, p.status(t, 20*time.Second))
	require.Equal(t, "xroce: "+name+" is not read: the capture is incomplete\n", p.stderr.String())
	require.NoError(t, reader.Close())

	p = begin("--duration", "1ms")
	time.Sleep(300 * time.Millisecond) // it asks the process, and opens
	require.NoError(t, p.command.Process.Signal(os.Interrupt))
	require.Equal(t, 130, p.status(t, 20*time.Second), "%s", &p.stderr)
}

// TestCaptureRotates as tcpdump does.
func TestCaptureRotates(t *testing.T) {
	k := newTalkers(t)
	folder := t.TempDir()
	numbered := newProgram("capture", "-w", filepath.Join(folder, "n"), "-C", "1")
	ring := newProgram("capture", "-w", filepath.Join(folder, "r"), "-C", "1", "-W", "11")
	for _, p := range []*program{numbered, ring} {
		p.begin(t, nil)
	}
	for _, first := range []string{"n", "r00"} {
		require.Eventually(t, func() bool {
			info, err := os.Stat(filepath.Join(folder, first))
			return err == nil && info.Size() > 0
		}, 20*time.Second, time.Millisecond)
	}
	for range 8 { // 2.3 MB of both ends each
		k.write(t, 1<<20)
		time.Sleep(20 * time.Millisecond) // nothing needs to be left out
	}
	for _, p := range []*program{numbered, ring} {
		require.NoError(t, p.command.Process.Signal(os.Interrupt))
		require.Equal(t, 0, p.status(t, 20*time.Second), "%s", &p.stderr)
	}
	total := func(names []string) (packets int) {
		for _, name := range names {
			info, err := os.Stat(name)
			require.NoError(t, err)
			require.LessOrEqual(t, info.Size(), int64(1_000_000), name)
			c := readCapture(t, name)
			require.NotEmpty(t, c.Packets, name)
			require.Len(t, c.Interfaces, 2)
			packets += len(c.Packets)
		}
		return packets
	}
	names, err := filepath.Glob(filepath.Join(folder, "n*"))
	require.NoError(t, err)
	require.Greater(t, len(names), 11)
	require.FileExists(t, filepath.Join(folder, "n"))
	require.FileExists(t, filepath.Join(folder, "n"+itoa(len(names)-1)))
	require.True(t, strings.HasPrefix(numbered.stderr.String(), itoa(total(names))+" packets captured, "), numbered.stderr.String())
	names, err = filepath.Glob(filepath.Join(folder, "r*"))
	require.NoError(t, err)
	require.Len(t, names, 11)
	require.FileExists(t, filepath.Join(folder, "r10"))
	total(names)
}

// TestCase_F7_CaptureKilled: a capture that is killed, stopped or slow is nothing to the traffic.
func TestCase_F7_CaptureKilled(t *testing.T) {
	k := newTalkers(t)
	folder := t.TempDir()
	killed := startCapture(t, filepath.Join(folder, "killed"))
	stopped := startCapture(t, filepath.Join(folder, "stopped"))
	k.write(t, 1<<20)
	require.NoError(t, stopped.command.Process.Signal(syscall.SIGSTOP))
	require.NoError(t, killed.command.Process.Kill())
	<-killed.ended
	for range 20 { // 40 MB of both ends: more than all buffers on the way to the stopped one hold
		k.write(t, 1<<20)
	}
	require.NoError(t, stopped.command.Process.Signal(syscall.SIGCONT))
	time.Sleep(50 * time.Millisecond)
	k.write(t, 1<<20)
	require.NoError(t, stopped.command.Process.Signal(os.Interrupt))
	require.Equal(t, 0, stopped.status(t, 20*time.Second), "%s", &stopped.stderr)
	c := readCapture(t, filepath.Join(folder, "stopped"))
	missing := uint64(0)
	for _, p := range c.Packets {
		missing += p.LeftOut
	}
	require.NotZero(t, missing)
	all := uint64(0)
	for _, d := range k.devices {
		all += opener.Counters(d).Link.Transmitted + opener.Counters(d).Link.Received
	}
	require.Equal(t, all, uint64(len(c.Packets))+missing, "what is left out is counted")
	require.Equal(t, itoa(len(c.Packets))+" packets captured, "+itoa(int(missing))+" left out"+remedy(missing)+"\n", stopped.stderr.String())
	require.Contains(t, stopped.stderr.String(), "a larger -B")
	for _, d := range k.devices {
		require.Empty(t, opener.Counters(d).DropReasons())
		require.Zero(t, opener.Counters(d).Transport.Retransmitted)
	}
}

// TestCase_F7_EngineKilled: a process that is killed during a capture leaves a complete file and an error.
func TestCase_F7_EngineKilled(t *testing.T) {
	pair := newPair(t, netlab.PairOptions{})
	t.Setenv(control.Environment, t.TempDir())
	a, b := startPingpong(t, pair, pair.B.IPv4().String(), []string{"-n", "10000000"}, []string{"-n", "10000000"})
	var sockets []control.Socket
	require.Eventually(t, func() bool {
		sockets, _ = control.List(os.Getenv(control.Environment))
		return len(sockets) == 2
	}, 20*time.Second, 5*time.Millisecond)
	file := filepath.Join(t.TempDir(), "a")
	p := startCapture(t, file)
	require.Eventually(t, func() bool {
		info, err := os.Stat(file)
		return err == nil && info.Size() > 100_000
	}, 20*time.Second, time.Millisecond)
	require.NoError(t, a.command.Process.Kill())
	<-b.ended // it notices that, and ends in order
	require.Equal(t, statusFailed, p.status(t, 20*time.Second))
	c := readCapture(t, file)
	text := p.stderr.String()
	require.Regexp(t, "^xroce: process "+itoa(a.command.Process.Pid)+" has ended during the capture of veth0\n"+
		itoa(len(c.Packets))+" packets captured, \\d+ left out.*\n$", text)
	require.Len(t, c.Interfaces, 2)
	var packet roce.Packet
	for _, got := range c.Packets {
		require.Equal(t, roce.DropNone, packet.Parse([][]byte{got.Frame}))
	}
}

// TestCaptureEndsWithTheDevice: a device that is closed completes the capture.
func TestCaptureEndsWithTheDevice(t *testing.T) {
	pair := newPair(t, netlab.PairOptions{})
	t.Setenv(control.Environment, t.TempDir())
	d, err := verbs.OpenDevice(t.Context(), pair.A.Name, verbs.Options{NetNS: pair.A.Namespace.Path()})
	require.NoError(t, err)
	file := filepath.Join(t.TempDir(), "a")
	p := startCapture(t, file, "-i", d.Name())
	requireWrongUse(t, nil, []string{"capture", "-w", file + "x", "-i", "eth7"},
		"no process serves eth7; served are "+d.Name()+" by process "+itoa(os.Getpid()))
	require.NoFileExists(t, file+"x")
	requireWrongUse(t, nil, []string{"capture", "-w", "/absent/x"}, "/absent/x: no such file")
	require.NoError(t, d.Close())
	require.Equal(t, 0, p.status(t, 20*time.Second), "%s", &p.stderr)
	require.Equal(t, "no process serves "+d.Name()+" any more\n0 packets captured, 0 left out\n", p.stderr.String())
	require.Len(t, readCapture(t, file).Interfaces, 1)
}

// TestCaptureNotOnTerminal opens a terminal, on which a capture must not be written.
func TestCaptureNotOnTerminal(t *testing.T) {
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		skip(t, err)
	}
	defer master.Close()
	number, err := unix.IoctlGetInt(int(master.Fd()), unix.TIOCGPTN)
	require.NoError(t, err)
	require.NoError(t, unix.IoctlSetPointerInt(int(master.Fd()), unix.TIOCSPTLCK, 0))
	slave, err := os.OpenFile("/dev/pts/"+itoa(number), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		skip(t, err)
	}
	defer slave.Close()
	p := newProgram("capture", "-w", "-")
	p.command.Stdout = slave
	require.Equal(t, statusEnvironment, p.run(t, nil))
	require.Equal(t, "xroce: a capture is not for a terminal: name a file with -w, or pipe it to wireshark -k -i -\n", p.stderr.String())
}
