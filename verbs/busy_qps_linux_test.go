package verbs_test

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"

	"github.com/xroce/xroce/internal/netlab"
	"github.com/xroce/xroce/internal/opener"
	"github.com/xroce/xroce/verbs"
)

// busyMessage is the length in bytes of a message of TestBusyQPs.
const busyMessage = 64 << 10

// crowd are connected queue pairs between two devices, which share a region of one message and a CQ at each end.
type crowd struct {
	a, b   *verbs.Device
	qps    []*verbs.QP // at a
	cq     *verbs.CQ   // at a
	local  *verbs.MR
	remote verbs.RemoteMemory
}

// crowdReceives is how many receives the queue pairs at b share.
const crowdReceives = 1024

// stopReceiving runs receive until the end of the test.
func stopReceiving(t *testing.T, receive func(context.Context)) {
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { receive(ctx) })
	t.Cleanup(func() { cancel(); running.Wait() })
}

// newCrowd connects so many queue pairs.
func newCrowd(t *testing.T, a, b *verbs.Device, count int, o verbs.ConnectOptions) *crowd {
	t.Helper()
	c := &crowd{a: a, b: b}
	ea, eb := newEnd(t, a, make([]byte, busyMessage), verbs.QPCap{}), newEnd(t, b, make([]byte, busyMessage), verbs.QPCap{})
	c.local, c.remote = ea.mr, eb.mr.Remote()
	c.cq = newCQ(t, a, 4*max(count, 16))
	other := newCQ(t, b, crowdReceives)
	srq, err := eb.pd.CreateSRQ(verbs.SRQInitAttr{MaxWR: crowdReceives})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, srq.Destroy()) })
	receive := verbs.RecvWR{SGList: []verbs.SGE{eb.mr.SGE(0, busyMessage)}}
	for range crowdReceives {
		require.NoError(t, srq.PostRecv(receive))
	}
	stopReceiving(t, func(ctx context.Context) {
		for wcs := make([]verbs.WC, 64); other.Wait(ctx) == nil; {
			n, err := other.Poll(wcs)
			if err != nil {
				return
			}
			for range n {
				_ = srq.PostRecv(receive)
			}
		}
	})
	create := func(e *end, cq *verbs.CQ, srq *verbs.SRQ) *verbs.QP {
		qp, err := e.pd.CreateQP(verbs.QPInitAttr{SendCQ: cq, RecvCQ: cq, SRQ: srq, Cap: verbs.QPCap{MaxSendWR: 16, MaxRecvWR: 1}})
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, qp.Destroy()) })
		return qp
	}
	for range count {
		qa, qb := create(ea, c.cq, nil), create(eb, other, srq)
		ends := [2]verbs.Endpoint{}
		for i, qp := range []*verbs.QP{qa, qb} {
			e, err := qp.Endpoint(o)
			require.NoError(t, err)
			ends[i] = e
		}
		require.NoError(t, qa.Connect(t.Context(), ends[1], o))
		require.NoError(t, qb.Connect(t.Context(), ends[0], o))
		c.qps = append(c.qps, qa)
	}
	return c
}

// crowdResult is what came of a run of a crowd.
type crowdResult struct {
	bytes    []uint64 // of each queue pair
	elapsed  time.Duration
	sent     uint64 // packets
	again    uint64 // packets sent again
	timeouts uint64
}

func (r *crowdResult) rate() float64 {
	return float64(r.mean()) * float64(len(r.bytes)) * 8 / r.elapsed.Seconds() / 1e9
}

func (r *crowdResult) fairness() float64 {
	return float64(slices.Min(r.bytes)) / float64(slices.Max(r.bytes))
}

func (r *crowdResult) mean() uint64 {
	sum := uint64(0)
	for _, b := range r.bytes {
		sum += b
	}
	return sum / uint64(len(r.bytes))
}

func (r *crowdResult) add(o *crowdResult) {
	for i, b := range o.bytes {
		r.bytes[i] += b
	}
	r.elapsed += o.elapsed
	r.sent += o.sent
	r.again += o.again
	r.timeouts += o.timeouts
}

func (r *crowdResult) resends() float64 { return float64(r.again) / float64(r.sent) }

func (r *crowdResult) String() string {
	return fmt.Sprintf("%d QPs: %.2f Gbit/s, %d packets, resent %.3f %%, %d timeouts, min/max %.2f",
		len(r.bytes), r.rate(), r.sent, 100*r.resends(), r.timeouts, r.fairness())
}

// run keeps so many messages of each queue pair posted for a while.
func (c *crowd) run(t *testing.T, opcode verbs.WROpcode, each int, length time.Duration) *crowdResult {
	t.Helper()
	r := &crowdResult{bytes: make([]uint64, len(c.qps))}
	post := func(i int) {
		require.NoError(t, c.qps[i].PostSend(verbs.SendWR{
			WRID: uint64(i), Opcode: opcode, Flags: verbs.SendSignaled, SGList: []verbs.SGE{c.local.SGE(0, busyMessage)},
			RemoteAddr: c.remote.Addr, RKey: c.remote.RKey,
		}))
	}
	before := opener.Counters(c.a).Transport
	beforeB := opener.Counters(c.b).Transport
	begin := time.Now()
	open := 0
	for i := range c.qps {
		for range each {
			post(i)
			open++
		}
	}
	wcs := make([]verbs.WC, 256)
	last := begin
	for open > 0 {
		n, err := c.cq.Poll(wcs)
		require.NoError(t, err)
		if n > 0 {
			last = time.Now()
		}
		require.Less(t, time.Since(last), patience, "%+v", opener.Counters(c.a))
		for _, wc := range wcs[:n] {
			i := int(wc.WRID)
			require.Equal(t, verbs.WCSuccess, wc.Status, "%s", c.qps[i].Explain(wc))
			open--
			r.bytes[i] += busyMessage
			if last.Sub(begin) < length {
				post(i)
				open++
			}
		}
	}
	r.elapsed = last.Sub(begin)
	after := opener.Counters(c.a).Transport
	afterB := opener.Counters(c.b).Transport
	r.sent = after.SentPackets - before.SentPackets + afterB.SentPackets - beforeB.SentPackets
	r.again = after.Retransmitted - before.Retransmitted
	r.timeouts = after.Timeouts - before.Timeouts
	return r
}

