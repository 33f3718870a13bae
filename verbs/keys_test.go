package verbs_test

import (
	"bytes"
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/xroce/xroce/internal/support"
	"github.com/xroce/xroce/roce"
	"github.com/xroce/xroce/roce/link/mem"
	"github.com/xroce/xroce/roce/memory"
	"github.com/xroce/xroce/verbs"
)

// These tests change what keys open while peers use them. A refusal ends a connection, so the peers connect anew all
// the time.

const keysTime = time.Second

// sibling is an end with e's protection domain.
func (e *end) sibling(t *testing.T) *end {
	t.Helper()
	s := &end{device: e.device, pd: e.pd, mr: e.mr, sends: newCQ(t, e.device, 64), recvs: newCQ(t, e.device, 64)}
	var err error
	s.qp, err = e.pd.CreateQP(verbs.QPInitAttr{SendCQ: s.sends, RecvCQ: s.recvs})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.qp.Destroy()) })
	return s
}

// reconnect gives the queue pairs of two ends, whatever their state is, another life.
func reconnect(a, b *end) error {
	var remote [2]verbs.Endpoint
	for i, e := range []*end{a, b} {
		if err := e.qp.Modify(context.Background(), verbs.QPAttr{State: verbs.StateReset}, verbs.QPStateMask); err != nil {
			return err
		}
		var err error
		if remote[i], err = e.qp.Endpoint(verbs.ConnectOptions{}); err != nil {
			return err
		}
	}
	o := verbs.ConnectOptions{Timeout: roce.AckTimeout(18)}
	if err := a.qp.Connect(context.Background(), remote[1], o); err != nil {
		return err
	}
	return b.qp.Connect(context.Background(), remote[0], o)
}

// attempt makes a request of an end, in another life of its connection if the last one is over.
func attempt(a, b *end, wr verbs.SendWR) (verbs.WCStatus, error) {
	if a.qp.State() != verbs.StateRTS || b.qp.State() != verbs.StateRTS {
		if err := reconnect(a, b); err != nil {
			return 0, err
		}
	}
	wr.Flags |= verbs.SendSignaled
	if err := a.qp.PostSend(wr); err != nil {
		return 0, err
	}
	var wc [1]verbs.WC
	for start := time.Now(); time.Since(start) < patience; {
		n, err := a.sends.Poll(wc[:])
		if err != nil {
			return 0, err
		}
		if n == 1 {
			if s := wc[0].Status; s != verbs.WCSuccess && s != verbs.WCRemAccessErr {
				return s, fmt.Errorf("%s", a.qp.Explain(wc[0]))
			}
			return wc[0].Status, nil
		}
	}
	return 0, fmt.Errorf("no completion: %d outstanding", a.qp.Outstanding())
}

// TestStaleKeys: peers write with keys of registrations that are open, closing or long closed. None that is closed ever
// works, and no byte of its buffer changes.
func TestStaleKeys(t *testing.T) {
	const peers, length, history = 2, 3000, 100
	da, db := memDevices(t, mem.Options{}, mem.DeviceOptions{MTU: 1500})
	a := newEnd(t, da, make([]byte, 8), verbs.QPCap{})
	control := newEnd(t, db, make([]byte, 8), verbs.QPCap{})
	connect(t, a, control, verbs.ConnectOptions{Timeout: noTimeout})
	fast, err := a.pd.AllocMR(peers * length)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, fast.Dereg()) })

	var opened, closed atomic.Int64 // the last registration that was opened and closed
	key := func(generation int64) uint32 { return fast.RKey()&^0xFF | uint32(generation&0xFF) }
	var stop atomic.Bool
	var running sync.WaitGroup
	var written, refused, stale atomic.Int64
	for i := range peers {
		near := a.sibling(t)
		far := newEnd(t, db, bytes.Repeat([]byte{byte(i + 1)}, length), verbs.QPCap{})
		running.Go(func() {
			for n := int64(0); !stop.Load(); n++ {
				generation := opened.Load()
				if n%4 == 3 {
					generation = max(1, generation-n%history)
				}
				before := closed.Load()
				status, err := attempt(far, near, verbs.SendWR{
					Opcode: verbs.WRRDMAWrite, SGList: []verbs.SGE{far.mr.SGE(0, length)},
					RemoteAddr: 0x1000 + uint64(i*length), RKey: key(generation),
				})
				switch {
				case err != nil:
					t.Errorf("peer %d: %v", i, err)
					return
				case status != verbs.WCSuccess:
					refused.Add(1)
					if generation > before { // it was closed meanwhile
						stale.Add(1)
					}
				case generation <= before:
					t.Errorf("registration %d was written when %d were closed", generation, before)
					return
				default:
					written.Add(1)
				}
			}
		})
	}
	untouched := bytes.Repeat([]byte{0xA5}, peers*length)
	var buffers [2][]byte
	for i := range buffers {
		buffers[i] = bytes.Clone(untouched)
	}
	generations := int64(0)
	for start := time.Now(); time.Since(start) < keysTime && !t.Failed(); {
		generations++
		buffer := buffers[generations%2]
		require.NoError(t, fast.Map(buffer, 0x1000))
		require.NoError(t, fast.UpdateKey(uint8(generations)))
		require.Equal(t, verbs.WCSuccess, a.do(t, fast.RegWR(verbs.AccessLocalWrite|verbs.AccessRemoteWrite)).Status)
		require.ErrorIs(t, fast.Map(buffer, 0), memory.ErrNotFree)
		opened.Store(generations)
		for before, wait := written.Load(), 0; written.Load() == before && wait < 300; wait++ {
			time.Sleep(10 * time.Microsecond)
		}
		require.Equal(t, verbs.WCSuccess, a.do(t, fast.InvalidateWR()).Status)
		closed.Store(generations)
		copy(buffer, untouched) // a race with whoever writes still
		require.Equal(t, untouched, buffers[(generations+1)%2])
	}
	stop.Store(true)
	running.Wait()
	require.Equal(t, untouched, buffers[0])
	require.Equal(t, untouched, buffers[1])
	t.Logf("%d registrations, %d writes, %d refused, %d of them with a key that was right at first", generations, written.Load(), refused.Load(), stale.Load())
	require.NotZero(t, written.Load())
	require.NotZero(t, refused.Load())
	support.Object(t, "MR", "WRITEs with keys of fast registrations that are open, closing and closed", "a closed one never works")
}

