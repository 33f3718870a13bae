package verbs_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/xroce/xroce/internal/opener"
	"github.com/xroce/xroce/internal/support"
	"github.com/xroce/xroce/roce/driver"
	"github.com/xroce/xroce/roce/link/mem"
	"github.com/xroce/xroce/verbs"
)

func newSRQ(t *testing.T, pd *verbs.PD, a verbs.SRQInitAttr) *verbs.SRQ {
	t.Helper()
	s, err := pd.CreateSRQ(a)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Destroy()) })
	return s
}

// TestSRQ: queue pairs of three shards take from one queue while a program posts to it: every receive is used once,
// each queue pair gets them in posted order, and what arrives is what was sent to it.
func TestSRQ(t *testing.T) {
	w := newSharedReceives(t)
	for id := range uint64(srqDepth) {
		require.NoError(t, w.post(id))
	}
	err := w.srq.PostRecv(verbs.RecvWR{})
	require.ErrorIs(t, err, verbs.ErrQueueFull)
	require.ErrorContains(t, err, "24")
	support.Object(t, "SRQ", "PostRecv to a full one", verbs.ErrQueueFull)

	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	var g sync.WaitGroup
	for i := range w.senders {
		g.Go(func() {
			if err := w.send(ctx, i); err != nil {
				t.Error(err)
			}
		})
	}
	wcs := make([]verbs.WC, 8)
	for len(w.used) < srqPairs*srqMessages {
		require.NoError(t, w.b.recvs.Wait(ctx), "%d of %d", len(w.used), srqPairs*srqMessages)
		n, err := w.b.recvs.Poll(wcs)
		require.NoError(t, err)
		for _, wc := range wcs[:n] {
			w.received(t, wc)
		}
	}
	g.Wait()
	for id := range uint64(srqPairs * srqMessages) {
		require.True(t, w.used[id], "receive %d", id)
	}
	support.Object(t, "SRQ", "QPs of several shards take from it", "each receive once, each QP in posted order")
}

const (
	srqPairs, srqMessages = 6, 500
	srqDepth              = 24 // receives
	srqSlot               = 64 // bytes of one
)

// sharedReceives is queue pairs that send to others, on several shards, which take their receives from one SRQ. The id
// of a receive counts up; where it puts the message is what it is modulo the depth.
type sharedReceives struct {
	a, b    *end
	srq     *verbs.SRQ
	senders [srqPairs]*verbs.QP
	sends   [srqPairs]*verbs.CQ
	index   map[verbs.QPN]int // of the receiving queue pair

	used  map[uint64]bool  // receives
	last  [srqPairs]uint64 // receive, by queue pair
	count [srqPairs]uint32 // of messages
	next  uint64           // receive to post
	free  map[uint64]bool  // those that could be posted, while the next one is not among them
}

func newSharedReceives(t *testing.T) *sharedReceives {
	da, db := memDevices(t, mem.Options{Seed: 1}, mem.DeviceOptions{Queues: 3})
	w := &sharedReceives{
		a:     newEnd(t, da, make([]byte, srqPairs*srqSlot*2), verbs.QPCap{}),
		b:     newEnd(t, db, make([]byte, srqDepth*srqSlot), verbs.QPCap{}),
		index: make(map[verbs.QPN]int), used: make(map[uint64]bool), free: make(map[uint64]bool), next: srqDepth,
	}
	w.srq = newSRQ(t, w.b.pd, verbs.SRQInitAttr{MaxWR: srqDepth, MaxSGE: 2})
	for i := range w.senders {
		w.sends[i] = newCQ(t, da, 8)
		w.senders[i] = newQP(t, w.a.pd, verbs.QPInitAttr{SendCQ: w.sends[i], RecvCQ: w.a.recvs})
		target := newQP(t, w.b.pd, verbs.QPInitAttr{SendCQ: w.b.sends, RecvCQ: w.b.recvs, SRQ: w.srq})
		connectAt(t, w.senders[i], target, uint32(i+1))
		w.index[target.QPN()] = i
	}
	return w
}

