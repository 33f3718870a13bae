package puppet_test

import (
	"bytes"
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

// What a responder answers, and what it does not.

// send makes a SEND of one packet that asks for an acknowledgement.
func send(psn roce.PSN, payload string) puppet.Packet {
	return puppet.Packet{Opcode: roce.RCSendOnly, PSN: psn, Payload: []byte(payload), AckRequest: true}
}

// read makes a READ of length bytes at offset.
func read(end *puppet.End, psn roce.PSN, offset, length int) puppet.Packet {
	return puppet.Packet{Opcode: roce.RCReadRequest, PSN: psn, RETH: end.RETH(offset, length), AckRequest: true}
}

// expectRead waits for the responses to a READ of length bytes at offset, first one FIRST or ONLY.
func expectRead(p *puppet.Puppet, end *puppet.End, psn roce.PSN, msn uint32, offset, length int) {
	count := max(1, (length+1023)/1024)
	for i := range count {
		opcode := roce.RCReadResponseMiddle
		switch {
		case count == 1:
			opcode = roce.RCReadResponseOnly
		case i == 0:
			opcode = roce.RCReadResponseFirst
		case i == count-1:
			opcode = roce.RCReadResponseLast
		}
		a := p.ExpectPacket(opcode, psn.Add(uint32(i))).Carries(end.Bytes(offset+1024*i, min(1024, length-1024*i)))
		if opcode != roce.RCReadResponseMiddle {
			a.Says(roce.SyndromeAckNoCredits, msn)
		}
	}
}

// TestOneNAK: a gap is answered with one NAK until the expected packet arrives. Duplicates are answered meanwhile.
func TestOneNAK(t *testing.T) {
	_, end, p := sender(t)
	p.Send(write(end, 100))
	p.ExpectAck(100, 1)
	for round := range 3 {
		next := roce.PSN(101 + round)
		p.Send(write(end, next+1))
		p.ExpectNAK(next, roce.SyndromeNAKSequence).Says(roce.SyndromeNAKSequence, uint32(1+round))
		for _, ahead := range []uint32{1, 2, 5, 1000, 1 << 22, 1<<23 - 1} {
			p.Send(write(end, next.Add(ahead)))
		}
		p.ExpectNothing(time.Second)
		p.Send(write(end, next-1))
		p.ExpectAck(next-1, uint32(1+round))
		p.Send(write(end, next+3))
		p.ExpectNothing(time.Second)
		p.Send(write(end, next))
		p.ExpectAck(next, uint32(2+round))
	}
	require.Equal(t, uint64(3), opener.Counters(end.Device).Transport.SentSequenceNAKs)
	support.Fault(t, "packet lost, others follow",
		support.Outcome{Wire: roce.SyndromeNAKSequence, Responder: "drops what is behind the gap"})
}

// TestOneNAKInABurst: the packets behind a gap arrive in one batch.
func TestOneNAKInABurst(t *testing.T) {
	_, end, p := sender(t)
	for psn := roce.PSN(101); psn < 130; psn++ {
		p.Send(write(end, psn))
	}
	p.ExpectNAK(100, roce.SyndromeNAKSequence)
	p.ExpectNothing(time.Second)
	for psn := roce.PSN(100); psn < 130; psn++ {
		p.Send(write(end, psn))
	}
	p.ExpectAck(129, 30)
	support.Fault(t, "packet lost, others follow", support.Outcome{Wire: roce.SyndromeNAKSequence})
}

// TestRNRNAK: without a receive the request is refused with the queue pair's timer code, and what is behind it is
// dropped without a further NAK, until the refused one comes again.
func TestRNRNAK(t *testing.T) {
	for _, opcode := range []roce.Opcode{roce.RCSendOnly, roce.RCSendOnlyImmediate, roce.RCWriteOnlyImmediate} {
		for _, code := range []uint8{0, 1, 12, 31} {
			t.Run(fmt.Sprintf("%v code %d", opcode, code), func(t *testing.T) {
				_, end, p := sender(t, func(a *verbs.QPAttr) { a.MinRNRTimer = code })
				packet := send(101, "rose")
				packet.Opcode, packet.RETH, packet.Immediate = opcode, end.RETH(0, 4), 7
				image := bytes.Clone(end.MR.Bytes())
				p.Send(write(end, 100))
				p.ExpectAck(100, 1)
				copy(image, "rose")
				for range 3 {
					p.Send(packet)
					p.ExpectNAK(101, roce.RNRNAK(code)).Says(roce.RNRNAK(code), 1)
					p.Send(send(102, "lily"), write(end, 103), read(end, 104, 0, 4))
					p.ExpectNothing(time.Second)
				}
				require.Equal(t, verbs.StateRTS, end.QP.State())
				require.Equal(t, image, end.MR.Bytes())
				end.PostRecv(1, 4096, 4)
				p.Send(packet)
				p.ExpectAck(101, 2)
				end.ExpectRecv(1, verbs.WCSuccess)
				p.Send(send(102, "lily"))
				p.ExpectNAK(102, roce.RNRNAK(code))
			})
		}
	}
	support.Fault(t, "no receive is posted", support.Outcome{Wire: "RNR NAK", Responder: verbs.StateRTS})
}

// TestRNRNAKLast: a WRITE with immediate data takes its receive with the last packet; the data before that is there.
func TestRNRNAKLast(t *testing.T) {
	_, end, p := sender(t)
	data := bytes.Repeat([]byte{0x77}, 1024)
	p.Send(
		puppet.Packet{Opcode: roce.RCWriteFirst, PSN: 100, RETH: end.RETH(0, 1028), Payload: data},
		puppet.Packet{Opcode: roce.RCWriteLastImmediate, PSN: 101, Payload: []byte("rose"), Immediate: 9, AckRequest: true},
	)
	p.ExpectNAK(101, roce.RNRNAK(12)).Says(roce.RNRNAK(12), 0)
	require.Equal(t, data, end.Bytes(0, 1024))
	require.NotEqual(t, "rose", string(end.Bytes(1024, 4)))
	end.PostRecv(1, 4096, 0)
	p.Send(puppet.Packet{Opcode: roce.RCWriteLastImmediate, PSN: 101, Payload: []byte("rose"), Immediate: 9, AckRequest: true})
	p.ExpectAck(101, 1)
	require.Equal(t, "rose", string(end.Bytes(1024, 4)))
	wc := end.ExpectRecv(1, verbs.WCSuccess)
	require.Equal(t, uint32(1028), wc.ByteLen)
	require.Equal(t, uint32(9), wc.ImmData)
}

// TestDuplicates: a duplicate is acknowledged with the last SEND or WRITE that was executed, not with its own PSN,
// and never with the PSN of a READ whose responses may be lost. It changes nothing, and never causes a NAK.
func TestDuplicates(t *testing.T) {
	_, end, p := sender(t)
	end.PostRecv(1, 4096, 64)
	end.PostRecv(2, 8192, 64)
	p.Send(write(end, 100))
	p.ExpectAck(100, 1)
	p.Send(send(101, "rose"))
	p.ExpectAck(101, 2)
	end.ExpectRecv(1, verbs.WCSuccess)
	mark := func() { copy(end.Bytes(0, 4), "own!"); copy(end.Bytes(4096, 4), "own!") }
	check := func() {
		require.Equal(t, "own!", string(end.Bytes(0, 4)))
		require.Equal(t, "own!", string(end.Bytes(4096, 4)))
		end.ExpectNoCompletion()
		require.Equal(t, verbs.StateRTS, end.QP.State())
	}
	mark()
	strange := write(end, 100)
	strange.RETH.RKey++
	strange.Payload = make([]byte, 2000)
	for _, packet := range []puppet.Packet{write(end, 100), send(101, "lily"), send(100, "rose"), strange} {
		p.Send(packet)
		p.ExpectAck(101, 2)
		check()
	}
	p.Send(read(end, 102, 16, 2000)) // 102 and 103
	expectRead(p, end, 102, 3, 16, 2000)
	for _, packet := range []puppet.Packet{write(end, 100), send(101, "lily"), write(end, 103)} {
		p.Send(packet)
		p.ExpectAck(101, 3)
		check()
	}
	p.Send(send(104, "lily"))
	p.ExpectAck(104, 4)
	end.ExpectRecv(2, verbs.WCSuccess)
	p.Send(write(end, 100))
	p.ExpectAck(104, 4)
	check()
	// The farthest duplicate there can be, and the one beyond, which lies ahead.
	p.Send(write(end, roce.PSN(105).Sub(1<<23-1)))
	p.ExpectAck(104, 4)
	p.Send(write(end, roce.PSN(105).Add(1<<23-1)))
	p.ExpectNAK(105, roce.SyndromeNAKSequence)
	check()
	support.Fault(t, "duplicate of a SEND or WRITE", support.Outcome{Wire: "ACK of the last one that was executed", Responder: "executes nothing twice"})
}

// TestDuplicateBeforeAnyWrite: there is no PSN that a duplicate could be acknowledged with.
func TestDuplicateBeforeAnyWrite(t *testing.T) {
	_, end, p := sender(t)
	p.Send(write(end, 99))
	p.ExpectNothing(time.Second)
	p.Send(read(end, 100, 0, 8))
	expectRead(p, end, 100, 1, 0, 8)
	p.Send(write(end, 100))
	p.ExpectNothing(time.Second)
	p.Send(write(end, 101))
	p.ExpectAck(101, 2)
}

// TestDuplicatesInsideAMessage: duplicates of anything leave a message that has half arrived alone.
func TestDuplicatesInsideAMessage(t *testing.T) {
	_, end, p := sender(t)
	end.PostRecv(1, 16384, 4096)
	half := bytes.Repeat([]byte{1}, 1024)
	p.Send(read(end, 100, 0, 1500)) // 100 and 101
	expectRead(p, end, 100, 1, 0, 1500)
	p.Send(write(end, 102))
	p.ExpectAck(102, 2)
	p.Send(puppet.Packet{Opcode: roce.RCSendFirst, PSN: 103, Payload: half, AckRequest: true})
	p.ExpectAck(103, 2)
	p.Send(read(end, 101, 1024, 476))
	expectRead(p, end, 101, 2, 1024, 476)
	p.Send(write(end, 102))
	p.ExpectAck(103, 2)
	p.Send(puppet.Packet{Opcode: roce.RCSendFirst, PSN: 103, Payload: half, AckRequest: true})
	p.ExpectAck(103, 2)
	p.Send(puppet.Packet{Opcode: roce.RCSendLast, PSN: 104, Payload: half, AckRequest: true})
	p.ExpectAck(104, 3)
	require.Equal(t, uint32(2048), end.ExpectRecv(1, verbs.WCSuccess).ByteLen)
	require.Equal(t, bytes.Repeat([]byte{1}, 2048), end.Bytes(16384, 2048))
}

// TestDuplicateReads: what was read may be asked for again, in whole or from any packet on, and comes with the bytes
// of now. Anything else is dropped without a word.
func TestDuplicateReads(t *testing.T) {
	_, end, p := sender(t, func(a *verbs.QPAttr) { a.MaxDestRDAtomic = 2 })
	const length = 4000 // PSNs 100 to 103
	p.Send(read(end, 100, 64, length))
	expectRead(p, end, 100, 1, 64, length)
	for round := range byte(3) {
		end.MR.Bytes()[64] = round
		end.MR.Bytes()[3000] = round
		for i := range 4 {
			p.Send(read(end, 100+roce.PSN(i), 64+1024*i, length-1024*i))
			expectRead(p, end, 100+roce.PSN(i), 1, 64+1024*i, length-1024*i)
		}
		p.Send(read(end, 101, 64+1024, 1024)) // a part of the rest
		expectRead(p, end, 101, 1, 64+1024, 1024)
	}
	for name, change := range map[string]func(*puppet.Packet){
		"address":           func(r *puppet.Packet) { r.RETH.VA++ },
		"other packet's":    func(r *puppet.Packet) { r.RETH.VA -= 1024 },
		"key":               func(r *puppet.Packet) { r.RETH.RKey ^= 1 },
		"longer":            func(r *puppet.Packet) { r.RETH.Length++ },
		"longer by packets": func(r *puppet.Packet) { r.RETH.Length += 4096 },
		"2^32 - 1":          func(r *puppet.Packet) { r.RETH.Length = 1<<32 - 1 },
		"payload":           func(r *puppet.Packet) { r.Payload = []byte("rose") },
		"PSN":               func(r *puppet.Packet) { r.PSN++ },
		"PSN before it":     func(r *puppet.Packet) { r.PSN = 99 },
	} {
		packet := read(end, 101, 64+1024, length-1024)
		change(&packet)
		p.Send(packet)
		p.ExpectNothing(time.Millisecond)
		require.Equal(t, verbs.StateRTS, end.QP.State(), name)
	}
	require.Equal(t, map[string]uint64{"duplicate_unanswerable": 9}, drops(end))
	// The ring remembers as many READs as the peer may have in flight.
	p.Send(read(end, 104, 0, 8))
	expectRead(p, end, 104, 2, 0, 8)
	p.Send(read(end, 103, 64+3072, length-3072))
	expectRead(p, end, 103, 2, 64+3072, length-3072)
	p.Send(read(end, 105, 0, 8))
	expectRead(p, end, 105, 3, 0, 8)
	p.Send(read(end, 103, 64+3072, length-3072))
	p.ExpectNothing(time.Millisecond)
	p.Send(read(end, 104, 0, 8))
	expectRead(p, end, 104, 3, 0, 8)
	support.Fault(t, "duplicate of a READ", support.Outcome{Wire: "responses, with the bytes of now"})
	support.Fault(t, "duplicate of a READ, for something else", support.Outcome{Wire: "nothing", Responder: roce.DropDuplicateUnanswerable})
}

// TestReadsInFlight: the peer gets as many READs as it was granted; one more is an invalid request, behind the
// responses of those before it.
func TestReadsInFlight(t *testing.T) {
	for _, granted := range []int{0, 1, 2, 4} {
		t.Run(fmt.Sprintf("%d granted", granted), func(t *testing.T) {
			_, end, p := sender(t, func(a *verbs.QPAttr) { a.MaxDestRDAtomic = uint8(granted) })
			const length = 40 << 10 // more packets than leave in one turn
			var packets []puppet.Packet
			for i := range granted + 1 {
				packets = append(packets, read(end, 100+roce.PSN(40*i), 1024*i, length))
			}
			packets = append(packets, write(end, 100+roce.PSN(40*(granted+1))))
			p.Send(packets...)
			for i := range granted {
				a := p.ExpectPacket(roce.RCReadResponseFirst, 100+roce.PSN(40*i)).Carries(end.Bytes(1024*i, 1024))
				require.Equal(t, uint32(granted), a.AETH().MSN(), "a READ counts when it is accepted")
				for j := 1; j < 39; j++ {
					p.ExpectPacket(roce.RCReadResponseMiddle, 100+roce.PSN(40*i+j)).Carries(end.Bytes(1024*(i+j), 1024))
				}
				p.ExpectPacket(roce.RCReadResponseLast, 100+roce.PSN(40*i+39)).Carries(end.Bytes(1024*(i+39), 1024))
			}
			p.ExpectNAK(100+roce.PSN(40*granted), roce.SyndromeNAKInvalidRequest)
			require.Equal(t, verbs.StateError, end.QP.State())
			p.ExpectNothing(time.Second)
		})
	}
	support.Fault(t, "more READs in flight than granted", support.Outcome{Wire: roce.SyndromeNAKInvalidRequest, Responder: verbs.StateError})
}

// TestReadsInTurn: READs that are answered give their place back.
func TestReadsInTurn(t *testing.T) {
	_, end, p := sender(t, func(a *verbs.QPAttr) { a.MaxDestRDAtomic = 1 })
	for i := range uint32(20) {
		p.Send(read(end, 100+roce.PSN(i), 0, 16))
		expectRead(p, end, 100+roce.PSN(i), 1+i, 0, 16)
	}
}

// TestOrderOfAnswers: an acknowledgement does not overtake the response of a READ before it.
func TestOrderOfAnswers(t *testing.T) {
	_, end, p := sender(t)
	p.Send(write(end, 100), read(end, 101, 4096, 50<<10), write(end, 151), read(end, 152, 0, 16), write(end, 153))
	for psn := roce.PSN(101); psn < 151; psn++ {
		require.Equal(t, psn, p.Expect().PSN)
	}
	expectRead(p, end, 152, 5, 0, 16)
	p.ExpectAck(153, 5)
	p.ExpectNothing(time.Second)
}

// TestMSN: the message sequence number counts messages, once each.
func TestMSN(t *testing.T) {
	_, end, p := sender(t)
	for id := range uint64(3) {
		end.PostRecv(id, 4096, 4096)
	}
	full := make([]byte, 1024)
	p.Send(puppet.Packet{Opcode: roce.RCSendFirst, PSN: 100, Payload: full, AckRequest: true})
	p.ExpectAck(100, 0)
	p.Send(puppet.Packet{Opcode: roce.RCSendMiddle, PSN: 101, Payload: full, AckRequest: true})
	p.ExpectAck(101, 0)
	p.Send(puppet.Packet{Opcode: roce.RCSendLast, PSN: 102, Payload: full, AckRequest: true})
	p.ExpectAck(102, 1)
	p.Send(puppet.Packet{Opcode: roce.RCWriteFirst, PSN: 103, Payload: full, RETH: end.RETH(0, 2048), AckRequest: true})
	p.ExpectAck(103, 1)
	p.Send(puppet.Packet{Opcode: roce.RCWriteLast, PSN: 104, Payload: full, AckRequest: true})
	p.ExpectAck(104, 2)
	p.Send(puppet.Packet{Opcode: roce.RCWriteLast, PSN: 104, Payload: full, AckRequest: true}) // again
	p.ExpectAck(104, 2)
	p.Send(puppet.Packet{Opcode: roce.RCWriteOnly, PSN: 105, AckRequest: true}) // of length 0
	p.ExpectAck(105, 3)
	p.Send(send(106, ""))
	p.ExpectAck(106, 4)
	p.Send(read(end, 107, 0, 3000)) // 107 to 109
	expectRead(p, end, 107, 5, 0, 3000)
	p.Send(read(end, 108, 1024, 1976)) // again
	expectRead(p, end, 108, 5, 1024, 1976)
	p.Send(puppet.Packet{
		Opcode: roce.RCWriteOnlyImmediate, PSN: 110, Payload: []byte("rose"), RETH: end.RETH(0, 4), AckRequest: true,
	})
	p.ExpectAck(110, 6)
	// Without bit A there is no answer, but it counts.
	quiet := write(end, 111)
	quiet.AckRequest = false
	p.Send(quiet)
	p.ExpectNothing(time.Second)
	p.Send(write(end, 112))
	p.ExpectAck(112, 8)
}

// TestHeaderBits: a packet with bit SE, without bit M, or of a limited member of the partition is as good as any.
func TestHeaderBits(t *testing.T) {
	_, end, p := sender(t)
	end.PostRecv(1, 4096, 4)
	packet := send(100, "rose")
	packet.Solicited = true
	packet.Wrong = puppet.Wrong{NoMigReq: true, PKey: new(uint16(0x7FFF))}
	p.Send(packet)
	p.ExpectAck(100, 1)
	end.ExpectRecv(1, verbs.WCSuccess)
}

// TestReadyToReceive: in RTR requests are served, and responses mean nothing.
func TestReadyToReceive(t *testing.T) {
	stage := puppet.NewStage(t, mem.Options{})
	end := stage.NewEnd(puppet.EndOptions{})
	p := stage.NewPuppet()
	p.Connect(end)
	attr := end.QP.Query()
	require.NoError(t, end.QP.Modify(t.Context(), verbs.QPAttr{State: verbs.StateReset}, verbs.QPStateMask))
	p.Send(write(end, 100))
	p.ExpectNothing(time.Second)
	attr.State = verbs.StateInit
	require.NoError(t, end.QP.Modify(t.Context(), attr, verbs.QPStateMask|verbs.QPPKeyIndex|verbs.QPPort|verbs.QPAccessFlags))
	p.Send(write(end, 100))
	p.ExpectNothing(time.Second)
	attr.State = verbs.StateRTR
	require.NoError(t, end.QP.Modify(t.Context(), attr,
		verbs.QPStateMask|verbs.QPAV|verbs.QPPathMTU|verbs.QPDestQPN|verbs.QPRQPSN|verbs.QPMaxDestRDAtomic|verbs.QPMinRNRTimer))
	p.Send(write(end, 100))
	p.ExpectAck(100, 1)
	require.Equal(t, []verbs.AsyncEvent{{Type: verbs.EventCommEst, QP: end.QP}}, events(end))
	p.Ack(40, 1)
	p.NAK(40, roce.SyndromeNAKRemoteAccess)
	p.Send(read(end, 101, 0, 8))
	expectRead(p, end, 101, 2, 0, 8)
	require.Equal(t, verbs.StateRTR, end.QP.State())
	require.Equal(t, map[string]uint64{"qp_state": 4}, drops(end))
	require.Empty(t, events(end))
	support.Object(t, "Event", verbs.EventCommEst.String(), "first request that comes in RTR, once")
	support.Fault(t, "packet before RTR, or response before RTS", support.Outcome{Wire: "nothing", Responder: roce.DropQPState})
}

// TestOrderChangedOnTheWay: the missing packet arrives before the NAK for it has left. What came too early was
// dropped, so the NAK is for that: otherwise only a timeout would tell.
func TestOrderChangedOnTheWay(t *testing.T) {
	stage := puppet.NewStage(t, mem.Options{})
	end := stage.NewEnd(puppet.EndOptions{})
	p := stage.NewPuppet()
	p.Connect(end)
	packet := func(psn roce.PSN) puppet.Packet {
		return puppet.Packet{
			Opcode: roce.RCWriteOnly, PSN: psn, RETH: end.RETH(4*int(psn-100), 4), Payload: []byte{1, 2, 3, byte(psn)}, AckRequest: true,
		}
	}
	behind := bytes.Clone(end.Bytes(4, 4))
	p.Send(packet(101), packet(100))
	p.ExpectNAK(101, roce.SyndromeNAKSequence)
	require.Equal(t, []byte{1, 2, 3, 100}, end.Bytes(0, 4))
	require.Equal(t, behind, end.Bytes(4, 4))
	p.Send(packet(101))
	p.ExpectAck(101, 2)

	// A duplicate of what is there already does not make a NAK for what was never sent.
	p.Send(packet(103), packet(102), packet(103))
	p.ExpectAck(103, 4)
	p.ExpectNothing(time.Second)
	support.Fault(t, "order of packets changed on the way", support.Outcome{Wire: roce.SyndromeNAKSequence})
}