// TestReregUnderTraffic: rights are switched off and on, and the buffer is exchanged, while a peer reads. It gets the
// right bytes or a refusal; and from the moment when Rereg has returned, what it says.
func TestReregUnderTraffic(t *testing.T) {
	const length = 5000
	da, db := memDevices(t, mem.Options{}, mem.DeviceOptions{MTU: 1500})
	b := newEnd(t, db, bytes.Repeat([]byte{1}, length), verbs.QPCap{})
	a := newEnd(t, da, make([]byte, length), verbs.QPCap{})
	remote := b.mr.Remote()
	iova := remote.Addr   // stays, whichever buffer it is
	var step atomic.Int64 // odd while Rereg is under way
	readable := func(step int64) bool { return step/2%3 != 1 }
	content := func(step int64) byte { return byte(1 + step/2/3%2) }
	var stop atomic.Bool
	var changer sync.WaitGroup
	changer.Go(func() {
		other := bytes.Repeat([]byte{2}, length)
		for now := int64(0); !stop.Load(); {
			step.Store(now + 1)
			now += 2
			access := verbs.AccessFlags(0)
			if readable(now) {
				access = verbs.AccessRemoteRead
			}
			change := verbs.MRChange{Access: &access}
			if content(now) != content(now-2) {
				change.Buffer, change.IOVA, other = other, &iova, b.mr.Bytes()
			}
			if err := b.mr.Rereg(change); err != nil {
				t.Errorf("rereg: %v", err)
				return
			}
			step.Store(now)
			time.Sleep(time.Duration(now%7*50) * time.Microsecond)
		}
	})
	var right, refused, mixed int
	for start := time.Now(); time.Since(start) < keysTime && !t.Failed(); {
		clear(a.mr.Bytes())
		before := step.Load()
		status, err := attempt(a, b, verbs.SendWR{
			Opcode: verbs.WRRDMARead, SGList: []verbs.SGE{a.mr.SGE(0, length)}, RemoteAddr: remote.Addr, RKey: remote.RKey,
		})
		if err != nil {
			t.Error(err)
			break
		}
		settled := step.Load() == before && before%2 == 0
		if status != verbs.WCSuccess {
			refused++
			require.False(t, settled && readable(before), "refused although it is permitted")
			continue
		}
		right++
		if settled {
			require.True(t, readable(before), "read although it is not permitted")
			require.Equal(t, bytes.Repeat([]byte{content(before)}, length), a.mr.Bytes())
			continue
		}
		ones := bytes.Count(a.mr.Bytes(), []byte{1})
		require.Equal(t, length, ones+bytes.Count(a.mr.Bytes(), []byte{2}))
		if ones%length != 0 {
			mixed++
		}
	}
	stop.Store(true)
	changer.Wait()
	t.Logf("%d changes, %d read, %d of them both buffers, %d refused", step.Load()/2, right, mixed, refused)
	require.NotZero(t, right)
	require.NotZero(t, refused)
	support.Object(t, "MR", "Rereg of rights and buffer while a peer reads", "old or new until it returns, then new")
}

