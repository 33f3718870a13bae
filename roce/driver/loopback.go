package driver

// Traffic to an address of the device itself, or of another open device of this process in the same network, does not
// leave the process: a wire would not bring it back, and needs a carrier.
//
// Life of a packet on loopback: the queue pair writes it straight into a slot of the inbox that the shard of the
// destination QP has for the QP's own one (inbox.go). From there on it goes the way of a frame that came in at the
// wrong shard: same parser, ICRC, checks and counters. If the inbox is full the queue pair stays ready, as it does
// without a transmit buffer of the link; the shard that drains the inbox then has it go on. A device that was closed
// takes everything and keeps nothing, as an address where nobody is.

import (
	"net/netip"
	"slices"

	"github.com/xroce/xroce/internal/lockorder"
	"github.com/xroce/xroce/roce"
	"github.com/xroce/xroce/roce/link/loop"
)

// opened are the open devices of the process.
var opened struct {
	mu      lockorder.Mutex[lockorder.Opened]
	devices []*Device
}

func (d *Device) enroll() {
	opened.mu.Lock()
	defer opened.mu.Unlock()
	opened.devices = append(opened.devices, d)
}

func (d *Device) leave() {
	opened.mu.Lock()
	defer opened.mu.Unlock()
	opened.devices = slices.DeleteFunc(opened.devices, func(o *Device) bool { return o == d })
}

func openDevices() []*Device {
	opened.mu.Lock()
	defer opened.mu.Unlock()
	return slices.Clone(opened.devices)
}

// remindCalled wakes whoever sleeps at a shard with something to do, of whatever device.
func remindCalled() {
	for _, d := range openDevices() {
		for _, s := range d.shards {
			if s.called() {
				s.sleep.remind(0)
			}
		}
	}
}

// within returns the device of this process whose address a destination is: this one, or another one in the same
// network. Nil means that it is to be found over the wire.
func (d *Device) within(destination netip.Addr) (*Device, error) {
	if own, err := d.has(destination); own || err != nil {
		return d, err
	}
	network := d.link.Network()
	// Link-local addresses mean something on their own link only (RFC 4007).
	if network == "" || destination.IsLinkLocalUnicast() {
		return nil, nil
	}
	for _, other := range openDevices() {
		if other == d || other.link.Network() != network {
			continue
		}
		// One that is being closed, or whose network device is gone, has no addresses; and what is wrong with it is not
		// this one's business.
		if found, err := other.has(destination); err == nil && found {
			return other, nil
		}
	}
	return nil, nil
}

// has says whether the device has the address now.
func (d *Device) has(address netip.Addr) (bool, error) {
	own, err := d.link.Addresses()
	return slices.ContainsFunc(own, func(a netip.Addr) bool { return a.WithZone("") == address }), err
}

// home is where the QP of a number is at home. Packets to numbers that nobody has go to the first shard, which counts
// them.
func (d *Device) home(number roce.QPN) *Shard {
	if q := d.numbers.find(number); q != nil {
		return q.shard()
	}
	return d.shards[0]
}

// loopback is the transport.Transmitter of a queue pair whose peer is within the process. It belongs to whoever holds
// the lock of the QP's shard.
type loopback struct {
	from   *Shard
	device *Device // of the peer
	peer   roce.QPN
	inbox  *inbox // whose slot was lent last; nil if that goes nowhere
}

// Buffer implements transport.Transmitter.
func (l *loopback) Buffer() []byte {
	to := l.device.home(l.peer)
	if to.gone.Load() {
		l.inbox = nil
		if l.from.waste == nil {
			l.from.waste = make([]byte, loop.FrameSize)
		}
		return l.from.waste
	}
	if l.inbox == nil || l.inbox.to != to {
		l.inbox = to.inboxFrom(l.from)
	}
	return l.inbox.ring.Buffer()
}

// Commit implements transport.Transmitter.
func (l *loopback) Commit(length int) {
	if l.inbox != nil {
		l.inbox.ring.Commit(length)
		l.from.hand(l.inbox.to)
	}
}
