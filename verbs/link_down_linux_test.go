package verbs_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"

	"github.com/xroce/xroce/internal/netlab"
	"github.com/xroce/xroce/internal/opener"
	"github.com/xroce/xroce/roce"
	"github.com/xroce/xroce/verbs"
)

// TestLinkDownEndsRequests: the network device goes down; every request of every QP ends in bounded time, also those
// for which the transmit ring has no place any more.
func TestLinkDownEndsRequests(t *testing.T) {
	netlab.RequireRoot(t)
	for _, name := range []string{"down", "deleted"} {
		t.Run(name, func(t *testing.T) { linkDown(t, name) })
	}
}

func linkDown(t *testing.T, how string) {
	pair, err := netlab.NewPair(netlab.PairOptions{})
	require.NoError(t, err)
	t.Cleanup(func() { _ = pair.Close() })
	da, db := openDevice(t, &pair.A, verbs.Options{}), openDevice(t, &pair.B, verbs.Options{})
	const count = 60
	var as, bs []*end
	for range count {
		a, b := newEnd(t, da, make([]byte, 4096), verbs.QPCap{}), newEnd(t, db, make([]byte, 4096), verbs.QPCap{})
		connect(t, a, b, verbs.ConnectOptions{Timeout: roce.AckTimeout(15), RetryCnt: new(uint8(3))})
		require.Equal(t, verbs.WCSuccess, a.do(t, write(a, b, 0)).Status)
		as, bs = append(as, a), append(bs, b)
	}
	require.NoError(t, pair.A.Namespace.Do(func() error {
		device, err := netlink.LinkByName(pair.A.Name)
		if err != nil {
			return err
		}
		if how == "deleted" {
			return netlink.LinkDel(device)
		}
		return netlink.LinkSetDown(device)
	}))
	time.Sleep(50 * time.Millisecond)
	for _, a := range as {
		for range 100 {
			require.NoError(t, a.qp.PostSend(verbs.SendWR{Opcode: verbs.WRRDMAWrite, SGList: []verbs.SGE{a.mr.SGE(0, 8)}, RemoteAddr: 8, RKey: 77}))
		}
	}
	begin := time.Now()
	left := 0
	for time.Since(begin) < 6*time.Second {
		left = 0
		for _, a := range as {
			if a.qp.Outstanding() > 0 {
				left++
			}
		}
		if left == 0 {
			break
		}
		time.Sleep(10 * time.Millisecond)
	}
	require.Zero(t, left, "QPs whose requests never end; %+v", opener.Counters(da))
	if how == "deleted" {
		return
	}
	// It comes up again, and everything can be used again.
	require.NoError(t, pair.A.Namespace.Do(func() error {
		device, err := netlink.LinkByName(pair.A.Name)
		if err != nil {
			return err
		}
		return netlink.LinkSetUp(device)
	}))
	time.Sleep(200 * time.Millisecond)
	for i, a := range as {
		for _, e := range []*end{a, bs[i]} {
			require.NoError(t, e.qp.Modify(t.Context(), verbs.QPAttr{State: verbs.StateReset}, verbs.QPStateMask))
			for wcs := make([]verbs.WC, 64); ; {
				if n, _ := e.sends.Poll(wcs); n == 0 {
					break
				}
			}
		}
		connect(t, a, bs[i], verbs.ConnectOptions{Timeout: roce.AckTimeout(14)})
		require.Equal(t, verbs.WCSuccess, a.do(t, write(a, bs[i], 0)).Status)
	}
}
