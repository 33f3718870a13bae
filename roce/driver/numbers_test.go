package driver

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/xroce/xroce/roce"
	"github.com/xroce/xroce/roce/link"
	"github.com/xroce/xroce/roce/link/mem"
)

// TestDistanceOfQPNs computes how many QPNs are claimed until one that was released comes back, in the worst case: it
// was claimed long before, and all others in between have come and gone.
func TestDistanceOfQPNs(t *testing.T) {
	const all = 1 << qpnBits
	for _, others := range []int{0, 1, 5000, all - 2, all - 1} {
		for _, before := range []int{0, 1, all - 1, all, 3*all + 7} {
			var n numbers
			random := rand.New(rand.NewPCG(uint64(others), uint64(before)))
			require.NoError(t, n.init(proposeQPNs(random), random))
			for range others {
				_, err := n.claim()
				require.NoError(t, err)
			}
			first, err := n.claim()
			require.NoError(t, err)
			for range before {
				if number, err := n.claim(); err == nil {
					n.release(number)
				}
			}
			n.release(first)
			distance := 0
			for number := roce.QPN(0); number != first; distance++ {
				if number, err = n.claim(); err != nil {
					t.Fatal(err)
				}
				n.release(number)
			}
			require.Equal(t, all-others, distance, "%d others, %d claims before", others, before)
		}
	}
}

// TestEveryQPN: the device has as many as it says, each once, and a number is free again when it was released.
func TestEveryQPN(t *testing.T) {
	var n numbers
	random := rand.New(rand.NewPCG(1, 2))
	require.NoError(t, n.init(proposeQPNs(random), random))
	seen := make(map[roce.QPN]bool)
	for range 1 << qpnBits {
		number, err := n.claim()
		require.NoError(t, err)
		require.Less(t, number-n.base, roce.QPN(1<<qpnBits))
		seen[number] = true
	}
	require.Len(t, seen, 1<<qpnBits)
	_, err := n.claim()
	require.ErrorIs(t, err, ErrLimit)
	require.ErrorContains(t, err, "QP number 16385, the device has 16384")
	n.release(n.base + 77)
	number, err := n.claim()
	require.NoError(t, err)
	require.Equal(t, n.base+77, number)
}

// narrow is a link that several processes share: it assigns a small range.
type narrow struct {
	*mem.Device
	assigned link.Steering
	steered  []link.Steering
	err      error
}

func (l *narrow) Steer(s link.Steering) (link.Steering, error) {
	l.steered = append(l.steered, s)
	if len(l.steered) == 1 {
		return l.assigned, l.err
	}
	return s, l.err
}

// TestRangeOfTheLink: a device takes the QPNs that its link assigns, and refuses a range that it cannot use.
func TestRangeOfTheLink(t *testing.T) {
	open := func(assigned link.Steering) (*narrow, *Device, error) {
		device, err := mem.NewNetwork(mem.Options{Manual: true}).NewDevice(mem.DeviceOptions{})
		require.NoError(t, err)
		l := &narrow{Device: device, assigned: assigned}
		d, err := Open(l, Options{Manual: true})
		return l, d, err
	}
	l, d, err := open(link.Steering{QPNBase: 0x400, QPNBits: 2})
	require.NoError(t, err)
	require.Equal(t, uint8(qpnBits), l.steered[0].QPNBits)
	s := newStationOn(t, d)
	qps := []*QP{s.qp, s.newQP(t), s.newQP(t), s.newQP(t)}
	for _, q := range qps {
		require.Equal(t, roce.QPN(0x400), q.number&^3)
		require.Same(t, q, d.numbers.find(q.number))
	}
	_, err = d.numbers.claim()
	require.ErrorContains(t, err, "QP number 5, the device has 4")
	count := d.Objects().QPNCount
	require.Equal(t, 4, count)
	require.Nil(t, d.numbers.find(0x3FF))
	require.Nil(t, d.numbers.find(0x404))

	require.Nil(t, d.numbers.find(roce.QPNGSI))
	require.NoError(t, d.claimGSI(qps[1]))
	require.ErrorIs(t, d.claimGSI(qps[2]), ErrInUse)
	require.Same(t, qps[1], d.numbers.find(roce.QPNGSI))
	require.Equal(t, link.Steering{QPNBase: 0x400, QPNBits: 2, OwnGSI: true}, l.steered[1])
	require.NoError(t, d.releaseGSI())
	require.Nil(t, d.numbers.find(roce.QPNGSI))
	require.Equal(t, link.Steering{QPNBase: 0x400, QPNBits: 2}, l.steered[2])
	l.err = link.ErrClosed
	require.ErrorIs(t, d.claimGSI(qps[1]), link.ErrClosed)
	require.Nil(t, d.numbers.find(roce.QPNGSI))
	for _, q := range qps[1:] {
		require.NoError(t, q.Close())
	}
	s.close(t)

	for _, wrong := range []link.Steering{
		{QPNBase: 1, QPNBits: 4}, {QPNBase: 0x10000, QPNBits: qpnBits + 1}, {QPNBase: 0xFFFFF0, QPNBits: 4},
	} {
		_, _, err := open(wrong)
		require.ErrorIs(t, err, ErrInvalid, "%+v", wrong)
	}
}

// TestGroups: each member of a multicast group stands in its list once, and the first and the last one are told.
func TestGroups(t *testing.T) {
	var n numbers
	one, other := roce.GID{0xFF, 14: 1}, roce.GID{0xFF, 14: 2}
	a, b := new(QP), new(QP)
	require.True(t, n.join(one, a))
	require.False(t, n.join(one, a))
	list := n.members(one)
	require.False(t, n.join(one, b))
	require.Equal(t, []*QP{a}, list, "a list that somebody reads stays as it is")
	require.Len(t, n.members(one), 2)
	require.True(t, n.join(other, b))
	require.False(t, n.quit(one, a))
	require.Len(t, n.members(one), 1)
	require.Same(t, b, n.members(one)[0])
	require.True(t, n.quit(one, b))
	require.Empty(t, n.members(one))
	require.Len(t, n.groups, 1)
}
