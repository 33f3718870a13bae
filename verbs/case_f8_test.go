package verbs_test

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"

	"github.com/xroce/xroce/internal/control"
	"github.com/xroce/xroce/internal/netlab"
	"github.com/xroce/xroce/internal/opener"
	"github.com/xroce/xroce/internal/support"
	"github.com/xroce/xroce/roce"
	"github.com/xroce/xroce/verbs"
)

// slack is what a busy machine adds to a time that is otherwise known.
const slack = 2 * time.Second

// TestCase_F8_KillLeavesNothing: kill -9 of a process at random points of its life, from before it has opened the
// device over full load in both directions to the middle of its closing, leaves no XDP program on the device or in the
// kernel and no control socket; the kernel's own traffic works, the device can be opened at once, and the peer learns
// of it in the time that its ACK timeout and retry count say.
func TestCase_F8_KillLeavesNothing(t *testing.T) {
	netlab.RequireRoot(t)
	pair, err := netlab.NewPair(netlab.PairOptions{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, pair.Close()) })
	peer := openDevice(t, &pair.B, verbs.Options{})
	moments := []struct {
		stage string
		most  time.Duration // after the stage
		life  time.Duration
	}{
		{stageStarted, 100 * time.Millisecond, 0},
		{stageLoaded, 50 * time.Millisecond, 0},
		{stageOpen, 10 * time.Millisecond, 0},
		{stageClosing, 10 * time.Millisecond, 30 * time.Millisecond},
		{stageLoaded, 5 * time.Millisecond, 0},
	}
	var d distribution
	for i := range size(10, 200) {
		moment := moments[i%len(moments)]
		o := verbs.ConnectOptions{Timeout: roce.AckTimeout(uint8(size(12, 14))), RetryCnt: new(uint8(7))}
		e := newKillableEnd(t, peer)
		v := startVictim(t, &pair.A, moment.life)
		failed := e.load(v, o)
		v.await(t, moment.stage)
		time.Sleep(rand.N(moment.most))
		programs := programsOf(v.cmd.Process.Pid)
		stage, at := v.kill(t)
		d.killed(stage)
		requireNothingLeft(t, &pair.A, programs, v.cmd.Process.Pid, &d)
		if f := <-failed; f.err == nil {
			f.requireInTime(t, e, o, at)
			d.failures = append(d.failures, f.at.Sub(f.posted))
		}
		e.close(t)
		requireTCP(t, pair)
		begin := time.Now()
		again, err := verbs.OpenDevice(t.Context(), pair.A.Name, opener.CheckOwners(verbs.Options{NetNS: pair.A.Namespace.Path()}))
		require.NoError(t, err, "after kill %d", i)
		d.opened = append(d.opened, time.Since(begin))
		require.Less(t, time.Since(begin), 2*time.Second, "opening after kill %d", i)
		closeDevice(t, again)
	}
	require.NotZero(t, d.stages[stageLoaded], "no kill hit a process under load: %v", d.stages)
	t.Log(d.String())
	support.Object(t, "Device", "process killed at any moment", "nothing is left, opens again, the peer gets an error in time")
}

// TestCase_B9_Killed: the process of the peer is killed at ACK timeout 14 and retry count 7. The time that the error
// takes is told beforehand, and is that.
func TestCase_B9_Killed(t *testing.T) {
	netlab.RequireRoot(t)
	pair, err := netlab.NewPair(netlab.PairOptions{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, pair.Close()) })
	d := openDevice(t, &pair.B, verbs.Options{})
	e := newKillableEnd(t, d)
	defer e.close(t)
	v := startVictim(t, &pair.A, 0)
	o := verbs.ConnectOptions{Timeout: roce.AckTimeout(14), RetryCnt: new(uint8(7))}
	failed := e.load(v, o)
	v.await(t, stageLoaded)
	time.Sleep(20 * time.Millisecond)
	s, err := d.Snapshot()
	require.NoError(t, err)
	require.Len(t, s.QPs, 1)
	require.InDelta(t, 0.536870912, s.QPs[0].GiveUp, 1e-12)
	_, at := v.kill(t)
	f := <-failed
	require.NoError(t, f.err)
	f.requireInTime(t, e, o, at)
	require.Contains(t, e.qp.Explain(f.wc), "7 resends of 7 (given up after 537ms without an answer)")
	t.Log(f.at.Sub(at), e.qp.Explain(f.wc))
	support.Fault(t, "peer gone", support.Outcome{Requester: f.wc.Status})
}

// distribution is what the kills were like.
type distribution struct {
	stages                   map[string]int
	failures, opened, leaves []time.Duration
}

func (d *distribution) killed(stage string) {
	if d.stages == nil {
		d.stages = map[string]int{}
	}
	d.stages[stage]++
}

func (d *distribution) String() string {
	quantiles := func(times []time.Duration) string {
		if len(times) == 0 {
			return "none"
		}
		slices.Sort(times)
		at := func(q int) time.Duration { return times[(len(times)-1)*q/100].Round(100 * time.Microsecond) }
		return fmt.Sprintf("%d: least %v, median %v, 90 %% %v, most %v", len(times), at(0), at(50), at(90), at(100))
	}
	return fmt.Sprintf("killed when %v\nthe peer's error, since its request: %s\nopened again: %s\nprograms gone: %s",
		d.stages, quantiles(d.failures), quantiles(d.opened), quantiles(d.leaves))
}

