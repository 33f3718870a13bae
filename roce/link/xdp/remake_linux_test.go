package xdp

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"

	"github.com/xroce/xroce/internal/netlab"
	"github.com/xroce/xroce/roce/link"
)

// remaker is a pair of devices whose network devices are deleted and made again.
type remaker struct {
	t       *testing.T
	pair    *netlab.Pair
	a, b    *Device
	changes [2]atomic.Uint32 // those told of a and of b
}

func newRemaker(t *testing.T) *remaker {
	p := newPair(t, netlab.PairOptions{Queues: 2})
	r := &remaker{t: t, pair: p, a: openEnd(t, p.A, Options{}), b: openEnd(t, p.B, Options{})}
	for i, d := range r.devices() {
		d.Watch(func(c link.Change) { r.changes[i].Or(uint32(c)) })
		require.NoError(t, steer(d, steering))
	}
	return r
}

func (r *remaker) devices() []*Device { return []*Device{r.a, r.b} }

// told waits until both devices have told of a change.
func (r *remaker) told(c link.Change) {
	r.t.Helper()
	for i := range r.changes {
		require.Eventually(r.t, func() bool { return link.Change(r.changes[i].Load())&c != 0 }, reaction, time.Millisecond)
		r.changes[i].Store(0)
	}
}

func (r *remaker) lose() {
	r.t.Helper()
	served := r.a.isGone() == nil
	inside(r.t, r.pair.A, func(h *netlink.Handle, device netlink.Link) { require.NoError(r.t, h.LinkDel(device)) })
	if served {
		r.told(link.ChangedDown)
	}
}

func (d *Device) isGone() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.gone
}

// bring makes the pair again; what has to be done before it is up is for prepare.
func (r *remaker) bring(queues int, prepare func()) {
	r.t.Helper()
	p := r.pair
	require.NoError(r.t, p.A.Namespace.Do(func() error {
		attributes := netlink.NewLinkAttrs()
		attributes.HardwareAddr = p.A.HardwareAddr
		attributes.Name, attributes.NumRxQueues, attributes.NumTxQueues = p.A.Name, queues, queues
		veth := netlink.NewVeth(attributes)
		veth.PeerName, veth.PeerNamespace = p.B.Name, netlink.NsFd(p.B.Namespace.FD())
		veth.PeerHardwareAddr = p.B.HardwareAddr
		return netlink.LinkAdd(veth)
	}))
	for _, e := range []*netlab.End{&p.A, &p.B} {
		inside(r.t, *e, func(h *netlink.Handle, device netlink.Link) {
			e.Index = device.Attrs().Index
			require.NoError(r.t, h.AddrAdd(device, addressOf(r.t, e.Addresses[0].String())))
		})
	}
	prepare()
	for _, e := range []netlab.End{p.B, p.A} {
		inside(r.t, e, func(h *netlink.Handle, device netlink.Link) { require.NoError(r.t, h.LinkSetUp(device)) })
	}
}

func (r *remaker) served() {
	r.t.Helper()
	r.told(link.ChangedQueues)
	for _, d := range r.devices() {
		require.Eventually(r.t, func() bool { _, err := d.MTU(); return err == nil }, reaction, time.Millisecond)
		for _, q := range d.Queues() {
			q.Renew()
			q.Renew() // finds nothing more
		}
	}
}

// carries sends a frame each way over each queue.
func (r *remaker) carries() {
	r.t.Helper()
	for i := range r.a.Queues() {
		to := frameTo(r.a.HardwareAddr(), r.b.HardwareAddr(), r.pair.A.IPv4(), r.pair.B.IPv4(), qpn, 64, byte(i))
		send(r.t, r.a.Queues()[i], to)
		require.Equal(r.t, to, receive(r.t, r.b.Queues()[i], soon))
		back := frameTo(r.b.HardwareAddr(), r.a.HardwareAddr(), r.pair.B.IPv4(), r.pair.A.IPv4(), qpn, 64, byte(i))
		send(r.t, r.b.Queues()[i], back)
		require.Equal(r.t, back, receive(r.t, r.a.Queues()[i], soon))
	}
}

