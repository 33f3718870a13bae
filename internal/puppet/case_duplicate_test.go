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
	"github.com/xroce/xroce/verbs"
)

// Duplicates of requests that have a response of their own. Those of SEND, WRITE and READ are in
// case_responder_test.go.

// fetchAdd makes an atomic on the word at offset word.
func fetchAdd(end *puppet.End, psn roce.PSN, add uint64) puppet.Packet {
	return puppet.Packet{
		Opcode: roce.RCFetchAdd, PSN: psn, AckRequest: true,
		Atomic: roce.AtomicETHFields{VA: end.MR.Addr() + word, RKey: end.MR.RKey(), SwapAdd: add},
	}
}

func compareSwap(end *puppet.End, psn roce.PSN, compare, swap uint64) puppet.Packet {
	packet := fetchAdd(end, psn, swap)
	packet.Opcode, packet.Atomic.Compare = roce.RCCompareSwap, compare
	return packet
}

func atomicWrite(end *puppet.End, psn roce.PSN, payload string) puppet.Packet {
	return puppet.Packet{Opcode: roce.RCAtomicWrite, PSN: psn, AckRequest: true, RETH: end.RETH(word, 8), Payload: []byte(payload)}
}

func flush(end *puppet.End, psn roce.PSN) puppet.Packet {
	return puppet.Packet{
		Opcode: roce.RCFlush, PSN: psn, AckRequest: true, RETH: end.RETH(0, 4096), FETH: roce.FETHFields{Placement: 1},
	}
}

// found waits for the answer to an atomic that found original.
func found(t *testing.T, p *puppet.Puppet, psn roce.PSN, msn uint32, original uint64) {
	t.Helper()
	a := p.ExpectPacket(roce.RCAtomicAcknowledge, psn).Says(roce.SyndromeAckNoCredits, msn)
	require.Equal(t, original, a.AtomicAckETH().Original())
}

// TestDuplicateAtomics: what an atomic found is kept for its duplicates, which are not executed.
func TestDuplicateAtomics(t *testing.T) {
	_, end, p := sender(t)
	storeWord(end, word, 1<<63+5)
	p.Send(fetchAdd(end, 100, 1<<63)) // wraps
	found(t, p, 100, 1, 1<<63+5)
	require.EqualValues(t, 5, loadWord(end, word))
	p.Send(compareSwap(end, 101, 5, 1<<40))
	found(t, p, 101, 2, 5)
	p.Send(compareSwap(end, 102, 5, 7)) // not equal any more
	found(t, p, 102, 3, 1<<40)
	require.EqualValues(t, 1<<40, loadWord(end, word))
	p.Send(write(end, 103))
	p.ExpectAck(103, 4)
	image := bytes.Clone(end.MR.Bytes())
	for range 3 {
		p.Send(fetchAdd(end, 100, 1<<63))
		found(t, p, 100, 4, 1<<63+5)
		p.Send(compareSwap(end, 101, 5, 1<<40))
		found(t, p, 101, 4, 5)
		p.Send(compareSwap(end, 102, 1<<40, 9)) // other operands change nothing
		found(t, p, 102, 4, 1<<40)
	}
	// All at once: each gets its own.
	p.Send(compareSwap(end, 102, 5, 7), fetchAdd(end, 100, 1), compareSwap(end, 101, 5, 7), write(end, 103))
	found(t, p, 100, 4, 1<<63+5)
	found(t, p, 101, 4, 5)
	found(t, p, 102, 4, 1<<40)
	p.ExpectAck(103, 4)
	require.True(t, bytes.Equal(image, end.MR.Bytes()))
	// Another operation is no duplicate.
	none := []puppet.Packet{
		compareSwap(end, 100, 5, 7), fetchAdd(end, 101, 1), read(end, 102, word, 8), atomicWrite(end, 100, "01234567"), flush(end, 101),
		fetchAdd(end, 103, 1), fetchAdd(end, 99, 1), fetchAdd(end, roce.PSN(104).Sub(1<<23-1), 1),
	}
	for _, packet := range none {
		p.Send(packet)
		p.ExpectNothing(time.Millisecond)
	}
	require.Equal(t, map[string]uint64{"duplicate_unanswerable": uint64(len(none))}, drops(end))
	require.True(t, bytes.Equal(image, end.MR.Bytes()))
	require.Equal(t, verbs.StateRTS, end.QP.State())
	for _, opcode := range []roce.Opcode{roce.RCFetchAdd, roce.RCCompareSwap} {
		support.Opcode(t, opcode, support.Received)
		support.Fault(t, fmt.Sprintf("duplicate of %v", opcode), support.Outcome{Wire: "what it found at first", Responder: "executes nothing twice"})
		support.Fault(t, fmt.Sprintf("duplicate of %v, for something else", opcode), support.Outcome{
			Wire: "nothing", Responder: roce.DropDuplicateUnanswerable,
		})
	}
	support.Opcode(t, roce.RCAtomicAcknowledge, support.Sent)
	p.Send(fetchAdd(end, 104, 1))
	found(t, p, 104, 5, 1<<40)
}

