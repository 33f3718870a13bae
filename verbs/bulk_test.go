package verbs_test

import (
	"crypto/sha256"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/xroce/xroce/internal/netlab"
	"github.com/xroce/xroce/internal/opener"
	"github.com/xroce/xroce/roce"
	"github.com/xroce/xroce/verbs"
)

// TestBulk moves 32 MiB, or 256 MiB at full size, by WRITE and back by READ over a veth pair: path MTUs up to that
// whose frames take two buffers, both IP versions, native and generic XDP.
func TestBulk(t *testing.T) {
	for _, mode := range []verbs.XDPMode{verbs.XDPNative, verbs.XDPGeneric} {
		for _, v6 := range []bool{false, true} {
			for _, c := range []struct {
				netdev int
				mtu    verbs.MTU
			}{{1500, verbs.MTU256}, {1500, verbs.MTU1024}, {3000, verbs.MTU2048}, {4192, verbs.MTU4096}, {9000, verbs.MTU4096}} {
				t.Run(fmt.Sprintf("%v/ipv6=%v/netdev=%d/mtu=%v", mode, v6, c.netdev, c.mtu), func(t *testing.T) {
					bulk(t, mode, v6, c.netdev, c.mtu)
				})
			}
		}
	}
}

func bulk(t *testing.T, mode verbs.XDPMode, v6 bool, netdev int, mtu verbs.MTU) {
	size := size(32<<20, 256<<20)
	const guard = 64
	a, b := vethDevices(t, netlab.PairOptions{MTU: netdev}, verbs.Options{Mode: mode})
	source := make([]byte, size)
	random := rand.NewChaCha8([32]byte{1})
	_, _ = random.Read(source)
	want := sha256.Sum256(source)
	target := make([]byte, size+2*guard)
	back := make([]byte, size+2*guard)
	ea := newEnd(t, a, source, verbs.QPCap{})
	eb := newEnd(t, b, target, verbs.QPCap{})
	mrBack, err := ea.pd.RegMR(back, verbs.AccessLocalWrite)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, mrBack.Dereg()) })
	// A long timeout: nothing is lost here, and the machine may be busy with something else.
	connect(t, ea, eb, verbs.ConnectOptions{GIDIndex: new(gidIndex(t, a, v6)), PathMTU: mtu, Timeout: roce.AckTimeout(18)})

	move := func(opcode verbs.WROpcode, local *verbs.MR, offset int) {
		start := time.Now()
		require.NoError(t, ea.qp.PostSend(verbs.SendWR{
			WRID: 1, Opcode: opcode, Flags: verbs.SendSignaled, SGList: []verbs.SGE{local.SGE(offset, size)},
			RemoteAddr: eb.mr.Addr() + guard, RKey: eb.mr.RKey(),
		}))
		wc := poll(t, ea.sends)
		require.Equal(t, verbs.WCSuccess, wc.Status, "%s\n%+v\n%+v", ea.qp.Explain(wc), opener.Counters(a), opener.Counters(b))
		t.Logf("%v: %.2f Gbit/s", opcode, float64(size)*8/time.Since(start).Seconds()/1e9)
	}
	check := func(buffer []byte) {
		require.Equal(t, want, sha256.Sum256(buffer[guard:guard+size]))
		require.Equal(t, make([]byte, guard), buffer[:guard])
		require.Equal(t, make([]byte, guard), buffer[guard+size:])
	}
	move(verbs.WRRDMAWrite, ea.mr, 0)
	check(target)
	move(verbs.WRRDMARead, mrBack, guard)
	check(back)
	c := opener.Counters(a)
	t.Logf("%+v, retransmitted %d, timeouts %d, recoveries %d, drops %v, link %+v", a.Information(),
		c.Transport.Retransmitted, c.Transport.Timeouts, c.Transport.Recoveries, c.DropReasons(), c.Link)
}
