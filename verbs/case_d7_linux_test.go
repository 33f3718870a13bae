package verbs_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/xroce/xroce/internal/netlab"
	"github.com/xroce/xroce/internal/support"
	"github.com/xroce/xroce/roce/link/mem"
	"github.com/xroce/xroce/verbs"
)

// TestCase_D7_QueryPort: every attribute of a port, of one whose driver tells the speed of the link (veth says 10
// Gbit/s) and of one that has none.
func TestCase_D7_QueryPort(t *testing.T) {
	a, _ := vethDevices(t, netlab.PairOptions{MTU: 3000}, verbs.Options{})
	gids, err := a.QueryGIDTable()
	require.NoError(t, err)
	port, err := a.QueryPort()
	require.NoError(t, err)
	require.Equal(t, verbs.PortAttr{
		State: verbs.PortActive, MaxMTU: verbs.MTU4096, ActiveMTU: verbs.MTU2048, NetdevMTU: 3000, LinkSpeed: 10000,
		GIDTableLen: len(gids), MaxMsgSize: 1 << 31,
	}, port)

	a, _ = memDevices(t, mem.Options{}, mem.DeviceOptions{})
	gids, err = a.QueryGIDTable()
	require.NoError(t, err)
	port, err = a.QueryPort()
	require.NoError(t, err)
	require.Zero(t, port.LinkSpeed)
	require.Len(t, gids, port.GIDTableLen)
	support.Object(t, "Device", "QueryPort", "every attribute as it is")
}
