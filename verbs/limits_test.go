package verbs_test

import (
	"context"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/xroce/xroce/internal/opener"
	"github.com/xroce/xroce/internal/support"
	"github.com/xroce/xroce/roce"
	"github.com/xroce/xroce/roce/driver"
	"github.com/xroce/xroce/roce/link/mem"
	"github.com/xroce/xroce/verbs"
)

// TestCase_D7_QueryDevice: every attribute as it is, from the device's address and the limits that the tests below
// reach.
func TestCase_D7_QueryDevice(t *testing.T) {
	l, err := mem.NewNetwork(mem.Options{}).NewDevice(mem.DeviceOptions{MAC: roce.MAC{0x02, 0x11, 0x22, 0x33, 0x44, 0x55}})
	require.NoError(t, err)
	d, err := opener.Open[verbs.Device](l, driver.Options{})
	require.NoError(t, err)
	defer func() { requireClose(t, d) }()
	require.Equal(t, verbs.DeviceAttr{
		NodeGUID: 0x001122fffe334455, PhysPortCnt: 1,
		MaxQP: 16384, MaxQPWR: 65536, MaxSGE: 32, MaxSGERD: 32, MaxInlineData: 1024,
		MaxCQ: 65536, MaxCQE: 1 << 20, MaxPD: 65536, MaxMR: 524288, MaxMRSize: 1 << 46, MaxMW: 524288,
		MaxSRQ: 16384, MaxSRQWR: 65536, MaxSRQSGE: 32, MaxAH: 0,
		MaxQPRDAtom: 128, MaxQPInitRDAtom: 128, MaxResRDAtom: 16384 * 128,
		AtomicCap: verbs.AtomicGlob, MaxMsgSize: 1 << 31, MaxPKeys: 1, LocalCAAckDelay: 12,
	}, d.QueryDevice())
	before := d.Clock()
	require.Positive(t, before)
	time.Sleep(time.Millisecond)
	require.GreaterOrEqual(t, d.Clock()-before, time.Millisecond)
	support.Object(t, "Device", "QueryDevice", "every attribute as it is")
}

// reach makes objects up to a limit and makes sure that one more is refused with both numbers, and that there is room
// again once one is gone.
func reach(t *testing.T, limit int, create func() (destroy func() error, err error)) {
	t.Helper()
	destroy := make([]func() error, 0, limit)
	for i := range limit {
		d, err := create()
		if err != nil {
			require.NoError(t, err, "%d of %d", i+1, limit)
		}
		destroy = append(destroy, d)
	}
	_, err := create()
	require.ErrorIs(t, err, verbs.ErrLimit)
	require.ErrorContains(t, err, fmt.Sprint(limit+1))
	require.ErrorContains(t, err, fmt.Sprintf("has %d", limit))
	_, object, _ := strings.Cut(t.Name(), "/")
	support.Limit(t, "objects: "+object, err)
	require.NoError(t, destroy[0]())
	d, err := create()
	require.NoError(t, err)
	destroy[0] = d
	for _, d := range destroy {
		if err := d(); err != nil {
			require.NoError(t, err)
		}
	}
}

// TestCase_D14_Objects: as many objects as the device says, and not one more.
func TestCase_D14_Objects(t *testing.T) {
	d, _ := memDevices(t, mem.Options{}, mem.DeviceOptions{})
	attr := d.QueryDevice()
	t.Run("PD", func(t *testing.T) {
		reach(t, attr.MaxPD, func() (func() error, error) {
			pd, err := d.AllocPD()
			return pd.Dealloc, err
		})
	})
	pd, err := d.AllocPD()
	require.NoError(t, err)
	defer func() { require.NoError(t, pd.Dealloc()) }()
	t.Run("CQ", func(t *testing.T) {
		reach(t, attr.MaxCQ, func() (func() error, error) {
			cq, err := d.CreateCQ(verbs.CQInitAttr{CQE: 1})
			return cq.Destroy, err
		})
	})
	t.Run("SRQ", func(t *testing.T) {
		reach(t, attr.MaxSRQ, func() (func() error, error) {
			s, err := pd.CreateSRQ(verbs.SRQInitAttr{MaxWR: 1})
			return s.Destroy, err
		})
	})
	t.Run("MR", func(t *testing.T) {
		buffer := make([]byte, 8)
		reach(t, attr.MaxMR, func() (func() error, error) {
			mr, err := pd.RegMR(buffer, 0)
			return mr.Dereg, err
		})
	})
	t.Run("MW", func(t *testing.T) {
		reach(t, attr.MaxMW, func() (func() error, error) {
			mw, err := pd.AllocMW(verbs.MWType2)
			return mw.Dealloc, err
		})
	})
	t.Run("QP", func(t *testing.T) {
		cq := newCQ(t, d, 1)
		reach(t, attr.MaxQP, func() (func() error, error) {
			q, err := pd.CreateQP(verbs.QPInitAttr{SendCQ: cq, RecvCQ: cq, Cap: verbs.QPCap{MaxSendWR: 1, MaxRecvWR: 1}})
			return q.Destroy, err
		})
	})
}

