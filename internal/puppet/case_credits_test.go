package puppet_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/xroce/xroce/internal/puppet"
	"github.com/xroce/xroce/internal/support"
	"github.com/xroce/xroce/roce"
	"github.com/xroce/xroce/verbs"
)

// End-to-end credits: how far a peer lets the requester go that says how many receives it has posted. Every end here
// has sent one SEND, PSN 40, which is the message number 1.

// grant acknowledges a PSN with a credit code.
func grant(p *puppet.Puppet, psn roce.PSN, code uint8, msn uint32) {
	p.Send(puppet.Packet{Opcode: roce.RCAcknowledge, PSN: psn, AETH: roce.AETHFields{Syndrome: roce.AckSyndrome(code), MSN: msn & 0xFFFFFF}})
}

// limited is an end whose message number 1 was sent and acknowledged with a credit code and an MSN.
func limited(t *testing.T, code uint8, msn uint32) (*puppet.Stage, *puppet.End, *puppet.Puppet) {
	stage, end, p := sender(t)
	end.Post(end.Request(1, verbs.WRSend, 0, 4))
	p.ExpectPacket(roce.RCSendOnly, 40)
	grant(p, 40, code, msn)
	end.ExpectSend(1, verbs.WCSuccess)
	return stage, end, p
}

// postSends posts SENDs and returns how many of them start, which have PSNs from the given one on.
func postSends(t *testing.T, stage *puppet.Stage, end *puppet.End, p *puppet.Puppet, count int, psn roce.PSN) int {
	t.Helper()
	for range count {
		end.Post(end.Request(2, verbs.WRSend, 0, 4))
	}
	return started(t, stage, p, psn)
}

// started counts the packets that come within a short time.
func started(t *testing.T, stage *puppet.Stage, p *puppet.Puppet, psn roce.PSN) int {
	t.Helper()
	stage.Pass(time.Millisecond)
	n := 0
	for p.Waiting() {
		require.Equal(t, psn.Add(uint32(n)), p.Expect().PSN)
		n++
	}
	return n
}

// credits are the meanings of the codes (IBTA volume 1, chapter 9).
var credits = []uint32{
	0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144, 8192,
	12288, 16384, 24576, 32768,
}

// TestCreditCodes: messages up to the number MSN + credits + 1 may start. The MSN, a lie, brings the limit of each
// code to message 5.
func TestCreditCodes(t *testing.T) {
	require.Len(t, credits, 31)
	for code, n := range credits {
		stage, end, p := limited(t, uint8(code), 5-n)
		require.Equal(t, 5, postSends(t, stage, end, p, 10, 41), "code %d", code) // messages 2 to 6
		require.Equal(t, verbs.StateRTS, end.QP.State())
	}
	for code := range 5 { // and without a lie
		stage, end, p := limited(t, uint8(code), 1)
		require.Equal(t, code+1, postSends(t, stage, end, p, 10, 41), "code %d", code)
	}
	support.Object(t, "Credits", "codes 0 to 30", "as many messages as IBTA's table has, and one to ask")
}

