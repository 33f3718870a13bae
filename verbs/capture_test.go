package verbs_test

import (
	"bytes"
	"errors"
	"io"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/xroce/xroce/internal/opener"
	"github.com/xroce/xroce/internal/pcapng/pcapngtest"
	"github.com/xroce/xroce/internal/support"
	"github.com/xroce/xroce/roce"
	"github.com/xroce/xroce/roce/driver"
	"github.com/xroce/xroce/roce/link/mem"
	"github.com/xroce/xroce/verbs"
)

// seenPacket is a captured packet as its header tells it.
type seenPacket struct {
	outbound bool
	opcode   string
	qpn      verbs.QPN // destination
	comment  string
}

// read takes the packets of a capture apart. All must be right.
func read(t *testing.T, file io.Reader) (list []seenPacket) {
	t.Helper()
	var p roce.Packet
	for _, got := range pcapngtest.Read(t, file).Packets {
		require.Equal(t, roce.DropNone, p.Parse([][]byte{got.Frame}))
		list = append(list, seenPacket{got.Outbound, p.Opcode.String(), p.DestinationQPN, got.Comment})
	}
	return list
}

// TestCaptureChooses: several captures of one device at once, each with what it asked for.
func TestCaptureChooses(t *testing.T) {
	a, b := partnersAt(t, verbs.MTU1024)
	capacity := verbs.QPCap{}
	c, d := newEnd(t, a.device, make([]byte, 64), capacity), newEnd(t, b.device, make([]byte, 64), capacity)
	connect(t, c, d, verbs.ConnectOptions{Timeout: noTimeout})
	var files [5]bytes.Buffer
	var captures []*verbs.Capture
	for i, o := range []verbs.CaptureOptions{
		{}, {QPNs: []verbs.QPN{a.qp.QPN()}}, {QPNs: []verbs.QPN{d.qp.QPN()}}, {Opcodes: []string{"rc_rdma_write*", "RC_ACKNOWLEDGE"}},
		{SnapLength: 60, QPNs: []verbs.QPN{c.qp.QPN(), b.qp.QPN()}, Opcodes: []string{"RC_RDMA_READ_REQUEST"}},
	} {
		one, err := a.device.StartCapture(&files[i], o)
		require.NoError(t, err)
		captures = append(captures, one)
	}
	for _, pair := range [][2]*end{{a, b}, {c, d}} {
		for _, opcode := range []verbs.WROpcode{verbs.WRRDMAWrite, verbs.WRRDMARead} {
			wc := pair[0].do(t, verbs.SendWR{
				Opcode: opcode, SGList: []verbs.SGE{pair[0].mr.SGE(0, 8)}, RemoteAddr: pair[1].mr.Addr(), RKey: pair[1].mr.RKey(),
			})
			require.Equal(t, verbs.WCSuccess, wc.Status)
		}
	}
	ca := opener.Counters(a.device)
	for _, one := range captures {
		stats, err := one.Stop()
		require.NoError(t, err)
		require.Zero(t, stats.LeftOut)
		again, err := one.Stop()
		require.NoError(t, err)
		require.Equal(t, stats, again)
		<-one.Done()
	}
	wc := a.do(t, verbs.SendWR{Opcode: verbs.WRRDMAWrite, SGList: []verbs.SGE{a.mr.SGE(0, 8)}, RemoteAddr: b.mr.Addr(), RKey: b.mr.RKey()})
	require.Equal(t, verbs.WCSuccess, wc.Status, "after the end of the captures")

	conversation := func(local, peer *end) []seenPacket {
		return []seenPacket{
			{true, "RC_RDMA_WRITE_ONLY", peer.qp.QPN(), ""}, {false, "RC_ACKNOWLEDGE", local.qp.QPN(), ""},
			{true, "RC_RDMA_READ_REQUEST", peer.qp.QPN(), ""}, {false, "RC_RDMA_READ_RESPONSE_ONLY", local.qp.QPN(), ""},
		}
	}
	all := append(conversation(a, b), conversation(c, d)...)
	require.Len(t, all, int(ca.Link.Transmitted+ca.Link.Received))
	require.Equal(t, all, read(t, &files[0]))
	require.Equal(t, all[:4], read(t, &files[1]))
	require.Equal(t, all[4:], read(t, &files[2]), "the number of the peer is that of the queue pair, too")
	require.Equal(t, append(all[:2:2], all[4:6]...), read(t, &files[3]))
	cut := pcapngtest.Read(t, &files[4])
	require.Len(t, cut.Packets, 2)
	for _, p := range cut.Packets {
		require.Len(t, p.Frame, 60)
		require.Equal(t, 14+20+8+12+16+4, p.Length)
		require.True(t, p.Outbound)
	}
	require.EqualValues(t, 60, cut.Interfaces[0].SnapLength)
	require.Equal(t, a.device.Name(), cut.Interfaces[0].Name)
	require.EqualValues(t, 2, cut.Interfaces[0].Statistics.PacketsReceived)
	require.Zero(t, cut.Interfaces[0].Statistics.PacketsDropped)
}

