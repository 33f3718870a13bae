package puppet_test

import (
	"bytes"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/xroce/xroce/internal/puppet"
	"github.com/xroce/xroce/internal/support"
	"github.com/xroce/xroce/roce"
	"github.com/xroce/xroce/roce/link/mem"
	"github.com/xroce/xroce/verbs"
)

// What a requester believes, and what it does not.

// TestCase_B18: responses to what was never asked, or was answered already, never complete anything.
func TestCase_B18(t *testing.T) {
	_, end, p := sender(t)
	image := bytes.Clone(end.MR.Bytes())
	junk := bytes.Repeat([]byte{0x66}, 1024)
	// Nothing is in flight.
	for _, psn := range []roce.PSN{38, 39, 40, 41, 1 << 23, 0xFFFFFF} {
		p.Ack(psn, 1)
		p.NAK(psn, roce.SyndromeNAKSequence)
		p.NAK(psn, roce.SyndromeNAKRemoteAccess)
		p.NAK(psn, roce.RNRNAK(1))
		p.Respond(roce.RCReadResponseOnly, psn, junk)
		p.Send(puppet.Packet{Opcode: roce.RCAtomicAcknowledge, PSN: psn})
	}
	p.ExpectNothing(time.Second)
	require.Equal(t, verbs.StateRTS, end.QP.State())

	// A SEND and a WRITE are in flight, PSNs 40 and 41.
	end.Post(end.Request(1, verbs.WRSend, 0, 4), end.Request(2, verbs.WRRDMAWrite, 0, 4))
	p.ExpectPacket(roce.RCSendOnly, 40)
	p.ExpectPacket(roce.RCWriteOnly, 41)
	for _, psn := range []roce.PSN{39, 42, 43, 0xFFFFFF} {
		p.Ack(psn, 1)
		p.NAK(psn, roce.SyndromeNAKSequence)
		p.NAK(psn, roce.SyndromeNAKInvalidRequest)
		p.NAK(psn, roce.RNRNAK(1))
	}
	for _, psn := range []roce.PSN{39, 42} {
		for _, opcode := range []roce.Opcode{roce.RCReadResponseFirst, roce.RCReadResponseMiddle, roce.RCReadResponseLast, roce.RCReadResponseOnly} {
			p.Respond(opcode, psn, junk)
		}
		p.Send(puppet.Packet{Opcode: roce.RCAtomicAcknowledge, PSN: psn})
	}
	for _, reserved := range []roce.Syndrome{0x40, 0x5F, 0x64, 0x7F, 0x80, 0xFF} {
		p.NAK(40, reserved)
	}
	p.ExpectNothing(10 * time.Millisecond)
	end.ExpectNoCompletion()
	require.Equal(t, verbs.StateRTS, end.QP.State())
	require.True(t, bytes.Equal(image, end.MR.Bytes()))
	p.Ack(41, 2)
	end.ExpectSend(1, verbs.WCSuccess)
	end.ExpectSend(2, verbs.WCSuccess)
	p.Ack(41, 2)
	p.NAK(41, roce.SyndromeNAKRemoteOperational)
	p.ExpectNothing(time.Second)
	end.ExpectNoCompletion()
	support.Fault(t, "response to nothing that is in flight", support.Outcome{Requester: "believes nothing"})
}

// TestCase_B18_WrongKind: an answer that can never be that of the request ends the request and the queue pair, when
// what was posted before it is complete.
func TestCase_B18_WrongKind(t *testing.T) {
	for _, c := range []struct {
		request verbs.WROpcode
		wrong   []roce.Opcode
	}{
		{verbs.WRSend, []roce.Opcode{roce.RCReadResponseOnly, roce.RCReadResponseLast, roce.RCAtomicAcknowledge}},
		{verbs.WRRDMAWrite, []roce.Opcode{roce.RCReadResponseOnly, roce.RCAtomicAcknowledge}},
		{verbs.WRRDMARead, []roce.Opcode{roce.RCAtomicAcknowledge}},
		{verbs.WRAtomicFetchAdd, []roce.Opcode{roce.RCReadResponseOnly, roce.RCReadResponseLast}},
		{verbs.WRAtomicCmpAndSwp, []roce.Opcode{roce.RCReadResponseOnly}},
		{verbs.WRFlush, []roce.Opcode{roce.RCAtomicAcknowledge}},
		{verbs.WRAtomicWrite, []roce.Opcode{roce.RCAtomicAcknowledge}},
	} {
		for _, wrong := range c.wrong {
			_, end, p := sender(t)
			image := bytes.Clone(end.MR.Bytes())
			request := end.Request(2, c.request, 64, 8)
			end.Post(end.Request(1, verbs.WRSend, 0, 4), request, end.Request(3, verbs.WRSend, 0, 4))
			p.ExpectPacket(roce.RCSendOnly, 40)
			p.Expect()
			p.Expect()
			if wrong == roce.RCAtomicAcknowledge {
				p.RespondAtomic(41, 0x6666)
			} else {
				p.Respond(wrong, 41, bytes.Repeat([]byte{0x66}, 8))
			}
			p.Ack(40, 1)
			end.ExpectSend(1, verbs.WCSuccess)
			requireNoFit(t, end.QP.Explain(end.ExpectSend(2, verbs.WCBadRespErr)), "bad response")
			end.ExpectSend(3, verbs.WCWRFlushErr)
			require.Equal(t, verbs.StateError, end.QP.State())
			require.True(t, bytes.Equal(image, end.MR.Bytes()))
		}
	}
}

