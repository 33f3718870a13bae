package driver

import (
	"context"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/xroce/xroce/roce"
	"github.com/xroce/xroce/roce/link"
	"github.com/xroce/xroce/roce/link/mem"
)

// tagging is a link that knows the way to its neighbours as a test wants it.
type tagging struct {
	*mem.Device
	vlan     uint16
	resolved func() // called between the answer and its delivery
}

func (l *tagging) Resolve(ctx context.Context, source, destination netip.Addr) (link.Neighbour, error) {
	n, err := l.Device.Resolve(ctx, source, destination)
	n.Tagged, n.VLAN, n.Priority, n.HopLimit = true, l.vlan, 3, 9
	if f := l.resolved; f != nil {
		l.resolved = nil
		f()
	}
	return n, err
}

// newTagging makes a station on such a link and one on a plain one; vlans tells the tags of the packets of the first.
func newTagging(t *testing.T) (m *movers, l *tagging, vlans map[uint16]int) {
	vlans = map[uint16]int{}
	network := mem.NewNetwork(mem.Options{Manual: true, Intercept: func(_ []byte, p *roce.Packet) mem.Verdict {
		if p.Tagged {
			require.Equal(t, uint8(3), p.Priority)
			require.Equal(t, uint8(9), p.HopLimit)
			vlans[p.VLAN]++
		}
		return mem.Verdict{}
	}})
	device, err := network.NewDevice(mem.DeviceOptions{})
	require.NoError(t, err)
	l = &tagging{Device: device, vlan: 7}
	d, err := Open(l, Options{Manual: true})
	require.NoError(t, err)
	m = &movers{TB: t, network: network, a: newStationOn(t, d), b: newStation(t, network, "")}
	t.Cleanup(func() {
		m.a.close(t)
		m.b.close(t)
	})
	return m, l, vlans
}

// TestVLANOfTheNeighbour: packets carry the tag that the way to the peer asks for, and another one after a change.
func TestVLANOfTheNeighbour(t *testing.T) {
	m, l, vlans := newTagging(t)
	a, b := m.a, m.b
	a.connect(t, a.qp, b, b.qp.number)
	b.connect(t, b.qp, a, a.qp.number)
	a.write(t, a.qp, b, 3000)
	m.settle()
	require.Equal(t, map[uint16]int{7: 3}, vlans)
	l.vlan = 12
	a.device.note(link.ChangedWays)
	a.device.Drive()
	a.write(t, a.qp, b, 3000)
	m.settle()
	require.Equal(t, map[uint16]int{7: 3, 12: 3}, vlans)
	require.Zero(t, poster(a.qp).Outstanding())
}

// TestChangeDuringTheSearch: the way changes after the link has answered and before the queue pair takes the answer.
func TestChangeDuringTheSearch(t *testing.T) {
	m, l, vlans := newTagging(t)
	a, b := m.a, m.b
	b.connect(t, b.qp, a, a.qp.number)
	l.resolved = func() {
		l.vlan = 12
		a.device.note(link.ChangedWays)
		a.device.Drive()
	}
	a.connect(t, a.qp, b, b.qp.number)
	a.write(t, a.qp, b, 10)
	m.settle()
	require.Equal(t, map[uint16]int{12: 1}, vlans)
}

// TestHandlesLeaveNothing: a queue pair that gets another peer, or none, gives its route and its GID back.
func TestHandlesLeaveNothing(t *testing.T) {
	m, _, _ := newTagging(t)
	a, b := m.a, m.b
	ways := func() (users []int) {
		for _, handles := range a.device.routes.all() {
			users = append(users, len(handles))
		}
		return users
	}
	others := []*QP{a.newQP(t), a.newQP(t), a.newQP(t)}
	for _, q := range others {
		a.connect(t, q, b, b.qp.number)
	}
	require.Equal(t, []int{3}, ways())
	require.Equal(t, 3, a.device.gids.table[0].users)
	require.ElementsMatch(t, others, a.device.wired())
	for i, q := range []*QP{others[0], others[2], others[1]} { // from the first place, and from the last one
		require.NoError(t, q.Close())
		require.Equal(t, 2-i, a.device.gids.table[0].users)
	}
	require.Empty(t, ways())
	gone := &AddressVector{DGID: roce.GIDFromAddr(netip.MustParseAddr("10.0.0.99"))}
	_, err := a.device.newAddressHandle(context.Background(), gone, 0)
	require.ErrorIs(t, err, link.ErrNoNeighbour)
	require.Empty(t, ways())
	require.Zero(t, a.device.gids.table[0].users)
}
