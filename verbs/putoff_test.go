package verbs_test

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/xroce/xroce/internal/netlab"
	"github.com/xroce/xroce/verbs"
)

// TestNothingAfterTheCompletion: a message whose receiver does nothing more after its completion is acknowledged soon,
// however the receiver has waited for it.
func TestNothingAfterTheCompletion(t *testing.T) {
	const rounds = 60
	da, db := vethDevices(t, netlab.PairOptions{}, verbs.Options{})
	a, b := newEnd(t, da, make([]byte, 64), verbs.QPCap{}), newEnd(t, db, make([]byte, 64), verbs.QPCap{})
	connect(t, a, b, verbs.ConnectOptions{Timeout: 5 * time.Second}) // nothing is sent again meanwhile
	var wcs [1]verbs.WC
	take := func() bool {
		n, err := b.recvs.Poll(wcs[:])
		require.NoError(t, err)
		return n == 1
	}
	for name, receive := range map[string]func(){
		"poll": func() {
			for !take() {
			}
		},
		"wait": func() {
			require.NoError(t, b.recvs.Wait(t.Context()))
			require.True(t, take())
		},
	} {
		var times []time.Duration
		for range rounds {
			require.NoError(t, b.qp.PostRecv(verbs.RecvWR{}))
			received := make(chan struct{})
			go func() {
				receive()
				close(received)
			}()
			time.Sleep(2 * time.Millisecond) // whoever polls has the lease by then
			begin := time.Now()
			require.NoError(t, a.qp.PostSend(verbs.SendWR{Opcode: verbs.WRSend, Flags: verbs.SendSignaled}))
			require.Equal(t, verbs.WCSuccess, poll(t, a.sends).Status)
			times = append(times, time.Since(begin))
			<-received
		}
		slices.Sort(times)
		t.Logf("%s: p50 %v, longest %v", name, times[rounds/2], times[rounds-1])
		require.Less(t, times[rounds/2], 50*time.Millisecond, name)
		require.Less(t, times[rounds-1], 2*time.Second, name)
	}
	require.Zero(t, a.device.Counters().Counts["retransmitted_pkts"])
}
