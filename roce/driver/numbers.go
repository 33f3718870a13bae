package driver

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"sync/atomic"

	"github.com/xroce/xroce/internal/lockorder"
	"github.com/xroce/xroce/roce"
	"github.com/xroce/xroce/roce/link"
)

// qpnBits is the size of the range of QPNs that a device asks the link for, which may give it less.
const qpnBits = 14

// numbers hands out the QPNs of a device and finds QPs by them. The range is all that a link knows of a process's QPs:
// the XDP program steers by it, and a link that several processes share gives each of them one.
type numbers struct {
	assigned link.Steering // by the link, without QP1

	base  roce.QPN
	count roce.QPN                         // of numbers in the range
	qps   [1 << qpnBits]atomic.Pointer[QP] // by number, for arriving packets
	gsi   atomic.Pointer[QP]               // QP1, if the device owns it

	mu   lockorder.Mutex[lockorder.Numbers]
	free []uint16 // a ring of the offsets that no QP has, the one that was given back first comes first
	head uint32   // of the ring
	used uint32   // the offsets that are not in it

	groups map[roce.GID][]*QP // by multicast GID; guarded by mu
}

// proposeQPNs draws a range at random, so that a restarted process is not taken for its predecessor: neither that of
// the reserved QPNs 0 and 1 nor that of the multicast QPN.
func proposeQPNs(random *rand.Rand) link.Steering {
	const ranges = 1 << (24 - qpnBits)
	return link.Steering{QPNBase: roce.QPN((1 + random.Uint32N(ranges-2)) << qpnBits), QPNBits: qpnBits}
}

// init takes the range that the link has assigned. The first number is drawn, too.
func (n *numbers) init(assigned link.Steering, random *rand.Rand) error {
	n.assigned, n.base, n.count = assigned, assigned.QPNBase, 1<<assigned.QPNBits
	if assigned.QPNBits > qpnBits || n.base <= roce.QPNGSI || n.base+n.count > roce.QPNMulticast {
		return fmt.Errorf("%w: the link has assigned 2^%d QPNs from %v on; at most 2^%d can be used, from 2 to %v",
			ErrInvalid, assigned.QPNBits, n.base, qpnBits, roce.QPNMulticast-1)
	}
	n.free = make([]uint16, n.count)
	first := random.Uint32N(uint32(n.count))
	for i := range n.free {
		n.free[i] = uint16((first + uint32(i)) % uint32(n.count))
	}
	return nil
}

// claim reserves a number: the one that has been free for longest, so that a late packet to a QP that is gone finds
// nobody for as long as possible. Every other number that is free when a number is released is used before it: beside k
// QPs it comes back with the claim number 2^14 - k after its release.
func (n *numbers) claim() (roce.QPN, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.used == uint32(len(n.free)) {
		return 0, fmt.Errorf("%w: QP number %d, the device has %d", ErrLimit, len(n.free)+1, len(n.free))
	}
	offset := n.free[n.head%uint32(len(n.free))]
	n.head++
	n.used++
	return n.base + roce.QPN(offset), nil
}

// publish makes packets find the QP under its number.
func (n *numbers) publish(q *QP) { n.qps[q.number-n.base].Store(q) }

// release gives a number back; packets find nobody any more.
func (n *numbers) release(number roce.QPN) {
	n.mu.Lock()
	defer n.mu.Unlock()
	offset := number - n.base
	n.qps[offset].Store(nil)
	n.free[(n.head-n.used)%uint32(len(n.free))] = uint16(offset)
	n.used--
}

// find returns the QP of a number, or nil. It takes no lock.
func (n *numbers) find(number roce.QPN) *QP {
	offset := number - n.base
	switch {
	case offset < n.count:
		return n.qps[offset].Load()
	case number == roce.QPNGSI:
		return n.gsi.Load()
	}
	return nil
}

// places is how many places find can look at, and place which of them a number that it finds has.
const places = 1<<qpnBits + 1

func (n *numbers) place(number roce.QPN) roce.QPN {
	if number == roce.QPNGSI {
		return places - 1
	}
	return number - n.base
}

// join makes a QP one of those that get the datagrams of a multicast group, and reports whether it is the first one.
func (n *numbers) join(group roce.GID, q *QP) (first bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.groups == nil {
		n.groups = make(map[roce.GID][]*QP)
	}
	members := n.groups[group]
	if !slices.Contains(members, q) {
		n.groups[group] = append(members[:len(members):len(members)], q) // whoever reads the old list goes on
	}
	return len(members) == 0
}

// quit undoes join, and reports whether the QP was the last one.
func (n *numbers) quit(group roce.GID, q *QP) (last bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	members := slices.DeleteFunc(slices.Clone(n.groups[group]), func(o *QP) bool { return o == q })
	if n.groups[group] = members; len(members) == 0 {
		delete(n.groups, group)
	}
	return len(members) == 0
}

// members returns the QPs of a multicast group. The list does not change.
func (n *numbers) members(group roce.GID) []*QP {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.groups[group]
}

// claimGSI makes a QP the one of QP1, whose packets the link delivers from then on. There can be one.
func (d *Device) claimGSI(q *QP) error {
	if !d.numbers.gsi.CompareAndSwap(nil, q) {
		return fmt.Errorf("%w: QP1 is taken", ErrInUse)
	}
	if err := d.steerGSI(true); err != nil {
		d.numbers.gsi.Store(nil)
		return err
	}
	return nil
}

// releaseGSI leaves QP1 to the host.
func (d *Device) releaseGSI() error {
	d.numbers.gsi.Store(nil)
	return d.steerGSI(false)
}

func (d *Device) steerGSI(own bool) error {
	s := d.numbers.assigned
	s.OwnGSI = own
	_, err := d.link.Steer(s)
	return err
}
