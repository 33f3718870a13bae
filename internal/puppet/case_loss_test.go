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

// Losses with a name: which packet is gone, what reveals it, and where the resend starts.

const (
	latency = time.Microsecond // of the network in memory, one way
	timeout = 67108864 * time.Nanosecond
)

// TestCase_B2_LastPacket: nothing but the timeout reveals the loss of the last packet of a message.
func TestCase_B2_LastPacket(t *testing.T) {
	for _, c := range []struct {
		window int
		from   roce.PSN // where the resend starts: the first packet that nobody has acknowledged
	}{
		{0, 40}, // no packet but the last asks for an acknowledgement
		{4, 43}, // every packet does
	} {
		t.Run(fmt.Sprintf("window %d", c.window), func(t *testing.T) {
			stage := puppet.NewStage(t, mem.Options{})
			a, b := stage.NewEnd(puppet.EndOptions{Window: c.window}), stage.NewEnd(puppet.EndOptions{})
			stage.Connect(a, b)
			wire := stage.Watch()
			wire.Drop = puppet.Once(puppet.Is(roce.RCWriteLast, 43))
			move(t, a, b, verbs.WRRDMAWrite, 4096, 0)

			packets := wire.From(a)
			require.Equal(t, roce.PSN(43), packets[3].PSN)
			require.True(t, packets[3].Lost)
			require.Equal(t, c.from, packets[4].PSN)
			require.True(t, packets[4].Ack, "a resend asks for news")
			waited := packets[4].At - packets[0].At
			require.GreaterOrEqual(t, waited, timeout)
			require.LessOrEqual(t, waited, timeout+2*latency, "the last acknowledgement started the timer anew")
			require.Len(t, packets, 4+int(44-c.from), "one resend")
			require.Equal(t, uint64(1), opener.Counters(a.Device).Transport.Timeouts)
		})
	}
	support.Fault(t, "last packet of a message lost", support.Outcome{Requester: "sends again after the ACK timeout"})
}

// TestCase_B2_LostPSN: the resend starts behind what was acknowledged, one timeout after that.
func TestCase_B2_LostPSN(t *testing.T) {
	stage := puppet.NewStage(t, mem.Options{})
	end := stage.NewEnd(puppet.EndOptions{})
	p := stage.NewPuppet()
	p.Connect(end)
	end.Post(end.Request(1, verbs.WRRDMAWrite, 0, 4096))
	for i, opcode := range []roce.Opcode{roce.RCWriteFirst, roce.RCWriteMiddle, roce.RCWriteMiddle, roce.RCWriteLast} {
		p.ExpectPacket(opcode, 40+roce.PSN(i)).Carries(end.Bytes(1024*i, 1024))
	}
	stage.Pass(time.Millisecond)
	acknowledged := stage.Now()
	p.Ack(42, 0)
	again := p.ExpectPacket(roce.RCWriteLast, 43).Carries(end.Bytes(3072, 1024))
	require.Equal(t, timeout+2*latency, again.At-acknowledged)
	p.Ack(43, 1)
	end.ExpectSend(1, verbs.WCSuccess)
	p.ExpectNothing(time.Minute)
}

