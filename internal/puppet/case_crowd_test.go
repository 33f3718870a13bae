package puppet_test

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/xroce/xroce/internal/opener"
	"github.com/xroce/xroce/internal/puppet"
	"github.com/xroce/xroce/internal/support"
	"github.com/xroce/xroce/roce"
	"github.com/xroce/xroce/roce/link/mem"
	"github.com/xroce/xroce/verbs"
)

// Many queue pairs with one peer share what may be in flight towards it. Those here send messages of 16 packets to a
// puppet whose device has, as theirs, 1024 receive buffers, of which 384 may be filled.

const (
	crowdRoom    = 384
	crowdMessage = 16 << 10 // 16 packets of path MTU 1024
)

// newCrowd connects queue pairs of an end with a puppet. The first PSN of the one at index i is crowdPSN(i).
func newCrowd(t *testing.T, count int, o puppet.EndOptions, adjust ...func(*verbs.QPAttr)) (*puppet.Stage, *puppet.End, *puppet.Puppet, []*verbs.QP) {
	t.Helper()
	stage := puppet.NewStage(t, mem.Options{})
	o.CQE = 4 * count
	end := stage.NewEnd(o)
	p := stage.NewPuppet()
	qps := make([]*verbs.QP, count)
	for i := range qps {
		qps[i] = end.NewQP(verbs.QPCap{})
		own := func(a *verbs.QPAttr) { a.SQPSN = crowdPSN(i) }
		p.ConnectQP(end.Device, qps[i], append(slices.Clone(adjust), own)...)
	}
	return stage, end, p, qps
}

// A queue pair of a crowd is told by the PSNs of its packets.
func crowdPSN(i int) roce.PSN         { return roce.PSN(i) << 12 }
func crowdIndex(a puppet.Answer) int  { return int(a.PSN >> 12) }
func crowdPacket(a puppet.Answer) int { return int(a.PSN & 0xFFF) }

// post posts a message of a queue pair of a crowd.
func post(t *testing.T, end *puppet.End, qp *verbs.QP, id uint64, length int) {
	t.Helper()
	wr := end.Request(id, verbs.WRRDMAWrite, 0, length)
	wr.RemoteAddr, wr.RKey = 0x7000, 0x1234
	require.NoError(t, qp.PostSend(wr))
}

// arrived returns the packets that have come to a puppet after a while.
func arrived(stage *puppet.Stage, p *puppet.Puppet, d time.Duration) (got []puppet.Answer) {
	stage.Pass(d)
	for p.Waiting() {
		got = append(got, p.Expect())
	}
	return got
}

// TestCrowdInFlight: however many queue pairs send, no more is in flight than fits, and those whose turn it was have
// sent a whole turn. After that nothing leaves until something is acknowledged, and then exactly as much.
func TestCrowdInFlight(t *testing.T) {
	const count = 100
	stage, end, p, qps := newCrowd(t, count, puppet.EndOptions{})
	for i, qp := range qps {
		post(t, end, qp, uint64(i), crowdMessage)
	}
	got := arrived(stage, p, 5*time.Millisecond)
	require.Equal(t, crowdRoom, len(got))
	sent := map[int]int{}
	for _, a := range got {
		sent[crowdIndex(a)]++
	}
	require.Len(t, sent, crowdRoom/16)
	// The last one that was connected is the one whose packets the puppet can acknowledge.
	require.NotContains(t, sent, count-1)
	require.Empty(t, arrived(stage, p, 4*time.Millisecond))
	support.Object(t, "Device", "frames in flight of all QPs towards one peer", "at most 3/8 of the receive buffers of a queue")
}

// TestCrowdAsks: what is in flight asks for acknowledgements before those who wait can be kept from going on by it.
// Messages are so long that no queue pair comes to the end of one.
func TestCrowdAsks(t *testing.T) {
	const count = 100
	for _, window := range []int{20, 24, 64} {
		stage, end, p, qps := newCrowd(t, count, puppet.EndOptions{Window: window})
		for i, qp := range qps {
			post(t, end, qp, uint64(i), 100<<10)
		}
		asked := map[int]int{} // the last packet of each queue pair that asks, and the last of all
		last := map[int]int{}
		for _, a := range arrived(stage, p, 5*time.Millisecond) {
			last[crowdIndex(a)] = crowdPacket(a)
			if a.BTH.AckRequest() {
				asked[crowdIndex(a)] = crowdPacket(a)
			}
		}
		require.Equal(t, last, asked, "window %d", window)
	}
}

