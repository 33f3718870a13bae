//go:build !race

package verbs_test

import (
	"context"
	"fmt"
	"io"
	"math"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/xroce/xroce/internal/opener"
	"github.com/xroce/xroce/roce/driver"
	"github.com/xroce/xroce/roce/link/mem"
	"github.com/xroce/xroce/verbs"
)

// The race detector allocates by itself, so this file is not part of such a build.

// stream keeps requests of one operation in flight between two devices on a network in memory. One goroutine drives
// both ends, so that whatever is allocated is allocated by the data path.
type stream struct {
	t        testing.TB
	device   *verbs.Device // of the sender, or of both
	sender   *verbs.QP
	receiver *verbs.QP
	sends    *verbs.CQ
	recvs    *verbs.CQ
	channels map[*verbs.CQ]*verbs.CompChannel // with events
	request  []verbs.SendWR
	receive  []verbs.RecvWR
	wcs      [32]verbs.WC
}

const streamDepth = 16

// newStream makes a stream over a wire, or over loopback between two queue pairs of one device. With events every
// completion queue asks for one all the time.
func newStream(t testing.TB, operation verbs.WROpcode, size int, loopback, events bool) *stream {
	s := &stream{t: t, channels: make(map[*verbs.CQ]*verbs.CompChannel)}
	network := mem.NewNetwork(mem.Options{})
	type side struct {
		pd *verbs.PD
		cq *verbs.CQ
		qp *verbs.QP
		mr *verbs.MR
	}
	var sides [2]side
	var endpoints [2]verbs.Endpoint
	check := func(err error) { t.Helper(); require.NoError(t, err) }
	var device *verbs.Device
	var o mem.DeviceOptions
	if loopback {
		o.Queues = 2
	}
	for i := range sides {
		if i == 0 || !loopback {
			l, err := network.NewDevice(o)
			check(err)
			d, err := opener.Open[verbs.Device](l, driver.Options{Manual: true})
			check(err)
			t.Cleanup(func() { check(opener.InUse(d)); check(d.Close()) })
			device = d
			if i == 0 {
				s.device = d
			}
		}
		var err error
		e := &sides[i]
		e.pd, err = device.AllocPD()
		check(err)
		var channel *verbs.CompChannel
		if events {
			channel, err = device.CreateCompChannel()
			check(err)
			t.Cleanup(func() { check(channel.Destroy()) })
		}
		e.cq, err = device.CreateCQ(verbs.CQInitAttr{CQE: 4 * streamDepth, Channel: channel})
		check(err)
		if events {
			s.channels[e.cq] = channel
		}
		e.qp, err = e.pd.CreateQP(verbs.QPInitAttr{SendCQ: e.cq, RecvCQ: e.cq})
		check(err)
		e.mr, err = e.pd.RegMR(make([]byte, size), allAccess)
		check(err)
		endpoints[i], err = e.qp.Endpoint(verbs.ConnectOptions{})
		check(err)
		t.Cleanup(func() {
			check(e.qp.Destroy())
			check(e.cq.Destroy())
			check(e.mr.Dereg())
			check(e.pd.Dealloc())
		})
	}
	for i := range sides {
		o := verbs.ConnectOptions{}
		if loopback { // a frame goes from one shard to the other
			o.FlowLabel = uint32(2 + i)
		}
		check(sides[i].qp.Connect(context.Background(), endpoints[1-i], o))
	}
	s.sender, s.receiver, s.sends, s.recvs = sides[0].qp, sides[1].qp, sides[0].cq, sides[1].cq
	s.request = []verbs.SendWR{{
		Opcode: operation, Flags: verbs.SendSignaled, SGList: []verbs.SGE{sides[0].mr.SGE(0, size)},
		RemoteAddr: sides[1].mr.Addr(), RKey: sides[1].mr.RKey(),
	}}
	if operation == verbs.WRSend || operation == verbs.WRSendWithImm || operation == verbs.WRRDMAWriteWithImm {
		s.receive = []verbs.RecvWR{{SGList: []verbs.SGE{sides[1].mr.SGE(0, size)}}}
	}
	return s
}

// run moves count messages.
func (s *stream) run(count int) {
	posted, completed, received := 0, 0, 0
	for completed < count || s.receive != nil && received < count {
		for posted < count && posted-completed < streamDepth && (s.receive == nil || posted-received < streamDepth) {
			if s.receive != nil {
				require.NoError(s.t, s.receiver.PostRecv(s.receive...))
			}
			if err := s.sender.PostSend(s.request...); err != nil {
				s.t.Fatal(err)
			}
			posted++
		}
		received += s.poll(s.recvs)
		completed += s.poll(s.sends)
	}
}

