package puppet_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/xroce/xroce/internal/opener"
	"github.com/xroce/xroce/internal/puppet"
	"github.com/xroce/xroce/internal/support"
	"github.com/xroce/xroce/roce"
	"github.com/xroce/xroce/verbs"
)

// Requests that the peer answers with a response of their own: READ, atomics, FLUSH, atomic write. An acknowledgement
// does not replace the response.

// answered is one of these requests, of one packet and 8 bytes.
type answered struct {
	operation verbs.WROpcode
	opcode    roce.Opcode // of the request
	response  roce.Opcode
}

var allAnswered = []answered{
	{verbs.WRRDMARead, roce.RCReadRequest, roce.RCReadResponseOnly},
	{verbs.WRAtomicCmpAndSwp, roce.RCCompareSwap, roce.RCAtomicAcknowledge},
	{verbs.WRAtomicFetchAdd, roce.RCFetchAdd, roce.RCAtomicAcknowledge},
	{verbs.WRFlush, roce.RCFlush, roce.RCReadResponseOnly},
	{verbs.WRAtomicWrite, roce.RCAtomicWrite, roce.RCReadResponseOnly},
}

func (a answered) isAtomic() bool { return a.response == roce.RCAtomicAcknowledge }

// request makes the request; id also makes it different from others.
func (a answered) request(end *puppet.End, id uint64) verbs.SendWR {
	wr := end.Request(id, a.operation, 64*int(id), 8)
	wr.RemoteAddr, wr.RKey = 0x7000_0000_0000+64*id, 0x1234
	wr.CompareAdd, wr.Swap = 0x0102030405060708*id, 0xF0E0D0C0B0A09080+id
	return wr
}

// expect waits for the request and compares every field with what was posted.
func (a answered) expect(t *testing.T, end *puppet.End, p *puppet.Puppet, id uint64, psn roce.PSN) puppet.Answer {
	t.Helper()
	wr := a.request(end, id)
	got := p.ExpectPacket(a.opcode, psn)
	reth := roce.RETHFields{VA: wr.RemoteAddr, RKey: wr.RKey, Length: 8}
	atomic := roce.AtomicETHFields{VA: wr.RemoteAddr, RKey: wr.RKey, SwapAdd: wr.CompareAdd}
	payload := []byte(nil)
	switch a.operation {
	case verbs.WRAtomicCmpAndSwp:
		atomic.SwapAdd, atomic.Compare = wr.Swap, wr.CompareAdd
		require.Equal(t, atomic, got.AtomicETH().Fields())
	case verbs.WRAtomicFetchAdd:
		require.Equal(t, atomic, got.AtomicETH().Fields())
	case verbs.WRFlush:
		require.Equal(t, roce.FETHFields{Placement: verbs.FlushPlacementGlobal}, got.FETH().Fields())
		got.Asks(reth)
	case verbs.WRAtomicWrite:
		payload = end.Bytes(64*int(id), 8)
		got.Asks(reth)
	default:
		got.Asks(reth)
	}
	require.True(t, got.BTH.AckRequest())
	return got.Carries(payload)
}

// respond answers the request, with the word if it gives one.
func (a answered) respond(p *puppet.Puppet, psn roce.PSN, word uint64) {
	switch {
	case a.isAtomic():
		p.RespondAtomic(psn, word)
	case a.operation == verbs.WRRDMARead:
		p.Respond(a.response, psn, binary.BigEndian.AppendUint64(nil, word))
	default:
		p.Respond(a.response, psn, nil)
	}
}

// land puts into image what the response puts into memory: the bytes of a READ, or the word of an atomic in host order.
func (a answered) land(image []byte, id, word uint64) {
	switch {
	case a.isAtomic():
		binary.NativeEndian.PutUint64(image[64*id:], word)
	case a.operation == verbs.WRRDMARead:
		binary.BigEndian.PutUint64(image[64*id:], word)
	}
}

const testWord = 0x1122334455667788