// TestCrowdOfTheDead: queue pairs whose peers are gone do not hold up another one with the same device for longer
// than a generation or two, whatever their ACK timeout is.
func TestCrowdOfTheDead(t *testing.T) {
	for _, timeout := range []uint8{0, 14, 31} {
		stage, end, p, qps := newCrowd(t, 100, puppet.EndOptions{}, func(a *verbs.QPAttr) { a.Timeout = timeout })
		alive := len(qps) - 1
		for i, qp := range qps {
			post(t, end, qp, uint64(i), crowdMessage)
		}
		for done := 0; done < 20; {
			require.Less(t, stage.Now(), 100*time.Millisecond, "%d messages with timeout %d", done, timeout)
			for _, a := range arrived(stage, p, 10*time.Microsecond) {
				if crowdIndex(a) != alive || !a.BTH.AckRequest() {
					continue
				}
				p.Ack(a.PSN, uint32(done))
			}
			var wc [1]verbs.WC
			if n, err := end.SendCQ.Poll(wc[:]); n == 1 {
				require.Equal(t, verbs.WCSuccess, wc[0].Status)
				require.Equal(t, uint64(alive), wc[0].WRID)
				done++
				post(t, end, qps[alive], uint64(alive), crowdMessage)
			} else {
				require.NoError(t, err)
			}
		}
	}
}

// TestCrowdGone: a peer that is gone is noticed by all of its queue pairs, those that wait for their turn among them,
// not much later than by one alone.
func TestCrowdGone(t *testing.T) {
	const count = 500
	stage, end, _, qps := newCrowd(t, count, puppet.EndOptions{})
	for i, qp := range qps {
		post(t, end, qp, uint64(i), crowdMessage)
	}
	wcs := end.Sends(count)
	for _, wc := range wcs {
		require.Equal(t, verbs.WCRetryExcErr, wc.Status)
	}
	alone := 8 * 67108864 * time.Nanosecond
	require.GreaterOrEqual(t, stage.Now(), alone)
	require.Less(t, stage.Now(), alone+250*time.Millisecond)
}

// TestCrowdFair: queue pairs between two devices get the same share.
func TestCrowdFair(t *testing.T) {
	for _, opcode := range []verbs.WROpcode{verbs.WRRDMAWrite, verbs.WRRDMARead} {
		const count = 300
		stage := puppet.NewStage(t, mem.Options{Latency: 20 * time.Microsecond})
		a, b := stage.NewEnd(puppet.EndOptions{CQE: 4 * count}), stage.NewEnd(puppet.EndOptions{CQE: 4 * count})
		done := map[verbs.QPN]int{}
		qps := map[verbs.QPN]*verbs.QP{}
		again := func(qp *verbs.QP) {
			wr := a.Request(1, opcode, 0, crowdMessage)
			wr.RemoteAddr, wr.RKey = b.MR.Addr(), b.MR.RKey()
			require.NoError(t, qp.PostSend(wr))
		}
		for range count {
			near, far := a.NewQP(verbs.QPCap{}), b.NewQP(verbs.QPCap{})
			establishBoth(t, a, b, near, far)
			qps[near.QPN()] = near
		}
		for _, qp := range qps {
			again(qp)
			again(qp)
		}
		var wcs [64]verbs.WC
		stage.Run(50*time.Millisecond, func() bool {
			n, err := a.SendCQ.Poll(wcs[:])
			require.NoError(t, err)
			for _, wc := range wcs[:n] {
				require.Equal(t, verbs.WCSuccess, wc.Status)
				done[wc.QPN]++
				again(qps[wc.QPN])
			}
			return false
		})
		least, most := 1<<30, 0
		for _, n := range done {
			least, most = min(least, n), max(most, n)
		}
		require.Equal(t, count, len(done))
		require.Greater(t, least, 10)
		require.GreaterOrEqual(t, float64(least), 0.9*float64(most), "%d to %d messages by %v", least, most, opcode)
		require.Zero(t, opener.Counters(a.Device).Transport.Retransmitted)
	}
}

// establishBoth connects two queue pairs of two ends.
func establishBoth(t *testing.T, a, b *puppet.End, near, far *verbs.QP) {
	t.Helper()
	for _, side := range []struct {
		own, peer *verbs.QP
		at        *verbs.Device
	}{{near, far, b.Device}, {far, near, a.Device}} {
		gid, err := side.at.QueryGID(0)
		require.NoError(t, err)
		attr := puppet.Attributes()
		attr.DestQPN, attr.RQPSN = side.peer.QPN(), attr.SQPSN
		attr.AH.DGID = gid
		puppet.Establish(t, side.own, attr)
	}
}

// TestCrowdResend: the question whether those behind a loss arrive now does not wait for a turn.
func TestCrowdResend(t *testing.T) {
	const count = 100
	stage, end, p, qps := newCrowd(t, count, puppet.EndOptions{})
	// The puppet answers the queue pair that was connected last, so that one comes first.
	for i := range qps {
		post(t, end, qps[count-1-i], uint64(count-1-i), crowdMessage)
	}
	require.Equal(t, crowdRoom, len(arrived(stage, p, time.Millisecond)))
	lost := crowdPSN(count-1) + 3
	p.NAK(lost, roce.SyndromeNAKSequence)
	// The next one in the line has what the loss has given back.
	again := arrived(stage, p, time.Millisecond)
	require.Equal(t, 16+1, len(again))
	require.True(t, slices.ContainsFunc(again, func(a puppet.Answer) bool { return a.PSN == lost && a.BTH.AckRequest() }))
	require.False(t, slices.ContainsFunc(again, func(a puppet.Answer) bool { return a.PSN == lost+1 }))
}
