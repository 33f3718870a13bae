package verbs_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/xroce/xroce/internal/netlab"
	"github.com/xroce/xroce/internal/opener"
	"github.com/xroce/xroce/internal/support"
	"github.com/xroce/xroce/roce"
	"github.com/xroce/xroce/roce/driver"
	"github.com/xroce/xroce/roce/link/mem"
	"github.com/xroce/xroce/verbs"
)

// descriptors counts the open descriptors of the process.
func descriptors(t *testing.T) (open int) {
	t.Helper()
	for fd := range 1024 {
		if _, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); err == nil {
			open++
		}
	}
	return open
}

// TestDestroyInAnyOrder: several goroutines destroy everything that there is, in whatever order, while others post,
// poll and wait and packets arrive. What is needed says so; sooner or later all of it is gone.
func TestDestroyInAnyOrder(t *testing.T) {
	refused := map[string]int{}
	t.Run("memory", func(t *testing.T) {
		for round := range 60 {
			network := mem.NewNetwork(mem.Options{Seed: uint64(round)})
			destroyInAnyOrder(t, uint64(round), refused, func() (*verbs.Device, error) {
				l, err := network.NewDevice(mem.DeviceOptions{Queues: 2})
				require.NoError(t, err)
				return opener.Open[verbs.Device](l, driver.Options{})
			})
		}
		for _, what := range []string{"device", "PD", "CQ"} {
			require.NotZero(t, refused[what], "%s was never in use", what)
		}
	})
	t.Run("veth", func(t *testing.T) {
		netlab.RequireRoot(t)
		pair, err := netlab.NewPair(netlab.PairOptions{Queues: 2})
		require.NoError(t, err)
		defer func() { require.NoError(t, pair.Close()) }()
		before := 0
		for round := range 8 {
			ends := []*netlab.End{&pair.A, &pair.B}
			destroyInAnyOrder(t, uint64(round), refused, func() (*verbs.Device, error) {
				e := ends[0]
				ends = ends[1:]
				return verbs.OpenDevice(t.Context(), e.Name, opener.CheckOwners(verbs.Options{NetNS: e.Namespace.Path()}))
			})
			if round == 1 { // what the process opens once is open
				before = descriptors(t)
			}
		}
		require.Equal(t, before, descriptors(t))
	})
	support.Object(t, "all", "Destroy in any order by several goroutines, with traffic", verbs.ErrInUse)
}

// destroyer is something to be destroyed.
type destroyer struct {
	what    string
	destroy func() error
}

// destroyInAnyOrder plays one round, and counts in refused what was in use.
func destroyInAnyOrder(t *testing.T, seed uint64, refused map[string]int, open func() (*verbs.Device, error)) {
	d := &doomed{refused: refused}
	d.build(t, open)
	var traffic sync.WaitGroup // until everything is gone
	for i := range d.devices {
		for k := range d.ends[i] {
			traffic.Go(func() { d.post(t, i, k) })
		}
		traffic.Go(func() { takeUntilClosed(t, d.ends[i][0].sends) })
		traffic.Go(func() {
			for ; d.ends[i][0].qp.PostRecv() == nil; runtime.Gosched() {
				opener.Counters(d.devices[i])
				d.ends[i][0].qp.Query()
				_, _ = d.devices[i].QueryPort()
			}
		})
	}

	// Each thing is destroyed by two goroutines: one of them succeeds, once.
	random := rand.New(rand.NewPCG(seed, 0))
	time.Sleep(time.Duration(random.IntN(2000)) * time.Microsecond)
	d.succeeded = make([]int, len(d.things))
	var destroyers sync.WaitGroup
	for range 2 {
		order := random.Perm(len(d.things))
		pause := rand.New(rand.NewPCG(seed, random.Uint64()))
		destroyers.Go(func() { d.destroy(t, order, pause) })
	}
	destroyers.Wait()
	if t.Failed() {
		t.FailNow() // the traffic goes on
	}
	traffic.Wait()
	for i, n := range d.succeeded {
		require.Equal(t, 1, n, "%s", d.things[i].what)
	}
}