// programsOf returns the ids of the BPF programs that a process holds.
func programsOf(pid int) (ids []ebpf.ProgramID) {
	infos, _ := filepath.Glob(fmt.Sprintf("/proc/%d/fdinfo/*", pid))
	for _, info := range infos {
		text, err := os.ReadFile(info)
		if err != nil {
			continue // it is ending
		}
		for line := range strings.Lines(string(text)) {
			if value, found := strings.CutPrefix(line, "prog_id:"); found {
				if id, err := strconv.ParseUint(strings.TrimSpace(value), 10, 32); err == nil {
					ids = append(ids, ebpf.ProgramID(id))
				}
			}
		}
	}
	return ids
}

// requireNothingLeft checks the device, the kernel and the folder of the control sockets after the end of a process.
func requireNothingLeft(t *testing.T, e *netlab.End, programs []ebpf.ProgramID, pid int, d *distribution) {
	t.Helper()
	begin := time.Now()
	require.Eventually(t, func() bool {
		gone := true
		require.NoError(t, e.Namespace.Do(func() error {
			device, err := netlink.LinkByName(e.Name)
			gone = err == nil && (device.Attrs().Xdp == nil || !device.Attrs().Xdp.Attached)
			return err
		}))
		for _, id := range programs {
			if p, err := ebpf.NewProgramFromID(id); !errors.Is(err, fs.ErrNotExist) {
				if err == nil {
					_ = p.Close()
				}
				gone = false
			}
		}
		return gone
	}, slack, time.Millisecond, "programs %v", programs)
	if len(programs) > 0 {
		d.leaves = append(d.leaves, time.Since(begin))
	}
	folder, err := control.Folder()
	require.NoError(t, err)
	sockets, err := control.List(folder)
	require.NoError(t, err)
	for _, s := range sockets {
		require.NotEqual(t, pid, s.PID)
	}
	left, err := filepath.Glob(filepath.Join(folder, fmt.Sprintf("%d-*", pid)))
	require.NoError(t, err)
	require.Empty(t, left, "whoever lists the folder cleans up")
}

// killableEnd is the end of a connection whose other end is a victim.
type killableEnd struct {
	pd *verbs.PD
	cq *verbs.CQ
	qp *verbs.QP
	mr *verbs.MR
}

func newKillableEnd(t *testing.T, d *verbs.Device) *killableEnd {
	t.Helper()
	e := &killableEnd{}
	var err error
	e.pd, err = d.AllocPD()
	require.NoError(t, err)
	e.mr, err = e.pd.RegMR(make([]byte, 1<<20), allAccess)
	require.NoError(t, err)
	e.cq, err = d.CreateCQ(verbs.CQInitAttr{CQE: 16})
	require.NoError(t, err)
	e.qp, err = e.pd.CreateQP(verbs.QPInitAttr{SendCQ: e.cq, RecvCQ: e.cq})
	require.NoError(t, err)
	return e
}

func (e *killableEnd) close(t *testing.T) {
	t.Helper()
	require.NoError(t, e.qp.Destroy())
	require.NoError(t, e.cq.Destroy())
	require.NoError(t, e.mr.Dereg())
	require.NoError(t, e.pd.Dealloc())
}

// failure is how the victim's peer learned that it is gone.
type failure struct {
	wc         verbs.WC
	posted, at time.Time // of the request and of its completion
	err        error     // it did not get as far as a request
}

// load connects with a victim and writes to it until that fails.
func (e *killableEnd) load(v *process, o verbs.ConnectOptions) <-chan failure {
	result := make(chan failure, 1)
	go func() {
		var f failure
		var target verbs.RemoteMemory
		target, f.err = meetStranger(e.qp, e.mr, standardStreams{v.channel}, o)
		for f.err == nil && f.wc.Status == verbs.WCSuccess {
			f.posted = time.Now()
			f.wc, f.err = writeOnce(e.qp, e.cq, e.mr, target, 16<<10)
			f.at = time.Now()
		}
		result <- f
	}()
	return result
}

// requireInTime checks that a failure is the one of a peer that does not answer, and came when the ACK timeout and the
// retry count say: no sooner after the request was posted, and no later after the peer was killed.
func (f *failure) requireInTime(t *testing.T, e *killableEnd, o verbs.ConnectOptions, killed time.Time) {
	t.Helper()
	require.Equal(t, verbs.WCRetryExcErr, f.wc.Status, e.qp.Explain(f.wc))
	require.Equal(t, *o.RetryCnt, f.wc.Retries)
	wait := o.Timeout * time.Duration(1+*o.RetryCnt)
	require.GreaterOrEqual(t, f.at.Sub(f.posted), wait)
	if f.posted.After(killed) {
		killed = f.posted
	}
	require.Less(t, f.at.Sub(killed), wait+slack)
	require.Contains(t, e.qp.Explain(f.wc), "it is gone")
}

// requireTCP moves some bytes over the kernel's stack on the same devices.
func requireTCP(t *testing.T, pair *netlab.Pair) {
	t.Helper()
	var listener net.Listener
	require.NoError(t, pair.A.Namespace.Do(func() (err error) {
		listener, err = net.Listen("tcp", net.JoinHostPort(pair.A.IPv4().String(), "0"))
		return err
	}))
	defer listener.Close()
	go func() {
		if c, err := listener.Accept(); err == nil {
			_, _ = c.Write([]byte("ssh works"))
			_ = c.Close()
		}
	}()
	var got []byte
	require.NoError(t, pair.B.Namespace.Do(func() error {
		c, err := net.DialTimeout("tcp", listener.Addr().String(), 2*time.Second)
		if err != nil {
			return err
		}
		defer c.Close()
		got, err = io.ReadAll(c)
		return err
	}))
	require.Equal(t, "ssh works", string(got))
}