// TestCreditsOperations: what takes a receive waits, in order with everything behind it; what does not goes at once
// and moves the limit along.
func TestCreditsOperations(t *testing.T) {
	for _, operation := range []verbs.WROpcode{verbs.WRSend, verbs.WRSendWithImm, verbs.WRSendWithInv, verbs.WRRDMAWriteWithImm} {
		t.Run(operation.String(), func(t *testing.T) {
			stage, end, p := limited(t, 0, 1) // the limit is 1
			end.Post(end.Request(2, operation, 0, 3000), end.Request(3, operation, 0, 4),
				end.Request(4, verbs.WRRDMAWrite, 0, 4))
			require.Equal(t, 3, started(t, stage, p, 41)) // message 2 is the one beyond the limit
			grant(p, 43, 0, 2)
			require.Equal(t, 2, started(t, stage, p, 44))
			support.Object(t, "Credits", operation.String(), "takes one")
		})
	}
	free := []verbs.WROpcode{verbs.WRRDMAWrite}
	for _, a := range allAnswered {
		free = append(free, a.operation)
	}
	for _, operation := range free {
		t.Run(operation.String(), func(t *testing.T) {
			stage, end, p := limited(t, 0, 1)
			end.Post(end.Request(2, operation, 0, 8), end.Request(3, operation, 0, 8), end.Request(4, operation, 0, 8))
			require.Equal(t, 3, started(t, stage, p, 41)) // messages 2 to 4; the limit is 4 now
			p.NAK(41, roce.SyndromeNAKSequence)
			require.Equal(t, 3, started(t, stage, p, 41)) // which moves nothing
			require.Equal(t, 1, postSends(t, stage, end, p, 5, 44))
			support.Object(t, "Credits", operation.String(), "takes none")
		})
	}
	t.Run("READ in pieces", func(t *testing.T) {
		stage, end, p := narrow(t, 8) // two responses to a request
		end.Post(end.Request(1, verbs.WRSend, 0, 4))
		p.ExpectPacket(roce.RCSendOnly, 40)
		grant(p, 40, 0, 1)
		end.ExpectSend(1, verbs.WCSuccess)
		end.Post(end.Request(2, verbs.WRRDMARead, 0, 5*1024)) // messages 2 to 4
		for i := range roce.PSN(3) {
			p.ExpectPacket(roce.RCReadRequest, 41+2*i)
		}
		for i := range roce.PSN(5) {
			p.Respond(roce.RCReadResponseMiddle, 41+i, make([]byte, 1024))
		}
		end.ExpectSend(2, verbs.WCSuccess)
		require.Equal(t, 1, postSends(t, stage, end, p, 5, 46)) // message 5
		grant(p, 46, 2, 5)
		require.Equal(t, 3, started(t, stage, p, 47))
	})
}

// TestCreditsRelease: a peer that says once that it does not limit has said so for good.
func TestCreditsRelease(t *testing.T) {
	for _, inRead := range []bool{false, true} {
		stage, end, p := limited(t, 0, 1)
		if inRead { // any answer that acknowledges may say so
			end.Post(end.Request(2, verbs.WRRDMARead, 0, 0))
			p.ExpectPacket(roce.RCReadRequest, 41)
			require.Equal(t, 1, postSends(t, stage, end, p, 10, 42))
			p.Respond(roce.RCReadResponseOnly, 41, nil)
			require.Equal(t, 9, started(t, stage, p, 43))
		} else {
			require.Equal(t, 1, postSends(t, stage, end, p, 11, 41))
			p.Ack(41, 2)
			require.Equal(t, 10, started(t, stage, p, 42))
		}
		grant(p, 51, 0, 2)
		stage.Pass(time.Millisecond)
		require.Equal(t, 20, postSends(t, stage, end, p, 20, 52))
	}
	stage, end, p := limited(t, 0x1F, 1) // from the start
	grant(p, 40, 0, 1)
	stage.Pass(time.Millisecond)
	require.Equal(t, 20, postSends(t, stage, end, p, 20, 41))
	support.Object(t, "Credits", "code 31, which is none", "no limit any more")
}

// TestCreditsInResponses: the responses to READs and atomics carry credits, too.
func TestCreditsInResponses(t *testing.T) {
	for _, a := range allAnswered {
		stage, end, p := limited(t, 0, 1)
		end.Post(a.request(end, 2)) // message 2
		a.expect(t, end, p, 2, 41)
		require.Equal(t, 1, postSends(t, stage, end, p, 10, 42)) // message 3
		response := puppet.Packet{Opcode: a.response, PSN: 41, AETH: roce.AETHFields{Syndrome: roce.AckSyndrome(4), MSN: 2}}
		if a.operation == verbs.WRRDMARead {
			response.Payload = make([]byte, 8)
		}
		p.Send(response) // messages up to 7
		require.Equal(t, 4, started(t, stage, p, 43), "%v", a.operation)
		support.Object(t, "Credits", "in the response to "+a.operation.String(), "count")
	}
}