func (w *sharedReceives) post(id uint64) error {
	at := int(id%srqDepth) * srqSlot
	return w.srq.PostRecv(verbs.RecvWR{WRID: id, SGList: []verbs.SGE{w.b.mr.SGE(at, 4), w.b.mr.SGE(at+4, srqSlot-4)}})
}

// send sends the messages of a queue pair, each when the one before is complete.
func (w *sharedReceives) send(ctx context.Context, i int) error {
	var wc [1]verbs.WC
	for n := range srqMessages {
		at := (2*i + n%2) * srqSlot
		binary.LittleEndian.PutUint64(w.a.mr.Bytes()[at:], uint64(i)<<32|uint64(n))
		if err := w.senders[i].PostSend(verbs.SendWR{
			Opcode: verbs.WRSendWithImm, Flags: verbs.SendSignaled, SGList: []verbs.SGE{w.a.mr.SGE(at, srqSlot)},
			ImmData: uint32(n),
		}); err != nil {
			return fmt.Errorf("send: %w", err)
		}
		for got := 0; got == 0; {
			if err := w.sends[i].Wait(ctx); err != nil {
				return fmt.Errorf("wait: %w", err)
			}
			if got, _ = w.sends[i].Poll(wc[:]); got == 1 && wc[0].Status != verbs.WCSuccess {
				return errors.New(w.senders[i].Explain(wc[0]))
			}
		}
	}
	return nil
}

// received checks a message, and posts its receive again in the order of the ids.
func (w *sharedReceives) received(t *testing.T, wc verbs.WC) {
	t.Helper()
	require.Equal(t, verbs.WCSuccess, wc.Status)
	require.False(t, w.used[wc.WRID], "receive %d is used twice", wc.WRID)
	w.used[wc.WRID] = true
	i := w.index[wc.QPN]
	require.True(t, w.count[i] == 0 || wc.WRID > w.last[i], "queue pair %d: %d after %d", i, wc.WRID, w.last[i])
	w.last[i] = wc.WRID
	require.Equal(t, w.count[i], wc.ImmData)
	require.EqualValues(t, srqSlot, wc.ByteLen)
	content := binary.LittleEndian.Uint64(w.b.mr.Bytes()[wc.WRID%srqDepth*srqSlot:])
	require.Equal(t, uint64(i)<<32|uint64(w.count[i]), content)
	w.count[i]++
	w.free[wc.WRID+srqDepth] = true
	for ; w.free[w.next]; w.next++ {
		delete(w.free, w.next)
		require.NoError(t, w.post(w.next))
	}
}

// TestSRQLimit: one event when fewer receives are left than the limit, and none until it is armed again.
func TestSRQLimit(t *testing.T) {
	a, b := pair(t, mem.Options{})
	srq := newSRQ(t, b.pd, verbs.SRQInitAttr{MaxWR: 16, SRQLimit: 5})
	sender := newQP(t, a.pd, verbs.QPInitAttr{SendCQ: a.sends, RecvCQ: a.recvs})
	target := newQP(t, b.pd, verbs.QPInitAttr{SendCQ: b.sends, RecvCQ: b.recvs, SRQ: srq})
	connectAt(t, sender, target, 0)
	receive := func(n int) {
		t.Helper()
		for range n {
			require.NoError(t, sender.PostSend(verbs.SendWR{Opcode: verbs.WRSend}))
			require.Equal(t, verbs.WCSuccess, poll(t, b.recvs).Status)
		}
	}
	limit := map[verbs.AsyncEvent]int{{Type: verbs.EventSRQLimitReached, SRQ: srq}: 1}
	require.NoError(t, srq.PostRecv(make([]verbs.RecvWR, 10)...))
	receive(5)
	require.Empty(t, collectEvents(t, b.device, 0), "5 are left, which is not below 5")
	require.Equal(t, 5, srq.Query().SRQLimit)
	receive(1)
	require.Equal(t, limit, collectEvents(t, b.device, 1))
	require.Equal(t, verbs.SRQAttr{MaxWR: 16, MaxSGE: 1}, srq.Query())
	receive(2)
	require.Empty(t, collectEvents(t, b.device, 0))

	// 2 are left. A limit of 3 is undercut already, one of 2 is not.
	require.NoError(t, srq.Modify(verbs.SRQAttr{SRQLimit: 3}, verbs.SRQLimit))
	require.Equal(t, limit, collectEvents(t, b.device, 1))
	require.NoError(t, srq.Modify(verbs.SRQAttr{SRQLimit: 2}, verbs.SRQLimit))
	require.Empty(t, collectEvents(t, b.device, 0))
	receive(1)
	require.Equal(t, limit, collectEvents(t, b.device, 1))
	require.NoError(t, srq.Modify(verbs.SRQAttr{SRQLimit: 1}, verbs.SRQLimit))
	require.NoError(t, srq.Modify(verbs.SRQAttr{SRQLimit: 0}, verbs.SRQLimit))
	receive(1)
	require.Empty(t, collectEvents(t, b.device, 0), "disarmed")
	support.Object(t, "Event", verbs.EventSRQLimitReached.String(), "fewer receives than the limit, once for each arming")
}