// TestDuplicateWriteAndFlush: an atomic write and a FLUSH are acknowledged again, without being executed.
func TestDuplicateWriteAndFlush(t *testing.T) {
	_, end, p := sender(t)
	p.Send(atomicWrite(end, 100, "01234567"), flush(end, 101))
	p.ExpectPacket(roce.RCReadResponseOnly, 100).Says(roce.SyndromeAckNoCredits, 2).Carries(nil)
	p.ExpectPacket(roce.RCReadResponseOnly, 101).Says(roce.SyndromeAckNoCredits, 2).Carries(nil)
	require.Equal(t, "01234567", string(end.Bytes(word, 8)))
	copy(end.Bytes(word, 8), "own data")
	for range 3 {
		p.Send(atomicWrite(end, 100, "76543210"))
		p.ExpectPacket(roce.RCReadResponseOnly, 100).Says(roce.SyndromeAckNoCredits, 2).Carries(nil)
		again := flush(end, 101)
		again.FETH.Placement = 0 // not looked at again
		p.Send(again)
		p.ExpectPacket(roce.RCReadResponseOnly, 101).Says(roce.SyndromeAckNoCredits, 2).Carries(nil)
	}
	require.Equal(t, "own data", string(end.Bytes(word, 8)))
	for _, packet := range []puppet.Packet{flush(end, 100), atomicWrite(end, 101, "76543210"), flush(end, 99)} {
		p.Send(packet)
		p.ExpectNothing(time.Millisecond)
	}
	require.Equal(t, "own data", string(end.Bytes(word, 8)))
	require.Equal(t, verbs.StateRTS, end.QP.State())
	for _, opcode := range []roce.Opcode{roce.RCAtomicWrite, roce.RCFlush} {
		support.Opcode(t, opcode, support.Received)
		support.Fault(t, fmt.Sprintf("duplicate of %v", opcode), support.Outcome{Wire: "empty response", Responder: "executes nothing twice"})
	}
	support.Opcode(t, roce.RCReadResponseOnly, support.Sent)
	p.Send(write(end, 100)) // of SEND and WRITE nothing has been executed that could be acknowledged
	p.ExpectNothing(time.Second)
}

// TestDuplicatesBeyondTheRing: as many are kept as the peer may have in flight, of all kinds together.
func TestDuplicatesBeyondTheRing(t *testing.T) {
	for _, granted := range []uint8{1, 2, 4, 16} {
		_, end, p := sender(t, func(a *verbs.QPAttr) { a.MaxDestRDAtomic = granted })
		const count = 40
		storeWord(end, word, 1000)
		psn := func(i int) roce.PSN { return 100 + roce.PSN(i) }
		for i := range count {
			if i%4 == 3 {
				p.Send(flush(end, psn(i)))
				p.ExpectPacket(roce.RCReadResponseOnly, psn(i))
			} else {
				p.Send(fetchAdd(end, psn(i), 1))
				found(t, p, psn(i), uint32(i+1), uint64(1000+i-(i+1)/4))
			}
			for j := range i + 1 {
				packet := fetchAdd(end, psn(j), 1)
				if j%4 == 3 {
					packet = flush(end, psn(j))
				}
				p.Send(packet)
				switch {
				case j+int(granted) <= i:
					p.ExpectNothing(10 * time.Microsecond)
				case j%4 == 3:
					p.ExpectPacket(roce.RCReadResponseOnly, psn(j))
				default:
					found(t, p, psn(j), uint32(i+1), uint64(1000+j-(j+1)/4))
				}
			}
		}
		require.EqualValues(t, 1000+count-count/4, loadWord(end, word))
	}
	support.Fault(t, "duplicate of what is older than MAX_DEST_RD_ATOMIC requests", support.Outcome{Wire: "nothing"})
}

