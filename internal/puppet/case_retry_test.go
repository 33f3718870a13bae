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

// How long a requester waits, and how often it tries again.

// sender is an end whose peer is a puppet.
func sender(t *testing.T, adjust ...func(*verbs.QPAttr)) (*puppet.Stage, *puppet.End, *puppet.Puppet) {
	stage := puppet.NewStage(t, mem.Options{})
	end := stage.NewEnd(puppet.EndOptions{})
	p := stage.NewPuppet()
	p.Connect(end, adjust...)
	return stage, end, p
}

// TestCase_B9 kills the peer: the time until the requester gives up is (1 + retry count) timeouts.
func TestCase_B9(t *testing.T) {
	for _, retries := range []int{0, 1, 6, 7} {
		for _, code := range []uint8{1, 8, 14} {
			t.Run(fmt.Sprintf("retry count %d, timeout code %d", retries, code), func(t *testing.T) {
				stage, end, p := sender(t, func(a *verbs.QPAttr) { a.RetryCnt, a.Timeout = uint8(retries), code })
				start := stage.Now()
				end.Post(end.Request(1, verbs.WRSend, 0, 4), end.Request(2, verbs.WRSend, 0, 4))
				period := 4096 * time.Nanosecond << code
				for i := range 1 + retries {
					at := p.ExpectPacket(roce.RCSendOnly, 40).At
					require.Equal(t, time.Duration(i)*period, at-start-latency, "send %d", i)
					p.ExpectPacket(roce.RCSendOnly, 41)
				}
				wc := end.ExpectSend(1, verbs.WCRetryExcErr)
				require.Equal(t, time.Duration(1+retries)*period, stage.Now()-start)
				require.Equal(t, uint8(retries), wc.Retries)
				end.ExpectSend(2, verbs.WCWRFlushErr)
				require.Equal(t, verbs.StateError, end.QP.State())
				p.ExpectNothing(time.Minute)
				require.Equal(t, uint64(1), opener.Counters(end.Device).Transport.RetriesExceeded)
			})
		}
	}
	support.Fault(t, "peer gone", support.Outcome{Requester: verbs.WCRetryExcErr})
}

// TestCase_B9_Never: timeout code 0 waits for ever.
func TestCase_B9_Never(t *testing.T) {
	_, end, p := sender(t, func(a *verbs.QPAttr) { a.Timeout = 0 })
	end.Post(end.Request(1, verbs.WRSend, 0, 4))
	p.ExpectPacket(roce.RCSendOnly, 40)
	p.ExpectNothing(24 * time.Hour)
	end.ExpectNoCompletion()
	p.Ack(40, 1)
	end.ExpectSend(1, verbs.WCSuccess)
	support.Fault(t, "peer gone, timeout 0", support.Outcome{Requester: "waits for ever"})
}

// TestRetryReload: any progress gives all the retries back.
func TestRetryReload(t *testing.T) {
	_, end, p := sender(t, func(a *verbs.QPAttr) { a.RetryCnt = 2 })
	read := end.Request(4, verbs.WRRDMARead, 0, 2048)
	end.Post(end.Request(1, verbs.WRRDMAWrite, 0, 2048), end.Request(2, verbs.WRSend, 0, 0), read)
	all := func(psn roce.PSN) {
		for _, packet := range []struct {
			psn    roce.PSN
			opcode roce.Opcode
		}{{40, roce.RCWriteFirst}, {41, roce.RCWriteLast}, {42, roce.RCSendOnly}, {43, roce.RCReadRequest}, {44, roce.RCReadRequest}} {
			if packet.psn >= psn && (packet.psn != 44 || psn == 44) {
				p.ExpectPacket(packet.opcode, packet.psn)
			}
		}
	}
	for _, una := range []roce.PSN{40, 41, 42, 43, 44} {
		if una == 40 {
			all(una)
		}
		all(una) // after one timeout
		all(una) // after two
		if una == 43 {
			p.Respond(roce.RCReadResponseFirst, 43, make([]byte, 1024))
		} else if una < 43 {
			p.Ack(una, 0)
		}
	}
	end.ExpectSend(1, verbs.WCSuccess)
	end.ExpectSend(2, verbs.WCSuccess)
	wc := end.ExpectSend(4, verbs.WCRetryExcErr)
	require.Equal(t, uint8(2), wc.Retries)
}

// TestRetriesOfBothKinds: a resend costs a retry whatever caused it.
func TestRetriesOfBothKinds(t *testing.T) {
	_, end, p := sender(t, func(a *verbs.QPAttr) { a.RetryCnt = 2 })
	end.Post(end.Request(1, verbs.WRSend, 0, 4))
	p.ExpectPacket(roce.RCSendOnly, 40)
	p.NAK(40, roce.SyndromeNAKSequence)
	p.ExpectPacket(roce.RCSendOnly, 40)
	p.ExpectPacket(roce.RCSendOnly, 40) // timeout
	end.ExpectSend(1, verbs.WCRetryExcErr)
	p.ExpectNothing(time.Minute)
}