// TestSRQModify: what is posted survives a resize in order; nothing changes by a Modify that fails.
func TestSRQModify(t *testing.T) {
	a, b := pair(t, mem.Options{})
	srq := newSRQ(t, b.pd, verbs.SRQInitAttr{MaxWR: 8})
	sender := newQP(t, a.pd, verbs.QPInitAttr{SendCQ: a.sends, RecvCQ: a.recvs})
	target := newQP(t, b.pd, verbs.QPInitAttr{SendCQ: b.sends, RecvCQ: b.recvs, SRQ: srq})
	connectAt(t, sender, target, 0)
	post := func(from, count int) {
		t.Helper()
		for id := from; id < from+count; id++ {
			require.NoError(t, srq.PostRecv(verbs.RecvWR{WRID: uint64(id)}))
		}
	}
	post(0, 8)
	err := srq.Modify(verbs.SRQAttr{MaxWR: 7, SRQLimit: 4}, verbs.SRQMaxWR|verbs.SRQLimit)
	require.ErrorIs(t, err, verbs.ErrInvalid)
	require.ErrorContains(t, err, "7")
	require.ErrorContains(t, err, "8")
	require.Equal(t, verbs.SRQAttr{MaxWR: 8, MaxSGE: 1}, srq.Query(), "all or nothing")
	err = srq.Modify(verbs.SRQAttr{MaxWR: 20, SRQLimit: 21}, verbs.SRQMaxWR|verbs.SRQLimit)
	require.ErrorIs(t, err, verbs.ErrInvalid)
	require.ErrorContains(t, err, "21")
	require.ErrorContains(t, err, "20")
	require.ErrorIs(t, srq.Modify(verbs.SRQAttr{SRQLimit: -1}, verbs.SRQLimit), verbs.ErrInvalid)
	require.ErrorIs(t, srq.Modify(verbs.SRQAttr{}, 4), verbs.ErrInvalid)
	require.ErrorIs(t, srq.Modify(verbs.SRQAttr{MaxWR: verbs.MaxSRQWR + 1}, verbs.SRQMaxWR), verbs.ErrLimit)
	require.Equal(t, verbs.SRQAttr{MaxWR: 8, MaxSGE: 1}, srq.Query(), "all or nothing")
	require.NoError(t, srq.Modify(verbs.SRQAttr{MaxWR: 20, SRQLimit: 2}, verbs.SRQMaxWR|verbs.SRQLimit))
	require.Equal(t, verbs.SRQAttr{MaxWR: 20, MaxSGE: 1, SRQLimit: 2}, srq.Query())
	require.ErrorIs(t, srq.Modify(verbs.SRQAttr{MaxWR: 1}, verbs.SRQMaxWR), verbs.ErrInvalid, "below the limit that is armed")
	post(8, 12)
	require.ErrorIs(t, srq.PostRecv(verbs.RecvWR{}), verbs.ErrQueueFull)
	require.NoError(t, srq.Modify(verbs.SRQAttr{MaxWR: 20}, verbs.SRQMaxWR))
	for id := range uint64(20) {
		require.NoError(t, sender.PostSend(verbs.SendWR{Opcode: verbs.WRSend}))
		require.Equal(t, id, poll(t, b.recvs).WRID)
	}
	support.Object(t, "SRQ", "Modify to another size with receives posted", "keeps them in order")
	support.Object(t, "SRQ", "Modify to a size below what is posted, or to a limit above the size", verbs.ErrInvalid)
}