// TestCase_D14_Sizes: the largest queues and requests work, larger ones are refused with both numbers.
func TestCase_D14_Sizes(t *testing.T) {
	a, b := pair(t, mem.Options{})
	attr := a.device.QueryDevice()
	largestQueues(t, a, attr)
	largestSRQ(t, b, attr)
	most := verbs.QPCap{MaxSendSGE: attr.MaxSGE, MaxRecvSGE: attr.MaxSGE}
	sender := newQP(t, a.pd, verbs.QPInitAttr{SendCQ: a.sends, RecvCQ: a.recvs, Cap: most})
	target := newQP(t, b.pd, verbs.QPInitAttr{SendCQ: b.sends, RecvCQ: b.recvs, Cap: most})
	connectAt(t, sender, target, 0)
	mostElements(t, a, b, sender, target, attr)
	mostReads(t, b, sender, target, attr)
	longestMessage(t, a, b)
}

// refusedSize checks an error that names the sentinel and the numbers that clash.
func refusedSize(t *testing.T, err error, sentinel error, numbers ...uint64) {
	t.Helper()
	require.ErrorIs(t, err, sentinel)
	for _, n := range numbers {
		require.ErrorContains(t, err, fmt.Sprint(n))
	}
	support.Limit(t, "sizes", err)
}

func over(limit int) (uint64, uint64) { return uint64(limit) + 1, uint64(limit) }

// largestQueues: a CQ and a queue pair of the largest sizes are made, and no larger ones.
func largestQueues(t *testing.T, a *end, attr verbs.DeviceAttr) {
	cq := newCQ(t, a.device, attr.MaxCQE)
	require.Equal(t, attr.MaxCQE, cq.CQE())
	more, limit := over(attr.MaxCQE)
	_, err := a.device.CreateCQ(verbs.CQInitAttr{CQE: int(more)})
	refusedSize(t, err, verbs.ErrLimit, more, limit)

	full := verbs.QPCap{MaxSendWR: attr.MaxQPWR, MaxRecvWR: attr.MaxQPWR, MaxSendSGE: attr.MaxSGE, MaxRecvSGE: attr.MaxSGE}
	require.Equal(t, full, newQP(t, a.pd, verbs.QPInitAttr{SendCQ: cq, RecvCQ: cq, Cap: full}).Cap())
	for _, c := range []struct {
		cap   verbs.QPCap
		limit int
	}{
		{verbs.QPCap{MaxSendWR: attr.MaxQPWR + 1}, attr.MaxQPWR}, {verbs.QPCap{MaxRecvWR: attr.MaxQPWR + 1}, attr.MaxQPWR},
		{verbs.QPCap{MaxSendSGE: attr.MaxSGE + 1}, attr.MaxSGE}, {verbs.QPCap{MaxRecvSGE: attr.MaxSGE + 1}, attr.MaxSGE},
	} {
		_, err := a.pd.CreateQP(verbs.QPInitAttr{SendCQ: cq, RecvCQ: cq, Cap: c.cap})
		more, limit := over(c.limit)
		refusedSize(t, err, verbs.ErrLimit, more, limit)
	}
}

// largestSRQ: so is an SRQ, and it takes as many receives.
func largestSRQ(t *testing.T, b *end, attr verbs.DeviceAttr) {
	srq := newSRQ(t, b.pd, verbs.SRQInitAttr{MaxWR: attr.MaxSRQWR, MaxSGE: attr.MaxSRQSGE, SRQLimit: attr.MaxSRQWR})
	wrs := make([]verbs.RecvWR, attr.MaxSRQWR)
	require.NoError(t, srq.PostRecv(wrs...))
	refusedSize(t, srq.PostRecv(verbs.RecvWR{}), verbs.ErrQueueFull, uint64(attr.MaxSRQWR))
	for _, c := range []verbs.SRQInitAttr{{MaxWR: attr.MaxSRQWR + 1}, {MaxSGE: attr.MaxSRQSGE + 1}} {
		_, err := b.pd.CreateSRQ(c)
		refusedSize(t, err, verbs.ErrLimit, uint64(max(c.MaxWR, c.MaxSGE)), uint64(max(c.MaxWR, c.MaxSGE)-1))
	}
	_, err := b.pd.CreateSRQ(verbs.SRQInitAttr{MaxWR: 4, SRQLimit: 5})
	refusedSize(t, err, verbs.ErrInvalid, 4, 5)
}

