package puppet_test

import (
	"encoding/binary"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/xroce/xroce/internal/puppet"
	"github.com/xroce/xroce/internal/support"
	"github.com/xroce/xroce/roce"
	"github.com/xroce/xroce/verbs"
)

// The bits SE (solicited event), A (acknowledge request) and M (MigReq) of every packet that there is. Bit M, always
// 1, is looked at by every puppet in every packet, and so is that no response has bit A.

// wordAt is the word of an end's region at an offset.
func wordAt(end *puppet.End, offset int) uint64 {
	return binary.NativeEndian.Uint64(end.Bytes(offset, 8))
}

// TestCase_A3 also accepts packets of either bit M, requests and responses.
func TestCase_A3(t *testing.T) {
	_, end, p := sender(t)
	for i := range roce.PSN(4) {
		wrong := puppet.Wrong{NoMigReq: i%2 == 0}
		request := write(end, 100+i)
		request.Wrong = wrong
		p.Send(request)
		require.True(t, p.ExpectAck(100+i, uint32(1+i)).BTH.MigReq())
		end.Post(end.Request(1, verbs.WRSend, 0, 4), end.Request(2, verbs.WRAtomicFetchAdd, 64, 8),
			end.Request(3, verbs.WRRDMARead, 64, 8))
		for range 3 {
			require.True(t, p.Expect().BTH.MigReq())
		}
		psn := 40 + 3*i
		ack := roce.AETHFields{Syndrome: roce.SyndromeAckNoCredits}
		p.Send(
			puppet.Packet{Opcode: roce.RCAcknowledge, PSN: psn, AETH: ack, Wrong: wrong},
			puppet.Packet{Opcode: roce.RCAtomicAcknowledge, PSN: psn + 1, AETH: ack, Wrong: wrong},
			puppet.Packet{Opcode: roce.RCReadResponseOnly, PSN: psn + 2, AETH: ack, Payload: make([]byte, 8), Wrong: wrong},
		)
		for id := uint64(1); id <= 3; id++ {
			end.ExpectSend(id, verbs.WCSuccess)
		}
	}
	support.Object(t, "QP", "bit M of packets", "1 in what is sent, either in what is received")
}

// TestBits looks at every packet of every operation: A is set on the last packet of a message and on requests that
// are answered, SE on the last packet of a message that takes a receive, if it was asked for.
func TestBits(t *testing.T) {
	messages := map[verbs.WROpcode]bool{ // whether it takes a receive
		verbs.WRRDMAWrite: false, verbs.WRRDMAWriteWithImm: true, verbs.WRSend: true, verbs.WRSendWithImm: true, verbs.WRSendWithInv: true,
	}
	for operation, takesReceive := range messages {
		for _, solicited := range []bool{false, true} {
			for _, length := range []int{0, 8, 1024, 1025, 3000, 5 * 1024} {
				t.Run(fmt.Sprintf("%v of %d, solicited %v", operation, length, solicited), func(t *testing.T) {
					_, end, p := sender(t)
					wr := end.Request(1, operation, 0, length)
					if solicited {
						wr.Flags |= verbs.SendSolicited
					}
					end.Post(wr)
					count := max(1, (length+1023)/1024)
					for i := range count {
						a := p.Expect()
						last := i == count-1
						require.Equal(t, last, a.BTH.AckRequest(), "%v", a)
						require.Equal(t, place(operation, i, count), a.Opcode)
						support.Opcode(t, a.Opcode, support.Sent)
						require.Equal(t, last && solicited && takesReceive, a.BTH.Solicited(), "%v", a)
					}
					p.ExpectNothing(time.Millisecond)
					// Sent again, the first packet asks, too.
					p.NAK(40, roce.SyndromeNAKSequence)
					for i := range count {
						a := p.Expect()
						require.Equal(t, i == 0 || i == count-1, a.BTH.AckRequest(), "%v", a)
						require.Equal(t, i == count-1 && solicited && takesReceive, a.BTH.Solicited(), "%v", a)
					}
					at := "on no packet"
					if takesReceive {
						at = "on the last packet"
					}
					support.Object(t, "QP", fmt.Sprintf("solicited event of %v", operation), at)
				})
			}
		}
	}
	for _, a := range allAnswered {
		_, end, p := sender(t)
		wr := a.request(end, 1)
		wr.Flags |= verbs.SendSolicited
		end.Post(wr)
		got := p.ExpectPacket(a.opcode, 40)
		require.True(t, got.BTH.AckRequest())
		require.False(t, got.BTH.Solicited())
		support.Object(t, "QP", fmt.Sprintf("solicited event of %v", a.operation), "on no packet")
	}
}