// TestCreditsLate: an acknowledgement that acknowledges nothing new may raise the limit, if it is the latest one.
// Nothing lowers it.
func TestCreditsLate(t *testing.T) {
	stage, end, p := limited(t, 0, 1)
	require.Equal(t, 1, postSends(t, stage, end, p, 40, 41)) // message 2
	for _, psn := range []roce.PSN{38, 39, 42, 43, 40 + 1<<23} {
		grant(p, psn, 10, 1)
	}
	require.Zero(t, started(t, stage, p, 42), "an old one, or one of what was never sent")
	grant(p, 40, 2, 1)
	require.Equal(t, 2, started(t, stage, p, 42)) // messages 3 and 4
	end.ExpectNoCompletion()
	grant(p, 40, 1, 1)
	grant(p, 40, 0, 1)
	grant(p, 40, 0, 0xFFFFFF)
	p.NAK(41, roce.RNRNAK(1)) // a NAK says nothing about credits
	require.Equal(t, 3, started(t, stage, p, 41))
	grant(p, 41, 0, 2) // limit 2, said late
	require.Zero(t, started(t, stage, p, 44))
	grant(p, 43, 3, 4) // limit 7
	require.Equal(t, 4, started(t, stage, p, 44))
	grant(p, 43, 0, 4)
	p.NAK(45, roce.SyndromeNAKSequence)
	require.Equal(t, 3, started(t, stage, p, 45), "what was sent once is sent again")
	support.Object(t, "Credits", "in an acknowledgement of nothing new", "count if it is the latest one")
}

// TestCreditsNeverLower: a smaller grant that comes later does not take the larger one back.
func TestCreditsNeverLower(t *testing.T) {
	stage, end, p := limited(t, 5, 1) // limit 7
	for _, msn := range []uint32{1, 0, 7, 0xFFFFFF} {
		grant(p, 40, 0, msn)
	}
	stage.Pass(time.Millisecond)
	require.Equal(t, 7, postSends(t, stage, end, p, 10, 41)) // messages 2 to 8
	support.Object(t, "Credits", "a smaller grant that comes later", "lowers nothing")
}

// TestCreditsProbe: the message beyond the limit finds out whether there is a receive by now. If not, it is refused,
// and sent again as ever; what is behind it waits.
func TestCreditsProbe(t *testing.T) {
	_, end, p := limited(t, 0, 1)
	end.Post(end.Request(2, verbs.WRSend, 0, 4), end.Request(3, verbs.WRSend, 0, 4))
	for range 5 {
		p.ExpectPacket(roce.RCSendOnly, 41)
		p.ExpectNothing(time.Millisecond)
		p.NAK(41, roce.RNRNAK(12))
	}
	p.ExpectPacket(roce.RCSendOnly, 41)
	p.ExpectPacket(roce.RCSendOnly, 41) // timeout
	grant(p, 41, 0, 2)
	end.ExpectSend(2, verbs.WCSuccess)
	p.ExpectPacket(roce.RCSendOnly, 42)
	support.Fault(t, "no receive is posted, says a peer with credits",
		support.Outcome{Requester: "sends one message to ask, and what is behind it waits"})
}

// TestCreditsReset: the limit of a connection is not that of the next one.
func TestCreditsReset(t *testing.T) {
	stage, end, p := limited(t, 0, 1)
	require.Equal(t, 1, postSends(t, stage, end, p, 5, 41))
	require.NoError(t, to(end, verbs.StateReset))
	p.Connect(end)
	require.Equal(t, 5, postSends(t, stage, end, p, 5, 40))
	support.Object(t, "Credits", "after RESET", "no limit")
}

// TestCreditsWrongMSN: a peer that counts its MSN wrong, but acknowledges everything, must not stop the sender for ever
// without any error: what it has acknowledged it had a receive for.
func TestCreditsWrongMSN(t *testing.T) {
	stage, end, p := limited(t, 0, 0)
	for i := range 20 {
		end.Post(end.Request(uint64(i), verbs.WRSend, 0, 4))
	}
	acked := 1
	for range 40 {
		stage.Pass(10 * time.Millisecond)
		for p.Waiting() {
			a := p.Expect()
			grant(p, a.PSN, 0, 0)
			acked++
		}
	}
	stage.Pass(time.Hour)
	require.Equal(t, verbs.StateRTS, end.QP.State())
	require.Equal(t, 21, acked, "messages acknowledged; %d outstanding", end.QP.Outstanding())
}