// TestCaptureOfLoopback: a packet to oneself is sent and received.
func TestCaptureOfLoopback(t *testing.T) {
	d, _ := memDevices(t, mem.Options{}, mem.DeviceOptions{Queues: 2})
	a, b := newEnd(t, d, make([]byte, 4096), verbs.QPCap{}), newEnd(t, d, make([]byte, 4096), verbs.QPCap{})
	connect(t, a, b, verbs.ConnectOptions{Timeout: noTimeout})
	var file bytes.Buffer
	capture, err := d.StartCapture(&file, verbs.CaptureOptions{})
	require.NoError(t, err)
	require.Equal(t, verbs.WCSuccess, writeAll(t, a, b, 4))
	_, err = capture.Stop()
	require.NoError(t, err)
	require.ElementsMatch(t, []seenPacket{
		{true, "RC_RDMA_WRITE_ONLY", b.qp.QPN(), ""}, {false, "RC_RDMA_WRITE_ONLY", b.qp.QPN(), ""},
		{true, "RC_ACKNOWLEDGE", a.qp.QPN(), ""}, {false, "RC_ACKNOWLEDGE", a.qp.QPN(), ""},
	}, read(t, &file))
	support.Object(t, "Device", "StartCapture, loopback", "each packet sent and received")
}

// gate is a writer that takes nothing until it is opened.
type gate struct {
	open    chan struct{}
	entered chan struct{}
	once    sync.Once
	bytes.Buffer
}

func (g *gate) Write(b []byte) (int, error) {
	g.once.Do(func() { close(g.entered) })
	<-g.open
	return g.Buffer.Write(b)
}

// TestCaptureTooSlow: traffic goes on while nobody takes the capture, and what is missing is told where it is missing.
func TestCaptureTooSlow(t *testing.T) {
	a, b := partnersAt(t, verbs.MTU1024)
	g := &gate{open: make(chan struct{}), entered: make(chan struct{})}
	capture, err := a.device.StartCapture(g, verbs.CaptureOptions{BufferSize: 1}) // the least there is
	require.NoError(t, err)
	<-g.entered
	const rounds = 200
	for range rounds {
		require.Equal(t, verbs.WCSuccess, writeAll(t, a, b, 1000))
	}
	close(g.open)
	require.Eventually(t, func() bool { // now there is room again
		before := opener.Counters(a.device)
		require.Equal(t, verbs.WCSuccess, writeAll(t, a, b, 1000))
		time.Sleep(5 * time.Millisecond)
		return before.Transport.SentPackets > rounds+2
	}, patience, tick)
	stats, err := capture.Stop()
	require.NoError(t, err)
	c := pcapngtest.Read(t, &g.Buffer)
	require.Len(t, c.Packets, int(stats.Packets))
	missing := uint64(0)
	for _, p := range c.Packets {
		missing += p.LeftOut
		require.Equal(t, p.LeftOut > 0, strings.Contains(p.Comment, "left out"), p.Comment)
	}
	require.NotZero(t, missing)
	require.Equal(t, stats.LeftOut, missing)
	counters := opener.Counters(a.device).Link
	require.Equal(t, counters.Transmitted+counters.Received, stats.Packets+stats.LeftOut)
	require.Equal(t, stats.LeftOut, c.Interfaces[0].Statistics.PacketsDropped)
	require.Equal(t, stats.Packets+stats.LeftOut, c.Interfaces[0].Statistics.PacketsReceived)
	require.Contains(t, c.Interfaces[0].Statistics.Comment, "left out")
	support.Object(t, "Device", "StartCapture, read too slowly", "traffic goes on; what is left out is counted where it is missing")
}

type countingGate struct {
	gate
	count atomic.Int64
}

func (g *countingGate) Write(b []byte) (int, error) {
	n, err := g.gate.Write(b)
	g.count.Add(int64(n))
	return n, err
}