// TestCase_A19: a NAK of an answered request counts in whichever form it comes; its word, or its lack of data, does
// not.
func TestCase_A19(t *testing.T) {
	for _, a := range allAnswered {
		for _, form := range []roce.Opcode{roce.RCAcknowledge, roce.RCAtomicAcknowledge, roce.RCReadResponseOnly} {
			for _, syndrome := range []roce.Syndrome{
				roce.SyndromeNAKInvalidRequest, roce.SyndromeNAKRemoteAccess, roce.SyndromeNAKRemoteOperational,
				roce.SyndromeNAKSequence, roce.RNRNAK(12), // 0.64 ms
			} {
				t.Run(fmt.Sprintf("%v, %v as %v", a.operation, syndrome, form), func(t *testing.T) {
					stage, end, p := sender(t)
					image := bytes.Clone(end.MR.Bytes())
					end.Post(end.Request(1, verbs.WRSend, 0, 4), a.request(end, 2), end.Request(3, verbs.WRSend, 0, 4))
					p.ExpectPacket(roce.RCSendOnly, 40)
					a.expect(t, end, p, 2, 41)
					p.ExpectPacket(roce.RCSendOnly, 42)
					refused := stage.Now()
					p.Send(puppet.Packet{Opcode: form, PSN: 41, AETH: roce.AETHFields{Syndrome: syndrome}, Original: 0x6666})
					end.ExpectSend(1, verbs.WCSuccess)
					status, fatal := map[roce.Syndrome]verbs.WCStatus{
						roce.SyndromeNAKInvalidRequest:    verbs.WCRemInvReqErr,
						roce.SyndromeNAKRemoteAccess:      verbs.WCRemAccessErr,
						roce.SyndromeNAKRemoteOperational: verbs.WCRemOpErr,
					}[syndrome]
					if fatal {
						require.Equal(t, syndrome, end.ExpectSend(2, status).Syndrome)
						support.Fault(t, "answer: "+syndrome.String(), support.Outcome{Requester: status})
						end.ExpectSend(3, verbs.WCWRFlushErr)
						p.ExpectNothing(time.Minute)
						require.True(t, bytes.Equal(image, end.MR.Bytes()))
						return
					}
					again := a.expect(t, end, p, 2, 41)
					wait := 2 * latency
					if syndrome.IsRNR() {
						wait += 640 * time.Microsecond
					}
					require.Equal(t, wait, again.At-refused)
					support.Fault(t, "answer: "+syndrome.String(), support.Outcome{Requester: fmt.Sprintf("sends again %v later", wait-2*latency)})
					p.ExpectPacket(roce.RCSendOnly, 42)
					end.ExpectNoCompletion()
					require.True(t, bytes.Equal(image, end.MR.Bytes()))
					a.respond(p, 41, testWord)
					p.Ack(42, 3)
					end.ExpectSend(2, verbs.WCSuccess)
					end.ExpectSend(3, verbs.WCSuccess)
				})
			}
		}
	}
}

// TestCase_B3_Answered: whatever jumps over an answered request says that its response was lost. The request goes out
// again as it was, at once, and nothing is complete before it.
func TestCase_B3_Answered(t *testing.T) {
	for _, a := range allAnswered {
		for name, jump := range map[string]func(p *puppet.Puppet){
			"ACK":          func(p *puppet.Puppet) { p.Ack(42, 3) },
			"sequence NAK": func(p *puppet.Puppet) { p.NAK(42, roce.SyndromeNAKSequence) },
			"RNR NAK":      func(p *puppet.Puppet) { p.NAK(42, roce.RNRNAK(31)) },
			"fatal NAK":    func(p *puppet.Puppet) { p.NAK(42, roce.SyndromeNAKRemoteAccess) },
		} {
			t.Run(fmt.Sprintf("%v, %s", a.operation, name), func(t *testing.T) {
				stage, end, p := sender(t)
				image := bytes.Clone(end.MR.Bytes())
				end.Post(end.Request(1, verbs.WRRDMAWrite, 0, 4), a.request(end, 2), end.Request(3, verbs.WRSend, 0, 4))
				p.ExpectPacket(roce.RCWriteOnly, 40)
				a.expect(t, end, p, 2, 41)
				p.ExpectPacket(roce.RCSendOnly, 42)
				before := stage.Now()
				jump(p)
				require.Equal(t, 2*latency, a.expect(t, end, p, 2, 41).At-before)
				p.ExpectPacket(roce.RCSendOnly, 42)
				end.ExpectSend(1, verbs.WCSuccess)
				jump(p) // the same news again starts no second resend
				p.ExpectNothing(time.Millisecond)
				end.ExpectNoCompletion()
				require.Equal(t, uint64(1), opener.Counters(end.Device).Transport.Recoveries)
				require.True(t, bytes.Equal(image, end.MR.Bytes()))
				a.respond(p, 41, testWord)
				end.ExpectSend(2, verbs.WCSuccess)
				a.land(image, 2, testWord)
				require.True(t, bytes.Equal(image, end.MR.Bytes()))
				end.ExpectNoCompletion()
				p.Ack(42, 3)
				end.ExpectSend(3, verbs.WCSuccess)
				p.ExpectNothing(time.Minute)
				support.Fault(t, fmt.Sprintf("response to %v lost, a later request answered", a.operation), support.Outcome{Requester: "asks again, at once"})
			})
		}
	}
}