// mixed runs a crowd and a single queue pair in turns, since the machine may have other work, until each has run so
// long.
func (c *crowd) mixed(t *testing.T, single *crowd, opcode verbs.WROpcode, length time.Duration) (crowded, alone *crowdResult) {
	t.Helper()
	crowded, alone = &crowdResult{bytes: make([]uint64, len(c.qps))}, &crowdResult{bytes: make([]uint64, 1)}
	slice := min(length, 5*time.Second)
	for left := length; left > 0; left -= slice {
		alone.add(single.run(t, opcode, 16, slice/2))
		crowded.add(c.run(t, opcode, 1, slice))
		alone.add(single.run(t, opcode, 16, slice/2))
	}
	return crowded, alone
}

// TestBusyQPs: many queue pairs with messages in flight share the way to a peer. Their windows together do not overrun
// the rings of the device there, so nothing is sent again and none ends; each gets its share, and together they are as
// fast as one.
func TestBusyQPs(t *testing.T) {
	counts := []int{16, 200}
	if *fullSize {
		counts = append(counts, 1000, 4000)
	}
	for _, mode := range []verbs.XDPMode{verbs.XDPNative, verbs.XDPGeneric} {
		for _, opcode := range []verbs.WROpcode{verbs.WRRDMAWrite, verbs.WRRDMARead, verbs.WRSend} {
			if !*fullSize && (mode == verbs.XDPGeneric) != (opcode == verbs.WRRDMARead) {
				continue
			}
			t.Run(fmt.Sprintf("%v/%v", mode, opcode), func(t *testing.T) {
				a, b := vethDevices(t, netlab.PairOptions{MTU: 4200}, verbs.Options{Mode: mode})
				single := newCrowd(t, a, b, 1, verbs.ConnectOptions{PathMTU: verbs.MTU4096})
				for _, count := range counts {
					c := newCrowd(t, a, b, count, verbs.ConnectOptions{PathMTU: verbs.MTU4096})
					length := time.Duration(size(300, 5_000)) * time.Millisecond
					if count == 1000 && opcode == verbs.WRRDMAWrite {
						length = time.Minute
					}
					crowded, alone := c.mixed(t, single, opcode, length)
					t.Logf("%v; one QP %.2f Gbit/s", crowded, alone.rate())
					// A machine that stands still for an ACK timeout has all that is in flight sent again, 0.3 % of a
					// short run.
					if *fullSize {
						require.Less(t, crowded.resends(), 0.001)
					} else {
						require.Less(t, crowded.resends(), 0.01)
					}
					// Whoever has the machine for a moment takes from all, but in a short run few messages make the
					// share of one.
					if messages := crowded.mean() / busyMessage; messages >= 10 {
						require.GreaterOrEqual(t, crowded.fairness(), 0.7)
					}
					if *fullSize {
						require.GreaterOrEqual(t, crowded.rate(), 0.95*alone.rate())
					}
				}
			})
		}
	}
}

// TestManySenders: where several devices send to one, none knows of the others. Their losses make them share its
// buffers.
func TestManySenders(t *testing.T) {
	netlab.RequireRoot(t)
	const senders, each = 4, 50
	middle, err := netlab.NewNamespace()
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, middle.Close()) })
	devices := make([]*verbs.Device, 1+senders)
	var ports []string
	for i := range devices {
		host, err := netlab.NewNamespace()
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, host.Close()) })
		address := netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 8, 0, byte(1 + i)}), 24)
		pair, err := netlab.Join(host, middle, netlab.PairOptions{
			MTU: 4200, A: netlab.EndOptions{Name: "port", Addresses: []netip.Prefix{address}},
			B: netlab.EndOptions{Name: fmt.Sprintf("port%d", i), Addresses: []netip.Prefix{}},
		})
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, pair.Close()) })
		devices[i] = openDevice(t, &pair.A, verbs.Options{})
		ports = append(ports, pair.B.Name)
	}
	require.NoError(t, middle.Do(func() error {
		attributes := netlink.NewLinkAttrs()
		attributes.Name, attributes.MTU = "switch", 4200
		bridge := &netlink.Bridge{LinkAttrs: attributes}
		if err := netlink.LinkAdd(bridge); err != nil {
			return err
		}
		for _, name := range ports {
			port, err := netlink.LinkByName(name)
			if err != nil {
				return err
			}
			if err := netlink.LinkSetMaster(port, bridge); err != nil {
				return err
			}
		}
		return netlink.LinkSetUp(bridge)
	}))
	results := make([]*crowdResult, senders)
	var running sync.WaitGroup
	for i := range results {
		c := newCrowd(t, devices[1+i], devices[0], each, verbs.ConnectOptions{PathMTU: verbs.MTU4096})
		running.Go(func() { results[i] = c.run(t, verbs.WRRDMAWrite, 1, time.Duration(size(1, 20))*time.Second) })
	}
	running.Wait()
	for _, r := range results {
		t.Log(r)
		// Without an answer to the losses it is 8 to 10 % (two virtual CPUs with other work on them).
		require.Less(t, r.resends(), 0.05)
	}
}