// mostElements: a request has the most elements, and is scattered over as many.
func mostElements(t *testing.T, a, b *end, sender, target *verbs.QP, attr verbs.DeviceAttr) {
	var from, into []verbs.SGE
	for i := range attr.MaxSGE {
		from, into = append(from, a.mr.SGE(3*i, 3)), append(into, b.mr.SGE(1000-4*i, 3))
		copy(a.mr.Bytes()[3*i:], []byte{byte(i), 1, 2})
	}
	require.NoError(t, target.PostRecv(verbs.RecvWR{SGList: into}))
	require.NoError(t, sender.PostSend(verbs.SendWR{Opcode: verbs.WRSend, SGList: from}))
	require.Equal(t, verbs.WCSuccess, poll(t, b.recvs).Status)
	for i := range attr.MaxSGE {
		require.Equal(t, []byte{byte(i), 1, 2}, b.mr.Bytes()[1000-4*i:][:3])
	}
	more, limit := over(attr.MaxSGE)
	refusedSize(t, sender.PostSend(verbs.SendWR{Opcode: verbs.WRSend, SGList: append(from, from[0])}), verbs.ErrTooManySGEs, more, limit)
}

// mostReads: as many READs are in flight as the attributes of both directions allow.
func mostReads(t *testing.T, b *end, sender, target *verbs.QP, attr verbs.DeviceAttr) {
	gid, err := b.device.QueryGID(0)
	require.NoError(t, err)
	for _, c := range []struct{ initiator, responder, want int }{
		{attr.MaxQPInitRDAtom, attr.MaxQPRDAtom, 0}, {attr.MaxQPInitRDAtom + 1, 1, 129}, {1, attr.MaxQPRDAtom + 1, 129},
	} {
		require.NoError(t, sender.Modify(t.Context(), verbs.QPAttr{State: verbs.StateReset}, verbs.QPStateMask))
		err := toRTSWith(sender, verbs.QPAttr{
			PortNum: 1, PathMTU: verbs.MTU1024, DestQPN: target.QPN(), AH: verbs.AHAttr{DGID: gid},
			MaxRDAtomic: uint8(c.initiator), MaxDestRDAtomic: uint8(c.responder),
		})
		if c.want == 0 {
			require.NoError(t, err)
		} else {
			refusedSize(t, err, verbs.ErrAttribute, 128, 129)
		}
	}
}

// longestMessage: the longest message is posted, and one byte more is not. A queue pair without a peer shows it.
func longestMessage(t *testing.T, a, b *end) {
	cq := newCQ(t, a.device, 4)
	long := newQP(t, a.pd, verbs.QPInitAttr{SendCQ: cq, RecvCQ: cq})
	connectAt(t, long, newQP(t, b.pd, verbs.QPInitAttr{SendCQ: b.sends, RecvCQ: b.recvs}), 0)
	refusedSize(t, long.PostSend(verbs.SendWR{Opcode: verbs.WRSend, SGList: []verbs.SGE{a.mr.SGE(0, 1<<31+1)}}), verbs.ErrMessageTooLong, 1<<31+1, 1<<31)
	require.NoError(t, long.PostSend(verbs.SendWR{Opcode: verbs.WRSend, SGList: []verbs.SGE{a.mr.SGE(0, 1<<31)}}))
}

// toRTSWith makes the three transitions with given attributes.
func toRTSWith(q *verbs.QP, attr verbs.QPAttr) error {
	for _, step := range []struct {
		state verbs.QPState
		mask  verbs.QPAttrMask
	}{
		{verbs.StateInit, verbs.QPPKeyIndex | verbs.QPPort | verbs.QPAccessFlags},
		{verbs.StateRTR, verbs.QPAV | verbs.QPPathMTU | verbs.QPDestQPN | verbs.QPRQPSN | verbs.QPMaxDestRDAtomic | verbs.QPMinRNRTimer},
		{verbs.StateRTS, verbs.QPSQPSN | verbs.QPTimeout | verbs.QPRetryCnt | verbs.QPRNRRetry | verbs.QPMaxQPRDAtomic},
	} {
		attr.State = step.state
		if err := q.Modify(context.Background(), attr, verbs.QPStateMask|step.mask); err != nil {
			return err
		}
	}
	return nil
}

