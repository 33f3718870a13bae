package verbs_test

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/xroce/xroce/internal/control"
	"github.com/xroce/xroce/internal/netlab"
	"github.com/xroce/xroce/internal/opener"
	"github.com/xroce/xroce/internal/support"
	"github.com/xroce/xroce/roce"
	"github.com/xroce/xroce/verbs"
)

// TestControlSocket: an opened device answers at its socket, from traffic to the end of the device.
func TestControlSocket(t *testing.T) {
	t.Setenv("XROCE_RUN", filepath.Join(t.TempDir(), "run"))
	a, b := vethDevices(t, netlab.PairOptions{Queues: 2}, verbs.Options{})
	require.Equal(t, fmt.Sprintf("%s/%d-%s.sock", os.Getenv("XROCE_RUN"), os.Getpid(), a.Name()), a.ControlSocket())
	require.NotEqual(t, a.ControlSocket(), b.ControlSocket())
	for _, d := range []*verbs.Device{a, b} {
		info, err := os.Lstat(d.ControlSocket())
		require.NoError(t, err)
		require.Equal(t, fs.ModeSocket|0o600, info.Mode())
	}
	list, err := control.List(os.Getenv("XROCE_RUN"))
	require.NoError(t, err)
	require.Len(t, list, 2)

	t.Run("traffic", func(t *testing.T) {
		ea, eb := newEnd(t, a, make([]byte, 1<<20), verbs.QPCap{}), newEnd(t, b, make([]byte, 1<<20), verbs.QPCap{})
		connect(t, ea, eb, verbs.ConnectOptions{Timeout: roce.AckTimeout(18)})
		var stop atomic.Bool
		var readers sync.WaitGroup
		for _, want := range []string{"snapshot", "counters"} {
			readers.Go(func() {
				for !stop.Load() {
					var s verbs.Snapshot
					if err := control.Get(t.Context(), a.ControlSocket(), want, &s); err != nil {
						t.Error(err)
						return
					}
				}
			})
		}
		for range 20 {
			require.Equal(t, verbs.WCSuccess, writeAll(t, ea, eb, 1<<20))
		}
		stop.Store(true)
		readers.Wait()

		// Without loss on the way, what left is what came, by opcode.
		require.Eventually(t, func() bool {
			return opener.Counters(a).Link.Received == opener.Counters(b).Link.Transmitted
		}, patience, tick)
		now, peer := opener.Counters(a), opener.Counters(b)
		require.Zero(t, now.Link.ReceiveDropped+peer.Link.ReceiveDropped+now.Link.TransmitDropped+peer.Link.TransmitDropped)
		require.GreaterOrEqual(t, sum(now.Transport.Sent()), uint64(20*1024))
		require.Equal(t, now.Transport.Sent(), peer.Transport.Received())
		require.Equal(t, peer.Transport.Sent(), now.Transport.Received())

		var s, c verbs.Snapshot
		require.NoError(t, control.Get(t.Context(), a.ControlSocket(), "snapshot", &s))
		require.NoError(t, control.Get(t.Context(), a.ControlSocket(), "counters", &c))
		require.Equal(t, os.Getpid(), s.PID)
		require.Equal(t, a.Information().Mode, s.Device.Rung)
		require.Equal(t, 1500, s.Device.NetdevMTU)
		require.Equal(t, 1024, s.Device.ActiveMTU)
		require.Len(t, s.Shards, 2)
		require.Equal(t, s.QPs[0].QPN, ea.qp.QPN())
		require.Empty(t, c.QPs)
		require.Nil(t, c.MRs)
		require.Equal(t, s.Counters, c.Counters)
		require.Equal(t, now.Transport.Named(), map[string]uint64(s.Counters.Counts))
		steering, err := a.SteeringCounters()
		require.NoError(t, err)
		require.Equal(t, steering.Reasons, map[string]uint64(s.Steering))
		require.NotZero(t, steering.Redirected)
		require.Equal(t, s.Shards[0].Link.Received+s.Shards[1].Link.Received, s.Link.Received)
		for _, shard := range s.Shards {
			require.Contains(t, shard.Socket, "rx_fill_ring_empty_descs")
			require.Zero(t, shard.Socket["rx_invalid_descs"]+shard.Socket["tx_invalid_descs"])
			require.Equal(t, shard.Link.Kicks, shard.Socket["kicks"])
		}
		require.ErrorContains(t, control.Get(t.Context(), a.ControlSocket(), "everything", &s), `want "everything"`)
		support.Object(t, "Device", "control socket and Snapshot, while data move", "the counters, QPs, CQs, SRQs and MRs as they are")
	})
}

func TestControlSocketGoesWithTheDevice(t *testing.T) {
	netlab.RequireRoot(t)
	pair, err := netlab.NewPair(netlab.PairOptions{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, pair.Close()) })
	o := verbs.Options{NetNS: pair.A.Namespace.Path()}
	open := func() *verbs.Device {
		d, err := verbs.OpenDevice(t.Context(), pair.A.Name, o)
		require.NoError(t, err)
		return d
	}
	d := open()
	path := d.ControlSocket()
	require.FileExists(t, path)
	_, err = d.AllocPD()
	require.NoError(t, err)
	require.NoError(t, d.Close())
	require.NoFileExists(t, path)

	// It may be closed while it is being asked.
	var stop atomic.Bool
	var asking sync.WaitGroup
	for range 2 {
		asking.Go(func() {
			for !stop.Load() {
				var s verbs.Snapshot
				if err := control.Get(t.Context(), path, "snapshot", &s); err == nil && s.Device.Name != pair.A.Name {
					t.Errorf("%+v", s)
				}
			}
		})
	}
	for range 5 {
		require.NoError(t, open().Close())
	}
	stop.Store(true)
	asking.Wait()
	require.NoFileExists(t, path)

	o.NoControl = true
	d = open()
	require.Empty(t, d.ControlSocket())
	require.NoFileExists(t, path)
	require.NoError(t, d.Close())
	o.NoControl = false

	// A folder that cannot be made is no reason to fail.
	file := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	t.Setenv("XROCE_RUN", filepath.Join(file, "run"))
	d = open()
	require.Empty(t, d.ControlSocket())
	require.NoError(t, d.Close())
	support.Object(t, "Device", "control socket in a folder that cannot be made", "a warning, and no socket")
}
