package verbs_test

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/xroce/xroce/internal/opener"
	"github.com/xroce/xroce/internal/support"
	"github.com/xroce/xroce/roce"
	"github.com/xroce/xroce/roce/driver"
	"github.com/xroce/xroce/roce/link"
	"github.com/xroce/xroce/roce/link/mem"
	"github.com/xroce/xroce/verbs"
)

// stuckLink has no transmit buffer while it is stuck, and is not down.
type stuckLink struct {
	link.Device
	stuck atomic.Bool
}

type stuckQueue struct {
	link.Queue
	stuck *atomic.Bool
}

func (l *stuckLink) Queues() (queues []link.Queue) {
	for _, q := range l.Device.Queues() {
		queues = append(queues, &stuckQueue{q, &l.stuck})
	}
	return queues
}

func (q *stuckQueue) Buffer() []byte {
	if q.stuck.Load() {
		return nil
	}
	return q.Queue.Buffer()
}

// TestStuckLinkEndsRequests: the link takes nothing although the port is up. Also a request of which no packet has left
// ends when its resends are used up, and with a link that is stuck for a shorter time it succeeds.
func TestStuckLinkEndsRequests(t *testing.T) {
	n := mem.NewNetwork(mem.Options{})
	open := func(l link.Device, err error) *verbs.Device {
		require.NoError(t, err)
		d, err := opener.Open[verbs.Device](l, driver.Options{})
		require.NoError(t, err)
		t.Cleanup(func() { requireClose(t, d) })
		return d
	}
	inner, err := n.NewDevice(mem.DeviceOptions{})
	l := &stuckLink{Device: inner}
	da := open(l, err)
	peer, err := n.NewDevice(mem.DeviceOptions{})
	db := open(peer, err)
	a, b := newEnd(t, da, make([]byte, 4096), verbs.QPCap{}), newEnd(t, db, make([]byte, 4096), verbs.QPCap{})
	connect(t, a, b, verbs.ConnectOptions{Timeout: roce.AckTimeout(14), RetryCnt: new(uint8(7))})
	patient, patientPeer := newEnd(t, da, make([]byte, 4096), verbs.QPCap{}), newEnd(t, db, make([]byte, 4096), verbs.QPCap{})
	connect(t, patient, patientPeer, verbs.ConnectOptions{Timeout: roce.AckTimeout(18), RetryCnt: new(uint8(7))})

	l.stuck.Store(true)
	begin := time.Now()
	require.NoError(t, patient.qp.PostSend(write(patient, patientPeer, verbs.SendSignaled)))
	wc := a.do(t, write(a, b, 0))
	require.Equal(t, verbs.WCRetryExcErr, wc.Status)
	require.GreaterOrEqual(t, time.Since(begin), 8*(4096<<14)*time.Nanosecond)
	require.Less(t, time.Since(begin), 8*(4096<<14)*time.Nanosecond+time.Second)
	l.stuck.Store(false)
	require.Equal(t, verbs.WCSuccess, poll(t, patient.sends).Status)
	support.Object(t, "QP", "link without a free buffer for longer than its resends last", wc.Status)
}
