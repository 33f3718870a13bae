package puppet_test

import (
	"bytes"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/xroce/xroce/internal/puppet"
	"github.com/xroce/xroce/internal/support"
	"github.com/xroce/xroce/roce"
	"github.com/xroce/xroce/verbs"
)

// Which request may follow which, how long each may be, and which fault counts when there are two.

// requests are the opcodes of all requests of a reliable connection.
func requests() (list []roce.Opcode) {
	for o := range 256 {
		if info := roce.Opcode(o).Info(); info != nil && info.Request && roce.Opcode(o).Transport() == roce.TransportRC {
			list = append(list, roce.Opcode(o))
		}
	}
	return list
}

// sendOpcodes and writeOpcodes are those by the place in the message; all other requests are messages of their own.
var (
	starts = []roce.Opcode{
		roce.RCSendFirst, roce.RCSendOnly, roce.RCSendOnlyImmediate, roce.RCSendOnlyInvalidate,
		roce.RCWriteFirst, roce.RCWriteOnly, roce.RCWriteOnlyImmediate,
		roce.RCReadRequest, roce.RCCompareSwap, roce.RCFetchAdd, roce.RCFlush, roce.RCAtomicWrite,
	}
	goOnSend  = []roce.Opcode{roce.RCSendMiddle, roce.RCSendLast, roce.RCSendLastImmediate, roce.RCSendLastInvalidate}
	goOnWrite = []roce.Opcode{roce.RCWriteMiddle, roce.RCWriteLast, roce.RCWriteLastImmediate}
)

// fastRegion is a fast-registered region of an end, valid from the start.
func fastRegion(end *puppet.End, size int) *verbs.MR {
	mr, err := end.PD.AllocMR(size)
	end.Require(err)
	end.Cleanup(mr.Dereg)
	end.Require(mr.Map(make([]byte, size), 0x1000))
	wr := mr.RegWR(puppet.AllAccess &^ verbs.AccessMWBind)
	wr.WRID, wr.Flags = 1000, verbs.SendSignaled
	end.Post(wr)
	end.ExpectSend(1000, verbs.WCSuccess)
	return mr
}

// bytesOf is how long the payload of an opcode is in these tests, if nothing is wrong.
func bytesOf(opcode roce.Opcode) int {
	switch opcode {
	case roce.RCSendFirst, roce.RCSendMiddle, roce.RCWriteFirst, roce.RCWriteMiddle:
		return 1024
	case roce.RCReadRequest, roce.RCCompareSwap, roce.RCFetchAdd, roce.RCFlush:
		return 0
	}
	return 8
}

// any makes a request that is right in itself, with so many bytes of payload. Total is the RETH's length.
func anyRequest(end *puppet.End, opcode roce.Opcode, psn roce.PSN, payload, total int) puppet.Packet {
	reth := end.RETH(word, total)
	return puppet.Packet{
		Opcode: opcode, PSN: psn, AckRequest: true, RETH: reth, Payload: bytes.Repeat([]byte{0xBD}, payload),
		Atomic: roce.AtomicETHFields{VA: reth.VA, RKey: reth.RKey}, FETH: roce.FETHFields{Placement: 1},
	}
}

// expectDone waits for the answer to a request that was executed.
func expectDone(p *puppet.Puppet, opcode roce.Opcode, psn roce.PSN, msn uint32) puppet.Answer {
	want := roce.RCAcknowledge
	switch opcode {
	case roce.RCReadRequest, roce.RCFlush, roce.RCAtomicWrite:
		want = roce.RCReadResponseOnly
	case roce.RCCompareSwap, roce.RCFetchAdd:
		want = roce.RCAtomicAcknowledge
	}
	return p.ExpectPacket(want, psn).Says(roce.SyndromeAckNoCredits, msn)
}

// sequence is what has come before a packet, and which opcodes may come then.
type sequence struct {
	before  []roce.Opcode // 0xFF is the first packet of the message that has begun, again
	allowed []roce.Opcode
}

