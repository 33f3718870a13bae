package verbs_test

import (
	"context"
	"errors"
	"flag"
	"math/rand/v2"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/xroce/xroce/internal/netlab"
	"github.com/xroce/xroce/internal/opener"
	"github.com/xroce/xroce/internal/support"
	"github.com/xroce/xroce/roce"
	"github.com/xroce/xroce/roce/driver"
	"github.com/xroce/xroce/roce/link/mem"
	"github.com/xroce/xroce/verbs"
)

var fullSize = flag.Bool("full", false, "run the cases whose full size takes long at full size")

// size is the size of a case.
func size(test, full int) int {
	if *fullSize {
		return full
	}
	return test
}

// TestCase_D1: queue pairs die in the middle of what they do, while packets of theirs are under way. Late packets find
// nobody, and the device goes on as if they had never been.
func TestCase_D1(t *testing.T) {
	t.Run("memory", func(t *testing.T) {
		a, b := memDevices(t, mem.Options{Faults: mem.Faults{Drop: 0.01}}, mem.DeviceOptions{})
		dieYoung(t, a, b, size(400, 20_000))
	})
	t.Run("veth", func(t *testing.T) {
		a, b := vethDevices(t, netlab.PairOptions{}, verbs.Options{})
		dieYoung(t, a, b, size(300, 20_000))
	})
}

func dieYoung(t *testing.T, da, db *verbs.Device, rounds int) {
	random := rand.New(rand.NewPCG(1, 1))
	// A pair that stays: it shares shards, CQs and buffers with those that go.
	a, b := newEnd(t, da, make([]byte, 64<<10), verbs.QPCap{}), newEnd(t, db, make([]byte, 64<<10), verbs.QPCap{})
	connect(t, a, b, verbs.ConnectOptions{})
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute+time.Duration(rounds)*20*time.Millisecond)
	defer cancel()
	dead := map[verbs.QPN]bool{}
	for round := range rounds {
		ends := bornYoung(ctx, t, [2]*end{a, b}, round, dead)
		for i, e := range ends {
			for range 32 {
				wr := write(e, ends[1-i], verbs.SendSignaled)
				wr.SGList[0].Length = uint32(random.IntN(6000))
				require.NoError(t, e.qp.PostSend(wr))
				if i == 1 && round%2 == 0 {
					break
				}
			}
		}
		// Nobody polls yet, so that the background is at work, too.
		if pause := time.Duration(random.IntN(2000)) * time.Microsecond; round%4 != 0 {
			time.Sleep(pause)
		}
		first := random.IntN(2)
		for _, i := range []int{first, 1 - first} {
			require.NoError(t, ends[i].qp.Destroy())
			require.NoError(t, ends[i].mr.Dereg())
			clear(ends[i].mr.Bytes()) // the engine touches it no more, says the race detector
		}
		// What was complete before is there still, and nothing more may come.
		for i, e := range []*end{a, b} {
			drainOfLiving(t, e, dead)
			dead[ends[i].qp.QPN()] = true
		}
		if round%50 == 49 {
			// More frames than there are buffers, so that one that was lost each time would be missed.
			for range 4 {
				require.NoError(t, a.qp.PostSend(verbs.SendWR{
					Opcode: verbs.WRRDMAWrite, Flags: verbs.SendSignaled, SGList: []verbs.SGE{a.mr.SGE(0, 64<<10)},
					RemoteAddr: b.mr.Addr(), RKey: b.mr.RKey(),
				}))
				wc := poll(t, a.sends)
				require.Equal(t, verbs.WCSuccess, wc.Status, "round %d: %s", round, a.qp.Explain(wc))
			}
		}
	}
	requireSilent(t, a, b)
	support.Object(t, "QP", "Destroy with packets of it under way", "no completion any more, other QPs go on")
}