// TestCase_B2_FinalAck: the responder has executed the request, so it must not do so again.
func TestCase_B2_FinalAck(t *testing.T) {
	for _, operation := range []verbs.WROpcode{verbs.WRRDMAWrite, verbs.WRRDMAWriteWithImm, verbs.WRSend, verbs.WRSendWithImm} {
		t.Run(operation.String(), func(t *testing.T) {
			stage := puppet.NewStage(t, mem.Options{})
			a, b := stage.NewEnd(puppet.EndOptions{}), stage.NewEnd(puppet.EndOptions{})
			stage.Connect(a, b)
			wire := stage.Watch()
			lost := false
			wire.Drop = puppet.Once(func(s *puppet.Sent) bool { lost = puppet.Is(roce.RCAcknowledge, 43)(s); return lost })
			b.PostRecv(11, 8192, 4096)
			b.PostRecv(12, 16384, 4096)
			wr := a.Request(1, operation, 0, 4096)
			wr.RemoteAddr, wr.RKey = b.MR.Addr()+8192, b.MR.RKey()
			a.Post(wr)
			require.True(t, stage.Run(time.Second, func() bool { return lost }))
			require.Equal(t, a.Bytes(0, 4096), b.Bytes(8192, 4096), "executed")
			takesReceive := operation != verbs.WRRDMAWrite
			if takesReceive {
				b.ExpectRecv(11, verbs.WCSuccess)
			}
			a.ExpectNoCompletion()
			// Whoever gets the memory now may do with it what he likes.
			mark := bytes.Repeat([]byte{0xA5}, 4096)
			copy(b.Bytes(8192, 4096), mark)
			copy(b.Bytes(16384, 4096), mark)

			a.ExpectSend(1, verbs.WCSuccess)
			b.ExpectNoCompletion()
			require.Equal(t, mark, b.Bytes(8192, 4096), "written twice")
			require.Equal(t, mark, b.Bytes(16384, 4096), "a second receive was used")
			acks := wire.From(b)
			require.Equal(t, []roce.PSN{43, 43}, []roce.PSN{acks[0].PSN, acks[len(acks)-1].PSN})
			require.Equal(t, uint32(1), acks[len(acks)-1].AETH.MSN)
			require.Equal(t, timeout, wire.From(a)[4].At-wire.From(a)[0].At)

			a.Post(a.Request(2, verbs.WRSend, 0, 16))
			a.ExpectSend(2, verbs.WCSuccess)
			if takesReceive {
				b.ExpectRecv(12, verbs.WCSuccess)
			} else {
				b.ExpectRecv(11, verbs.WCSuccess)
			}
		})
	}
	support.Fault(t, "acknowledgement lost", support.Outcome{Wire: "acknowledged again", Responder: "executes nothing twice", Requester: verbs.WCSuccess})
}

// between posts WRITE, READ of so many packets, WRITE, whose first packets have the PSNs 40, 41 and 41+packets.
func between(end *puppet.End, p *puppet.Puppet, packets int) (read roce.RETHFields) {
	read = roce.RETHFields{VA: 0x7000_0000_0000, RKey: 0x1234, Length: uint32(1024 * packets)}
	wr := end.Request(2, verbs.WRRDMARead, 8192, 1024*packets)
	wr.RemoteAddr, wr.RKey = read.VA, read.RKey
	end.Post(end.Request(1, verbs.WRRDMAWrite, 0, 8), wr, end.Request(3, verbs.WRRDMAWrite, 16, 8))
	p.ExpectPacket(roce.RCWriteOnly, 40)
	p.ExpectPacket(roce.RCReadRequest, 41).Asks(read)
	p.ExpectPacket(roce.RCWriteOnly, 41+roce.PSN(packets))
	return read
}

// TestCase_B3: an acknowledgement that jumps over a READ says that its response was lost.
func TestCase_B3(t *testing.T) {
	stage := puppet.NewStage(t, mem.Options{})
	end := stage.NewEnd(puppet.EndOptions{})
	p := stage.NewPuppet()
	p.Connect(end)
	read := between(end, p, 1)
	before := stage.Now()
	p.Ack(42, 3)
	again := p.ExpectPacket(roce.RCReadRequest, 41).Asks(read)
	require.Equal(t, 2*latency, again.At-before, "at once")
	p.ExpectPacket(roce.RCWriteOnly, 42).Carries(end.Bytes(16, 8))
	end.ExpectSend(1, verbs.WCSuccess)
	end.ExpectNoCompletion()

	// The same news again starts no second resend.
	p.Ack(42, 3)
	p.ExpectNothing(time.Millisecond)
	end.ExpectNoCompletion()
	require.Equal(t, uint64(1), opener.Counters(end.Device).Transport.Recoveries)

	data := bytes.Repeat([]byte{0x5A}, 1024)
	p.Respond(roce.RCReadResponseOnly, 41, data)
	wc := end.ExpectSend(2, verbs.WCSuccess)
	require.Equal(t, verbs.WCRDMARead, wc.Opcode)
	require.Equal(t, uint32(1024), wc.ByteLen)
	require.Equal(t, data, end.Bytes(8192, 1024))
	end.ExpectNoCompletion()
	p.Ack(42, 3)
	end.ExpectSend(3, verbs.WCSuccess)
	p.ExpectNothing(time.Minute)
	support.Fault(t, "response to "+verbs.WRRDMARead.String()+" lost, a later request answered", support.Outcome{Requester: "asks again, at once"})
}