// TestSRQOfQP: what a queue pair on a shared receive queue does otherwise than one with its own.
func TestSRQOfQP(t *testing.T) {
	a, b := pair(t, mem.Options{})
	srq := newSRQ(t, b.pd, verbs.SRQInitAttr{MaxSGE: 4})
	sender := newQP(t, a.pd, verbs.QPInitAttr{SendCQ: a.sends, RecvCQ: a.recvs})
	var targets [2]*verbs.QP
	for i := range targets {
		targets[i] = newQP(t, b.pd, verbs.QPInitAttr{SendCQ: b.sends, RecvCQ: b.recvs, SRQ: srq})
	}
	target := targets[0]
	connectAt(t, sender, target, 0)
	var bad *verbs.PostError
	require.ErrorAs(t, target.PostRecv(verbs.RecvWR{}), &bad)
	require.ErrorIs(t, bad, verbs.ErrInvalid)
	require.Equal(t, verbs.QPCap{MaxSendWR: 128, MaxSendSGE: 1}, target.Cap())
	err := srq.Destroy()
	require.ErrorIs(t, err, verbs.ErrInUse)
	require.ErrorContains(t, err, "2 QPs")
	support.Object(t, "SRQ", "Destroy while a QP uses it", verbs.ErrInUse)
	support.Object(t, "SRQ", "PostRecv to a QP that uses it", verbs.ErrInvalid)

	// The peer of an empty queue waits. A list is posted up to the first request that is refused.
	require.NoError(t, sender.PostSend(verbs.SendWR{Opcode: verbs.WRSend, SGList: []verbs.SGE{a.mr.SGE(0, 16)}}))
	require.Eventually(t, func() bool { return opener.Counters(b.device).Transport.SentRNRNAKs > 0 }, 5*time.Second, time.Millisecond)
	four := []verbs.SGE{b.mr.SGE(100, 4), b.mr.SGE(0, 4), b.mr.SGE(50, 4), b.mr.SGE(200, 4)}
	err = srq.PostRecv(verbs.RecvWR{WRID: 1, SGList: four}, verbs.RecvWR{WRID: 2}, verbs.RecvWR{SGList: append(four, four[0])}, verbs.RecvWR{})
	require.ErrorAs(t, err, &bad)
	require.Equal(t, 2, bad.Bad)
	require.ErrorIs(t, err, verbs.ErrTooManySGEs)
	wc := poll(t, b.recvs)
	require.EqualValues(t, 1, wc.WRID)
	require.EqualValues(t, 16, wc.ByteLen)

	// The error state flushes nothing of it: the receive is there for others.
	require.NoError(t, target.Modify(t.Context(), verbs.QPAttr{State: verbs.StateError}, verbs.QPStateMask))
	require.Equal(t, map[verbs.AsyncEvent]int{{Type: verbs.EventQPLastWQEReached, QP: target}: 1}, collectEvents(t, b.device, 1))
	support.Object(t, "Event", verbs.EventQPLastWQEReached.String(), "QP with an SRQ comes to ERR")
	require.NoError(t, target.Modify(t.Context(), verbs.QPAttr{State: verbs.StateReset}, verbs.QPStateMask))
	n, err := b.recvs.Poll(make([]verbs.WC, 1))
	require.NoError(t, err)
	require.Zero(t, n)
	other := newQP(t, a.pd, verbs.QPInitAttr{SendCQ: a.sends, RecvCQ: a.recvs})
	connectAt(t, other, targets[1], 0)
	require.NoError(t, other.PostSend(verbs.SendWR{Opcode: verbs.WRSend}))
	wc = poll(t, b.recvs)
	require.EqualValues(t, 2, wc.WRID)
	require.Equal(t, targets[1].QPN(), wc.QPN)
	support.Object(t, "SRQ", "receives when one of its QPs goes to ERR and RESET", "stay for the others")

	_, err = a.pd.CreateQP(verbs.QPInitAttr{SendCQ: a.sends, RecvCQ: a.recvs, SRQ: srq})
	require.ErrorIs(t, err, verbs.ErrInvalid, "of another device")
	pd, err := b.device.AllocPD()
	require.NoError(t, err)
	_, err = pd.CreateQP(verbs.QPInitAttr{SendCQ: b.sends, RecvCQ: b.recvs, SRQ: srq})
	require.ErrorIs(t, err, verbs.ErrNotSupported, "of another protection domain")
	support.Object(t, "SRQ", "CreateQP of another PD with it", verbs.ErrNotSupported)
	require.NoError(t, pd.Dealloc())
}