// Counts, steering and what is known of the device go on, and nothing of a device that was is left.
func TestRemade(t *testing.T) {
	r := newRemaker(t)
	r.carries()
	before := r.a.Information()
	open := 0
	for i := range 5 {
		if i == 1 {
			open = descriptors(t) // the first time opens what the runtime keeps
		}
		fd := r.a.Queues()[0].FD()
		r.lose()
		require.ErrorIs(t, r.a.isGone(), link.ErrDown)
		q := r.a.Queues()[1]
		q.Buffer()
		q.Commit(60)
		q.Publish()
		require.ErrorIs(t, q.Kick(), link.ErrDown)
		require.True(t, q.Pending())
		r.bring(2, func() {})
		r.served()
		require.False(t, q.Pending(), "what the old socket had is lost")
		require.NotEqual(t, fd, r.a.Queues()[0].FD())
		r.carries()
		after := r.a.Information()
		require.Len(t, after.NotTaken, len(before.NotTaken))
		after.NotTaken = before.NotTaken // names another ifindex
		require.Equal(t, before, after)
		require.EqualValues(t, i+2, r.a.Queues()[0].Counters().Received)
		require.EqualValues(t, i+2, r.a.Queues()[0].Counters().Transmitted)
		require.EqualValues(t, 2*i+3, r.a.Queues()[1].Counters().Transmitted)
		require.GreaterOrEqual(t, r.a.Queues()[0].(link.Detailer).Details()["kicks"], uint64(i+2))
		require.EqualValues(t, 2*(i+2), r.a.Details()["redirected"], "%v", r.a.Details())
	}
	require.Eventually(t, func() bool { return descriptors(t) <= open }, reaction, time.Millisecond)
}

// Nobody has called Renew when the device goes again.
func TestRemadeTwice(t *testing.T) {
	r := newRemaker(t)
	for range 2 {
		r.lose()
		r.bring(2, func() {})
		r.told(link.ChangedQueues)
	}
	r.lose()
	r.bring(2, func() {})
	r.served()
	r.carries()
}

// A device that came back with another number of queues is not served, and is as soon as it has as many as before.
func TestRemadeWithOtherQueues(t *testing.T) {
	r := newRemaker(t)
	for _, queues := range []int{1, 4} {
		r.lose()
		r.bring(queues, func() {})
		require.Eventually(t, func() bool {
			_, err := r.a.MTU()
			require.ErrorIs(t, err, link.ErrDown)
			_, err = r.a.Addresses()
			require.ErrorIs(t, err, link.ErrDown)
			_, err = r.a.Resolve(t.Context(), r.pair.A.IPv4(), r.pair.B.IPv4())
			require.ErrorIs(t, err, link.ErrDown)
			return err.Error() == r.obstacle(queues)
		}, reaction, time.Millisecond)
		time.Sleep(never)
		require.False(t, attached(t, r.pair.A))
		if queues > 2 {
			require.NoError(t, setChannels(t, r.pair.A, 2, 2))
			require.NoError(t, setChannels(t, r.pair.B, 2, 2))
			r.served()
			r.carries()
		}
	}
}

func (r *remaker) obstacle(queues int) string {
	was := "network device is down: veth0 was deleted or has left its namespace, and the one that came back cannot be served: "
	if queues == 1 {
		return was + "unsuitable network device: veth0 has 1 queues and had 2 (ethtool -L changes that)"
	}
	return was + "unsuitable network device: veth0 has 4 queues and had 2 (ethtool -L changes that)"
}

// Somebody else is faster at the device that came back, and goes away later.
func TestRemadeForSomebodyElse(t *testing.T) {
	r := newRemaker(t)
	r.lose()
	var detach func()
	r.bring(2, func() { detach = attachForeign(t, r.pair.A) })
	require.Eventually(t, func() bool { return r.a.isGone() != nil && len(r.a.isGone().Error()) > 150 }, reaction, time.Millisecond)
	require.ErrorContains(t, r.a.isGone(), "somebody_else")
	detach()
	r.served()
	r.carries()
}