// TestRNRTimer: no packet leaves before the time of the RNR NAK is over, be it new, and whatever the ACK timeout is;
// then everything from the refused packet on is sent.
func TestRNRTimer(t *testing.T) {
	hundredths := []time.Duration{ // of a millisecond
		65536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192,
		256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152,
	}
	for code, n := range hundredths {
		for _, timeout := range []uint8{0, 1, 10, 31} {
			t.Run(fmt.Sprintf("code %d timeout %d", code, timeout), func(t *testing.T) {
				stage, end, p := sender(t, func(a *verbs.QPAttr) { a.Timeout = timeout })
				end.Post(end.Request(1, verbs.WRRDMAWrite, 0, 4), end.Request(2, verbs.WRSend, 0, 4))
				p.ExpectPacket(roce.RCWriteOnly, 40)
				p.ExpectPacket(roce.RCSendOnly, 41)
				refused := stage.Now()
				p.NAK(41, roce.RNRNAK(uint8(code)))
				end.ExpectSend(1, verbs.WCSuccess)
				end.Post(end.Request(3, verbs.WRRDMARead, 0, 4))
				p.NAK(41, roce.SyndromeNAKSequence) // rdma_rxe sends one for the packets behind the refused one
				require.Equal(t, n*10*time.Microsecond, p.ExpectPacket(roce.RCSendOnly, 41).At-refused-2*latency)
				p.ExpectPacket(roce.RCReadRequest, 42)
				p.Ack(41, 2)
				end.ExpectSend(2, verbs.WCSuccess)
			})
		}
	}
}

// TestCase_B6: the ACK timeout of 4 ms must not cut the RNR wait of 41 ms short.
func TestCase_B6(t *testing.T) {
	stage := puppet.NewStage(t, mem.Options{})
	a, b := stage.NewEnd(puppet.EndOptions{}), stage.NewEnd(puppet.EndOptions{})
	stage.Connect(a, b, func(at *verbs.QPAttr) { at.MinRNRTimer, at.Timeout = 24, 10 })
	wire := stage.Watch()
	a.Post(a.Request(1, verbs.WRSend, 0, 4096))
	stage.Pass(20 * time.Millisecond)
	b.PostRecv(1, 0, 4096)
	a.ExpectSend(1, verbs.WCSuccess)
	packets := wire.From(a)
	require.Len(t, packets, 8)
	require.Equal(t, 40960*time.Microsecond+2*latency, packets[4].At-packets[0].At)
	require.Len(t, wire.From(b), 2, "an RNR NAK and an acknowledgement")
	support.Fault(t, "no receive is posted in time for the ACK timeout", support.Outcome{Requester: verbs.WCSuccess})
}

// TestCase_B7: rnr_retry counts tries, but 7 never ends.
func TestCase_B7(t *testing.T) {
	for retries := range uint8(8) {
		t.Run(fmt.Sprintf("rnr_retry %d", retries), func(t *testing.T) {
			_, end, p := sender(t, func(a *verbs.QPAttr) { a.RNRRetry, a.RetryCnt = retries, 0 })
			end.Post(end.Request(1, verbs.WRSend, 0, 4))
			tries := 1 + int(retries)
			if retries == 7 {
				tries = 1000
			}
			for range tries {
				end.ExpectNoCompletion()
				p.ExpectPacket(roce.RCSendOnly, 40)
				p.NAK(40, roce.RNRNAK(1))
			}
			if retries == 7 {
				p.ExpectPacket(roce.RCSendOnly, 40)
				p.Ack(40, 1)
				end.ExpectSend(1, verbs.WCSuccess)
				return
			}
			wc := end.ExpectSend(1, verbs.WCRNRRetryExcErr)
			require.Equal(t, retries, wc.RNRRetries)
			require.Equal(t, roce.RNRNAK(1), wc.Syndrome)
			require.Equal(t, verbs.StateError, end.QP.State())
			p.ExpectNothing(time.Minute)
		})
	}
	support.Fault(t, "no receive is posted", support.Outcome{Requester: verbs.WCRNRRetryExcErr})
	support.Fault(t, "no receive is posted, RNR_RETRY 7", support.Outcome{Requester: "tries for ever"})
}

// TestCase_B7_OtherQP: a queue pair that waits for ever disturbs no other one, and is destroyed at once.
func TestCase_B7_OtherQP(t *testing.T) {
	stage, end, p := sender(t)
	other, q := end.NewQP(verbs.QPCap{}), stage.NewPuppet()
	q.ConnectQP(end.Device, other)
	end.Post(end.Request(1, verbs.WRSend, 0, 4))
	start := stage.Now()
	for psn := roce.PSN(100); stage.Now()-start < time.Minute; psn++ {
		p.ExpectPacket(roce.RCSendOnly, 40)
		p.NAK(40, roce.RNRNAK(28)) // 164 ms
		sent := stage.Now()
		q.Send(write(end, psn))
		require.Equal(t, 2*latency, q.ExpectAck(psn, uint32(psn-99)).At-sent)
	}
	end.ExpectNoCompletion()
	before := stage.Now()
	require.NoError(t, end.QP.Modify(t.Context(), verbs.QPAttr{State: verbs.StateError}, verbs.QPStateMask))
	end.ExpectSend(1, verbs.WCWRFlushErr)
	require.Equal(t, before, stage.Now())
}