// TestCase_B18_DuplicateResponse: a READ response that comes again, when the memory is somebody else's.
func TestCase_B18_DuplicateResponse(t *testing.T) {
	_, end, p := sender(t)
	end.Post(end.Request(1, verbs.WRRDMARead, 0, 2048), end.Request(2, verbs.WRRDMARead, 4096, 1024))
	p.ExpectPacket(roce.RCReadRequest, 40)
	p.ExpectPacket(roce.RCReadRequest, 42)
	piece := func(b byte) []byte { return bytes.Repeat([]byte{b}, 1024) }
	p.Respond(roce.RCReadResponseFirst, 40, piece(1))
	p.Respond(roce.RCReadResponseFirst, 40, piece(9))
	p.Respond(roce.RCReadResponseLast, 41, piece(2))
	end.ExpectSend(1, verbs.WCSuccess)
	require.Equal(t, append(piece(1), piece(2)...), end.Bytes(0, 2048))
	p.Respond(roce.RCReadResponseFirst, 40, piece(9))
	p.Respond(roce.RCReadResponseLast, 41, piece(9))
	p.Ack(41, 2)
	p.ExpectNothing(time.Millisecond)
	require.Equal(t, append(piece(1), piece(2)...), end.Bytes(0, 2048))
	p.Respond(roce.RCReadResponseOnly, 42, piece(3))
	end.ExpectSend(2, verbs.WCSuccess)
	p.ExpectNothing(time.Second)
	support.Fault(t, "READ response that comes twice", support.Outcome{Requester: "writes it once"})
}

// requireNoFit says that an explanation of an answer that does not fit does not say that there was none, too.
func requireNoFit(t *testing.T, text, status string) {
	t.Helper()
	require.Contains(t, text, status)
	require.Contains(t, text, "the answer does not fit the request")
	require.NotContains(t, text, "no answer")
}

// TestReadResponseLength: a response of the wrong length is a local length error; what was asked for and nothing else
// may be written.
func TestReadResponseLength(t *testing.T) {
	const P = 1024
	for name, c := range map[string]struct {
		steps []step
	}{
		"only short":  {[]step{{roce.RCReadResponseOnly, 8}}},
		"first short": {[]step{{roce.RCReadResponseFirst, 256}}},
		"last short":  {[]step{{roce.RCReadResponseFirst, P}, {roce.RCReadResponseLast, 99}}},
		"last long":   {[]step{{roce.RCReadResponseFirst, P}, {roce.RCReadResponseLast, 101}}},
		"last full":   {[]step{{roce.RCReadResponseFirst, P}, {roce.RCReadResponseLast, P}}},
		"middle last": {[]step{{roce.RCReadResponseFirst, P}, {roce.RCReadResponseMiddle, P}}},
	} {
		t.Run(name, func(t *testing.T) {
			_, end, p := sender(t)
			end.Post(end.Request(1, verbs.WRRDMARead, 64, P+100), end.Request(2, verbs.WRSend, 0, 0))
			p.ExpectPacket(roce.RCReadRequest, 40)
			p.ExpectPacket(roce.RCSendOnly, 42)
			behind := bytes.Clone(end.MR.Bytes()[64+P+100:])
			for i, s := range c.steps {
				p.Respond(s.opcode, 40+roce.PSN(i), make([]byte, s.length))
			}
			requireNoFit(t, end.QP.Explain(end.ExpectSend(1, verbs.WCLocLenErr)), "local length error")
			end.ExpectSend(2, verbs.WCWRFlushErr)
			require.True(t, bytes.Equal(behind, end.MR.Bytes()[64+P+100:]))
			p.ExpectNothing(time.Second)
		})
	}
	support.Fault(t, "READ response of the wrong length", support.Outcome{Requester: verbs.WCLocLenErr})
}

