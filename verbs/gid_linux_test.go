package verbs_test

import (
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/xroce/xroce/internal/netlab"
	"github.com/xroce/xroce/verbs"
)

// TestGIDOfTheRoute: of several addresses the default is the one from which the kernel would send to the peer.
func TestGIDOfTheRoute(t *testing.T) {
	p := newPorts(t, netlab.PairOptions{})
	for i, e := range []*netlab.End{&p.pair.A, &p.pair.B} {
		change(t, e, func(device netlink.Link) error {
			address, err := netlink.ParseAddr([]string{"10.77.0.1/24", "10.77.0.2/24"}[i])
			require.NoError(t, err)
			address.Flags = unix.IFA_F_NODAD
			return netlink.AddrAdd(device, address)
		})
	}
	a := newEnd(t, p.devices[0], make([]byte, 64), verbs.QPCap{})
	for peer, want := range map[string]string{"10.77.0.2": "10.77.0.1", "10.9.0.2": "10.9.0.1"} {
		e, err := a.qp.Endpoint(verbs.ConnectOptions{Peer: netip.MustParseAddr(peer)})
		require.NoError(t, err)
		require.Equal(t, want, e.Address.String(), "towards %s", peer)
	}
}