// bornYoung makes a connected pair of queue pairs on the CQs of the ends that stay.
func bornYoung(ctx context.Context, t *testing.T, on [2]*end, round int, dead map[verbs.QPN]bool) (ends [2]*end) {
	for i, e := range on {
		qp, err := e.pd.CreateQP(verbs.QPInitAttr{SendCQ: e.sends, RecvCQ: e.recvs})
		require.NoError(t, err)
		mr, err := e.pd.RegMR(make([]byte, 16<<10), allAccess)
		require.NoError(t, err)
		ends[i] = &end{qp: qp, mr: mr}
		delete(dead, qp.QPN())
	}
	for i, e := range ends {
		remote, err := ends[1-i].qp.Endpoint(verbs.ConnectOptions{})
		require.NoError(t, err)
		require.NoError(t, e.qp.Connect(ctx, remote, verbs.ConnectOptions{Timeout: roce.AckTimeout(6 + uint8(round%4))}))
	}
	return ends
}

// drainOfLiving takes all completions, none of which may be of a queue pair that was destroyed before.
func drainOfLiving(t *testing.T, e *end, dead map[verbs.QPN]bool) {
	t.Helper()
	var wcs [64]verbs.WC
	for n := len(wcs); n == len(wcs); {
		var err error
		n, err = e.sends.Poll(wcs[:])
		require.NoError(t, err)
		for _, wc := range wcs[:n] {
			require.False(t, dead[wc.QPN], "a completion of a queue pair that was destroyed: %+v", wc)
		}
	}
}

// requireSilent: nobody is left who would send anything, and packets for queue pairs that are gone were counted as
// such.
func requireSilent(t *testing.T, a, b *end) {
	require.Eventually(t, func() bool { return a.qp.Outstanding() == 0 }, patience, tick)
	time.Sleep(20 * time.Millisecond)
	ca, cb := opener.Counters(a.device), opener.Counters(b.device)
	time.Sleep(50 * time.Millisecond)
	require.Equal(t, ca.Transport.SentPackets, opener.Counters(a.device).Transport.SentPackets)
	require.Equal(t, cb.Transport.SentPackets, opener.Counters(b.device).Transport.SentPackets)
	unknown := ca.DropReasons()["qpn_unknown"] + cb.DropReasons()["qpn_unknown"]
	require.NotZero(t, unknown, "%v %v", ca.DropReasons(), cb.DropReasons())
	t.Logf("%d late packets of %d; %v; %v", unknown, ca.Transport.SentPackets+cb.Transport.SentPackets, ca.DropReasons(), cb.DropReasons())
	require.Zero(t, ca.Link.InvalidDescriptors+cb.Link.InvalidDescriptors)
}