// TestReadResponseMalformed: a response whose form is impossible whatever was asked for is dropped like any packet that
// cannot be taken apart, and the READ goes on.
func TestReadResponseMalformed(t *testing.T) {
	_, end, p := sender(t)
	end.Post(end.Request(1, verbs.WRRDMARead, 0, 1028))
	p.ExpectPacket(roce.RCReadRequest, 40)
	data := bytes.Repeat([]byte{7}, 1024)
	p.Respond(roce.RCReadResponseFirst, 40, data[:1000])                                                                          // no path MTU
	p.Send(puppet.Packet{Opcode: roce.RCReadResponseFirst, PSN: 40, Payload: data, Wrong: puppet.Wrong{PadCount: new(uint8(3))}}) // pad
	p.Respond(roce.RCReadResponseLast, 40, nil)
	p.ExpectNothing(time.Millisecond)
	require.Equal(t, map[string]uint64{"payload_length_bad": 3}, drops(end))
	p.Respond(roce.RCReadResponseFirst, 40, data)
	p.Respond(roce.RCReadResponseLast, 41, data[:4])
	end.ExpectSend(1, verbs.WCSuccess)
	require.Equal(t, append(data, 7, 7, 7, 7), end.Bytes(0, 1028))
	support.Fault(t, "READ response of impossible form", support.Outcome{Requester: "drops it and goes on"})
}

// TestFatalNAK: what was sent before the refused request is complete, the refused one fails, what is behind it is
// flushed.
func TestFatalNAK(t *testing.T) {
	for syndrome, status := range map[roce.Syndrome]verbs.WCStatus{
		roce.SyndromeNAKInvalidRequest:    verbs.WCRemInvReqErr,
		roce.SyndromeNAKRemoteAccess:      verbs.WCRemAccessErr,
		roce.SyndromeNAKRemoteOperational: verbs.WCRemOpErr,
	} {
		t.Run(syndrome.String(), func(t *testing.T) {
			_, end, p := sender(t)
			end.PostRecv(9, 0, 4)
			end.Post(end.Request(1, verbs.WRSend, 0, 4), end.Request(2, verbs.WRRDMAWrite, 0, 2048),
				end.Request(3, verbs.WRSend, 0, 4))
			for range 4 {
				p.Expect()
			}
			p.NAK(42, syndrome) // the last packet of the WRITE
			end.ExpectSend(1, verbs.WCSuccess)
			wc := end.ExpectSend(2, status)
			require.Equal(t, roce.PSN(42), wc.PSN)
			require.Equal(t, syndrome, wc.Syndrome)
			end.ExpectSend(3, verbs.WCWRFlushErr)
			end.ExpectRecv(9, verbs.WCWRFlushErr)
			require.Equal(t, verbs.StateError, end.QP.State())
			p.ExpectNothing(time.Minute)
			support.Fault(t, "answer: "+syndrome.String(), support.Outcome{Requester: status})
		})
	}
}

// TestFatalNAKBehindRead: the NAK of a later request does not complete a READ whose response was lost.
func TestFatalNAKBehindRead(t *testing.T) {
	_, end, p := sender(t)
	end.Post(end.Request(1, verbs.WRRDMARead, 0, 4), end.Request(2, verbs.WRSend, 0, 4))
	p.ExpectPacket(roce.RCReadRequest, 40)
	p.ExpectPacket(roce.RCSendOnly, 41)
	p.NAK(41, roce.SyndromeNAKInvalidRequest)
	p.ExpectPacket(roce.RCReadRequest, 40)
	p.ExpectPacket(roce.RCSendOnly, 41)
	end.ExpectNoCompletion()
	p.Respond(roce.RCReadResponseOnly, 40, []byte("rose"))
	p.NAK(41, roce.SyndromeNAKInvalidRequest)
	end.ExpectSend(1, verbs.WCSuccess)
	end.ExpectSend(2, verbs.WCRemInvReqErr)
}

// TestReadImpliesAck: a READ response acknowledges what was sent before it.
func TestReadImpliesAck(t *testing.T) {
	_, end, p := sender(t)
	end.Post(end.Request(1, verbs.WRSend, 0, 4), end.Request(2, verbs.WRRDMAWrite, 0, 4),
		end.Request(3, verbs.WRRDMARead, 0, 2048))
	for range 3 {
		p.Expect()
	}
	p.Respond(roce.RCReadResponseFirst, 42, make([]byte, 1024))
	end.ExpectSend(1, verbs.WCSuccess)
	end.ExpectSend(2, verbs.WCSuccess)
	end.ExpectNoCompletion()
	p.Respond(roce.RCReadResponseLast, 43, make([]byte, 1024))
	end.ExpectSend(3, verbs.WCSuccess)
}