// TestResponseBits: a response has neither bit, whatever the request had.
func TestResponseBits(t *testing.T) {
	_, end, p := sender(t)
	end.PostRecv(1, 0, 64)
	word := end.RETH(7, 8)
	atomic := roce.AtomicETHFields{VA: word.VA, RKey: word.RKey, SwapAdd: 1}
	for i, packet := range []puppet.Packet{
		{Opcode: roce.RCSendOnly, Payload: []byte("rose")},
		{Opcode: roce.RCWriteOnly, RETH: end.RETH(0, 4), Payload: []byte("rose")},
		{Opcode: roce.RCReadRequest, RETH: end.RETH(0, 3000)},
		{Opcode: roce.RCFetchAdd, Atomic: atomic},
		{Opcode: roce.RCCompareSwap, Atomic: atomic},
		{Opcode: roce.RCSendOnly, Payload: []byte("rose")}, // refused
	} {
		packet.PSN, packet.AckRequest, packet.Solicited = roce.PSN(100+i), true, true
		if i > 2 {
			packet.PSN += 2
		}
		p.Send(packet)
		got := p.Expect()
		for p.Waiting() {
			require.False(t, got.BTH.AckRequest() || got.BTH.Solicited(), "%v", got)
			got = p.Expect()
		}
		require.False(t, got.BTH.AckRequest() || got.BTH.Solicited(), "%v", got)
	}
	p.Send(puppet.Packet{Opcode: roce.RCSendOnly, PSN: 120, AckRequest: true, Solicited: true})
	p.ExpectNothing(time.Millisecond) // the refusal was the NAK
	support.Object(t, "QP", "solicited event and acknowledge request in answers", "never")
}

// TestAckRequestInWindow: in a long message at least one packet per window asks for an acknowledgement, from whichever
// packet the window begins, also after losses.
func TestAckRequestInWindow(t *testing.T) {
	for _, size := range []int{1, 2, 3, 4, 7, 16, 64} {
		t.Run(fmt.Sprint(size), func(t *testing.T) {
			stage, end, p := narrow(t, size)
			const packets = 120
			end.Post(end.Request(1, verbs.WRRDMAWrite, 0, packets*1024))
			una, sent, silent := roce.PSN(40), roce.PSN(40), 0
			for una < 40+packets {
				asked := una
				sent = una
				stage.Pass(10 * latency)
				for p.Waiting() {
					a := p.Expect()
					silent, sent = silent+1, a.PSN+1
					if a.BTH.AckRequest() {
						asked, silent = a.PSN+1, 0
					}
					require.Less(t, silent, size, "%v", a)
				}
				require.Greater(t, asked, una, "a peer that acknowledges only what asks for it makes the sender wait")
				una = asked
				if una%5 == 0 && una < sent {
					p.NAK(una, roce.SyndromeNAKSequence) // which acknowledges what is before
					silent = 0
				} else {
					p.Ack(una-1, 0)
				}
			}
			end.ExpectSend(1, verbs.WCSuccess)
		})
	}
	support.Object(t, "QP", "acknowledge request in a long message", "at least once per window")
}