// TestCase_D2: whatever step of CreateQP fails, it fails with a reason, and leaves nothing behind: all that it would
// have used can be destroyed at once.
func TestCase_D2(t *testing.T) {
	l, err := mem.NewNetwork(mem.Options{}).NewDevice(mem.DeviceOptions{})
	require.NoError(t, err)
	d, err := opener.Open[verbs.Device](l, driver.Options{})
	require.NoError(t, err)
	dead, err := d.CreateCQ(verbs.CQInitAttr{CQE: 1})
	require.NoError(t, err)
	require.NoError(t, dead.Destroy())
	for name, c := range map[string]wrongQP{
		"no send CQ":             {func(a *verbs.QPInitAttr) { a.SendCQ = nil }, verbs.ErrInvalid, "CQ"},
		"no receive CQ":          {func(a *verbs.QPInitAttr) { a.RecvCQ = nil }, verbs.ErrInvalid, "CQ"},
		"dead send CQ":           {func(a *verbs.QPInitAttr) { a.SendCQ = dead }, verbs.ErrClosed, "CQ"},
		"dead receive CQ":        {func(a *verbs.QPInitAttr) { a.RecvCQ = dead }, verbs.ErrClosed, "CQ"},
		"type":                   {func(a *verbs.QPInitAttr) { a.QPType = 3 }, verbs.ErrNotSupported, "3"},
		"send depth -1":          {func(a *verbs.QPInitAttr) { a.Cap.MaxSendWR = -1 }, verbs.ErrLimit, "max_send_wr is -1"},
		"send depth":             {func(a *verbs.QPInitAttr) { a.Cap.MaxSendWR = verbs.MaxQPWR + 1 }, verbs.ErrLimit, "65537"},
		"receive depth -1":       {func(a *verbs.QPInitAttr) { a.Cap.MaxRecvWR = -1 }, verbs.ErrLimit, "max_recv_wr is -1"},
		"receive depth":          {func(a *verbs.QPInitAttr) { a.Cap.MaxRecvWR = verbs.MaxQPWR + 1 }, verbs.ErrLimit, "65536"},
		"send elements -1":       {func(a *verbs.QPInitAttr) { a.Cap.MaxSendSGE = -1 }, verbs.ErrLimit, "max_send_sge is -1"},
		"send elements":          {func(a *verbs.QPInitAttr) { a.Cap.MaxSendSGE = verbs.MaxSGE + 1 }, verbs.ErrLimit, "33"},
		"receive elements":       {func(a *verbs.QPInitAttr) { a.Cap.MaxRecvSGE = verbs.MaxSGE + 1 }, verbs.ErrLimit, "33"},
		"receive elements -1":    {func(a *verbs.QPInitAttr) { a.Cap.MaxRecvSGE = -1 }, verbs.ErrLimit, "max_recv_sge is -1"},
		"inline data":            {func(a *verbs.QPInitAttr) { a.Cap.MaxInline = verbs.MaxInlineData + 1 }, verbs.ErrLimit, "1025"},
		"inline data -1":         {func(a *verbs.QPInitAttr) { a.Cap.MaxInline = -1 }, verbs.ErrLimit, "-1"},
		"dead protection domain": {nil, verbs.ErrClosed, "PD"},
	} {
		t.Run(name, func(t *testing.T) {
			c.create(t, d)
			support.Object(t, "QP", "CreateQP, "+name, c.want)
		})
	}
	for _, cqe := range []int{-1, 0, verbs.MaxCQE + 1} {
		_, err := d.CreateCQ(verbs.CQInitAttr{CQE: cqe})
		require.ErrorIs(t, err, verbs.ErrLimit)
	}
	reachLimits(t, d)
	requireClose(t, d)
}

// wrongQP is a queue pair that cannot be made. Without spoil its protection domain is gone.
type wrongQP struct {
	spoil func(*verbs.QPInitAttr)
	want  error
	says  string
}

func (c wrongQP) create(t *testing.T, d *verbs.Device) {
	pd, err := d.AllocPD()
	require.NoError(t, err)
	cq, err := d.CreateCQ(verbs.CQInitAttr{CQE: 1})
	require.NoError(t, err)
	attr := verbs.QPInitAttr{SendCQ: cq, RecvCQ: cq}
	if c.spoil != nil {
		c.spoil(&attr)
	} else {
		require.NoError(t, pd.Dealloc())
	}
	_, err = pd.CreateQP(attr)
	require.ErrorIs(t, err, c.want)
	require.ErrorContains(t, err, c.says)
	require.NoError(t, cq.Destroy())
	if c.spoil != nil {
		require.NoError(t, pd.Dealloc())
	}
}

// reachLimits: every limit can be reached; and when the QP numbers are used up, the last one that goes makes room for
// another.
func reachLimits(t *testing.T, d *verbs.Device) {
	pd, err := d.AllocPD()
	require.NoError(t, err)
	cq, err := d.CreateCQ(verbs.CQInitAttr{CQE: verbs.MaxCQE})
	require.NoError(t, err)
	require.Equal(t, verbs.MaxCQE, cq.CQE())
	qp, err := pd.CreateQP(verbs.QPInitAttr{SendCQ: cq, RecvCQ: cq, Cap: verbs.QPCap{MaxSendWR: verbs.MaxQPWR, MaxRecvWR: verbs.MaxQPWR}})
	require.NoError(t, err)
	require.NoError(t, qp.Destroy())
	small := verbs.QPInitAttr{SendCQ: cq, RecvCQ: cq, Cap: verbs.QPCap{MaxSendWR: 1, MaxRecvWR: 1}}
	var all []*verbs.QP
	for {
		qp, err := pd.CreateQP(small)
		if err != nil {
			require.ErrorIs(t, err, verbs.ErrLimit)
			require.ErrorContains(t, err, "QP number 16385, the device has 16384")
			break
		}
		all = append(all, qp)
	}
	require.Len(t, all, 16384)
	require.NoError(t, all[77].Destroy())
	all[77], err = pd.CreateQP(small)
	require.NoError(t, err)
	require.ErrorContains(t, cq.Destroy(), "32768")
	require.ErrorContains(t, pd.Dealloc(), "16384")
	for _, qp := range all {
		require.NoError(t, qp.Destroy())
	}
	require.NoError(t, cq.Destroy())
	require.NoError(t, pd.Dealloc())
}