const (
	doomedPairs = 3
	doomedPart  = 4096 // of each buffer: what is sent, what the peer writes and reads, what READs bring
)

// doomed is two devices with all kinds of things on them, which are destroyed in any order while they are in use.
type doomed struct {
	devices [2]*verbs.Device
	ends    [2][doomedPairs]*end
	windows [doomedPairs]*verbs.MW
	things  []destroyer

	mu        sync.Mutex
	succeeded []int          // by thing
	refused   map[string]int // by kind
}

func (d *doomed) build(t *testing.T, open func() (*verbs.Device, error)) {
	add := func(what string, destroy func() error) { d.things = append(d.things, destroyer{what, destroy}) }
	for i := range d.devices {
		device, err := open()
		require.NoError(t, err)
		d.devices[i] = device
		add("device", closeEmpty(device))
		pd, err := device.AllocPD()
		require.NoError(t, err)
		add("PD", pd.Dealloc)
		cq, err := device.CreateCQ(verbs.CQInitAttr{CQE: 4096})
		require.NoError(t, err)
		add("CQ", cq.Destroy)
		for k := range doomedPairs {
			e := &end{device: device, pd: pd, sends: cq, recvs: cq}
			e.mr, err = pd.RegMR(make([]byte, 3*doomedPart), everyAccess)
			require.NoError(t, err)
			add("MR", e.mr.Dereg)
			e.qp, err = pd.CreateQP(verbs.QPInitAttr{SendCQ: cq, RecvCQ: cq, Cap: verbs.QPCap{MaxInline: 16}})
			require.NoError(t, err)
			add("QP", e.qp.Destroy)
			d.ends[i][k] = e
		}
	}
	for k := range doomedPairs {
		connect(t, d.ends[0][k], d.ends[1][k], verbs.ConnectOptions{Timeout: roce.AckTimeout(8), RetryCnt: new(uint8(1))})
		var err error
		d.windows[k], err = d.ends[0][k].pd.AllocMW(verbs.MWType1)
		require.NoError(t, err)
		add("MW", d.windows[k].Dealloc)
	}
}

// post posts WRITEs, READs, receives and binds at one end of a pair until its queue pair is gone.
func (d *doomed) post(t *testing.T, i, k int) {
	a, b := d.ends[i][k], d.ends[1-i][k]
	target, key := b.mr.Addr()+doomedPart, b.mr.RKey()
	for n := 0; ; n++ {
		wr := verbs.SendWR{Opcode: verbs.WRRDMAWrite, SGList: []verbs.SGE{a.mr.SGE(0, doomedPart)}, RemoteAddr: target, RKey: key}
		switch n % 4 {
		case 1:
			wr.Opcode, wr.SGList[0] = verbs.WRRDMARead, a.mr.SGE(2*doomedPart, doomedPart)
		case 2:
			wr.SGList[0].Length, wr.Flags = 16, verbs.SendInline|verbs.SendSignaled
		}
		err := a.qp.PostSend(wr)
		if err == nil || errors.Is(err, verbs.ErrQueueFull) || wr.Flags&verbs.SendInline != 0 && errors.Is(err, verbs.ErrInvalid) {
			_ = a.qp.PostRecv(verbs.RecvWR{SGList: []verbs.SGE{a.mr.SGE(0, 64)}})
			if i == 0 && n%16 == 0 {
				_ = a.qp.BindMW(d.windows[k], verbs.MWBind{MR: a.mr, Addr: a.mr.Addr(), Length: uint64(n % 32 & 16)})
			}
			runtime.Gosched()
			continue
		}
		if !errors.Is(err, verbs.ErrClosed) {
			t.Errorf("post: %v", err)
		}
		return
	}
}

// takeUntilClosed waits and polls until the CQ is gone, or has overrun: many receives are flushed.
func takeUntilClosed(t *testing.T, cq *verbs.CQ) {
	var wcs [16]verbs.WC
	for n := 0; ; n++ {
		var err error
		if n%3 == 0 {
			ctx, cancel := context.WithTimeout(context.Background(), time.Millisecond)
			err = cq.Wait(ctx)
			cancel()
		} else {
			_, err = cq.Poll(wcs[:])
		}
		if errors.Is(err, verbs.ErrClosed) || errors.Is(err, verbs.ErrOverrun) {
			return
		}
		if err != nil && !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("poll: %v", err)
			return
		}
	}
}