// TestCaptureCatchesUp: what has piled up while the writer was busy is written as fast as at the end of a capture, not
// so much per look: otherwise packets are left out although the writer is idle.
func TestCaptureCatchesUp(t *testing.T) {
	const messages = 10_000
	a, b := partnersAt(t, verbs.MTU1024)
	complete := int64(0) // bytes
	drain := func(stop bool) time.Duration {
		g := &countingGate{gate: gate{open: make(chan struct{}), entered: make(chan struct{})}}
		capture, err := a.device.StartCapture(g, verbs.CaptureOptions{})
		require.NoError(t, err)
		<-g.entered
		for range messages {
			require.Equal(t, verbs.WCSuccess, writeAll(t, a, b, 8))
		}
		start := time.Now()
		close(g.open)
		for limit := start.Add(patience); !stop && g.count.Load() < complete; time.Sleep(50 * time.Microsecond) {
			require.True(t, time.Now().Before(limit))
		}
		took := time.Since(start)
		stats, err := capture.Stop()
		if stop {
			took = time.Since(start)
			complete = g.count.Load() - 256 // without the statistics
		}
		require.NoError(t, err)
		require.Equal(t, verbs.CaptureStats{Packets: 2 * messages}, stats)
		return took
	}
	for try := 1; ; try++ {
		ending := drain(true)
		running := drain(false)
		t.Logf("%d packets: %v while it goes on, %v at the end", 2*messages, running, ending)
		if running < 2*ending+2*time.Millisecond {
			return
		}
		require.Less(t, try, 5)
	}
}

type broken struct{}

func (broken) Write([]byte) (int, error) { return 0, errors.New("no space left") }

func TestCaptureEnds(t *testing.T) {
	n := mem.NewNetwork(mem.Options{})
	l, err := n.NewDevice(mem.DeviceOptions{})
	require.NoError(t, err)
	d, err := opener.Open[verbs.Device](l, driver.Options{})
	require.NoError(t, err)

	c, err := d.StartCapture(broken{}, verbs.CaptureOptions{})
	require.NoError(t, err)
	<-c.Done()
	_, err = c.Stop()
	require.ErrorContains(t, err, "no space left")

	_, err = d.StartCapture(nil, verbs.CaptureOptions{})
	require.ErrorIs(t, err, verbs.ErrInvalid)
	for _, o := range []verbs.CaptureOptions{
		{SnapLength: -1}, {BufferSize: -1}, {BufferSize: 1 << 40}, {QPNs: []verbs.QPN{0}}, {QPNs: []verbs.QPN{1 << 24}},
		{QPNs: make([]verbs.QPN, 65)}, {Opcodes: []string{"RC_NOTHING"}},
	} {
		require.ErrorIs(t, o.Check(), verbs.ErrInvalid, "%+v", o)
		_, err = d.StartCapture(io.Discard, o)
		require.ErrorIs(t, err, verbs.ErrInvalid, "%+v", o)
	}
	require.NoError(t, verbs.CaptureOptions{QPNs: []verbs.QPN{1<<24 - 1}, Opcodes: []string{"RC_*"}}.Check())

	var files [8]bytes.Buffer
	var captures []*verbs.Capture
	for i := range files {
		c, err := d.StartCapture(&files[i], verbs.CaptureOptions{})
		require.NoError(t, err)
		captures = append(captures, c)
	}
	_, err = d.StartCapture(io.Discard, verbs.CaptureOptions{})
	require.ErrorIs(t, err, verbs.ErrLimit)
	require.ErrorContains(t, err, "capture number 9 of mem1, there can be 8 at once")
	support.Limit(t, "captures of a device at once", err)

	requireClose(t, d)
	for i, c := range captures {
		select {
		case <-c.Done():
		default:
			require.Fail(t, "the device is closed, and the capture goes on")
		}
		_, err = c.Stop()
		require.NoError(t, err)
		require.Len(t, pcapngtest.Read(t, &files[i]).Interfaces, 1)
	}
	_, err = d.StartCapture(io.Discard, verbs.CaptureOptions{})
	require.ErrorIs(t, err, verbs.ErrClosed)
	_, err = (*verbs.Device)(nil).StartCapture(os.Stderr, verbs.CaptureOptions{})
	require.ErrorIs(t, err, verbs.ErrInvalid)
}

// TestCapturesComeAndGo under traffic, also together with the end of the device.
func TestCapturesComeAndGo(t *testing.T) {
	a, b := partnersAt(t, verbs.MTU1024)
	stop := make(chan struct{})
	var running sync.WaitGroup
	for range 3 {
		running.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				c, err := a.device.StartCapture(io.Discard, verbs.CaptureOptions{BufferSize: 1})
				if err != nil {
					t.Error(err)
					return
				}
				if _, err := c.Stop(); err != nil {
					t.Error(err)
				}
			}
		})
	}
	for range 300 {
		require.Equal(t, verbs.WCSuccess, writeAll(t, a, b, 4096))
	}
	close(stop)
	running.Wait()
}