// TestDuplicateAtomicsInsideAMessage: a message that has half arrived is left alone, and the key of the atomic is not
// needed any more.
func TestDuplicateAtomicsInsideAMessage(t *testing.T) {
	for _, opcodes := range [][]roce.Opcode{
		{roce.RCSendFirst, roce.RCSendMiddle, roce.RCSendLast}, {roce.RCWriteFirst, roce.RCWriteMiddle, roce.RCWriteLastImmediate},
	} {
		_, end, p := sender(t)
		mr, err := end.PD.RegMR(make([]byte, 64), puppet.AllAccess)
		require.NoError(t, err)
		atomic := fetchAdd(end, 100, 3)
		atomic.Atomic.VA, atomic.Atomic.RKey = mr.Addr(), mr.RKey()
		p.Send(atomic)
		found(t, p, 100, 1, 0)
		require.NoError(t, mr.Dereg())
		p.Send(flush(end, 101))
		p.ExpectPacket(roce.RCReadResponseOnly, 101)
		end.PostRecv(1, 16384, 4096)
		for i, opcode := range opcodes {
			packet := anyRequest(end, opcode, 102+roce.PSN(i), 1024, 3072)
			packet.RETH = end.RETH(16384, 3072)
			p.Send(packet)
			msn := uint32(2 + i/2)
			p.ExpectAck(102+roce.PSN(i), msn)
			p.Send(atomic)
			found(t, p, 100, msn, 0)
			p.Send(flush(end, 101))
			p.ExpectPacket(roce.RCReadResponseOnly, 101).Says(roce.SyndromeAckNoCredits, msn)
			p.Send(packet)
			p.ExpectAck(102+roce.PSN(i), msn)
		}
		require.Equal(t, uint32(3072), end.ExpectRecv(1, verbs.WCSuccess).ByteLen)
		require.Equal(t, bytes.Repeat([]byte{0xBD}, 3072), end.Bytes(16384, 3072))
		end.ExpectNoCompletion()
	}
	support.Fault(t, "duplicate of an atomic or FLUSH in the middle of a message", support.Outcome{Wire: "its answer", Responder: "goes on with the message"})
}

// TestDuplicateSendWithInvalidate: the key may be in use again by then.
func TestDuplicateSendWithInvalidate(t *testing.T) {
	_, end, p := sender(t)
	mr := fastRegion(end, 64)
	end.PostRecv(1, 4096, 64)
	end.PostRecv(2, 8192, 64)
	packet := send(100, "rose")
	packet.Opcode, packet.Invalidate = roce.RCSendOnlyInvalidate, mr.RKey()
	p.Send(packet)
	p.ExpectAck(100, 1)
	end.ExpectRecv(1, verbs.WCSuccess)
	wr := mr.RegWR(verbs.AccessLocalWrite | verbs.AccessRemoteWrite)
	wr.WRID, wr.Flags = 5, verbs.SendSignaled
	end.Post(wr)
	end.ExpectSend(5, verbs.WCSuccess)
	for range 3 {
		p.Send(packet)
		p.ExpectAck(100, 1)
	}
	end.ExpectNoCompletion()
	p.Send(access(roce.RCWriteOnly, 101, roce.RETHFields{VA: mr.Addr(), RKey: mr.RKey(), Length: 4}))
	p.ExpectAck(101, 2)
	support.Fault(t, fmt.Sprintf("duplicate of %v", packet.Opcode), support.Outcome{Wire: ack, Responder: "executes nothing twice"})
}

