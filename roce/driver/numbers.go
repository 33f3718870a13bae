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

	mu    sync.Mutex
	next  uint32
	taken [1 << qpnBits]bool
}

// init draws the range at random, so that a restarted process is not taken for its predecessor: neither that
// of the reserved QPNs 0 and 1 nor that of the multicast QPN.
func (n *numbers) init(random *rand.Rand) {
	const ranges = 1 << (24 - qpnBits)
	n.base = roce.QPN((1 + random.Uint32N(ranges-2)) << qpnBits)
	n.next = random.Uint32N(1 << qpnBits)
}

// claim reserves a number. Numbers are used in turn, so that a late packet to a QP that is gone finds nobody for as
// long as possible.
func (n *numbers) claim() (roce.QPN, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for range len(n.taken) {
		offset := n.next % uint32(len(n.taken))
		n.next++
		if !n.taken[offset] {
			n.taken[offset] = true
			return n.base + roce.QPN(offset), nil
		}
	}
	return 0, fmt.Errorf("%w: QP number %d, the device has %d", ErrLimit, len(n.taken)+1, len(n.taken))
}

// publish makes packets find the QP under its number.
func (n *numbers) publish(q *QP) { n.qps[q.number-n.base].Store(q) }

// release gives a number back; packets find nobody any more.
func (n *numbers) release(number roce.QPN) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.qps[number-n.base].Store(nil)
	n.taken[number-n.base] = false
}

// find returns the QP of a number, or nil. It takes no lock.
func (n *numbers) find(number roce.QPN) *QP {
	offset := number - n.base
	if offset >= 1<<qpnBits {
		return nil
	}
	return n.qps[offset].Load()
}
