package verbs_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/xroce/xroce/internal/opener"
	"github.com/xroce/xroce/internal/simulation"
	"github.com/xroce/xroce/internal/support"
	"github.com/xroce/xroce/roce"
	"github.com/xroce/xroce/roce/driver"
	"github.com/xroce/xroce/roce/link/mem"
	"github.com/xroce/xroce/verbs"
)

// oneNetwork is a link in memory whose device knows those of other oneNetworks with the same name as its neighbours
// within the process.
type oneNetwork struct {
	*mem.Device
	name string
}

func (n oneNetwork) Network() string { return n.name }

// neighbours opens devices that reach each other within the process only: each is alone on its network in memory.
func neighbours(t *testing.T, count int, o mem.DeviceOptions) (devices []*verbs.Device) {
	t.Helper()
	network := mem.NewNetwork(mem.Options{Faults: mem.Faults{Drop: 1}})
	for range count {
		l, err := network.NewDevice(o)
		require.NoError(t, err)
		d, err := opener.Open[verbs.Device](oneNetwork{l, t.Name()}, driver.Options{})
		require.NoError(t, err)
		t.Cleanup(func() {
			if err := d.Close(); !errors.Is(err, verbs.ErrClosed) {
				require.NoError(t, err)
			}
		})
		devices = append(devices, d)
	}
	return devices
}

// meet connects two ends, which may be one and the same, with options for each of them.
func meet(t *testing.T, a, b *end, oa, ob verbs.ConnectOptions) {
	t.Helper()
	ea, err := a.qp.Endpoint(oa)
	require.NoError(t, err)
	eb, err := b.qp.Endpoint(ob)
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	require.NoError(t, a.qp.Connect(ctx, eb, oa))
	if a != b {
		require.NoError(t, b.qp.Connect(ctx, ea, ob))
	}
}

// loopbackSize is the size of one transfer; a buffer is four of them: sent, WRITE target, READ target, SEND target.
const loopbackSize = 2 << 20

func loopbackBuffer(seed uint8) []byte {
	b := make([]byte, 4*loopbackSize)
	_, _ = rand.NewChaCha8([32]byte{seed}).Read(b[:loopbackSize])
	return b
}

// exchange has a WRITE to, READ from and SEND to b, all at once, and checks the bytes.
func exchange(t *testing.T, a, b *end, from, to []byte) {
	want := sha256.Sum256(from[:loopbackSize])
	back := sha256.Sum256(to[:loopbackSize])
	for i := range 4 {
		if err := b.qp.PostRecv(verbs.RecvWR{SGList: []verbs.SGE{b.mr.SGE(3*loopbackSize+i*loopbackSize/4, loopbackSize/4)}}); err != nil {
			t.Error(err)
		}
	}
	wrs := []verbs.SendWR{
		{
			Opcode: verbs.WRRDMAWrite, Flags: verbs.SendSignaled, SGList: []verbs.SGE{a.mr.SGE(0, loopbackSize)},
			RemoteAddr: b.mr.Addr() + loopbackSize, RKey: b.mr.RKey(),
		},
		{
			Opcode: verbs.WRRDMARead, Flags: verbs.SendSignaled, SGList: []verbs.SGE{a.mr.SGE(2*loopbackSize, loopbackSize)},
			RemoteAddr: b.mr.Addr(), RKey: b.mr.RKey(),
		},
	}
	for i := range 4 {
		wrs = append(wrs, verbs.SendWR{
			Opcode: verbs.WRSend, Flags: verbs.SendSignaled, SGList: []verbs.SGE{a.mr.SGE(i*loopbackSize/4, loopbackSize/4)},
		})
	}
	if err := a.qp.PostSend(wrs...); err != nil {
		t.Error(err)
		return
	}
	succeed := func(cq *verbs.CQ, count int) {
		for done := 0; done < count; {
			ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
			err := cq.Wait(ctx)
			cancel()
			if err != nil {
				t.Errorf("wait after %d of %d completions: %v; %+v", done, count, err, opener.Counters(a.device))
				return
			}
			var wcs [4]verbs.WC
			n, err := cq.Poll(wcs[:min(len(wcs), count-done)])
			if err != nil {
				t.Error(err)
				return
			}
			for _, wc := range wcs[:n] {
				if wc.Status != verbs.WCSuccess {
					t.Errorf("%+v", wc)
					return
				}
			}
			done += n
		}
	}
	succeed(a.sends, len(wrs))
	succeed(b.recvs, 4)
	for i, sum := range [][32]byte{want, back, want} {
		in := to
		if i == 1 {
			in = from
		}
		if at := (i + 1) * loopbackSize; sha256.Sum256(in[at:at+loopbackSize]) != sum {
			t.Errorf("transfer %d: other bytes than sent", i)
		}
	}
}