// TestCase_B3_LaterResponse: the response to a later request says the same. It is thrown away; the request is asked
// again, at once.
func TestCase_B3_LaterResponse(t *testing.T) {
	for _, a := range allAnswered {
		for _, b := range allAnswered {
			t.Run(fmt.Sprintf("%v, %v", a.operation, b.operation), func(t *testing.T) {
				stage, end, p := sender(t)
				image := bytes.Clone(end.MR.Bytes())
				end.Post(a.request(end, 1), b.request(end, 2))
				a.expect(t, end, p, 1, 40)
				b.expect(t, end, p, 2, 41)
				before := stage.Now()
				b.respond(p, 41, 0x6666)
				require.Equal(t, 2*latency, a.expect(t, end, p, 1, 40).At-before)
				b.expect(t, end, p, 2, 41)
				b.respond(p, 41, 0x6666)
				p.ExpectNothing(time.Millisecond)
				end.ExpectNoCompletion()
				require.True(t, bytes.Equal(image, end.MR.Bytes()))
				a.respond(p, 40, testWord)
				b.respond(p, 41, testWord+1)
				end.ExpectSend(1, verbs.WCSuccess)
				end.ExpectSend(2, verbs.WCSuccess)
				a.land(image, 1, testWord)
				b.land(image, 2, testWord+1)
				require.True(t, bytes.Equal(image, end.MR.Bytes()))
				support.Opcode(t, a.opcode, support.Sent)
				support.Opcode(t, a.response, support.Received)
			})
		}
	}
}

// TestCase_B18_Answered: responses that are not for the request, come too late, or say something that has no meaning
// neither complete a request nor touch memory.
func TestCase_B18_Answered(t *testing.T) {
	for _, a := range allAnswered {
		t.Run(a.operation.String(), func(t *testing.T) {
			_, end, p := sender(t)
			image := bytes.Clone(end.MR.Bytes())
			end.Post(a.request(end, 1))
			a.expect(t, end, p, 1, 40)
			for _, psn := range []roce.PSN{38, 39, 41, 42, 40 + 1<<23} {
				a.respond(p, psn, 0x6666)
				p.Ack(psn, 1)
			}
			for _, reserved := range []roce.Syndrome{0x40, 0x5F, 0x64, 0x7F, 0x80, 0xE0, 0xFF} {
				p.Send(puppet.Packet{
					Opcode: a.response, PSN: 40, AETH: roce.AETHFields{Syndrome: reserved}, Original: 0x6666,
				})
			}
			p.ExpectNothing(time.Millisecond)
			end.ExpectNoCompletion()
			a.respond(p, 40, testWord)
			end.ExpectSend(1, verbs.WCSuccess)
			a.land(image, 1, testWord)
			require.True(t, bytes.Equal(image, end.MR.Bytes()))

			// The memory is somebody else's by now, even if more is in flight.
			end.Post(a.request(end, 2))
			a.expect(t, end, p, 2, 41)
			a.respond(p, 40, 0x6666)
			p.NAK(40, roce.SyndromeNAKRemoteOperational)
			p.ExpectNothing(time.Millisecond)
			require.True(t, bytes.Equal(image, end.MR.Bytes()))
			a.respond(p, 41, testWord)
			end.ExpectSend(2, verbs.WCSuccess)
		})
	}
	support.Fault(t, "response to nothing that is in flight", support.Outcome{Requester: "believes nothing"})
}

// TestCase_B18_WrongForm: a response of a kind that could be the right one, but not in this form.
func TestCase_B18_WrongForm(t *testing.T) {
	for _, a := range allAnswered {
		for form, length := range map[roce.Opcode]int{
			roce.RCReadResponseFirst: 1024, roce.RCReadResponseMiddle: 1024, roce.RCReadResponseLast: 4, roce.RCReadResponseOnly: 4,
		} {
			t.Run(fmt.Sprintf("%v, %v", a.operation, form), func(t *testing.T) {
				_, end, p := sender(t)
				image := bytes.Clone(end.MR.Bytes())
				end.Post(end.Request(1, verbs.WRSend, 0, 4), a.request(end, 2), end.Request(3, verbs.WRSend, 0, 4))
				for range 3 {
					p.Expect()
				}
				p.Respond(form, 41, make([]byte, length))
				status := verbs.WCLocLenErr
				if a.isAtomic() {
					status = verbs.WCBadRespErr
					p.Ack(40, 1) // a response that makes no sense acknowledges nothing
				}
				end.ExpectSend(1, verbs.WCSuccess)
				end.ExpectSend(2, status)
				end.ExpectSend(3, verbs.WCWRFlushErr)
				require.True(t, bytes.Equal(image, end.MR.Bytes()))
				p.ExpectNothing(time.Minute)
				support.Fault(t, fmt.Sprintf("READ response of another length or place, to %v", a.operation), support.Outcome{Requester: status})
			})
		}
	}
}