// TestCase_B3_Partial: part of the response has come. The READ is asked for from the first missing packet on; the
// answer may begin again with FIRST or ONLY, as the specification has it, or go on with MIDDLE or LAST, as rdma_rxe
// does.
func TestCase_B3_Partial(t *testing.T) {
	const packets = 5 // PSNs 41 to 45
	first, middle, last, only := roce.RCReadResponseFirst, roce.RCReadResponseMiddle, roce.RCReadResponseLast, roce.RCReadResponseOnly
	for name, c := range map[string]struct {
		got     []int // indices of the packets that came at first
		missing int   // index of the first that did not
		answer  []roce.Opcode
	}{
		"FIRST":             {[]int{0, 1}, 2, []roce.Opcode{first, middle, last}},
		"ONLY":              {[]int{0, 1, 2, 3}, 4, []roce.Opcode{only}},
		"MIDDLE":            {[]int{0, 1}, 2, []roce.Opcode{middle, middle, last}},
		"LAST":              {[]int{0, 1, 2, 3}, 4, []roce.Opcode{last}},
		"gap":               {[]int{0, 2}, 1, []roce.Opcode{first, middle, middle, last}},
		"gap before last":   {[]int{0, 1, 2, 4}, 3, []roce.Opcode{first, last}},
		"gap in two places": {[]int{0, 2, 4}, 1, []roce.Opcode{first, middle, middle, last}},
		"first one lost":    {[]int{1, 2, 3, 4}, 0, []roce.Opcode{first, middle, middle, middle, last}},
	} {
		t.Run(name, func(t *testing.T) {
			stage := puppet.NewStage(t, mem.Options{})
			end := stage.NewEnd(puppet.EndOptions{})
			p := stage.NewPuppet()
			p.Connect(end)
			read := between(end, p, packets)
			piece := func(i int) []byte { return bytes.Repeat([]byte{byte(0xC0 + i)}, 1024) }
			for _, i := range c.got {
				opcode := middle
				if i == 0 {
					opcode = first
				}
				if i == packets-1 {
					opcode = last
				}
				p.Respond(opcode, 41+roce.PSN(i), piece(i))
			}
			p.Ack(46, 3)
			rest := read
			rest.VA += uint64(1024 * c.missing)
			rest.Length -= uint32(1024 * c.missing)
			p.ExpectPacket(roce.RCReadRequest, 41+roce.PSN(c.missing)).Asks(rest)
			p.ExpectPacket(roce.RCWriteOnly, 46)
			end.ExpectSend(1, verbs.WCSuccess)
			p.ExpectNothing(time.Millisecond)
			end.ExpectNoCompletion()

			for i, opcode := range c.answer {
				p.Respond(opcode, 41+roce.PSN(c.missing+i), piece(c.missing+i))
			}
			require.Equal(t, uint32(read.Length), end.ExpectSend(2, verbs.WCSuccess).ByteLen)
			for i := range packets {
				require.Equal(t, piece(i), end.Bytes(8192+1024*i, 1024), "packet %d", i)
			}
			end.ExpectNoCompletion()
			p.Ack(46, 3)
			end.ExpectSend(3, verbs.WCSuccess)
			p.ExpectNothing(time.Minute)
		})
	}
	support.Fault(t, "READ response lost in part", support.Outcome{Requester: "asks for the rest from the first missing packet on"})
}

