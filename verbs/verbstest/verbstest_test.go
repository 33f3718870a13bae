package verbstest_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/xroce/xroce/internal/pcapng/pcapngtest"
	"github.com/xroce/xroce/verbs"
	"github.com/xroce/xroce/verbs/verbstest"
)

// side is one end of a connection.
type side struct {
	device *verbs.Device
	pd     *verbs.PD
	cq     *verbs.CQ
	qp     *verbs.QP
	mr     *verbs.MR
}

func newSide(t *testing.T, d *verbs.Device) *side {
	t.Helper()
	s := &side{device: d}
	var err error
	s.pd, err = d.AllocPD()
	require.NoError(t, err)
	s.cq, err = d.CreateCQ(verbs.CQInitAttr{CQE: 64})
	require.NoError(t, err)
	s.mr, err = s.pd.RegMR(make([]byte, 1<<20), verbs.AccessLocalWrite|verbs.AccessRemoteRead|verbs.AccessRemoteWrite)
	require.NoError(t, err)
	s.qp, err = s.pd.CreateQP(verbs.QPInitAttr{SendCQ: s.cq, RecvCQ: s.cq})
	require.NoError(t, err)
	return s
}

func (s *side) destroy(t *testing.T) {
	t.Helper()
	for _, destroy := range []func() error{s.qp.Destroy, s.mr.Dereg, s.cq.Destroy, s.pd.Dealloc} {
		require.NoError(t, destroy())
	}
}

// read reads the peer's memory, waiting.
func (s *side) read(ctx context.Context, from *side, length int) error {
	err := s.qp.PostSend(verbs.SendWR{
		Opcode: verbs.WRRDMARead, Flags: verbs.SendSignaled, SGList: []verbs.SGE{s.mr.SGE(0, length)},
		RemoteAddr: from.mr.Addr(), RKey: from.mr.RKey(),
	})
	if err != nil {
		return err
	}
	for wc, err := range s.cq.All(ctx) {
		if err != nil {
			return err
		}
		return s.qp.Err(wc)
	}
	return nil
}

// both runs a test in virtual time and in real time.
func both(t *testing.T, test func(t *testing.T)) {
	t.Run("virtual time", func(t *testing.T) { synctest.Test(t, test) })
	t.Run("real time", test)
}

// TestFaults: everything comes through a network that loses, duplicates and reorders, and the single fault meets the
// packet that it names.
func TestFaults(t *testing.T) {
	both(t, func(t *testing.T) {
		n := verbstest.New(t, verbstest.Seed(42))
		a, b := newSide(t, n.Device("a")), newSide(t, n.Device("b"))
		n.Connect(a.qp, b.qp, verbs.ConnectOptions{})
		for i := range b.mr.Bytes() {
			b.mr.Bytes()[i] = byte(i % 251)
		}
		require.NoError(t, a.read(t.Context(), b, 100<<10))
		retransmitted := func(d *verbs.Device) uint64 { return d.Counters().Counts["retransmitted_pkts"] }
		require.Zero(t, retransmitted(a.device))

		n.Faults(verbstest.DropNth(3, "RC_RDMA_READ_RESPONSE*"))
		clear(a.mr.Bytes())
		require.NoError(t, a.read(t.Context(), b, 100<<10))
		require.Equal(t, b.mr.Bytes()[:100<<10], a.mr.Bytes()[:100<<10])
		require.EqualValues(t, 1, a.device.Counters().Counts["completer_retry_err"], "%v", a.device.Counters().Counts)

		n.Faults(verbstest.Drop(0.02), verbstest.Duplicate(0.05), verbstest.Reorder(0.05))
		for range 20 {
			clear(a.mr.Bytes())
			require.NoError(t, a.read(t.Context(), b, 100<<10))
			require.Equal(t, b.mr.Bytes()[:100<<10], a.mr.Bytes()[:100<<10])
		}
		n.Faults()
		file, err := os.ReadFile(n.Capture())
		require.NoError(t, err)
		comments := make(map[string]int)
		for _, p := range pcapngtest.Read(t, bytes.NewReader(file)).Packets {
			comments[p.Comment]++
		}
		for _, want := range []string{"", "dropped", "duplicated", "arrives behind the next one"} {
			require.NotZero(t, comments[want], "%q of %v", want, comments)
		}
		a.destroy(t)
		b.destroy(t)
	})
}

// TestDeviceBesideTraffic: devices can be added while others talk.
func TestDeviceBesideTraffic(t *testing.T) {
	n := verbstest.New(t)
	a, b := newSide(t, n.Device("a")), newSide(t, n.Device("b"))
	n.Connect(a.qp, b.qp, verbs.ConnectOptions{})
	var traffic sync.WaitGroup
	var done atomic.Bool
	traffic.Go(func() {
		for !done.Load() {
			if err := a.read(t.Context(), b, 100<<10); err != nil {
				t.Error(err)
				return
			}
		}
	})
	for i := range 100 {
		n.Device(fmt.Sprintf("further%d", i))
	}
	done.Store(true)
	traffic.Wait()
	a.destroy(t)
	b.destroy(t)
}

