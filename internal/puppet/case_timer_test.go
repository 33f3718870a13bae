package puppet_test

import (
	"fmt"
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

// The requester's two clocks and two counters, with every kind of request.

// TestAckTimeouts: every code but 0 is a time, the shortest as exact as the longest, which is 2.4 hours.
func TestAckTimeouts(t *testing.T) {
	for code := uint8(1); code <= 31; code++ {
		stage, end, p := sender(t, func(a *verbs.QPAttr) { a.Timeout = code })
		end.Post(end.Request(1, verbs.WRSend, 0, 4))
		first := p.ExpectPacket(roce.RCSendOnly, 40)
		period := 4096 * time.Nanosecond
		for range code {
			period *= 2
		}
		require.True(t, stage.Run(period+time.Second, p.Waiting), "code %d", code)
		require.Equal(t, period, p.ExpectPacket(roce.RCSendOnly, 40).At-first.At, "code %d", code)
		p.Ack(40, 1)
		end.ExpectSend(1, verbs.WCSuccess)
	}
	support.Object(t, "QP", "ACK timeout, codes 1 to 31", "4.096 µs, doubled as often as the code says")
}

// TestCase_B9_Answered: a peer that dies with one of these in flight is given up as soon as with a SEND, after
// exactly 1 + 7 timeouts: a retry count of seven means seven.
func TestCase_B9_Answered(t *testing.T) {
	for _, a := range allAnswered {
		for _, code := range []uint8{1, 14} {
			stage, end, p := sender(t, func(at *verbs.QPAttr) { at.Timeout = code })
			end.Post(a.request(end, 1), end.Request(2, verbs.WRSend, 0, 4))
			period := 4096 * time.Nanosecond << code
			for i := range time.Duration(8) {
				require.Equal(t, i*period+latency, a.expect(t, end, p, 1, 40).At-1)
				p.ExpectPacket(roce.RCSendOnly, 41)
			}
			wc := end.ExpectSend(1, verbs.WCRetryExcErr)
			require.Equal(t, 8*period, stage.Now()-1)
			require.EqualValues(t, 7, wc.Retries)
			end.ExpectSend(2, verbs.WCWRFlushErr)
			p.ExpectNothing(time.Hour)
			support.Fault(t, "peer gone", support.Outcome{Requester: wc.Status})
		}
	}
}

// TestCase_B9_NeverAnswered: with timeout code 0 nothing but the peer's word starts a resend, but that does.
func TestCase_B9_NeverAnswered(t *testing.T) {
	for _, a := range allAnswered {
		_, end, p := sender(t, func(at *verbs.QPAttr) { at.Timeout = 0 })
		end.Post(a.request(end, 1))
		a.expect(t, end, p, 1, 40)
		p.ExpectNothing(24 * time.Hour)
		p.NAK(40, roce.SyndromeNAKSequence)
		a.expect(t, end, p, 1, 40)
		p.ExpectNothing(24 * time.Hour)
		end.ExpectNoCompletion()
		a.respond(p, 40, testWord)
		end.ExpectSend(1, verbs.WCSuccess)
		support.Fault(t, "peer gone, timeout 0", support.Outcome{Requester: "waits for ever"})
	}
}

// TestRetryReloadKinds: each kind of progress gives back both counters.
func TestRetryReloadKinds(t *testing.T) {
	type progress struct {
		request func(end *puppet.End) verbs.SendWR
		answer  func(p *puppet.Puppet)
	}
	kinds := map[string]progress{
		"ACK": {
			func(end *puppet.End) verbs.SendWR { return end.Request(1, verbs.WRSend, 0, 4) },
			func(p *puppet.Puppet) { p.Ack(40, 1) },
		},
		"sequence NAK behind": {
			func(end *puppet.End) verbs.SendWR { return end.Request(1, verbs.WRSend, 0, 4) },
			func(p *puppet.Puppet) { p.NAK(41, roce.SyndromeNAKSequence) },
		},
	}
	for _, a := range allAnswered {
		kinds[a.operation.String()] = progress{
			func(end *puppet.End) verbs.SendWR { return a.request(end, 1) },
			func(p *puppet.Puppet) { a.respond(p, 40, testWord) },
		}
	}
	for name, k := range kinds {
		t.Run(name, func(t *testing.T) {
			_, end, p := sender(t, func(a *verbs.QPAttr) { a.RetryCnt, a.RNRRetry = 2, 1 })
			end.Post(k.request(end), end.Request(2, verbs.WRSend, 0, 4))
			both := func(psn roce.PSN) {
				for ; psn <= 41; psn++ {
					require.Equal(t, psn, p.Expect().PSN)
				}
			}
			both(40)
			both(40) // first timeout
			both(40) // second timeout
			p.NAK(40, roce.RNRNAK(1))
			both(40)
			k.answer(p) // one more of either would have been too much
			retries := 2
			if name == "sequence NAK behind" {
				both(41)
				retries--
			}
			for range retries {
				both(41)
			}
			p.NAK(41, roce.RNRNAK(1))
			both(41)
			end.ExpectSend(1, verbs.WCSuccess)
			wc := end.ExpectSend(2, verbs.WCRetryExcErr)
			require.EqualValues(t, 2, wc.Retries)
			require.EqualValues(t, 1, wc.RNRRetries)
			p.ExpectNothing(time.Minute)
			support.Object(t, "QP", "progress by "+name, "RETRY_CNT and RNR_RETRY count anew")
		})
	}
}

// TestCountersApart: a refusal costs no retry, a loss no RNR retry, and neither gives the other back.
func TestCountersApart(t *testing.T) {
	steps := func(t *testing.T, losses, refusals int, last verbs.WCStatus) {
		_, end, p := sender(t, func(a *verbs.QPAttr) { a.RetryCnt, a.RNRRetry = uint8(losses), uint8(refusals) })
		end.Post(end.Request(1, verbs.WRSend, 0, 4))
		p.ExpectPacket(roce.RCSendOnly, 40)
		for losses+refusals > 0 {
			if losses > 0 {
				losses--
				p.ExpectPacket(roce.RCSendOnly, 40) // timeout
			}
			if refusals > 0 {
				refusals--
				p.NAK(40, roce.RNRNAK(1))
				p.ExpectPacket(roce.RCSendOnly, 40)
			}
		}
		end.ExpectNoCompletion()
		if last == verbs.WCRNRRetryExcErr {
			p.NAK(40, roce.RNRNAK(1))
		}
		end.ExpectSend(1, last)
		p.ExpectNothing(time.Minute)
	}
	for losses := range 4 {
		for refusals := range 4 {
			t.Run(fmt.Sprintf("%d losses, %d refusals", losses, refusals), func(t *testing.T) {
				steps(t, losses, refusals, verbs.WCRetryExcErr)
				steps(t, losses, refusals, verbs.WCRNRRetryExcErr)
			})
		}
	}
	support.Object(t, "QP", "RETRY_CNT and RNR_RETRY", "counted apart")
}

// TestOneRecovery: whatever tells of one loss starts one resend; a timeout starts another.
func TestOneRecovery(t *testing.T) {
	for _, a := range allAnswered {
		_, end, p := sender(t)
		end.Post(a.request(end, 1), end.Request(2, verbs.WRSend, 0, 4), a.request(end, 3))
		all := func() puppet.Answer {
			t.Helper()
			first := a.expect(t, end, p, 1, 40)
			p.ExpectPacket(roce.RCSendOnly, 41)
			a.expect(t, end, p, 3, 42)
			return first
		}
		all()
		for range 2 {
			// The response to 40 is lost, which all of these tell.
			p.Ack(41, 2)
			p.NAK(40, roce.SyndromeNAKSequence)
			p.NAK(42, roce.SyndromeNAKSequence)
			a.respond(p, 42, 0x6666)
			p.NAK(42, roce.RNRNAK(31))
			p.NAK(41, roce.SyndromeNAKRemoteAccess)
		}
		again := all()
		require.Equal(t, timeout, all().At-again.At)
		end.ExpectNoCompletion()
		require.Equal(t, uint64(2), opener.Counters(end.Device).Transport.Recoveries)
		a.respond(p, 40, testWord)
		p.Ack(41, 2)
		a.respond(p, 42, testWord)
		for id := uint64(1); id <= 3; id++ {
			end.ExpectSend(id, verbs.WCSuccess)
		}
	}
	support.Fault(t, "packet lost, which several answers tell", support.Outcome{Requester: "sends again once"})
}

// TestCase_B6_Atomics: neither the ACK timeout of 4 ms nor news of the packets behind cuts the RNR wait of 41 ms
// short, when atomics and READs are in flight with the refused SEND. They go out again behind it.
func TestCase_B6_Atomics(t *testing.T) {
	for _, a := range allAnswered {
		stage, end, p := sender(t, func(at *verbs.QPAttr) { at.Timeout = 10 })
		end.Post(a.request(end, 1), end.Request(2, verbs.WRSend, 0, 4), a.request(end, 3), a.request(end, 4))
		a.expect(t, end, p, 1, 40)
		for range 3 {
			p.Expect()
		}
		a.respond(p, 40, testWord)
		end.ExpectSend(1, verbs.WCSuccess)
		refused := stage.Now()
		p.NAK(41, roce.RNRNAK(24))
		stage.Pass(time.Millisecond)
		end.Post(a.request(end, 5))
		for range 3 {
			stage.Pass(5 * time.Millisecond)
			p.NAK(41, roce.SyndromeNAKSequence)
			p.NAK(41, roce.RNRNAK(31)) // the same refusal
		}
		require.Equal(t, 40960*time.Microsecond+2*latency, p.ExpectPacket(roce.RCSendOnly, 41).At-refused)
		for id := uint64(3); id <= 5; id++ {
			a.expect(t, end, p, id, 39+roce.PSN(id))
		}
		require.Zero(t, opener.Counters(end.Device).Transport.Timeouts)
		p.Ack(41, 2)
		for id := uint64(3); id <= 5; id++ {
			a.respond(p, 39+roce.PSN(id), testWord)
		}
		for id := uint64(2); id <= 5; id++ {
			end.ExpectSend(id, verbs.WCSuccess)
		}
	}
	support.Fault(t, "no receive is posted in time for the ACK timeout", support.Outcome{Requester: verbs.WCSuccess})
}

// TestCase_B6_BothEnds is B6 between two queue pairs: the receive is posted after 20 ms.
func TestCase_B6_BothEnds(t *testing.T) {
	stage := puppet.NewStage(t, mem.Options{})
	a, b := stage.NewEnd(puppet.EndOptions{}), stage.NewEnd(puppet.EndOptions{})
	stage.Connect(a, b, func(at *verbs.QPAttr) { at.MinRNRTimer, at.Timeout = 24, 10 })
	wire := stage.Watch()
	add := a.Request(2, verbs.WRAtomicFetchAdd, 64, 8)
	add.RemoteAddr, add.RKey, add.CompareAdd = b.MR.Addr()+7, b.MR.RKey(), 1
	copy(b.Bytes(7, 8), make([]byte, 8))
	a.Post(a.Request(1, verbs.WRSend, 0, 4), add)
	stage.Pass(20 * time.Millisecond)
	b.PostRecv(1, 0, 4)
	a.ExpectSend(1, verbs.WCSuccess)
	a.ExpectSend(2, verbs.WCSuccess)
	packets := wire.From(a)
	require.Len(t, packets, 4)
	require.Equal(t, 40960*time.Microsecond+2*latency, packets[2].At-packets[0].At)
	require.Equal(t, uint64(1), wordAt(b, 7))
	support.Fault(t, "no receive is posted in time for the ACK timeout", support.Outcome{Requester: verbs.WCSuccess})
}

// TestCase_B7_Destroy: a queue pair that is refused for ever is destroyed at once, in the wait and outside of it, and
// leaves no timer behind.
func TestCase_B7_Destroy(t *testing.T) {
	for _, waiting := range []bool{false, true} {
		stage, end, p := sender(t)
		qp, err := end.PD.CreateQP(verbs.QPInitAttr{SendCQ: end.SendCQ, RecvCQ: end.RecvCQ})
		require.NoError(t, err)
		q := stage.NewPuppet()
		q.ConnectQP(end.Device, qp)
		require.NoError(t, qp.PostSend(end.Request(1, verbs.WRSend, 0, 4), end.Request(2, verbs.WRAtomicFetchAdd, 64, 8)))
		for range 400 { // a minute of it
			q.ExpectPacket(roce.RCSendOnly, 40)
			q.ExpectPacket(roce.RCFetchAdd, 41)
			q.NAK(40, roce.RNRNAK(28)) // 164 ms
		}
		if waiting {
			stage.Pass(time.Millisecond)
		} else {
			q.ExpectPacket(roce.RCSendOnly, 40)
			q.ExpectPacket(roce.RCFetchAdd, 41)
		}
		before, start := stage.Now(), time.Now()
		require.NoError(t, qp.Destroy())
		require.Less(t, time.Since(start), 100*time.Millisecond)
		require.Equal(t, before, stage.Now())
		end.ExpectNoCompletion()
		q.NAK(40, roce.RNRNAK(1))
		q.ExpectNothing(time.Minute)
		require.NotZero(t, drops(end)[roce.DropUnknownQPN.String()])
		p.Send(write(end, 100)) // the device is well
		p.ExpectAck(100, 1)
	}
	support.Object(t, "QP", "Destroy while the peer refuses for ever with RNR NAKs", "at once")
}

// TestRoundTripOfResends: a round trip is not measured with a packet that was sent twice, since nobody knows which of
// the two was answered (RFC 6298 section 3).
func TestRoundTripOfResends(t *testing.T) {
	for _, how := range []string{"timeout", "sequence NAK", "RNR NAK"} {
		t.Run(how, func(t *testing.T) {
			stage, end, p := sender(t)
			roundTrip := func() float64 {
				s, err := end.Device.Snapshot()
				require.NoError(t, err)
				return s.QPs[0].RoundTrip
			}
			end.Post(end.Request(1, verbs.WRSend, 0, 4))
			p.ExpectPacket(roce.RCSendOnly, 40)
			switch how {
			case "sequence NAK":
				p.NAK(40, roce.SyndromeNAKSequence)
			case "RNR NAK":
				p.NAK(40, roce.RNRNAK(20)) // 10 ms
			}
			p.ExpectPacket(roce.RCSendOnly, 40)
			stage.Pass(time.Millisecond)
			p.Ack(40, 1)
			end.ExpectSend(1, verbs.WCSuccess)
			require.Zero(t, roundTrip())
			end.Post(end.Request(2, verbs.WRSend, 0, 4))
			p.ExpectPacket(roce.RCSendOnly, 41)
			stage.Pass(time.Millisecond)
			p.Ack(41, 2)
			end.ExpectSend(2, verbs.WCSuccess)
			require.InDelta(t, 1e-3, roundTrip(), 1e-5)
		})
	}
}

// TestRNRWaitAndLaterNAK: during the wait for a receive a sequence NAK changes nothing, whatever PSN it names:
// rdma_rxe sends them for the packets behind the refused one.
func TestRNRWaitAndLaterNAK(t *testing.T) {
	for _, psn := range []roce.PSN{40, 41, 42} {
		t.Run(fmt.Sprint(psn), func(t *testing.T) {
			_, end, p := sender(t)
			for id := range uint64(3) {
				end.Post(end.Request(id, verbs.WRSend, 0, 4))
				p.ExpectPacket(roce.RCSendOnly, 40+roce.PSN(id))
			}
			p.NAK(40, roce.RNRNAK(24)) // 40.96 ms
			p.NAK(psn, roce.SyndromeNAKSequence)
			p.ExpectNothing(40 * time.Millisecond)
			p.ExpectPacket(roce.RCSendOnly, 40)
			end.ExpectNoCompletion()
		})
	}
}
