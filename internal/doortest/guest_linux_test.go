package doortest

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/xroce/xroce/internal/netlab"
	"github.com/xroce/xroce/roce"
	"github.com/xroce/xroce/roce/driver"
	"github.com/xroce/xroce/roce/link"
	"github.com/xroce/xroce/roce/link/mem"
	"github.com/xroce/xroce/roce/link/xdp"
	"github.com/xroce/xroce/roce/memory"
	"github.com/xroce/xroce/roce/queue"
	"github.com/xroce/xroce/roce/transport"
)

// Where what lies in the memory of a guest.
const (
	bellsAt  = 0
	sendAt   = 4096
	recvAt   = 12288
	cqAt     = 16384
	dataAt   = 65536
	dataSize = 256 << 10
	areaSize = dataAt + dataSize

	sendWR, recvWR, maxSGE, cqe = 16, 4, 2, 64
)

var (
	sendLayout = queue.SendLayout(sendWR, maxSGE, 0)
	recvLayout = queue.RecvLayout(recvWR, maxSGE)
	cqLayout   = queue.CompletionLayout(cqe)
)

// newArea makes sealed memory, and the mapping that the guest has of it.
func newArea(t testing.TB, size int, seals int) (*os.File, []byte) {
	t.Helper()
	fd, err := unix.MemfdCreate("guest", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	require.NoError(t, err)
	file := os.NewFile(uintptr(fd), "guest")
	t.Cleanup(func() { file.Close() })
	require.NoError(t, file.Truncate(int64(size)))
	_, err = unix.FcntlInt(file.Fd(), unix.F_ADD_SEALS, seals)
	require.NoError(t, err)
	area, err := unix.Mmap(int(file.Fd()), 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, unix.Munmap(area)) })
	return file, area
}

// target is a peer that guests write to and read from.
type target struct {
	device *driver.Device
	client *driver.Client
	domain memory.Domain
	cq     *driver.CQ
	region *memory.Region
	gid    int
}

// devices are two that are joined over memory, both opened until the end of the test.
func devices(t testing.TB, queues int) (a, b *driver.Device) {
	t.Helper()
	n := mem.NewNetwork(mem.Options{})
	for _, d := range []**driver.Device{&a, &b} {
		l, err := n.NewDevice(mem.DeviceOptions{Queues: queues})
		require.NoError(t, err)
		*d = open(t, l)
	}
	return a, b
}

// vethDevices are two that are joined by a veth pair.
func vethDevices(t testing.TB) (a, b *driver.Device) {
	t.Helper()
	netlab.RequireRoot(t)
	pair, err := netlab.NewPair(netlab.PairOptions{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, pair.Close()) })
	for d, e := range map[**driver.Device]*netlab.End{&a: &pair.A, &b: &pair.B} {
		l, err := xdp.Open(t.Context(), e.Name, xdp.Options{NetNS: e.Namespace.Path()})
		require.NoError(t, err)
		*d = open(t, l)
	}
	return a, b
}

func open(t testing.TB, l link.Device) *driver.Device {
	t.Helper()
	d, err := driver.Open(l, driver.Options{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, d.Close(), "everything was given back") })
	return d
}

func newTarget(t testing.TB, d *driver.Device) *target {
	t.Helper()
	p := &target{device: d, gid: gidIndex(t, d)}
	var err error
	p.client, err = d.NewClient(driver.ClientConfig{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, p.client.Close()) })
	config := driver.CQConfig{Capacity: 16}
	require.NoError(t, config.MakeRing())
	p.cq, err = p.client.CreateCQ(config)
	require.NoError(t, err)
	const rights = memory.LocalWrite | memory.RemoteWrite | memory.RemoteRead
	p.region, err = p.client.Register(&p.domain, make([]byte, dataSize), 0, rights)
	require.NoError(t, err)
	return p
}