// TestLoopback: queue pairs of one device, and of two of one network, reach each other without a wire, both ways at
// once, and nothing is lost on the way.
func TestLoopback(t *testing.T) {
	for name, c := range map[string]struct {
		devices, queues int
		self, v6        bool
		labels          [2]uint32 // the home of a queue pair is its flow label modulo the queues
	}{
		"to itself":                {devices: 1, queues: 1, self: true},
		"to itself, second shard":  {devices: 1, queues: 2, self: true, labels: [2]uint32{3, 3}},
		"same shard":               {devices: 1, queues: 1},
		"same shard, IPv6":         {devices: 1, queues: 1, v6: true},
		"two shards":               {devices: 1, queues: 2, labels: [2]uint32{2, 3}},
		"two devices":              {devices: 2, queues: 1},
		"two devices, IPv6":        {devices: 2, queues: 1, v6: true},
		"two devices, four shards": {devices: 2, queues: 2, labels: [2]uint32{2, 3}},
	} {
		t.Run(name, func(t *testing.T) {
			devices := neighbours(t, c.devices, mem.DeviceOptions{Queues: c.queues})
			da, db := devices[0], devices[c.devices-1]
			bufferA := loopbackBuffer(1)
			a, bufferB := newEnd(t, da, bufferA, verbs.QPCap{}), bufferA
			b := a
			if !c.self {
				bufferB = loopbackBuffer(2)
				b = newEnd(t, db, bufferB, verbs.QPCap{})
			}
			// A long timeout: if something is lost the test fails.
			oa := verbs.ConnectOptions{GIDIndex: new(gidIndex(t, da, c.v6)), FlowLabel: c.labels[0], Timeout: noTimeout}
			ob := oa
			ob.FlowLabel = c.labels[1]
			meet(t, a, b, oa, ob)
			var both sync.WaitGroup
			both.Go(func() { exchange(t, a, b, bufferA, bufferB) })
			if !c.self {
				both.Go(func() { exchange(t, b, a, bufferB, bufferA) })
			}
			both.Wait()
			packets, bytes := uint64(0), uint64(0)
			for _, d := range devices {
				counters := opener.Counters(d)
				require.Empty(t, counters.DropReasons())
				require.Zero(t, counters.Transport.Retransmitted)
				require.Zero(t, counters.Transport.HandedOver, "nothing came in from the wire")
				require.NotZero(t, counters.Transport.SentPackets)
				require.Equal(t, counters.Link, opener.EngineCounters{}.Link)
				packets += counters.Transport.ReceivedPackets - counters.Transport.SentPackets
				bytes += counters.Transport.ReceivedBytes - counters.Transport.SentBytes
			}
			require.Zero(t, packets, "what was sent was received")
			require.Zero(t, bytes)
			support.Object(t, "Loopback", name, "right bytes, nothing on the wire, nothing lost")
		})
	}
}

// TestLoopbackToNobody: a packet to a number that no queue pair has is counted and not answered.
func TestLoopbackToNobody(t *testing.T) {
	d := neighbours(t, 1, mem.DeviceOptions{Queues: 2})[0]
	e := newEnd(t, d, make([]byte, 64), verbs.QPCap{})
	o := verbs.ConnectOptions{Timeout: roce.AckTimeout(1), RetryCnt: new(uint8(1)), FlowLabel: 1}
	endpoint, err := e.qp.Endpoint(o)
	require.NoError(t, err)
	endpoint.QPN = 0xFFFFF0
	require.NoError(t, e.qp.Connect(context.Background(), endpoint, o))
	require.NoError(t, e.qp.PostSend(write(e, e, verbs.SendSignaled)))
	require.Equal(t, verbs.WCRetryExcErr, poll(t, e.sends).Status)
	counters := opener.Counters(d)
	require.EqualValues(t, counters.Transport.SentPackets, counters.DropReasons()["qpn_unknown"])
	require.NotZero(t, counters.Transport.SentPackets)
	support.Fault(t, "loopback to a number that nobody has", support.Outcome{Wire: "nothing", Responder: roce.DropUnknownQPN, Requester: verbs.WCRetryExcErr})
}

