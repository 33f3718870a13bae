package verbs_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/xroce/xroce/internal/support"
	"github.com/xroce/xroce/roce/link/mem"
	"github.com/xroce/xroce/verbs"
)

func newChannel(t *testing.T, d *verbs.Device) *verbs.CompChannel {
	t.Helper()
	ch, err := d.CreateCompChannel()
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, ch.Destroy()) })
	return ch
}

func newCQOn(t *testing.T, d *verbs.Device, ch *verbs.CompChannel, cqe int) *verbs.CQ {
	t.Helper()
	cq, err := d.CreateCQ(verbs.CQInitAttr{CQE: cqe, Channel: ch})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, cq.Destroy()) })
	return cq
}

// receiver returns a connected pair of queue pairs whose second one receives into cq.
func receiver(t *testing.T, a, b *end, cq *verbs.CQ, label uint32) (sender, target *verbs.QP) {
	t.Helper()
	sender = newQP(t, a.pd, verbs.QPInitAttr{SendCQ: a.sends, RecvCQ: a.recvs})
	target = newQP(t, b.pd, verbs.QPInitAttr{SendCQ: b.sends, RecvCQ: cq})
	connectAt(t, sender, target, label)
	return sender, target
}

// noEvent makes sure that nothing comes out of a channel.
func noEvent(t *testing.T, ch *verbs.CompChannel) {
	t.Helper()
	time.Sleep(2 * time.Millisecond)
	cq, found := ch.Poll()
	require.False(t, found, "%v", cq)
	require.Empty(t, ch.Ready())
}

// TestChannel: one event for one request to be told, however many completions there are, and a queue waits once.
func TestChannel(t *testing.T) {
	a, b := pair(t, mem.Options{})
	ch := newChannel(t, b.device)
	cq := newCQOn(t, b.device, ch, 64)
	require.Same(t, ch, cq.Channel())
	sender, target := receiver(t, a, b, cq, 0)
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	send := func() {
		t.Helper()
		require.NoError(t, target.PostRecv(verbs.RecvWR{}))
		require.NoError(t, sender.PostSend(verbs.SendWR{Opcode: verbs.WRSend}))
		require.NoError(t, cq.Wait(ctx))
		require.Equal(t, verbs.WCSuccess, poll(t, cq).Status)
	}
	send()
	noEvent(t, ch)
	require.NoError(t, cq.ReqNotify(false))
	noEvent(t, ch)
	send()
	select {
	case <-ch.Ready():
	case <-ctx.Done():
		require.Fail(t, "not ready")
	}
	got, found := ch.Poll()
	require.True(t, found)
	require.Same(t, cq, got)
	send()
	noEvent(t, ch)

	// Asked and answered twice without anybody looking: the queue waits once.
	for range 2 {
		require.NoError(t, cq.ReqNotify(false))
		send()
	}
	got, err := ch.Get(ctx)
	require.NoError(t, err)
	require.Same(t, cq, got)
	noEvent(t, ch)

	// A resize keeps the request.
	require.NoError(t, cq.ReqNotify(false))
	require.NoError(t, cq.Resize(16))
	send()
	_, err = ch.Get(ctx)
	require.NoError(t, err)

	short, end := context.WithTimeout(ctx, 10*time.Millisecond)
	defer end()
	_, err = ch.Get(short)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	err = ch.Destroy()
	require.ErrorIs(t, err, verbs.ErrInUse)
	require.ErrorContains(t, err, "1 CQ")
	require.ErrorIs(t, a.sends.ReqNotify(false), verbs.ErrInvalid, "no channel")
	support.Object(t, "CompChannel", "completions after one ReqNotify", "one event")
	support.Object(t, "CompChannel", "ReqNotify, then Resize, then a completion", "one event")
	support.Object(t, "CompChannel", "Destroy while a CQ uses it", verbs.ErrInUse)
	support.Object(t, "CQ", "ReqNotify without a channel", verbs.ErrInvalid)
}