// TestWindowsHoldRegions: as long as a window shows a part of a region, the region can be neither deregistered nor
// changed; the refusal says how many windows there are. A window's old key never works.
func TestWindowsHoldRegions(t *testing.T) {
	a, b := partners(t)
	region, err := a.pd.RegMR(make([]byte, 100), everyAccess)
	require.NoError(t, err)
	var windows []*verbs.MW
	for _, kind := range []verbs.MWType{verbs.MWType1, verbs.MWType2, verbs.MWType1} {
		w, err := a.pd.AllocMW(kind)
		require.NoError(t, err)
		windows = append(windows, w)
	}
	held := func(by string) {
		t.Helper()
		access := allAccess
		for _, err := range []error{region.Dereg(), region.Rereg(verbs.MRChange{Access: &access}), region.Rereg(verbs.MRChange{Buffer: make([]byte, 8)})} {
			require.ErrorIs(t, err, verbs.ErrInUse)
			require.ErrorContains(t, err, by+" to key "+fmt.Sprintf("%#x", region.LKey()))
		}
	}
	bind := func(w *verbs.MW, length uint64) {
		t.Helper()
		require.NoError(t, a.qp.BindMW(w, verbs.MWBind{
			MR: region, Addr: region.Addr() + 10, Length: length, Access: verbs.AccessRemoteRead | verbs.AccessRemoteWrite, Flags: verbs.SendSignaled,
		}))
		require.Equal(t, verbs.WCSuccess, poll(t, a.sends).Status)
	}
	bound := false // the type 2 window, which ends with the life of the queue pair
	again := func() {
		t.Helper()
		require.NoError(t, reconnect(a, b))
		if bound {
			bind(windows[1], 20)
		}
	}
	write := func(key uint32) verbs.WCStatus {
		t.Helper()
		if b.qp.State() != verbs.StateRTS || a.qp.State() != verbs.StateRTS {
			again()
		}
		return b.do(t, verbs.SendWR{
			Opcode: verbs.WRRDMAWrite, SGList: []verbs.SGE{b.mr.SGE(0, 8)}, RemoteAddr: region.Addr() + 10, RKey: key,
		}).Status
	}
	for i, w := range windows {
		require.Equal(t, verbs.WCRemAccessErr, write(w.RKey()), "it is not bound")
		again()
		bind(w, 20)
		bound = bound || i == 1
		require.Equal(t, verbs.WCSuccess, write(w.RKey()))
		held(fmt.Sprint(i + 1))
	}
	for range 4 { // type 1: bound anew, each time with another key
		old := windows[0].RKey()
		bind(windows[0], 30)
		require.NotEqual(t, old, windows[0].RKey())
		require.Equal(t, verbs.WCSuccess, write(windows[0].RKey()))
		require.Equal(t, verbs.WCRemAccessErr, write(old))
		again()
		held("3")
	}
	old := windows[0].RKey()
	bind(windows[0], 0)
	held("2")
	require.Equal(t, verbs.WCRemAccessErr, write(old))
	again()
	require.Equal(t, verbs.WCSuccess, a.do(t, verbs.SendWR{Opcode: verbs.WRLocalInv, InvalidateRKey: windows[1].RKey()}).Status)
	bound = false
	held("1")
	require.Equal(t, verbs.WCRemAccessErr, write(windows[1].RKey()))
	require.ErrorIs(t, a.pd.Dealloc(), verbs.ErrInUse)
	require.NoError(t, windows[2].Dealloc())
	require.Equal(t, verbs.WCRemAccessErr, write(windows[2].RKey()))
	require.NoError(t, region.Dereg())
	for _, w := range windows[:2] {
		require.NoError(t, w.Dealloc())
		require.ErrorIs(t, w.Dealloc(), verbs.ErrClosed)
	}
	support.Object(t, "MR", "Dereg or Rereg while windows are bound to it", verbs.ErrInUse)
}

// TestRemoteOfOneMoment: what a region tells a peer is all of one moment, also while Rereg gives it another buffer.
func TestRemoteOfOneMoment(t *testing.T) {
	a, _ := pair(t, mem.Options{})
	buffers := map[uint64][]byte{1 << 20: make([]byte, 8), 5 << 30: make([]byte, 4096)}
	change := func() {
		for address, buffer := range buffers {
			if err := a.mr.Rereg(verbs.MRChange{Buffer: buffer, IOVA: &address}); err != nil {
				t.Error(err)
			}
		}
	}
	change()
	var changing sync.WaitGroup
	var done atomic.Bool
	changing.Go(func() {
		for !done.Load() {
			change()
		}
	})
	defer changing.Wait()
	defer done.Store(true)
	for range 300_000 {
		remote := a.mr.Remote()
		require.EqualValues(t, len(buffers[remote.Addr]), remote.Length)
	}
}