// destroy destroys the things in an order. What is refused because it is in use comes again behind the others.
func (d *doomed) destroy(t *testing.T, order []int, pause *rand.Rand) {
	for start := time.Now(); len(order) > 0; {
		if time.Since(start) > 10*time.Second {
			t.Errorf("%d things are left: %v", len(order), d.things[order[0]].what)
			return
		}
		next := order[0]
		order = order[1:]
		switch err := d.things[next].destroy(); {
		case err == nil:
			d.mu.Lock()
			d.succeeded[next]++
			d.mu.Unlock()
		case errors.Is(err, verbs.ErrInUse) && strings.ContainsAny(err.Error(), "123456789"): // it says by how many
			order = append(order, next)
			d.mu.Lock()
			d.refused[d.things[next].what]++
			d.mu.Unlock()
		case !errors.Is(err, verbs.ErrClosed):
			t.Errorf("destroy %s: %v", d.things[next].what, err)
		}
		if pause.IntN(4) == 0 {
			time.Sleep(time.Duration(pause.IntN(200)) * time.Microsecond)
		}
	}
}

// household is one object of each kind, beside those of an end.
type household struct {
	buffer         []byte
	inBuffer, fast *verbs.MR
	window         *verbs.MW
	srq            *verbs.SRQ
	channel        *verbs.CompChannel
	armed          *verbs.CQ
	other          *verbs.QP
}

func newHousehold(t *testing.T, a *end) (h household) {
	t.Helper()
	var err error
	h.buffer, err = verbs.AllocBuffer(8192)
	require.NoError(t, err)
	h.inBuffer, err = a.pd.RegMR(h.buffer, everyAccess)
	require.NoError(t, err)
	h.fast, err = a.pd.AllocMR(4096)
	require.NoError(t, err)
	require.NoError(t, h.fast.Map(make([]byte, 4096), 0))
	require.Equal(t, verbs.WCSuccess, a.do(t, h.fast.RegWR(everyAccess)).Status)
	h.window, err = a.pd.AllocMW(verbs.MWType2)
	require.NoError(t, err)
	require.NoError(t, a.qp.BindMW(h.window, verbs.MWBind{Flags: verbs.SendSignaled, MR: a.mr, Addr: a.mr.Addr(), Length: 8}))
	require.Equal(t, verbs.WCSuccess, poll(t, a.sends).Status)
	h.srq, err = a.pd.CreateSRQ(verbs.SRQInitAttr{})
	require.NoError(t, err)
	h.channel, err = a.device.CreateCompChannel()
	require.NoError(t, err)
	h.armed, err = a.device.CreateCQ(verbs.CQInitAttr{CQE: 16, Channel: h.channel})
	require.NoError(t, err)
	h.other, err = a.pd.CreateQP(verbs.QPInitAttr{SendCQ: h.armed, RecvCQ: h.armed, SRQ: h.srq})
	require.NoError(t, err)
	return h
}

// requireClosed requires that nothing of the household and of its end can be used any more.
func (h *household) requireClosed(t *testing.T, a *end) {
	t.Helper()
	for _, call := range []func() error{
		a.device.Close, a.qp.Destroy, h.other.Destroy, h.srq.Destroy, h.window.Dealloc, a.mr.Dereg, h.fast.Dereg,
		h.inBuffer.Dereg,
		h.armed.Destroy, a.sends.Destroy, h.channel.Destroy, a.pd.Dealloc,
		func() error { return a.qp.PostSend(verbs.SendWR{Opcode: verbs.WRSend}) },
		func() error { return h.srq.PostRecv(verbs.RecvWR{}) },
		func() error { _, err := a.mr.LoadUint64(0); return err },
		func() error {
			_, _ = a.sends.Poll(make([]verbs.WC, 256))
			_, err := a.sends.Poll(make([]verbs.WC, 1))
			return err
		},
		func() error { _, err := a.pd.RegMR(make([]byte, 8), 0); return err },
		func() error { _, err := a.device.AllocPD(); return err },
		func() error { _, err := a.device.CreateCQ(verbs.CQInitAttr{CQE: 1}); return err },
	} {
		requireClosed(t, call())
	}
}