// TestKill: the peer of a device that is killed finds out by its ACK timeout, which costs no time where that is
// virtual; on the device itself everything ends.
func TestKill(t *testing.T) {
	both(t, func(t *testing.T) {
		n := verbstest.New(t)
		a, b := newSide(t, n.Device("a")), newSide(t, n.Device("b"))
		n.Connect(a.qp, b.qp, verbs.ConnectOptions{Timeout: 50 * time.Millisecond, RetryCnt: new(uint8(3))})
		require.NoError(t, a.read(t.Context(), b, 8))
		var waits sync.WaitGroup
		waits.Go(func() {
			if err := b.cq.Wait(context.Background()); !errors.Is(err, verbs.ErrClosed) {
				t.Errorf("wait on a device that was killed: %v", err)
			}
		})
		time.Sleep(time.Millisecond)
		n.Kill(b.device)
		waits.Wait()
		require.ErrorIs(t, b.qp.PostSend(verbs.SendWR{Opcode: verbs.WRSend}), verbs.ErrClosed)
		begin := time.Now()
		require.ErrorIs(t, a.read(t.Context(), b, 8), verbs.ErrRetryExceeded)
		require.GreaterOrEqual(t, time.Since(begin), 200*time.Millisecond)
		require.ErrorIs(t, a.read(t.Context(), b, 8), verbs.ErrRetryExceeded, "what was flushed tells the cause")
		n.Kill(b.device) // is no news
		a.destroy(t)
	})
}

// TestLongTimeouts: in virtual time a peer that stays silent for hours costs no time, and a poller sees time pass, too.
func TestLongTimeouts(t *testing.T) {
	started := time.Now()
	synctest.Test(t, func(t *testing.T) {
		n := verbstest.New(t)
		a, b := newSide(t, n.Device("a")), newSide(t, n.Device("b"))
		n.Connect(a.qp, b.qp, verbs.ConnectOptions{Timeout: time.Hour, RetryCnt: new(uint8(1))})
		n.SetDown(b.device, true)
		begin := time.Now()
		require.ErrorIs(t, a.read(t.Context(), b, 8), verbs.ErrRetryExceeded)
		require.GreaterOrEqual(t, time.Since(begin), 2*time.Hour)
		n.SetDown(b.device, false)

		reset := verbs.QPAttr{State: verbs.StateReset}
		require.NoError(t, a.qp.Modify(t.Context(), reset, verbs.QPStateMask))
		require.NoError(t, b.qp.Modify(t.Context(), reset, verbs.QPStateMask))
		n.Connect(a.qp, b.qp, verbs.ConnectOptions{})
		n.Faults(verbstest.DropNth(1, "RC_SEND_ONLY"))
		require.NoError(t, b.qp.PostRecv(verbs.RecvWR{}))
		require.NoError(t, a.qp.PostSend(verbs.SendWR{Opcode: verbs.WRSend, Flags: verbs.SendSignaled}))
		var wc [1]verbs.WC
		begin = time.Now()
		for k := 0; k == 0; {
			var err error
			k, err = a.cq.Poll(wc[:])
			require.NoError(t, err)
		}
		require.Equal(t, verbs.WCSuccess, wc[0].Status)
		require.GreaterOrEqual(t, time.Since(begin), 67*time.Millisecond, "the resend comes by the ACK timeout")
		a.destroy(t)
		b.destroy(t)
	})
	require.Less(t, time.Since(started), time.Minute)
}

// tester is a test that may fail without failing this one.
type tester struct {
	testing.TB
	cleanups []func()
	said     []string
	failed   bool
}

func (r *tester) Cleanup(f func())                  { r.cleanups = append(r.cleanups, f) }
func (r *tester) Failed() bool                      { return r.failed }
func (r *tester) Errorf(format string, args ...any) { r.failed = true; r.Logf(format, args...) }
func (r *tester) Logf(format string, args ...any) {
	r.said = append(r.said, fmt.Sprintf(format, args...))
}

// TestLeaks: what a test leaves on a device fails it, and the packets of a test that failed are kept.
func TestLeaks(t *testing.T) {
	r := &tester{TB: t}
	n := verbstest.New(r, verbstest.Seed(7))
	a, b := newSide(t, n.Device("left")), newSide(t, n.Device("right"))
	n.Connect(a.qp, b.qp, verbs.ConnectOptions{})
	require.NoError(t, a.read(t.Context(), b, 8))
	b.destroy(t)
	path := n.Capture()
	for _, f := range r.cleanups {
		f()
	}
	require.True(t, r.failed)
	said := strings.Join(r.said, "\n")
	require.Contains(t, said, "device left: still in use: 1 QPs, 1 memory regions, 1 CQs, 1 protection domains")
	require.NotContains(t, said, "right")
	require.Contains(t, said, "seed 7, packets: "+path)
	require.FileExists(t, path)
	require.NoError(t, os.Remove(path))

	// Nothing is left, and so is no file.
	r = &tester{TB: t}
	n = verbstest.New(r)
	a = newSide(t, n.Device("alone"))
	a.destroy(t)
	path = n.Capture()
	for _, f := range r.cleanups {
		f()
	}
	require.False(t, r.failed, "%v", r.said)
	require.NoFileExists(t, path)
}