// TestCase_D9: two programs with room for one request each send to each other and wait, in whatever way: neither
// depends on what the other does with its CQ.
func TestCase_D9(t *testing.T) {
	spin := func(*verbs.CQ) error { return nil }
	block := func(cq *verbs.CQ) error {
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		defer cancel()
		return cq.Wait(ctx)
	}
	lazy := func(*verbs.CQ) error { time.Sleep(10 * time.Millisecond); return nil }
	for name, c := range map[string]struct {
		rounds int
		pause  [2]func(*verbs.CQ) error
	}{
		"both poll":             {size(1000, 1_000_000), [2]func(*verbs.CQ) error{spin, spin}},
		"both wait":             {size(1000, 1_000_000), [2]func(*verbs.CQ) error{block, block}},
		"one waits":             {size(1000, 1_000_000), [2]func(*verbs.CQ) error{block, spin}},
		"both look every 10 ms": {size(100, 10_000), [2]func(*verbs.CQ) error{lazy, lazy}},
		"one looks every 10 ms": {size(100, 10_000), [2]func(*verbs.CQ) error{lazy, block}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			da, db := memDevices(t, mem.Options{}, mem.DeviceOptions{})
			one := verbs.QPCap{MaxSendWR: 1, MaxRecvWR: 1}
			ends := [2]*end{newEnd(t, da, make([]byte, 64), one), newEnd(t, db, make([]byte, 64), one)}
			connect(t, ends[0], ends[1], verbs.ConnectOptions{MinRNRTimer: roce.RNRTimer(4), Timeout: roce.AckTimeout(18)})
			var both sync.WaitGroup
			for i, e := range ends {
				both.Go(func() {
					if err := e.exchange(c.rounds, c.pause[i]); err != nil {
						t.Errorf("end %d: %v: %+v", i, err, opener.Counters(e.device))
					}
				})
			}
			both.Wait()
			support.Object(t, "CQ", "ping-pong with room for one request, "+name, "does not stall")
		})
	}
}

// exchange posts a receive and a send and waits for both, again and again.
func (e *end) exchange(rounds int, pause func(*verbs.CQ) error) error {
	for round := range rounds {
		e.mr.Bytes()[0] = byte(round)
		if err := e.qp.PostRecv(verbs.RecvWR{WRID: uint64(round), SGList: []verbs.SGE{e.mr.SGE(32, 8)}}); err != nil {
			return err
		}
		if err := e.qp.PostSend(verbs.SendWR{
			WRID: uint64(round), Opcode: verbs.WRSend, Flags: verbs.SendSignaled, SGList: []verbs.SGE{e.mr.SGE(0, 8)},
		}); err != nil {
			return err
		}
		for _, cq := range []*verbs.CQ{e.recvs, e.sends} {
			var wc [2]verbs.WC
			for start := time.Now(); ; runtime.Gosched() {
				if err := pause(cq); err != nil {
					return err
				}
				n, err := cq.Poll(wc[:])
				if err != nil {
					return err
				}
				if n == 1 {
					break
				}
				if time.Since(start) > 20*time.Second {
					return errors.New("stalled")
				}
			}
			if wc[0].WRID != uint64(round) || wc[0].Status != verbs.WCSuccess {
				return errors.New(e.qp.Explain(wc[0]))
			}
		}
		if e.mr.Bytes()[32] != byte(round) {
			return errors.New("wrong data")
		}
	}
	return nil
}