// TestCloseDestroysAll: Close of a device ends all that belongs to it, with traffic under way and goroutines blocked,
// and afterwards every call says so. Nothing of it is left, the buffers included.
func TestCloseDestroysAll(t *testing.T) {
	for round := range size(10, 100) {
		network := mem.NewNetwork(mem.Options{Seed: uint64(round)})
		var devices [2]*verbs.Device
		var ends [2]*end
		for i := range devices {
			l, err := network.NewDevice(mem.DeviceOptions{Queues: 2})
			require.NoError(t, err)
			d, err := opener.Open[verbs.Device](l, driver.Options{})
			require.NoError(t, err)
			devices[i] = d
			e := &end{device: d}
			e.pd, err = d.AllocPD()
			require.NoError(t, err)
			e.mr, err = e.pd.RegMR(make([]byte, 64<<10), everyAccess)
			require.NoError(t, err)
			e.sends, err = d.CreateCQ(verbs.CQInitAttr{CQE: 256})
			require.NoError(t, err)
			e.recvs = e.sends
			e.qp, err = e.pd.CreateQP(verbs.QPInitAttr{SendCQ: e.sends, RecvCQ: e.recvs})
			require.NoError(t, err)
			ends[i] = e
		}
		a, b := ends[0], ends[1]
		connect(t, a, b, verbs.ConnectOptions{Timeout: noTimeout})
		h := newHousehold(t, a)
		var blocked, traffic sync.WaitGroup
		closed := func(wait func() error) { blocked.Go(func() { requireClosed(t, wait()) }) }
		closed(func() error { return h.armed.Wait(t.Context()) })
		closed(func() error { _, err := h.channel.Get(t.Context()); return err })
		closed(func() error {
			for {
				if _, err := devices[0].GetAsyncEvent(t.Context()); err != nil {
					return err
				}
			}
		})
		for _, pair := range [][2]*end{{a, b}, {b, a}} {
			wr := verbs.SendWR{
				Opcode: verbs.WRRDMAWrite, SGList: []verbs.SGE{pair[0].mr.SGE(0, 32<<10)},
				RemoteAddr: pair[1].mr.Addr(), RKey: pair[1].mr.RKey(),
			}
			traffic.Go(func() {
				for {
					if err := pair[0].qp.PostSend(wr); errors.Is(err, verbs.ErrQueueFull) {
						runtime.Gosched()
					} else if err != nil {
						requireClosed(t, err)
						return
					}
				}
			})
		}
		var made atomic.Bool // objects that are made meanwhile are destroyed or refused
		traffic.Go(func() {
			for {
				made.Store(true)
				if _, err := a.pd.RegMR(make([]byte, 64), 0); err != nil {
					requireClosed(t, err)
					return
				}
			}
		})
		for !made.Load() {
			runtime.Gosched()
		}
		require.ErrorContains(t, opener.InUse(devices[0]), "2 QPs, 1 SRQs, 1 memory windows")
		require.NoError(t, devices[0].Close())
		require.NoError(t, devices[1].Close())
		blocked.Wait()
		traffic.Wait()
		h.requireClosed(t, a)
		require.NoError(t, opener.InUse(devices[0]))
		require.NoError(t, verbs.FreeBuffer(h.buffer))
	}
	support.Object(t, "Device", "Close while it has objects, with traffic", "all of them are destroyed")
}

// closeEmpty closes a device once nothing is left on it: Close would destroy all the others.
func closeEmpty(d *verbs.Device) func() error {
	return func() error {
		if err := opener.InUse(d); err != nil {
			return err
		}
		return d.Close()
	}
}

// requireClosed is for goroutines, too.
func requireClosed(t *testing.T, err error) {
	t.Helper()
	if !errors.Is(err, verbs.ErrClosed) {
		t.Errorf("want ErrClosed: %v", err)
	}
}