var sequences = map[string]sequence{
	"nothing":                {nil, starts},
	"SEND ONLY":              {[]roce.Opcode{roce.RCSendOnly}, starts},
	"SEND ONLY invalidate":   {[]roce.Opcode{roce.RCSendOnlyInvalidate}, starts},
	"SEND FIRST":             {[]roce.Opcode{roce.RCSendFirst}, goOnSend},
	"SEND MIDDLE":            {[]roce.Opcode{roce.RCSendFirst, roce.RCSendMiddle}, goOnSend},
	"SEND LAST":              {[]roce.Opcode{roce.RCSendFirst, roce.RCSendLast}, starts},
	"SEND LAST invalidate":   {[]roce.Opcode{roce.RCSendFirst, roce.RCSendLastInvalidate}, starts},
	"WRITE ONLY":             {[]roce.Opcode{roce.RCWriteOnly}, starts},
	"WRITE ONLY immediate":   {[]roce.Opcode{roce.RCWriteOnlyImmediate}, starts},
	"WRITE FIRST":            {[]roce.Opcode{roce.RCWriteFirst}, goOnWrite},
	"WRITE MIDDLE":           {[]roce.Opcode{roce.RCWriteFirst, roce.RCWriteMiddle}, goOnWrite},
	"WRITE LAST":             {[]roce.Opcode{roce.RCWriteFirst, roce.RCWriteLast}, starts},
	"WRITE LAST immediate":   {[]roce.Opcode{roce.RCWriteFirst, roce.RCWriteLastImmediate}, starts},
	"READ":                   {[]roce.Opcode{roce.RCReadRequest}, starts},
	"fetch-and-add":          {[]roce.Opcode{roce.RCFetchAdd}, starts},
	"compare-and-swap":       {[]roce.Opcode{roce.RCCompareSwap}, starts},
	"atomic write":           {[]roce.Opcode{roce.RCAtomicWrite}, starts},
	"FLUSH":                  {[]roce.Opcode{roce.RCFlush}, starts},
	"SEND, WRITE FIRST":      {[]roce.Opcode{roce.RCSendOnly, roce.RCWriteFirst}, goOnWrite}, // the receive has room left
	"WRITE, SEND FIRST":      {[]roce.Opcode{roce.RCWriteOnly, roce.RCSendFirst}, goOnSend},
	"SEND FIRST, duplicate":  {[]roce.Opcode{roce.RCSendFirst, 0xFF}, goOnSend},
	"WRITE FIRST, duplicate": {[]roce.Opcode{roce.RCWriteFirst, 0xFF}, goOnWrite},
}

// TestOpcodeSequence tries every request behind every state that a message can be in.
func TestOpcodeSequence(t *testing.T) {
	for name, c := range sequences {
		for _, opcode := range requests() {
			t.Run(fmt.Sprintf("%s, %v", name, opcode), func(t *testing.T) { c.send(t, opcode) })
		}
	}
}

// length is the DMALen of a WRITE of several packets of the sequence: what is to come must fit.
func (c sequence) length(opcode roce.Opcode) int {
	total := 1024
	for _, o := range append(c.before[min(1, len(c.before)):], opcode) {
		if slices.Contains(goOnWrite, o) {
			total += bytesOf(o)
			if o.Info().Ends() {
				return total
			}
		}
	}
	return total + 8
}

// send sends the sequence and the opcode behind it.
func (c sequence) send(t *testing.T, opcode roce.Opcode) {
	_, end, p := sender(t)
	keys := []uint32{fastRegion(end, 64).RKey(), fastRegion(end, 64).RKey()}
	for id := range uint64(3) {
		end.PostRecv(id, 65536, 8192)
	}
	psn, msn := roce.PSN(100), uint32(0)
	total := c.length(opcode)
	try := func(opcode roce.Opcode) puppet.Packet {
		packet := anyRequest(end, opcode, psn, bytesOf(opcode), 8)
		if opcode == roce.RCWriteFirst {
			packet.RETH.Length = uint32(total)
		}
		packet.Invalidate = keys[0]
		psn++
		p.Send(packet)
		return packet
	}
	var first puppet.Packet
	for _, o := range c.before {
		if o == 0xFF { // of the message that has begun
			p.Send(first)
			p.ExpectAck(psn-1, msn)
			continue
		}
		first = try(o)
		if o.Info().Ends() {
			msn++
		}
		expectDone(p, o, psn-1, msn)
		if o.Info().Has(roce.HeaderIETH) {
			keys = keys[1:]
		}
	}
	try(opcode)
	if slices.Contains(c.allowed, opcode) {
		if opcode.Info().Ends() {
			msn++
		}
		expectDone(p, opcode, psn-1, msn)
		require.Equal(t, verbs.StateRTS, end.QP.State())
		return
	}
	p.ExpectNAK(psn-1, roce.SyndromeNAKInvalidRequest).Says(roce.SyndromeNAKInvalidRequest, msn)
	require.Equal(t, verbs.StateError, end.QP.State())
	support.Opcode(t, opcode, support.Refused)
	support.Fault(t, "request out of sequence",
		support.Outcome{Wire: roce.SyndromeNAKInvalidRequest, Responder: verbs.StateError})
}