// newQP makes a queue pair of the target.
func (p *target) newQP(t testing.TB) *driver.QP {
	t.Helper()
	config := driver.QPConfig{
		Type: transport.RC, Domain: &p.domain, SendCQ: p.cq, RecvCQ: p.cq,
		MaxSendWR: 1, MaxRecvWR: 1, MaxSendSGE: 1, MaxRecvSGE: 1,
	}
	require.NoError(t, config.MakeRings())
	q, err := p.client.CreateQP(config)
	require.NoError(t, err)
	return q
}

// gidIndex finds a GID of IPv4.
func gidIndex(t testing.TB, d *driver.Device) int {
	t.Helper()
	gids, err := d.GIDs()
	require.NoError(t, err)
	for i, g := range gids {
		if g.Is4() {
			return i
		}
	}
	require.Fail(t, "no such GID", "%v", gids)
	return -1
}

// guest is a client with memory of its own, as both sides have it.
type guest struct {
	file       *os.File
	area       []byte // the guest's mapping
	foreign    *driver.Foreign
	domain     memory.Domain
	cq         *driver.CQ
	qp         *driver.QP
	key        uint32
	bell, told *os.File // the guest's descriptors
	gid        int
	peer       *target
	remote     *driver.QP
	slot       uint32
}

// newGuest makes a client with a connected queue pair.
func newGuest(t testing.TB, d *driver.Device, peer *target) *guest {
	t.Helper()
	return newGuestOf(t, d, peer, driver.ForeignConfig{Doorbells: bellsAt})
}

func newGuestOf(t testing.TB, d *driver.Device, peer *target, config driver.ForeignConfig) *guest {
	t.Helper()
	g := &guest{peer: peer, gid: gidIndex(t, d), slot: 777}
	g.file, g.area = newArea(t, areaSize, unix.F_SEAL_SHRINK)
	require.NoError(t, queue.CreateDoorbells(g.area[bellsAt:]))
	for at, l := range map[int]queue.Layout{sendAt: sendLayout, recvAt: recvLayout, cqAt: cqLayout} {
		require.NoError(t, queue.Create(g.area[at:], l))
	}
	var err error
	g.foreign, err = d.AttachForeign(g.file, config)
	require.NoError(t, err)
	t.Cleanup(func() {
		if err := g.foreign.Close(); err != nil {
			require.ErrorIs(t, err, driver.ErrClosed)
		}
	})
	region, err := g.foreign.Register(&g.domain, dataAt, dataSize, dataAt, memory.LocalWrite)
	require.NoError(t, err)
	g.key = region.Key()
	ring := func(at int, l queue.Layout) driver.Ring {
		r, err := g.foreign.Ring(at, l)
		require.NoError(t, err)
		return r
	}
	g.cq, g.told, err = g.foreign.CreateCQ(driver.CQConfig{Capacity: cqe, Ring: ring(cqAt, cqLayout)})
	require.NoError(t, err)
	t.Cleanup(func() { g.told.Close() })
	g.bell, err = g.foreign.Bell()
	require.NoError(t, err)
	t.Cleanup(func() { g.bell.Close() })
	g.qp, err = g.foreign.CreateQP(driver.QPConfig{
		Type: transport.RC, Domain: &g.domain, SendCQ: g.cq, RecvCQ: g.cq, MaxSendWR: sendWR, MaxRecvWR: recvWR,
		MaxSendSGE: maxSGE, MaxRecvSGE: maxSGE, Send: ring(sendAt, sendLayout), Receive: ring(recvAt, recvLayout),
	}, g.slot)
	require.NoError(t, err)
	g.remote = peer.newQP(t)
	g.connect(t)
	return g
}

// connect brings both queue pairs to RTS, from wherever they are.
func (g *guest) connect(t testing.TB) {
	t.Helper()
	bring(t, g.qp, g.gid, g.peer.device, g.peer.gid, g.remote.Number())
	bring(t, g.remote, g.peer.gid, g.foreign.Device(), g.gid, g.qp.Number())
}