// TestReadResponseGap: a response of a READ that comes too early tells by itself that one before it was lost: the
// rest is asked for at once, and what else of the old answer comes starts nothing more.
func TestReadResponseGap(t *testing.T) {
	stage, end, p := sender(t)
	wr := end.Request(1, verbs.WRRDMARead, 0, 4*1024)
	wr.RemoteAddr, wr.RKey = 1<<40, 7
	end.Post(wr)
	p.ExpectPacket(roce.RCReadRequest, 40).Asks(roce.RETHFields{VA: 1 << 40, RKey: 7, Length: 4 * 1024})
	piece := func(i int) []byte { return bytes.Repeat([]byte{byte(0xC0 + i)}, 1024) }
	p.Respond(roce.RCReadResponseFirst, 40, piece(0))
	before := stage.Now()
	p.Respond(roce.RCReadResponseMiddle, 42, piece(2))
	p.Respond(roce.RCReadResponseLast, 43, piece(3))
	rest := p.ExpectPacket(roce.RCReadRequest, 41).Asks(roce.RETHFields{VA: 1<<40 + 1024, RKey: 7, Length: 3 * 1024})
	require.Equal(t, 2*latency, rest.At-before)
	p.ExpectNothing(time.Millisecond)
	end.ExpectNoCompletion()
	p.Respond(roce.RCReadResponseFirst, 41, piece(1))
	p.Respond(roce.RCReadResponseMiddle, 42, piece(2))
	p.Respond(roce.RCReadResponseLast, 43, piece(3))
	end.ExpectSend(1, verbs.WCSuccess)
	for i := range 4 {
		require.Equal(t, piece(i), end.Bytes(1024*i, 1024), "packet %d", i)
	}
	require.Equal(t, uint64(1), opener.Counters(end.Device).Transport.Recoveries)
	p.ExpectNothing(time.Minute)
}

// TestSequenceNAK: a NAK acknowledges what is before it and starts one resend, at once.
func TestSequenceNAK(t *testing.T) {
	stage := puppet.NewStage(t, mem.Options{})
	end := stage.NewEnd(puppet.EndOptions{})
	p := stage.NewPuppet()
	p.Connect(end)
	for id := range uint64(4) {
		end.Post(end.Request(id, verbs.WRSend, 0, 4))
		p.ExpectPacket(roce.RCSendOnly, 40+roce.PSN(id))
	}
	before := stage.Now()
	p.NAK(41, roce.SyndromeNAKSequence)
	end.ExpectSend(0, verbs.WCSuccess)
	again := p.ExpectPacket(roce.RCSendOnly, 41)
	require.Equal(t, 2*latency, again.At-before)
	require.True(t, again.BTH.AckRequest())
	p.ExpectPacket(roce.RCSendOnly, 42)
	p.ExpectPacket(roce.RCSendOnly, 43)
	p.NAK(41, roce.SyndromeNAKSequence)
	p.ExpectNothing(10 * time.Millisecond)
	p.Ack(43, 4)
	for id := uint64(1); id < 4; id++ {
		end.ExpectSend(id, verbs.WCSuccess)
	}
	p.ExpectNothing(time.Minute)
	support.Fault(t, "packet lost, others follow", support.Outcome{Requester: "sends again from there, at once and once"})
}

// TestCase_B17: PSNs wrap in the middle of a message, and it is there that packets are lost.
func TestCase_B17(t *testing.T) {
	wrap := func(a *verbs.QPAttr) { a.RQPSN = 0xFFFFFE }
	for _, operation := range []verbs.WROpcode{verbs.WRRDMAWrite, verbs.WRRDMAWriteWithImm, verbs.WRSend, verbs.WRRDMARead} {
		for _, lost := range [][]roce.PSN{nil, {0xFFFFFE}, {0xFFFFFF}, {0}, {1}, {0xFFFFFF, 0}, {0xFFFFFE, 0xFFFFFF, 0, 1, 2}, {7}} {
			t.Run(fmt.Sprintf("%v lost %x", operation, lost), func(t *testing.T) {
				stage := puppet.NewStage(t, mem.Options{})
				a, b := stage.NewEnd(puppet.EndOptions{}), stage.NewEnd(puppet.EndOptions{})
				stage.Connect(a, b, wrap)
				wire := stage.Watch()
				var losses []func(*puppet.Sent) bool
				for _, psn := range lost {
					losses = append(losses, func(s *puppet.Sent) bool { return s.PSN == psn && s.Length > 0 })
				}
				wire.Drop = puppet.Once(losses...)
				move(t, a, b, operation, 10*1024, 0)
				move(t, a, b, operation, 10*1024, 5)
			})
		}
	}
	support.Fault(t, "packets lost where PSNs wrap", support.Outcome{Requester: verbs.WCSuccess})
}