// TestChannelEnds: blocked calls end with the channel; the events of a queue end with it.
func TestChannelEnds(t *testing.T) {
	a, b := pair(t, mem.Options{})
	ch, err := b.device.CreateCompChannel()
	require.NoError(t, err)
	cq, err := b.device.CreateCQ(verbs.CQInitAttr{CQE: 4, Channel: ch})
	require.NoError(t, err)
	target, err := b.pd.CreateQP(verbs.QPInitAttr{SendCQ: b.sends, RecvCQ: cq})
	require.NoError(t, err)
	sender := newQP(t, a.pd, verbs.QPInitAttr{SendCQ: a.sends, RecvCQ: a.recvs})
	connectAt(t, sender, target, 0)
	require.NoError(t, cq.ReqNotify(false))
	require.NoError(t, target.PostRecv(verbs.RecvWR{}))
	require.NoError(t, sender.PostSend(verbs.SendWR{Opcode: verbs.WRSend}))
	require.NoError(t, cq.Wait(context.Background()))
	require.Eventually(t, func() bool { return len(ch.Ready()) == 1 }, 5*time.Second, time.Millisecond)
	require.NoError(t, target.Destroy())
	require.NoError(t, cq.Destroy())
	noEvent(t, ch)

	done := make(chan error)
	for range 3 {
		go func() { _, err := ch.Get(context.Background()); done <- err }()
	}
	time.Sleep(5 * time.Millisecond)
	require.NoError(t, ch.Destroy())
	for range 3 {
		require.ErrorIs(t, <-done, verbs.ErrClosed)
	}
	_, err = ch.Get(context.Background())
	require.ErrorIs(t, err, verbs.ErrClosed)
	_, found := ch.Poll()
	require.False(t, found)
	require.ErrorIs(t, ch.Destroy(), verbs.ErrClosed)
	_, err = b.device.CreateCQ(verbs.CQInitAttr{CQE: 4, Channel: ch})
	require.ErrorIs(t, err, verbs.ErrClosed)
	support.Object(t, "CompChannel", "Get while it is destroyed", verbs.ErrClosed)
	support.Object(t, "CompChannel", "events of a CQ that was destroyed", "gone")
}

// TestSolicitedOnly: a receive whose sender marked it, or any error, makes the event; others do not.
func TestSolicitedOnly(t *testing.T) {
	a, b := pair(t, mem.Options{})
	ch := newChannel(t, b.device)
	cq := newCQOn(t, b.device, ch, 64)
	sender, target := receiver(t, a, b, cq, 0)
	require.NoError(t, target.PostRecv(make([]verbs.RecvWR, 20)...))
	send := func(opcode verbs.WROpcode, flags verbs.SendFlags) {
		t.Helper()
		require.NoError(t, sender.PostSend(verbs.SendWR{
			Opcode: opcode, Flags: flags, RemoteAddr: b.mr.Addr(), RKey: b.mr.RKey(),
			SGList: []verbs.SGE{a.mr.SGE(0, 0)},
		}))
		require.Equal(t, verbs.WCSuccess, poll(t, cq).Status)
	}
	event := func() {
		t.Helper()
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		got, err := ch.Get(ctx)
		require.NoError(t, err)
		require.Same(t, cq, got)
	}
	require.NoError(t, cq.ReqNotify(true))
	send(verbs.WRSend, 0)
	send(verbs.WRRDMAWriteWithImm, 0)
	noEvent(t, ch)
	send(verbs.WRSend, verbs.SendSolicited)
	event()
	require.NoError(t, cq.ReqNotify(true))
	send(verbs.WRSendWithImm, 0)
	noEvent(t, ch)
	send(verbs.WRRDMAWriteWithImm, verbs.SendSolicited)
	event()

	// Both requests: the next completion is enough, and there is one event.
	require.NoError(t, cq.ReqNotify(false))
	require.NoError(t, cq.ReqNotify(true))
	send(verbs.WRSend, 0)
	event()
	send(verbs.WRSend, verbs.SendSolicited)
	noEvent(t, ch)

	require.NoError(t, cq.ReqNotify(true))
	require.NoError(t, target.Modify(t.Context(), verbs.QPAttr{State: verbs.StateError}, verbs.QPStateMask))
	event()
	require.Equal(t, verbs.WCWRFlushErr, poll(t, cq).Status)
	support.Object(t, "CompChannel", "ReqNotify for solicited ones only", "an event for a solicited receive or an error, for nothing else")
}

// TestNoLostWakeup: several goroutines take events of one channel whose queues are filled on three shards. Each asks
// for the next event, then polls until the queue is empty; nobody looks into a queue without an event. So every message
// arrives only if no event is ever lost. Blocked waits on the same queues get in the way.
func TestNoLostWakeup(t *testing.T) {
	for name, next := range map[string]func(context.Context, *verbs.CompChannel) (*verbs.CQ, error){
		"Get": func(ctx context.Context, ch *verbs.CompChannel) (*verbs.CQ, error) { return ch.Get(ctx) },
		"select": func(ctx context.Context, ch *verbs.CompChannel) (*verbs.CQ, error) {
			for {
				select {
				case <-ch.Ready():
					if cq, found := ch.Poll(); found {
						return cq, nil
					}
				case <-ctx.Done():
					return nil, ctx.Err()
				}
			}
		},
	} {
		t.Run(name, func(t *testing.T) { wakeups(t, next) })
	}
	support.Object(t, "CompChannel", "several goroutines take events of CQs on several shards", "no event is lost")
}

const (
	wakeupPairs, wakeupConsumers = 6, 3
	wakeupRounds, wakeupBurst    = 300, 3 // of messages
)