// TestDuplicatesAndNAKs: while a NAK is outstanding duplicates are served, and only the expected packet ends that.
func TestDuplicatesAndNAKs(t *testing.T) {
	for name, refuse := range map[string]func(*puppet.End, *puppet.Puppet) (expected puppet.Packet){
		"sequence": func(end *puppet.End, p *puppet.Puppet) puppet.Packet {
			p.Send(fetchAdd(end, 104, 1))
			p.ExpectNAK(103, roce.SyndromeNAKSequence).Says(roce.SyndromeNAKSequence, 3)
			return fetchAdd(end, 103, 1)
		},
		"RNR": func(end *puppet.End, p *puppet.Puppet) puppet.Packet {
			packet := send(103, "lily")
			p.Send(packet)
			p.ExpectNAK(103, roce.RNRNAK(12)).Says(roce.RNRNAK(12), 3)
			return packet
		},
	} {
		t.Run(name, func(t *testing.T) {
			_, end, p := sender(t)
			storeWord(end, word, 0)
			p.Send(fetchAdd(end, 100, 1))
			found(t, p, 100, 1, 0)
			p.Send(atomicWrite(end, 101, "\x00\x00\x00\x00\x00\x00\x00\x00"))
			p.ExpectPacket(roce.RCReadResponseOnly, 101)
			p.Send(write(end, 102))
			p.ExpectAck(102, 3)
			expected := refuse(end, p)
			for range 3 {
				for _, ahead := range []puppet.Packet{fetchAdd(end, 104, 1), flush(end, 105), atomicWrite(end, 106, "01234567"), read(end, 107, 0, 8)} {
					p.Send(ahead)
					p.ExpectNothing(time.Millisecond)
				}
				p.Send(fetchAdd(end, 100, 1))
				found(t, p, 100, 3, 0)
				p.Send(atomicWrite(end, 101, "01234567"))
				p.ExpectPacket(roce.RCReadResponseOnly, 101).Says(roce.SyndromeAckNoCredits, 3)
				p.Send(write(end, 102))
				p.ExpectAck(102, 3)
			}
			require.Zero(t, loadWord(end, word))
			end.PostRecv(1, 4096, 64)
			p.Send(expected)
			require.Equal(t, roce.PSN(103), p.Expect().Says(roce.SyndromeAckNoCredits, 4).PSN)
			p.Send(fetchAdd(end, 105, 1))
			p.ExpectNAK(104, roce.SyndromeNAKSequence)
		})
	}
	support.Fault(t, "duplicate while a NAK is outstanding", support.Outcome{Wire: "its answer"})
}

// TestDuplicateBehindANAK: a duplicate that comes before the NAK has left does not take its place. The NAK is sent
// once, so otherwise only a timeout would tell.
func TestDuplicateBehindANAK(t *testing.T) {
	_, end, p := sender(t)
	p.Send(write(end, 100))
	p.ExpectAck(100, 1)
	p.Send(write(end, 103), write(end, 100), write(end, 100))
	p.ExpectNAK(101, roce.SyndromeNAKSequence).Says(roce.SyndromeNAKSequence, 1)
	p.ExpectNothing(time.Second)
	p.Send(send(101, "rose"), write(end, 100))
	p.ExpectNAK(101, roce.RNRNAK(12)).Says(roce.RNRNAK(12), 1)
	p.ExpectNothing(time.Second)
	end.PostRecv(1, 4096, 64)
	p.Send(send(101, "rose"), write(end, 100))
	p.ExpectAck(101, 2)
	end.ExpectRecv(1, verbs.WCSuccess)
	p.ExpectNothing(time.Second)
}

// TestDuplicatesInsideAWrite: duplicates, also those with an address, a key and a length of their own, leave a WRITE
// that has half arrived alone.
func TestDuplicatesInsideAWrite(t *testing.T) {
	_, end, p := sender(t)
	storeWord(end, word, 0)
	p.Send(read(end, 100, 0, 1500)) // 100 and 101
	expectRead(p, end, 100, 1, 0, 1500)
	p.Send(fetchAdd(end, 102, 1))
	found(t, p, 102, 2, 0)
	p.Send(write(end, 103))
	p.ExpectAck(103, 3)
	first := puppet.Packet{
		Opcode: roce.RCWriteFirst, PSN: 104, RETH: end.RETH(16384, 3000), Payload: bytes.Repeat([]byte{1}, 1024), AckRequest: true,
	}
	p.Send(first)
	p.ExpectAck(104, 3)
	duplicates := func(last roce.PSN) {
		image := bytes.Clone(end.MR.Bytes())
		p.Send(read(end, 101, 1024, 476))
		expectRead(p, end, 101, 3, 1024, 476)
		p.Send(fetchAdd(end, 102, 1))
		found(t, p, 102, 3, 0)
		for _, packet := range []puppet.Packet{write(end, 103), first} {
			p.Send(packet)
			p.ExpectAck(last, 3)
		}
		require.Equal(t, image, end.MR.Bytes())
	}
	duplicates(104)
	p.Send(puppet.Packet{Opcode: roce.RCWriteMiddle, PSN: 105, Payload: bytes.Repeat([]byte{2}, 1024), AckRequest: true})
	p.ExpectAck(105, 3)
	duplicates(105)
	p.Send(puppet.Packet{Opcode: roce.RCWriteLast, PSN: 106, Payload: bytes.Repeat([]byte{3}, 952), AckRequest: true})
	p.ExpectAck(106, 4)
	require.Equal(t, bytes.Repeat([]byte{1}, 1024), end.Bytes(16384, 1024))
	require.Equal(t, bytes.Repeat([]byte{2}, 1024), end.Bytes(16384+1024, 1024))
	require.Equal(t, bytes.Repeat([]byte{3}, 952), end.Bytes(16384+2048, 952))
}