// TestCase_B17_Coalescing: one acknowledgement behind the wrap covers what is before it.
func TestCase_B17_Coalescing(t *testing.T) {
	stage := puppet.NewStage(t, mem.Options{})
	end := stage.NewEnd(puppet.EndOptions{})
	p := stage.NewPuppet()
	p.Connect(end, func(a *verbs.QPAttr) { a.SQPSN = 0xFFFFFE })
	for id := range uint64(5) {
		end.Post(end.Request(id, verbs.WRSend, 0, 4))
		p.ExpectPacket(roce.RCSendOnly, roce.PSN(0xFFFFFE).Add(uint32(id)))
	}
	p.Ack(0xFFFFFD, 0) // stale
	p.Ack(3, 0)        // never sent
	stage.Pass(time.Millisecond)
	end.ExpectNoCompletion()
	p.Ack(1, 4)
	for id := range uint64(4) {
		end.ExpectSend(id, verbs.WCSuccess)
	}
	end.ExpectNoCompletion()
	p.Ack(2, 5)
	end.ExpectSend(4, verbs.WCSuccess)
}

// TestLoseEach runs the same four requests again and again, and each time loses another packet, or two near each other.
func TestLoseEach(t *testing.T) {
	run := func(lost ...int) (packets int) {
		stage := puppet.NewStage(t, mem.Options{})
		a, b := stage.NewEnd(puppet.EndOptions{}), stage.NewEnd(puppet.EndOptions{})
		stage.Connect(a, b)
		wire := stage.Watch()
		wire.Drop = func(*puppet.Sent) bool {
			for _, n := range lost {
				if n == len(wire.Packets) {
					return true
				}
			}
			return false
		}
		want := bytes.Clone(b.MR.Bytes())
		copy(want[65536:], a.Bytes(0, 3000))
		copy(want[73728:], a.Bytes(16384, 2500))
		copy(want[81920:], a.Bytes(32768, 100))
		b.PostRecv(1, 73728, 2500)
		write, send, read, last := a.Request(1, verbs.WRRDMAWrite, 0, 3000), a.Request(2, verbs.WRSend, 16384, 2500),
			a.Request(3, verbs.WRRDMARead, 65536, 3500), a.Request(4, verbs.WRRDMAWrite, 32768, 100)
		write.RemoteAddr, write.RKey = b.MR.Addr()+65536, b.MR.RKey()
		read.RemoteAddr, read.RKey = b.MR.Addr()+65536, b.MR.RKey()
		last.RemoteAddr, last.RKey = b.MR.Addr()+81920, b.MR.RKey()
		a.Post(write, send, read, last)
		for id := range uint64(4) {
			a.ExpectSend(id+1, verbs.WCSuccess)
		}
		b.ExpectRecv(1, verbs.WCSuccess)
		require.True(t, bytes.Equal(want, b.MR.Bytes()), "lost %v", lost)
		require.True(t, bytes.Equal(want[65536:69036], a.Bytes(65536, 3500)), "lost %v", lost)
		return len(wire.Packets)
	}
	for n := range run() {
		run(n)
		for second := n + 1; second < n+6; second++ {
			run(n, second)
		}
	}
	support.Fault(t, "any one packet, or any two near each other, lost", support.Outcome{Requester: verbs.WCSuccess})
}