// wakeupLane is a pair of queue pairs whose messages are received by a CQ of its own.
type wakeupLane struct {
	sender, target *verbs.QP
	received       atomic.Int64
	arrived        chan struct{} // a burst
}

// wakeups sends bursts of messages on several lanes, each burst when the one before has arrived. Events of all lanes
// are taken by several goroutines.
func wakeups(t *testing.T, next func(context.Context, *verbs.CompChannel) (*verbs.CQ, error)) {
	da, db := memDevices(t, mem.Options{Seed: 1}, mem.DeviceOptions{Queues: 3})
	a, b := newEnd(t, da, make([]byte, 64), verbs.QPCap{}), newEnd(t, db, make([]byte, 64), verbs.QPCap{})
	ch := newChannel(t, db)
	lanes := make(map[*verbs.CQ]*wakeupLane)
	for i := range wakeupPairs {
		cq := newCQOn(t, db, ch, 64)
		l := &wakeupLane{arrived: make(chan struct{}, wakeupRounds)}
		l.sender, l.target = receiver(t, a, b, cq, uint32(i+1))
		require.NoError(t, l.target.PostRecv(make([]verbs.RecvWR, 2*wakeupBurst)...))
		require.NoError(t, cq.ReqNotify(false))
		lanes[cq] = l
	}
	limit, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	ctx, stop := context.WithCancel(limit)
	defer stop()
	var senders, others sync.WaitGroup
	for range wakeupConsumers {
		others.Go(func() {
			for {
				cq, err := next(ctx, ch)
				if err == nil {
					err = lanes[cq].take(cq)
				}
				if err != nil {
					if !errors.Is(err, context.Canceled) {
						t.Errorf("consumer: %v", err)
					}
					return
				}
			}
		})
	}
	for cq, l := range lanes {
		others.Go(func() { // a wait that never takes anything
			for cq.Wait(ctx) == nil {
				time.Sleep(50 * time.Microsecond)
			}
		})
		senders.Go(func() {
			if err := l.send(limit); err != nil {
				t.Error(err)
			}
		})
	}
	senders.Wait()
	stop()
	others.Wait()
	for _, l := range lanes {
		require.EqualValues(t, wakeupRounds*wakeupBurst, l.received.Load())
	}
}

// take asks for the next event of the CQ, and takes what is in it.
func (l *wakeupLane) take(cq *verbs.CQ) error {
	if err := cq.ReqNotify(false); err != nil {
		return fmt.Errorf("arm: %w", err)
	}
	wcs := make([]verbs.WC, 4)
	for {
		n, err := cq.Poll(wcs)
		if n == 0 || err != nil {
			return err
		}
		for range wcs[:n] {
			if err := l.target.PostRecv(verbs.RecvWR{}); err != nil {
				return fmt.Errorf("post: %w", err)
			}
			if l.received.Add(1)%wakeupBurst == 0 {
				l.arrived <- struct{}{}
			}
		}
	}
}

func (l *wakeupLane) send(limit context.Context) error {
	for round := range wakeupRounds {
		for range wakeupBurst {
			if err := l.sender.PostSend(verbs.SendWR{Opcode: verbs.WRSend}); err != nil {
				return fmt.Errorf("send: %w", err)
			}
		}
		select {
		case <-l.arrived:
		case <-limit.Done():
			return fmt.Errorf("round %d: %d received, no event came", round, l.received.Load())
		}
	}
	return nil
}

// TestChannelLearnsOfShards: a blocked Get also notices queue pairs that are connected on another shard afterwards.
func TestChannelLearnsOfShards(t *testing.T) {
	da, db := memDevices(t, mem.Options{}, mem.DeviceOptions{Queues: 3})
	a, b := newEnd(t, da, make([]byte, 64), verbs.QPCap{}), newEnd(t, db, make([]byte, 64), verbs.QPCap{})
	ch := newChannel(t, db)
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	got := make(chan *verbs.CQ)
	go func() {
		defer close(got)
		for range 3 {
			cq, err := ch.Get(ctx)
			if err != nil {
				t.Errorf("get: %v", err)
				return
			}
			got <- cq
		}
	}()
	for i := range 3 {
		cq := newCQOn(t, db, ch, 4)
		sender, target := receiver(t, a, b, cq, uint32(i+1))
		require.NoError(t, cq.ReqNotify(false))
		time.Sleep(5 * time.Millisecond) // the Get sleeps in poll(2)
		require.NoError(t, target.PostRecv(verbs.RecvWR{}))
		require.NoError(t, sender.PostSend(verbs.SendWR{Opcode: verbs.WRSend}))
		require.Same(t, cq, <-got)
	}
	support.Object(t, "CompChannel", "QP of another shard connected while Get blocks", "its completions wake it")
}