// TestRNRReload: what was acknowledged gives the RNR retries back.
func TestRNRReload(t *testing.T) {
	_, end, p := sender(t, func(a *verbs.QPAttr) { a.RNRRetry = 1 })
	end.Post(end.Request(1, verbs.WRSend, 0, 4), end.Request(2, verbs.WRSend, 0, 4))
	p.ExpectPacket(roce.RCSendOnly, 40)
	p.ExpectPacket(roce.RCSendOnly, 41)
	p.NAK(40, roce.RNRNAK(1))
	p.ExpectPacket(roce.RCSendOnly, 40)
	p.ExpectPacket(roce.RCSendOnly, 41)
	p.NAK(41, roce.RNRNAK(1)) // which acknowledges 40
	end.ExpectSend(1, verbs.WCSuccess)
	p.ExpectPacket(roce.RCSendOnly, 41)
	p.NAK(41, roce.RNRNAK(1))
	end.ExpectSend(2, verbs.WCRNRRetryExcErr)
}

// TestRNRThenAck: a late RNR NAK, whose request was executed in the end, holds nothing up for longer than it says.
func TestRNRThenAck(t *testing.T) {
	for _, timeout := range []uint8{0, 14} {
		t.Run(fmt.Sprintf("timeout %d", timeout), func(t *testing.T) {
			stage, end, p := sender(t, func(a *verbs.QPAttr) { a.Timeout = timeout })
			end.Post(end.Request(1, verbs.WRSend, 0, 4))
			p.ExpectPacket(roce.RCSendOnly, 40)
			refused := stage.Now()
			p.NAK(40, roce.RNRNAK(12)) // 0.64 ms
			p.Ack(40, 1)
			end.ExpectSend(1, verbs.WCSuccess)
			end.Post(end.Request(2, verbs.WRSend, 0, 4))
			require.LessOrEqual(t, p.ExpectPacket(roce.RCSendOnly, 41).At-refused, 640*time.Microsecond+2*latency)
			p.Ack(41, 2)
			end.ExpectSend(2, verbs.WCSuccess)
		})
	}
}

// TestRNRDuplicate: an RNR NAK that comes twice is one refusal; it neither costs a second retry nor starts the wait
// anew.
func TestRNRDuplicate(t *testing.T) {
	stage, end, p := sender(t, func(a *verbs.QPAttr) { a.RNRRetry = 1 })
	end.Post(end.Request(1, verbs.WRSend, 0, 4))
	p.ExpectPacket(roce.RCSendOnly, 40)
	refused := stage.Now()
	p.NAK(40, roce.RNRNAK(12)) // 0.64 ms
	stage.Pass(100 * time.Microsecond)
	p.NAK(40, roce.RNRNAK(12))
	require.Equal(t, 640*time.Microsecond+2*latency, p.ExpectPacket(roce.RCSendOnly, 40).At-refused)
	p.NAK(40, roce.RNRNAK(12))
	require.Equal(t, uint8(1), end.ExpectSend(1, verbs.WCRNRRetryExcErr).RNRRetries)
}

// TestRNRDuringRecovery: a peer that first refuses a SEND for a while and then acknowledges what is behind it, READ and
// all, has lost the READ's response. That must not be forgotten, even without an ACK timeout.
func TestRNRDuringRecovery(t *testing.T) {
	for _, timeout := range []uint8{0, 14} {
		t.Run(fmt.Sprintf("timeout %d", timeout), func(t *testing.T) {
			stage, end, p := sender(t, func(a *verbs.QPAttr) { a.Timeout = timeout })
			end.Post(end.Request(1, verbs.WRSend, 0, 4), end.Request(2, verbs.WRRDMARead, 0, 4), end.Request(3, verbs.WRSend, 0, 4))
			p.ExpectPacket(roce.RCSendOnly, 40)
			p.ExpectPacket(roce.RCReadRequest, 41)
			p.ExpectPacket(roce.RCSendOnly, 42)
			refused := stage.Now()
			p.NAK(40, roce.RNRNAK(12)) // 0.64 ms
			p.Ack(42, 3)
			end.ExpectSend(1, verbs.WCSuccess)
			again := p.ExpectPacket(roce.RCReadRequest, 41)
			require.LessOrEqual(t, again.At-refused, 640*time.Microsecond+2*latency)
			p.ExpectPacket(roce.RCSendOnly, 42)
		})
	}
}
