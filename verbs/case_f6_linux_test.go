package verbs_test

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"

	"github.com/xroce/xroce/internal/netlab"
	"github.com/xroce/xroce/internal/support"
	"github.com/xroce/xroce/roce"
	"github.com/xroce/xroce/verbs"
)

// TestCase_F6: at every MTU of the network device, native and generic, with and without frames of several buffers, the
// engine finds a mode that works, tells which, bounds the active path MTU by what it got, and carries messages at it
// exactly. MTU 3506 is the last at which veth takes a native program without frags (drivers/net/veth.c, veth_xdp_set).
func TestCase_F6(t *testing.T) {
	for _, mode := range []verbs.XDPMode{verbs.XDPAuto, verbs.XDPNative, verbs.XDPGeneric} {
		for _, buffers := range []verbs.MultiBuffer{verbs.MultiBufferAuto, verbs.MultiBufferOff} {
			for _, netdev := range []int{1500, 3000, 3506, 3507, 4191, 4192, 9000} {
				t.Run(fmt.Sprintf("%v/multi-buffer=%v/netdev=%d", mode, buffers, netdev), func(t *testing.T) {
					jumbo(t, mode, buffers, netdev)
				})
			}
		}
	}
}

func jumbo(t *testing.T, mode verbs.XDPMode, buffers verbs.MultiBuffer, netdev int) {
	a, b := vethDevices(t, netlab.PairOptions{MTU: netdev}, verbs.Options{Mode: mode, MultiBuffer: buffers})
	multi := buffers == verbs.MultiBufferAuto
	want, longest := verbs.MTU1024, verbs.MTU2048
	if multi {
		longest = verbs.MTU4096
	}
	switch {
	case netdev >= 4192 && multi:
		want = verbs.MTU4096
	case netdev >= 2144:
		want = verbs.MTU2048
	}
	for _, d := range []*verbs.Device{a, b} {
		i := d.Information()
		require.Equal(t, multi, i.MultiBuffer)
		require.False(t, i.ZeroCopy)
		require.Equal(t, map[verbs.XDPMode]string{
			verbs.XDPAuto: "native+frags", verbs.XDPNative: "native+frags", verbs.XDPGeneric: "generic+frags",
		}[mode], i.Mode)
		require.Contains(t, i.NotTaken[0], "zero copy: ")
		if !multi {
			require.Equal(t, []string{"multi-buffer: not wanted"}, i.NotTaken[1:])
		}
		port, err := d.QueryPort()
		require.NoError(t, err)
		require.Equal(t, []verbs.MTU{longest, want}, []verbs.MTU{port.MaxMTU, port.ActiveMTU})
		if want == verbs.MTU4096 {
			continue
		}
		err = d.CheckPathMTU(verbs.MTU4096)
		require.ErrorIs(t, err, verbs.ErrPathMTU)
		text := fmt.Sprintf("path MTU 4096 needs netdev MTU 4192, veth0 has %d", netdev)
		if netdev >= 4192 {
			text = "path MTU 4096 needs frames of 4210 bytes, veth0 has buffers for 3840"
		}
		require.ErrorContains(t, err, text)
	}
	exact(t, a, b, want)
	if multi && mode == verbs.XDPAuto {
		support.Object(t, "Device", fmt.Sprintf("path MTU of a network device of MTU %d", netdev), want)
	}
}

// exact connects the devices with the default path MTU, which must be the given one, and moves messages of lengths
// around multiples of it both ways. Each has a target of its own, and what is sent is never changed: where the machine
// loses packets, a READ may be answered once more after it is complete.
func exact(t *testing.T, a, b *verbs.Device, want verbs.MTU) {
	const room, guard = 1 << 20, 64
	ea, eb := newEnd(t, a, make([]byte, 3*room), verbs.QPCap{}), newEnd(t, b, make([]byte, 3*room), verbs.QPCap{})
	connect(t, ea, eb, verbs.ConnectOptions{Timeout: roce.AckTimeout(18)})
	require.Equal(t, want, ea.qp.Query().PathMTU)
	here, there := ea.mr.Bytes(), eb.mr.Bytes()
	source := rand.NewChaCha8([32]byte{6})
	_, _ = source.Read(here[:room])
	_, _ = source.Read(there[:room])
	p := want.Bytes()
	at := room + guard
	for _, length := range []int{1, p - 1, p, p + 1, 2*p + 1, 10*p + 3, room} {
		for _, opcode := range []verbs.WROpcode{verbs.WRRDMAWrite, verbs.WRRDMARead} {
			from, to, local, remote := here, there, 0, at
			if opcode == verbs.WRRDMARead {
				from, to, local, remote = there, here, at, 0
			}
			wc := ea.do(t, verbs.SendWR{
				Opcode: opcode, SGList: []verbs.SGE{ea.mr.SGE(local, length)},
				RemoteAddr: eb.mr.Addr() + uint64(remote), RKey: eb.mr.RKey(),
			})
			require.Equal(t, verbs.WCSuccess, wc.Status, ea.qp.Explain(wc))
			// The race detector does not see that the kernel has carried the news: the lock of the peer's shard shows
			// it.
			eb.qp.Query()
			require.True(t, bytes.Equal(from[:length], to[at:at+length]), "%v of %d bytes", opcode, length)
			require.Equal(t, make([]byte, guard), to[at-guard:at], "%v of %d bytes", opcode, length)
			require.Equal(t, make([]byte, guard), to[at+length:at+length+guard], "%v of %d bytes", opcode, length)
		}
		at += length + guard
	}
}

// TestCase_F6_SmallerPeer: the path MTU that a connection gets by itself is the one that both ends carry.
func TestCase_F6_SmallerPeer(t *testing.T) {
	netlab.RequireRoot(t)
	pair, err := netlab.NewPair(netlab.PairOptions{MTU: 9000})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, pair.Close()) })
	require.NoError(t, pair.B.Namespace.Do(func() error {
		device, err := netlink.LinkByName(pair.B.Name)
		if err != nil {
			return err
		}
		return netlink.LinkSetMTU(device, 4191)
	}))
	a, b := openDevice(t, &pair.A, verbs.Options{}), openDevice(t, &pair.B, verbs.Options{})
	require.NoError(t, a.CheckPathMTU(verbs.MTU4096))
	require.ErrorContains(t, b.CheckPathMTU(verbs.MTU4096), "path MTU 4096 needs netdev MTU 4192, veth0 has 4191")
	exact(t, a, b, verbs.MTU2048)
}

// TestCase_F6_Queues: the same on a device of several queues, whichever of them a queue pair is at home at.
func TestCase_F6_Queues(t *testing.T) {
	a, b := vethDevices(t, netlab.PairOptions{MTU: 9000, Queues: 2}, verbs.Options{})
	for range 4 {
		exact(t, a, b, verbs.MTU4096)
	}
}