func bring(t testing.TB, q *driver.QP, ownGID int, peer *driver.Device, peerGID int, number roce.QPN) {
	t.Helper()
	gid, err := peer.GID(peerGID)
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	const m = transport.MaskState
	for _, step := range []struct {
		a    transport.Attributes
		mask transport.AttributeMask
	}{
		{transport.Attributes{State: transport.StateReset}, m},
		{transport.Attributes{State: transport.StateInit, Port: 1, Access: memory.RemoteWrite | memory.RemoteRead},
			m | transport.MaskPKeyIndex | transport.MaskPort | transport.MaskAccess},
		{transport.Attributes{
			State: transport.StateRTR, PathMTU: roce.MTU1024, DestinationQPN: number, MaxDestRDAtomic: 4,
		},
			m | transport.MaskAV | transport.MaskPathMTU | transport.MaskDestinationQPN | transport.MaskRQPSN |
				transport.MaskMaxDestRDAtomic | transport.MaskMinRNRTimer},
		{transport.Attributes{State: transport.StateRTS, MaxRDAtomic: 4, Timeout: 14, RetryCount: 7},
			m | transport.MaskTimeout | transport.MaskRetryCount | transport.MaskRNRRetry | transport.MaskSQPSN |
				transport.MaskMaxRDAtomic},
	} {
		require.NoError(t, q.Modify(ctx, &step.a, &driver.AddressVector{DGID: gid, SGIDIndex: ownGID}, step.mask))
	}
}

// client is a guest's program in Go.
type client struct {
	*guest
	send  *queue.Producer
	done  *queue.Consumer
	bells *queue.Doorbells
}

func (g *guest) client(t testing.TB) *client {
	t.Helper()
	c := &client{guest: g}
	var err error
	c.send, err = queue.NewProducer(g.area[sendAt:], sendLayout)
	require.NoError(t, err)
	c.done, err = queue.NewConsumer(g.area[cqAt:], cqLayout)
	require.NoError(t, err)
	c.bells, err = queue.NewDoorbells(g.area[bellsAt:])
	require.NoError(t, err)
	return c
}

func (c *client) ring() {
	if c.bells.Ring(c.slot) {
		_, _ = c.bell.Write([]byte{0: 1, 7: 0})
	}
}

// roundTrip writes a piece of a pattern to the peer and reads it back. It sleeps on the eventfd.
func (c *client) roundTrip(random *rand.Rand, round uint64) error {
	const half = dataSize / 2
	length := 1 + random.IntN(20_000)
	offset := random.IntN(half - length)
	from, into := c.area[dataAt+offset:][:length], c.area[dataAt+half+offset:][:length]
	for i := range from {
		from[i] = byte(random.Uint32())
	}
	clear(into)
	for _, wr := range []queue.SendWR{
		{Opcode: queue.RDMAWrite, SGList: []queue.SGE{{Addr: uint64(dataAt + offset), Length: uint32(length), LKey: c.key}}},
		{Opcode: queue.RDMARead, Flags: queue.SendSignaled, WRID: round,
			SGList: []queue.SGE{{Addr: uint64(dataAt + half + offset), Length: uint32(length), LKey: c.key}}},
	} {
		wr.RemoteAddr, wr.RKey = uint64(offset), c.peer.region.Key()
		if err := c.send.PostSend(&wr, queue.SendLimits{MaxSGE: maxSGE}, nil); err != nil {
			return err
		}
	}
	c.ring()
	wc, err := c.wait()
	switch {
	case err != nil:
		return err
	case wc.Status != queue.WCSuccess || wc.WRID != round || wc.ByteLen != uint32(length):
		return fmt.Errorf("round %d of %d bytes: %+v", round, length, wc)
	case !bytes.Equal(from, into):
		return fmt.Errorf("round %d: other bytes came back", round)
	}
	return nil
}

func (c *client) wait() (queue.WC, error) {
	var wcs [1]queue.WC
	for c.done.ReadCompletions(wcs[:]) == 0 {
		c.done.Arm(false)
		if c.done.Available(0) > 0 {
			continue
		}
		_ = c.told.SetReadDeadline(time.Now().Add(20 * time.Second))
		var count [8]byte
		if _, err := c.told.Read(count[:]); err != nil {
			return wcs[0], fmt.Errorf("no notification: %w; QP %v", err, c.qp.State())
		}
	}
	return wcs[0], nil
}