// TestEmptyLast: the end of another message is out of sequence, also if there is nothing in it that could be wrong.
func TestEmptyLast(t *testing.T) {
	for _, opcode := range []roce.Opcode{roce.RCWriteLast, roce.RCWriteLastImmediate} {
		_, end, p := sender(t)
		end.PostRecv(1, 65536, 8192)
		end.PostRecv(2, 65536, 8192)
		p.Send(anyRequest(end, roce.RCSendFirst, 100, 1024, 0))
		p.ExpectAck(100, 0)
		p.Send(anyRequest(end, opcode, 101, 0, 0))
		p.ExpectNAK(101, roce.SyndromeNAKInvalidRequest)
	}
}

// TestCase_A6_EveryOpcode: every request with every length that could be mistaken for a good one.
func TestCase_A6_EveryOpcode(t *testing.T) {
	const P = 1024
	for _, opcode := range requests() {
		for _, length := range []int{0, 1, 3, 4, 7, 8, 9, 12, P - 4, P - 1, P, P + 1, P + 4, 2 * P} {
			t.Run(fmt.Sprintf("%v %d", opcode, length), func(t *testing.T) {
				_, end, p := sender(t)
				mr := fastRegion(end, 64)
				end.PostRecv(1, 65536, 8192)
				psn, info := roce.PSN(100), opcode.Info()
				total := length
				first := roce.RCSendFirst
				if info.Operation == roce.OperationWrite {
					first = roce.RCWriteFirst
				}
				switch {
				case info.Position == roce.PositionFirst:
					total = length + 8
				case info.Position == roce.PositionMiddle:
					total = P + length + 8
				case info.Position == roce.PositionLast:
					total = P + max(length, 1)
				case opcode == roce.RCReadRequest || opcode == roce.RCFlush || opcode == roce.RCAtomicWrite:
					total = 8
				}
				if !info.Starts() {
					p.Send(anyRequest(end, first, psn, P, total))
					p.ExpectAck(psn, 0)
					psn++
				}
				image := bytes.Clone(end.MR.Bytes())
				packet := anyRequest(end, opcode, psn, length, total)
				packet.Invalidate = mr.RKey()
				p.Send(packet)
				good := length <= P // what begins and ends a message may have any length up to the path MTU
				switch {
				case info.Position == roce.PositionFirst || info.Position == roce.PositionMiddle:
					good = length == P
				case info.Position == roce.PositionLast:
					good = length >= 1 && length <= P
				case opcode == roce.RCAtomicWrite:
					good = length == 8
				case info.Operation != roce.OperationSend && info.Operation != roce.OperationWrite:
					good = length == 0
				}
				if good {
					msn := uint32(0)
					if info.Ends() {
						msn = 1
					}
					expectDone(p, opcode, psn, msn)
					return
				}
				p.ExpectNAK(psn, roce.SyndromeNAKInvalidRequest).Says(roce.SyndromeNAKInvalidRequest, 0)
				require.Equal(t, verbs.StateError, end.QP.State())
				require.True(t, bytes.Equal(image, end.MR.Bytes()), "memory was changed")
				p.ExpectNothing(time.Second)
				support.Fault(t, "payload that does not fit its place in the message", support.Outcome{
					Wire: roce.SyndromeNAKInvalidRequest, Responder: verbs.StateError,
				})
			})
		}
	}
}

// TestCase_A6_Pad: a pad that does not fit, in the requests that TestCase_A4_WrongPad does not have.
func TestCase_A6_Pad(t *testing.T) {
	for _, opcode := range requests() {
		if !opcode.Info().Starts() {
			continue
		}
		length := bytesOf(opcode)
		for pad := range 4 {
			t.Run(fmt.Sprintf("%v %d", opcode, pad), func(t *testing.T) {
				_, end, p := sender(t)
				mr := fastRegion(end, 64)
				end.PostRecv(1, 65536, 8192)
				packet := anyRequest(end, opcode, 100, length, max(8, 2*length&^15))
				packet.Invalidate = mr.RKey()
				if opcode == roce.RCWriteOnly || opcode == roce.RCWriteOnlyImmediate || opcode == roce.RCAtomicWrite {
					packet.RETH.Length = 8
				}
				packet.Wrong = puppet.Wrong{Pad: &pad, PadCount: new(uint8(pad))}
				p.Send(packet)
				if pad == 0 {
					require.Equal(t, roce.SyndromeAckNoCredits, p.Expect().AETH().Syndrome())
					return
				}
				p.ExpectNAK(100, roce.SyndromeNAKInvalidRequest)
				require.Equal(t, verbs.StateError, end.QP.State())
				support.Fault(t, "pad count that does not fit the length", support.Outcome{
					Wire: roce.SyndromeNAKInvalidRequest, Responder: verbs.StateError,
				})
			})
		}
	}
}