// TestOrderOfEveryAnswer: responses and acknowledgements leave in the order of the requests; an acknowledgement with
// a response behind it is left out, which says the same.
func TestOrderOfEveryAnswer(t *testing.T) {
	_, end, p := sender(t, func(a *verbs.QPAttr) { a.MaxDestRDAtomic = 16 })
	storeWord(end, word, 0)
	p.Send(
		write(end, 100), fetchAdd(end, 101, 1), write(end, 102), flush(end, 103), read(end, 104, 4096, 2500), // to 106
		fetchAdd(end, 107, 1), write(end, 108), write(end, 109), atomicWrite(end, 110, "01234567"), compareSwap(end, 111, 5, 6), write(end, 112),
	)
	const msn = 11
	found(t, p, 101, msn, 0)
	p.ExpectPacket(roce.RCReadResponseOnly, 103).Says(roce.SyndromeAckNoCredits, msn)
	expectRead(p, end, 104, msn, 4096, 2500)
	found(t, p, 107, msn, 1)
	p.ExpectPacket(roce.RCReadResponseOnly, 110).Says(roce.SyndromeAckNoCredits, msn)
	found(t, p, 111, msn, loadWord(end, word))
	p.ExpectAck(112, msn)
	p.ExpectNothing(time.Second)
	p.Send(write(end, 113), fetchAdd(end, 114, 0))
	found(t, p, 114, msn+2, loadWord(end, word))
	p.ExpectNothing(time.Second)
	// Neither does a NAK overtake.
	bad := write(end, 118)
	bad.RETH.RKey ^= 1
	p.Send(fetchAdd(end, 115, 0), write(end, 116), fetchAdd(end, 117, 0), bad, fetchAdd(end, 119, 1))
	found(t, p, 115, msn+5, loadWord(end, word))
	found(t, p, 117, msn+5, loadWord(end, word))
	p.ExpectNAK(118, refused).Says(refused, msn+5)
	p.ExpectNothing(time.Second)
	support.Object(t, "QP", "answers to requests of all kinds", "in the order of the requests")
}

// TestReplayAndSendWithInvalidate: a peer that was too impatient sends a READ again, gets the response to the first
// one and takes the key back. When both come at once the key has gone before the response is made again, which nobody
// waits for.
func TestReplayAndSendWithInvalidate(t *testing.T) {
	_, end, p := sender(t)
	mr := fastRegion(end, 64)
	end.PostRecv(1, 4096, 64)
	read := reach(roce.RCReadRequest, 100, mr.RKey(), mr.Addr(), 64)
	p.Send(read)
	p.ExpectPacket(roce.RCReadResponseOnly, 100)
	p.Send(read, sendInvalidate(101, "rose", mr.RKey()))
	p.ExpectAck(101, 2)
	require.Equal(t, mr.RKey(), end.ExpectRecv(1, verbs.WCSuccess).InvalidatedRKey)
	p.ExpectNothing(time.Second)
	require.Equal(t, verbs.StateRTS, end.QP.State())

	// What is behind it is answered in order.
	other := fastRegion(end, 64)
	end.PostRecv(2, 4096, 64)
	end.PostRecv(3, 4096, 64)
	read = reach(roce.RCReadRequest, 102, other.RKey(), other.Addr(), 64)
	p.Send(read)
	p.ExpectPacket(roce.RCReadResponseOnly, 102)
	p.Send(read, sendInvalidate(103, "rose", other.RKey()),
		reach(roce.RCReadRequest, 104, end.MR.RKey(), end.MR.Addr(), 8), send(105, "lily"))
	p.ExpectPacket(roce.RCReadResponseOnly, 104)
	p.ExpectAck(105, 6)
}