// TestLoopbackToClosedDevice: what goes to a device that was closed is lost, whatever its peers do at that moment.
func TestLoopbackToClosedDevice(t *testing.T) {
	devices := neighbours(t, 1, mem.DeviceOptions{Queues: 2})
	stays := devices[0]
	for round := range 50 {
		l, err := mem.NewNetwork(mem.Options{}).NewDevice(mem.DeviceOptions{Queues: 1 + round%2})
		require.NoError(t, err)
		goes, err := opener.Open[verbs.Device](oneNetwork{l, t.Name()}, driver.Options{})
		require.NoError(t, err)
		pd, err := goes.AllocPD()
		require.NoError(t, err)
		cq, err := goes.CreateCQ(verbs.CQInitAttr{CQE: 64})
		require.NoError(t, err)
		qp, err := pd.CreateQP(verbs.QPInitAttr{SendCQ: cq, RecvCQ: cq})
		require.NoError(t, err)
		mr, err := pd.RegMR(make([]byte, 1<<16), allAccess)
		require.NoError(t, err)

		peer := newEnd(t, stays, make([]byte, 1<<16), verbs.QPCap{})
		o := verbs.ConnectOptions{Timeout: roce.AckTimeout(5), RetryCnt: new(uint8(2))}
		meet(t, peer, &end{device: goes, qp: qp}, o, o)
		var posting sync.WaitGroup
		posting.Go(func() {
			wr := verbs.SendWR{
				Opcode: verbs.WRRDMAWrite, Flags: verbs.SendSignaled, SGList: []verbs.SGE{peer.mr.SGE(0, 1<<16)},
				RemoteAddr: mr.Addr(), RKey: mr.RKey(),
			}
			failed := false
			for i := 0; !failed && i < 1_000_000; i++ {
				if err := peer.qp.PostSend(wr); err != nil && !errors.Is(err, verbs.ErrQueueFull) {
					t.Error(err)
				}
				var wcs [16]verbs.WC
				n, _ := peer.sends.Poll(wcs[:])
				for _, wc := range wcs[:n] {
					failed = failed || wc.Status != verbs.WCSuccess
				}
			}
			if !failed {
				t.Error("requests succeed without a peer")
			}
		})
		time.Sleep(time.Duration(rand.IntN(500)) * time.Microsecond)
		require.NoError(t, qp.Destroy())
		require.NoError(t, cq.Destroy())
		require.NoError(t, mr.Dereg())
		require.NoError(t, pd.Dealloc())
		requireClose(t, goes)
		posting.Wait()
	}
	support.Object(t, "Loopback", "to a device that is closed", "requests fail, nothing hangs")
}

// TestLoopbackInVirtualTime: one call of Drive brings everything to its end, and no time passes.
func TestLoopbackInVirtualTime(t *testing.T) {
	world := simulation.NewWorld(mem.Options{Seed: 1})
	d, err := world.AddDevice(1, mem.DeviceOptions{Queues: 2}, 0)
	require.NoError(t, err)
	t.Cleanup(func() { requireClose(t, d) })
	buffers := [2][]byte{bytes.Repeat([]byte{1}, 1<<20), make([]byte, 1<<20)}
	var ends [2]*end
	for i := range ends {
		ends[i] = newEnd(t, d, buffers[i], verbs.QPCap{})
	}
	meet(t, ends[0], ends[1], verbs.ConnectOptions{FlowLabel: 2}, verbs.ConnectOptions{FlowLabel: 3})
	require.NoError(t, ends[0].qp.PostSend(verbs.SendWR{
		Opcode: verbs.WRRDMAWrite, Flags: verbs.SendSignaled, SGList: []verbs.SGE{ends[0].mr.SGE(0, 1<<20)},
		RemoteAddr: ends[1].mr.Addr(), RKey: ends[1].mr.RKey(),
	}))
	before := world.Network.Now()
	opener.Driver(d).Drive()
	require.False(t, opener.Driver(d).Drive(), "nothing is left")
	require.Equal(t, before, world.Network.Now())
	require.Equal(t, buffers[0], buffers[1])
	require.Zero(t, ends[0].qp.Outstanding())
	_, arrives := world.Network.NextArrival()
	require.False(t, arrives)
	support.Object(t, "Loopback", "in virtual time", "takes none")
}
