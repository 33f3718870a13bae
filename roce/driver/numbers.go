package driver

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"

	"github.com/xroce/xroce/roce"
)

// qpnBits is the size of the range of QPNs that a device uses.
const qpnBits = 14

// numbers hands out the QPNs of a device and finds QPs by them. The range is all that the XDP program knows of a
// process's QPs; a broker would give each of its clients one.
type numbers struct {
	base roce.QPN
	qps  [1 << qpnBits]atomic.Pointer[QP] // by number, for arriving packets

	mu   sync.Mutex
	free [1 << qpnBits]uint16 // a ring of the offsets that no QP has, the one that was given back first comes first
	head uint32               // of the ring
	used uint32               // the offsets that are not in it
}

// init draws the range at random, so that a restarted process is not taken for its predecessor: neither that
// of the reserved QPNs 0 and 1 nor that of the multicast QPN.
func (n *numbers) init(random *rand.Rand) {
	const ranges = 1 << (24 - qpnBits)
	n.base = roce.QPN((1 + random.Uint32N(ranges-2)) << qpnBits)
	first := random.Uint32N(1 << qpnBits)
	for i := range n.free {
		n.free[i] = uint16((first + uint32(i)) % (1 << qpnBits))
	}
}

// claim reserves a number: the one that has been free for longest, so that a late packet to a QP that is gone finds nobody
// for as long as possible. Every other number that is free when a number is released is used before it: beside k QPs it comes
// back with the claim number 2^14 - k after its release.
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
	if offset >= 1<<qpnBits {
		return nil
	}
	return n.qps[offset].Load()
}
