package verbs_test

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"

	"github.com/xroce/xroce/internal/jsonline"
	"github.com/xroce/xroce/internal/netlab"
	"github.com/xroce/xroce/verbs"
)

// victimDevice, in the environment, makes the test binary the process that TestCase_F8 kills.
const victimDevice = "XROCE_TEST_VICTIM_DEVICE"

// TestCase_F8_KillLeavesNothing: kill -9 of a process at random points of its life, from before it has opened the device to
// full load, leaves no XDP program on the device, the kernel's own traffic works, and the next process starts.
func TestCase_F8_KillLeavesNothing(t *testing.T) {
	netlab.RequireRoot(t)
	pair, err := netlab.NewPair(netlab.PairOptions{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, pair.Close()) })
	peer := openDevice(t, &pair.B, verbs.Options{})

	const kills = 20
	loaded := 0
	for i := range kills {
		// A start takes some 60 ms; half of the kills hit a process under load.
		if killAt(t, pair, peer, time.Duration(rand.IntN(120))*time.Millisecond) {
			loaded++
		}
		require.NoError(t, pair.A.Namespace.Do(func() error {
			device, err := netlink.LinkByName(pair.A.Name)
			if err == nil && device.Attrs().Xdp != nil && device.Attrs().Xdp.Attached {
				err = fmt.Errorf("program %d is attached after kill %d", device.Attrs().Xdp.ProgId, i)
			}
			return err
		}))
		requireTCP(t, pair)
	}
	require.True(t, killAt(t, pair, peer, time.Second), "a process starts and gets to work after all that")
	t.Logf("%d of %d kills hit a process under load", loaded, kills)
}

// killAt starts a victim, kills it after delay, and reports whether it had moved data by then.
func killAt(t *testing.T, pair *netlab.Pair, peer *verbs.Device, delay time.Duration) (loaded bool) {
	t.Helper()
	e := newKillableEnd(t, peer)
	defer e.close(t)
	here, there := net.Pipe()
	cmd := exec.Command(os.Args[0], "-test.run=^$")
	cmd.Env = append(os.Environ(), victimDevice+"="+pair.A.Name)
	cmd.Stderr = os.Stderr
	cmd.Stdin, cmd.Stdout = there, there
	cmd.WaitDelay = time.Second
	require.NoError(t, pair.A.Namespace.Start(cmd))
	connected := make(chan error, 1)
	go func() {
		local, err := e.qp.Endpoint(verbs.ConnectOptions{})
		if err == nil {
			var remote verbs.Endpoint
			if remote, err = verbs.Exchange(here, local); err == nil {
				err = e.qp.Connect(context.Background(), remote, verbs.ConnectOptions{})
			}
			if err == nil {
				err = jsonline.Write(here, e.mr.Remote())
			}
		}
		connected <- err
	}()
	time.Sleep(delay)
	require.NoError(t, cmd.Process.Kill())
	require.NoError(t, here.Close())
	require.NoError(t, there.Close())
	_ = cmd.Wait() // killed
	<-connected
	word, err := e.mr.LoadUint64(e.mr.Length() - 8)
	require.NoError(t, err)
	return word != 0
}

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
	e.cq, err = d.CreateCQ(16)
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

// victim opens the device, connects over its standard streams, and writes to the peer until it is killed.
func victim(device string) error {
	d, err := verbs.OpenDevice(device, verbs.Options{})
	if err != nil {
		return err
	}
	pd, err := d.AllocPD()
	if err != nil {
		return err
	}
	buffer := make([]byte, 1<<20)
	buffer[len(buffer)-1] = 1
	mr, err := pd.RegMR(buffer, allAccess)
	if err != nil {
		return err
	}
	cq, err := d.CreateCQ(16)
	if err != nil {
		return err
	}
	qp, err := pd.CreateQP(verbs.QPInitAttr{SendCQ: cq, RecvCQ: cq})
	if err != nil {
		return err
	}
	local, err := qp.Endpoint(verbs.ConnectOptions{})
	if err != nil {
		return err
	}
	remote, err := verbs.Exchange(standardStreams{}, local)
	if err != nil {
		return err
	}
	if err := qp.Connect(context.Background(), remote, verbs.ConnectOptions{}); err != nil {
		return err
	}
	var target verbs.RemoteMemory
	if err := jsonline.Read(os.Stdin, &target); err != nil {
		return err
	}
	for wcs := make([]verbs.WC, 1); ; {
		if err := qp.PostSend(verbs.SendWR{
			Opcode: verbs.WRRDMAWrite, Flags: verbs.SendSignaled, SGList: []verbs.SGE{mr.SGE(0, len(buffer))},
			RemoteAddr: target.Addr, RKey: target.RKey,
		}); err != nil {
			return err
		}
		for n := 0; n == 0; {
			if n, err = cq.Poll(wcs); err != nil {
				return err
			}
		}
		if wcs[0].Status != verbs.WCSuccess {
			return fmt.Errorf("%+v", wcs[0])
		}
	}
}

type standardStreams struct{}

func (standardStreams) Read(b []byte) (int, error)  { return os.Stdin.Read(b) }
func (standardStreams) Write(b []byte) (int, error) { return os.Stdout.Write(b) }