// TestCase_D14_Outstanding: a CQ of 10,000 and 8192 requests in flight; all of them complete, in order.
func TestCase_D14_Outstanding(t *testing.T) {
	const depth = 8192
	a, b := pair(t, mem.Options{})
	sends, recvs := newCQ(t, a.device, 10_000), newCQ(t, b.device, 10_000)
	sender := newQP(t, a.pd, verbs.QPInitAttr{SendCQ: sends, RecvCQ: a.recvs, Cap: verbs.QPCap{MaxSendWR: depth}})
	target := newQP(t, b.pd, verbs.QPInitAttr{SendCQ: b.sends, RecvCQ: recvs, Cap: verbs.QPCap{MaxRecvWR: depth}})
	connectAt(t, sender, target, 0)
	// Nothing is received, so nothing completes.
	for i := range depth {
		require.NoError(t, sender.PostSend(verbs.SendWR{WRID: uint64(i), Opcode: verbs.WRSend, Flags: verbs.SendSignaled}))
	}
	require.Equal(t, depth, sender.Outstanding())
	err := sender.PostSend(verbs.SendWR{Opcode: verbs.WRSend})
	require.ErrorIs(t, err, verbs.ErrQueueFull)
	require.ErrorContains(t, err, "8192")
	wrs := make([]verbs.RecvWR, depth)
	for i := range wrs {
		wrs[i].WRID = uint64(i)
	}
	require.NoError(t, target.PostRecv(wrs...))
	for _, cq := range []*verbs.CQ{recvs, sends} {
		for i := range uint64(depth) {
			wc := poll(t, cq)
			require.Equal(t, i, wc.WRID)
			require.Equal(t, verbs.WCSuccess, wc.Status)
		}
	}
	support.Object(t, "QP", "8192 requests in flight, into a CQ of 10,000", verbs.WCSuccess)
}

// TestMisuseOfObjects: nil and zero values of what is around a queue pair are refused with an error, or with a panic
// that says the same.
func TestMisuseOfObjects(t *testing.T) {
	a, _ := pair(t, mem.Options{})
	var nothing context.Context
	second := func(_ any, err error) error { return err }
	calls := map[string]func() error{
		"QP with zero SRQ": func() error {
			return second(a.pd.CreateQP(verbs.QPInitAttr{SendCQ: a.sends, RecvCQ: a.recvs, SRQ: new(verbs.SRQ)}))
		},
		"CQ with zero channel": func() error {
			return second(a.device.CreateCQ(verbs.CQInitAttr{CQE: 1, Channel: new(verbs.CompChannel)}))
		},
		"event without context": func() error { return second(a.device.GetAsyncEvent(nothing)) },
	}
	for name, d := range map[string]*verbs.Device{"nil device": nil, "zero device": {}} {
		calls[name+": CreateCompChannel"] = func() error { return second(d.CreateCompChannel()) }
		calls[name+": GetAsyncEvent"] = func() error { return second(d.GetAsyncEvent(t.Context())) }
		requirePanic(t, name, func() { d.QueryDevice() })
		requirePanic(t, name, func() { d.AsyncReady() })
		requirePanic(t, name, func() { d.Clock() })
		requirePanic(t, name, func() { d.PollAsyncEvent() })
	}
	for name, pd := range map[string]*verbs.PD{"nil PD": nil, "zero PD": {}} {
		calls[name+": CreateSRQ"] = func() error { return second(pd.CreateSRQ(verbs.SRQInitAttr{})) }
	}
	for name, cq := range map[string]*verbs.CQ{"nil CQ": nil, "zero CQ": {}} {
		calls[name+": Resize"] = func() error { return cq.Resize(1) }
		calls[name+": ReqNotify"] = func() error { return cq.ReqNotify(false) }
		requirePanic(t, name, func() { cq.Channel() })
	}
	for name, ch := range map[string]*verbs.CompChannel{"nil channel": nil, "zero channel": {}} {
		calls[name+": Get"] = func() error { return second(ch.Get(t.Context())) }
		calls[name+": Destroy"] = func() error { return ch.Destroy() }
		requirePanic(t, name, func() { ch.Ready() })
		requirePanic(t, name, func() { ch.Poll() })
	}
	for name, s := range map[string]*verbs.SRQ{"nil SRQ": nil, "zero SRQ": {}} {
		calls[name+": PostRecv"] = func() error { return s.PostRecv(verbs.RecvWR{}) }
		calls[name+": Modify"] = func() error { return s.Modify(verbs.SRQAttr{}, 0) }
		calls[name+": Destroy"] = func() error { return s.Destroy() }
		requirePanic(t, name, func() { s.Query() })
	}
	for _, wr := range []int{-1, math.MinInt} {
		require.ErrorIs(t, second(a.pd.CreateSRQ(verbs.SRQInitAttr{MaxWR: wr})), verbs.ErrLimit)
		require.ErrorIs(t, second(a.pd.CreateSRQ(verbs.SRQInitAttr{SRQLimit: wr})), verbs.ErrInvalid)
	}
	for name, call := range calls {
		require.NotPanics(t, func() { require.ErrorIs(t, call(), verbs.ErrInvalid, name) }, name)
	}
	support.Object(t, "all", "calls on nil and on zero values", verbs.ErrInvalid)
}