// TestMaxRDAtomic: no more READs are in flight than were agreed on; what is behind them waits its turn.
func TestMaxRDAtomic(t *testing.T) {
	for _, limit := range []int{1, 2, 5} {
		t.Run(fmt.Sprint(limit), func(t *testing.T) {
			_, end, p := sender(t, func(a *verbs.QPAttr) { a.MaxRDAtomic = uint8(limit) })
			for id := range uint64(7) {
				end.Post(end.Request(id, verbs.WRRDMARead, 0, 4))
			}
			end.Post(end.Request(7, verbs.WRSend, 0, 4))
			for i := range limit {
				p.ExpectPacket(roce.RCReadRequest, 40+roce.PSN(i))
			}
			for i := range 7 {
				p.ExpectNothing(time.Millisecond)
				p.Respond(roce.RCReadResponseOnly, 40+roce.PSN(i), []byte("rose"))
				if i+limit < 7 {
					p.ExpectPacket(roce.RCReadRequest, 40+roce.PSN(i+limit))
				}
				if i+limit == 6 {
					p.ExpectPacket(roce.RCSendOnly, 47)
				}
			}
			p.Ack(47, 8)
			for id := range uint64(8) {
				end.ExpectSend(id, verbs.WCSuccess)
			}
		})
	}
}

// TestMaxRDAtomicZero: without the right to READ a request fails at once, and alone.
func TestMaxRDAtomicZero(t *testing.T) {
	_, end, p := sender(t, func(a *verbs.QPAttr) { a.MaxRDAtomic = 0 })
	end.Post(end.Request(1, verbs.WRSend, 0, 4), end.Request(2, verbs.WRRDMARead, 0, 4))
	p.ExpectPacket(roce.RCSendOnly, 40)
	p.Ack(40, 1)
	end.ExpectSend(1, verbs.WCSuccess)
	end.ExpectSend(2, verbs.WCLocQPOpErr)
	p.ExpectNothing(time.Second)
	support.Fault(t, verbs.WRRDMARead.String()+" with MAX_QP_RD_ATOMIC 0", support.Outcome{Requester: verbs.WCLocQPOpErr})
}

// TestWindow: no more frames are in flight than the window has room for, READ responses included; every
// acknowledgement makes room.
func TestWindow(t *testing.T) {
	for _, window := range []int{1, 2, 7, 20} {
		for _, operation := range []verbs.WROpcode{verbs.WRRDMAWrite, verbs.WRSend, verbs.WRRDMARead} {
			t.Run(fmt.Sprintf("%v window %d", operation, window), func(t *testing.T) {
				stage := puppet.NewStage(t, mem.Options{})
				end := stage.NewEnd(puppet.EndOptions{Window: window})
				p := stage.NewPuppet()
				p.Connect(end)
				const packets = 50
				end.Post(end.Request(1, operation, 0, packets*1024))
				for una := 0; una < packets; {
					sent, asked := una, false
					for stage.Run(time.Millisecond, p.Waiting) {
						a := p.Expect()
						require.Equal(t, 40+roce.PSN(sent), a.PSN)
						asked = a.BTH.AckRequest()
						if h := a.RETH(); operation == verbs.WRRDMARead {
							sent += int(h.Length()+1023) / 1024
						} else {
							sent++
						}
					}
					require.LessOrEqual(t, sent-una, window)
					require.Greater(t, sent, una, "stalled")
					require.True(t, asked, "nothing more may be sent, and no answer was asked for")
					if operation != verbs.WRRDMARead {
						una = sent
						p.Ack(40+roce.PSN(una-1), 0)
						continue
					}
					for ; una < sent; una++ {
						p.Respond(roce.RCReadResponseMiddle, 40+roce.PSN(una), make([]byte, 1024))
					}
				}
				end.ExpectSend(1, verbs.WCSuccess)
			})
		}
	}
}

// TestReadBrokenOff: a responder whose region goes away in the middle of a READ says so with the PSN of the response
// that it could not send or, like rdma_rxe, with the first PSN of the request.
func TestReadBrokenOff(t *testing.T) {
	for _, psn := range []roce.PSN{42, 41, 40} { // 42: the response before it was lost
		_, end, p := sender(t)
		end.Post(end.Request(1, verbs.WRRDMARead, 0, 3072), end.Request(2, verbs.WRRDMAWrite, 0, 4))
		p.ExpectPacket(roce.RCReadRequest, 40)
		p.ExpectPacket(roce.RCWriteOnly, 43)
		p.Respond(roce.RCReadResponseFirst, 40, make([]byte, 1024))
		p.NAK(39, roce.SyndromeNAKRemoteAccess) // of nothing that is open
		end.ExpectNoCompletion()
		p.NAK(psn, roce.SyndromeNAKRemoteAccess)
		end.ExpectSend(1, verbs.WCRemAccessErr)
		end.ExpectSend(2, verbs.WCWRFlushErr)
	}
	support.Fault(t, "region deregistered during a READ", support.Outcome{Requester: verbs.WCRemAccessErr})
}
