package puppet_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/xroce/xroce/internal/opener"
	"github.com/xroce/xroce/internal/puppet"
	"github.com/xroce/xroce/roce"
	"github.com/xroce/xroce/roce/link/mem"
	"github.com/xroce/xroce/verbs"
)

// TestRNRWindow: a peer without receives is sent four packets after each RNR NAK, however many were in flight before,
// until it takes one; from then on the window doubles as at the start.
func TestRNRWindow(t *testing.T) {
	stage, end, p := sender(t)
	for id := range uint64(100) {
		end.Post(end.Request(id, verbs.WRSend, 0, 4))
	}
	burst := func(want int) {
		t.Helper()
		got := arrived(stage, p, 2*time.Millisecond)
		require.Equal(t, want, len(got))
		require.Equal(t, roce.PSN(40), got[0].PSN)
	}
	burst(32)
	for range 10 {
		p.NAK(40, roce.RNRNAK(1))
		burst(4)
	}
	p.Ack(40, 1)
	require.Len(t, arrived(stage, p, time.Millisecond), 2, "the one that was acknowledged, and a larger window")
	p.Ack(44, 5)
	require.Len(t, arrived(stage, p, time.Millisecond), 8)
}

// TestRNRCost: where receives come slowly, the resends are few for each message.
func TestRNRCost(t *testing.T) {
	const messages = 500
	stage := puppet.NewStage(t, mem.Options{})
	a, b := stage.NewEnd(puppet.EndOptions{}), stage.NewEnd(puppet.EndOptions{})
	stage.Connect(a, b, func(at *verbs.QPAttr) { at.MinRNRTimer = 1 }) // 10 us
	posted := 0
	for received := 0; received < messages; received++ {
		for ; posted < messages && posted < received+100; posted++ {
			a.Post(a.Request(uint64(posted), verbs.WRSend, 0, 4))
		}
		b.PostRecv(uint64(received), 0, 4)
		b.ExpectRecv(uint64(received), verbs.WCSuccess)
		stage.Pass(100 * time.Microsecond)
		a.ExpectSend(uint64(received), verbs.WCSuccess)
	}
	// A wait of 10 us takes 12 with the way there and back, so 100 us are eight of them, of four packets.
	again := opener.Counters(a.Device).Transport.Retransmitted
	require.Less(t, again, uint64(40*messages))
	t.Logf("%d packets sent again for %d messages", again, messages)
}