func (s *stream) poll(cq *verbs.CQ) int {
	if channel := s.channels[cq]; channel != nil {
		channel.Poll()
		require.NoError(s.t, cq.ReqNotify(false))
	}
	n, err := cq.Poll(s.wcs[:])
	if err != nil {
		s.t.Fatal(err)
	}
	for i := range s.wcs[:n] {
		if wc := &s.wcs[i]; wc.Status != verbs.WCSuccess {
			s.t.Fatalf("%+v", *wc)
		}
	}
	return n
}

var streamOperations = []verbs.WROpcode{
	verbs.WRRDMAWrite, verbs.WRRDMAWriteWithImm, verbs.WRSend, verbs.WRSendWithImm, verbs.WRRDMARead,
}

// TestNoAllocation: posting, sending, receiving, acknowledging and completing allocate nothing, once pools are warm.
func TestNoAllocation(t *testing.T) {
	for _, operation := range streamOperations {
		for _, size := range []int{8, 4096, 40_000} {
			for _, way := range []string{"wire", "loopback", "events"} {
				t.Run(fmt.Sprintf("%v of %d bytes, %s", operation, size, way), func(t *testing.T) {
					s := newStream(t, operation, size, way == "loopback", way == "events")
					s.run(500)
					const count = 1000
					least := uint64(math.MaxUint64)
					// The runtime itself allocates a few times in a while, a new thread for one. What the messages
					// allocate is there each time.
					for try := 0; try < 3 && least >= count/50; try++ {
						var before, after runtime.MemStats
						runtime.ReadMemStats(&before)
						s.run(count)
						runtime.ReadMemStats(&after)
						least = min(least, after.Mallocs-before.Mallocs)
					}
					require.Less(t, least, uint64(count/50), "allocations for %d messages", count)
				})
			}
		}
	}
}

// TestNoAllocationWithCapture: a packet that is captured, or finds the buffer full, allocates nothing where it passes.
func TestNoAllocationWithCapture(t *testing.T) {
	s := newStream(t, verbs.WRRDMAWrite, 40_000, false, false)
	s.run(500)
	g := &gate{open: make(chan struct{}), entered: make(chan struct{})} // whatever the reader allocates is no matter here
	capture, err := s.device.StartCapture(g, verbs.CaptureOptions{BufferSize: 1 << 20})
	require.NoError(t, err)
	<-g.entered
	const count = 1000
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	s.run(count)
	runtime.ReadMemStats(&after)
	close(g.open)
	require.Less(t, after.Mallocs-before.Mallocs, uint64(count/50))
	stats, err := capture.Stop()
	require.NoError(t, err)
	require.Greater(t, stats.Packets, uint64(100))
	require.NotZero(t, stats.LeftOut)
}

// BenchmarkCapture is BenchmarkStream of WRITEs while the sender's packets are captured, into nothing.
func BenchmarkCapture(b *testing.B) {
	for _, size := range []int{8, 4096, 65536} {
		b.Run(fmt.Sprint(size), func(b *testing.B) {
			s := newStream(b, verbs.WRRDMAWrite, size, false, false)
			capture, err := s.device.StartCapture(io.Discard, verbs.CaptureOptions{})
			require.NoError(b, err)
			s.run(500)
			b.SetBytes(int64(size))
			b.ResetTimer()
			s.run(b.N)
			b.StopTimer()
			stats, err := capture.Stop()
			require.NoError(b, err)
			b.ReportMetric(float64(stats.LeftOut)/float64(stats.Packets+stats.LeftOut)*100, "%left-out")
		})
	}
}

// BenchmarkStream is the whole data path but for the device: both ends, on one CPU.
func BenchmarkStream(b *testing.B) { benchmarkStream(b, false) }

// BenchmarkLoopback is the same within a device.
func BenchmarkLoopback(b *testing.B) { benchmarkStream(b, true) }

func benchmarkStream(b *testing.B, loopback bool) {
	for _, operation := range streamOperations {
		for _, size := range []int{8, 4096, 65536} {
			b.Run(fmt.Sprintf("%v/%d", operation, size), func(b *testing.B) {
				s := newStream(b, operation, size, loopback, false)
				s.run(500)
				b.SetBytes(int64(size))
				b.ReportAllocs()
				b.ResetTimer()
				s.run(b.N)
			})
		}
	}
}