// TestDestroySRQInAnyOrder: whatever is destroyed too early says so and stays, and in the end nothing is left.
func TestDestroySRQInAnyOrder(t *testing.T) {
	for seed := range uint64(60) {
		r := rand.New(rand.NewPCG(seed, 3))
		network := mem.NewNetwork(mem.Options{})
		l, err := network.NewDevice(mem.DeviceOptions{Queues: 2})
		require.NoError(t, err)
		d, err := opener.Open[verbs.Device](l, driver.Options{})
		require.NoError(t, err)
		pd, err := d.AllocPD()
		require.NoError(t, err)
		ch, err := d.CreateCompChannel()
		require.NoError(t, err)
		sends, err := d.CreateCQ(verbs.CQInitAttr{CQE: 2, Channel: ch})
		require.NoError(t, err)
		recvs, err := d.CreateCQ(verbs.CQInitAttr{CQE: 2, Channel: ch})
		require.NoError(t, err)
		srq, err := pd.CreateSRQ(verbs.SRQInitAttr{})
		require.NoError(t, err)
		mr, err := pd.RegMR(make([]byte, 8), 0)
		require.NoError(t, err)
		left := []func() error{closeEmpty(d), pd.Dealloc, ch.Destroy, sends.Destroy, recvs.Destroy, srq.Destroy, mr.Dereg}
		for i := range 3 {
			q, err := pd.CreateQP(verbs.QPInitAttr{SendCQ: sends, RecvCQ: recvs, SRQ: srq})
			require.NoError(t, err)
			left = append(left, q.Destroy)
			if i > 0 {
				gid, err := d.QueryGID(0)
				require.NoError(t, err)
				gid[15]++
				require.Error(t, toRTS(q, gid, 77, 0, 0), "there is no such neighbour, but INIT is reached")
				require.NoError(t, sends.ReqNotify(false))
				require.NoError(t, q.Modify(t.Context(), verbs.QPAttr{State: verbs.StateError}, verbs.QPStateMask))
			}
		}
		for len(left) > 0 {
			i := r.IntN(len(left))
			if err := left[i](); err == nil {
				left = append(left[:i], left[i+1:]...)
			} else {
				require.ErrorIs(t, err, verbs.ErrInUse)
			}
		}
		for _, again := range []func() error{d.Close, pd.Dealloc, ch.Destroy, sends.Destroy, srq.Destroy, mr.Dereg} {
			require.ErrorIs(t, again(), verbs.ErrClosed)
		}
		for name, create := range map[string]func() error{
			"CompChannel": func() error { _, err := d.CreateCompChannel(); return err },
			"CQ":          func() error { _, err := d.CreateCQ(verbs.CQInitAttr{CQE: 1}); return err },
			"SRQ":         func() error { _, err := pd.CreateSRQ(verbs.SRQInitAttr{}); return err },
			"Event":       func() error { _, err := d.GetAsyncEvent(context.Background()); return err },
		} {
			require.True(t, errors.Is(create(), verbs.ErrClosed), name)
		}
	}
	support.Object(t, "all", "Destroy in any order of QPs, SRQ, CQs and channel", verbs.ErrInUse)
}
