package puppet_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"net/netip"
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

// What must not disturb a queue pair: packets that cannot be taken apart, that are not for it, or that no reliable
// connection has.

// drops returns how often packets were dropped, by reason.
func drops(e *puppet.End) map[string]uint64 {
	c := opener.Counters(e.Device)
	return c.DropReasons()
}

// moved returns which counters of drops differ, and by how much.
func moved(before, after map[string]uint64) map[string]uint64 {
	difference := make(map[string]uint64)
	for reason, n := range after {
		if n != before[reason] {
			difference[reason] = n - before[reason]
		}
	}
	return difference
}

// write is the packet that shows that a queue pair is in order.
func write(e *puppet.End, psn roce.PSN) puppet.Packet {
	return puppet.Packet{Opcode: roce.RCWriteOnly, PSN: psn, RETH: e.RETH(0, 4), Payload: []byte("rose"), AckRequest: true}
}

// icrc computes the ICRC of an IPv4 frame that ends with one, leaving out so many bytes before it, by the letter of
// IBTA annex A17 and nothing else of this module.
func icrc(frame []byte, leaveOut int) []byte {
	masked := append(bytes.Repeat([]byte{0xFF}, 8), frame[ethernetLength:len(frame)-roce.ICRCLength-leaveOut]...)
	const ip, udp, bth = 8, 8 + 20, 8 + 20 + 8
	for _, variant := range []int{ip + 1, ip + 8, ip + 10, ip + 11, udp + 6, udp + 7, bth + 4} {
		masked[variant] = 0xFF
	}
	return binary.LittleEndian.AppendUint32(nil, crc32.ChecksumIEEE(masked))
}

// TestCase_A1: the pad is part of the ICRC, sent and received, and no part of the message.
func TestCase_A1(t *testing.T) {
	for _, length := range []int{1, 2, 3, 4, 5, 6, 7, 8, 33, 1021, 1022, 1023, 1024, 1025} {
		for _, operation := range []verbs.WROpcode{verbs.WRSend, verbs.WRRDMAWrite} {
			t.Run(fmt.Sprintf("%v %d", operation, length), func(t *testing.T) {
				_, end, p := sender(t)
				end.Post(end.Request(1, operation, 64, length))
				for sent := 0; sent < length; {
					a := p.Expect()
					require.Equal(t, icrc(a.Frame, 0), a.Frame[len(a.Frame)-4:], "%v", a)
					pad := -a.PayloadLength & 3
					require.Equal(t, pad, int(a.PadCount))
					require.Equal(t, make([]byte, pad), a.Frame[len(a.Frame)-4-pad:len(a.Frame)-4])
					sent += a.PayloadLength
				}
				if length > 1024 {
					return
				}
				end.PostRecv(1, 64, 1024)
				packet := puppet.Packet{Opcode: roce.RCWriteOnly, PSN: 100, RETH: end.RETH(64, length), AckRequest: true}
				if operation == verbs.WRSend {
					packet.Opcode = roce.RCSendOnly
				}
				packet.Payload = bytes.Repeat([]byte{0xD1}, length)
				image := bytes.Clone(end.MR.Bytes())
				frame := p.Frame(packet)
				require.Equal(t, icrc(frame, 0), frame[len(frame)-4:])
				for i := range -length & 3 {
					frame[len(frame)-5-i] = 0xEE // whatever the pad holds, it is not written
				}
				if pad := -length & 3; pad > 0 {
					copy(frame[len(frame)-4:], icrc(frame, pad))
					p.Raw(frame)
					p.ExpectNothing(time.Millisecond)
					require.Equal(t, map[string]uint64{"icrc_bad": 1}, drops(end))
				}
				copy(frame[len(frame)-4:], icrc(frame, 0))
				p.Raw(frame)
				p.ExpectAck(100, 1)
				copy(image[64:], packet.Payload)
				require.True(t, bytes.Equal(image, end.MR.Bytes()))
			})
		}
	}
}

// TestWrongICRCAtAnotherShard: also a packet that came in where the queue pair is not at home is checked before it
// does anything.
func TestWrongICRCAtAnotherShard(t *testing.T) {
	stage := puppet.NewStage(t, mem.Options{Seed: 1, Scatter: true})
	end := stage.NewEnd(puppet.EndOptions{Device: mem.DeviceOptions{Queues: 2}})
	p := stage.NewPuppet()
	p.Connect(end)
	image := bytes.Clone(end.MR.Bytes())
	packet := write(end, 100)
	packet.Wrong.ICRC = true
	const count = 40
	for range count {
		p.Send(packet)
	}
	p.ExpectNothing(time.Second)
	require.Equal(t, map[string]uint64{"icrc_bad": count}, drops(end))
	require.Zero(t, opener.Counters(end.Device).Transport.HandedOver, "checked before it takes a place in an inbox")
	require.True(t, bytes.Equal(image, end.MR.Bytes()))
	p.Send(write(end, 100))
	p.ExpectAck(100, 1)
	for range count {
		p.Send(write(end, 100)) // a duplicate
	}
	p.ExpectAck(100, 1)
	require.Greater(t, opener.Counters(end.Device).Transport.HandedOver, uint64(5), "packets do come in elsewhere")
}

// cutTo makes a frame's UDP payload size bytes long, with lengths that fit.
func cutTo(p *puppet.Puppet, opcode roce.Opcode, pad uint8, size int) []byte {
	packet := puppet.Packet{
		Opcode: opcode, PSN: puppet.FirstPSN, AckRequest: true, Payload: make([]byte, 16), Wrong: puppet.Wrong{PadCount: &pad},
	}
	const headers = 14 + 20 + 8
	excess := len(p.Frame(packet)) - headers - size
	packet.Wrong.IPLength, packet.Wrong.UDPLength = -excess, -excess
	return p.Frame(packet)[:headers+size]
}

// TestCase_A4_Runts sends packets of every opcode that end too early, by every length and pad count.
func TestCase_A4_Runts(t *testing.T) {
	stage := puppet.NewStage(t, mem.Options{})
	end := stage.NewEnd(puppet.EndOptions{})
	p := stage.NewPuppet()
	p.Connect(end)
	attributes := end.QP.Query()
	image := string(end.MR.Bytes())
	for opcode := range 256 {
		reason, smallest := "opcode_unknown", roce.BTHLength
		if info := roce.Opcode(opcode).Info(); info != nil {
			reason, smallest = "too_short", roce.BTHLength+info.HeaderLength+roce.ICRCLength
		}
		for pad := range uint8(4) {
			for size := range smallest + int(pad) {
				want := reason
				if size < roce.BTHLength {
					want = "too_short"
				}
				before := drops(end)
				p.Raw(cutTo(p, roce.Opcode(opcode), pad, size))
				stage.Pass(10 * time.Microsecond)
				require.Equal(t, map[string]uint64{want: 1}, moved(before, drops(end)),
					"opcode %#x, pad count %d, %d bytes behind UDP", opcode, pad, size)
			}
		}
	}
	p.ExpectNothing(time.Second)
	require.Equal(t, attributes, end.QP.Query())
	require.Equal(t, image, string(end.MR.Bytes()))
	p.Send(write(end, 100))
	p.ExpectAck(100, 1)
	support.Fault(t, "frame shorter than its headers", support.Outcome{Wire: "nothing", Responder: "dropped and counted"})
}

// TestCase_A4_Lengths lets the lengths in the IP and UDP headers lie.
func TestCase_A4_Lengths(t *testing.T) {
	for _, index := range []int{0, 1} {
		t.Run(fmt.Sprintf("GID %d", index), func(t *testing.T) {
			stage := puppet.NewStage(t, mem.Options{})
			end := stage.NewEnd(puppet.EndOptions{})
			p := stage.NewPuppet()
			p.Connect(end, func(a *verbs.QPAttr) { a.AH.SGIDIndex = index })
			attributes := end.QP.Query()
			for ip := -80; ip <= 80; ip++ {
				for _, udp := range []int{-80, -56, -50, -44, -40, -9, -4, -1, 0, 1, 4, 80} {
					if ip >= 0 && udp == 0 && ip <= 20 {
						continue // IP may say more than UDP, as long as the frame has it
					}
					packet := write(end, 100)
					packet.Wrong = puppet.Wrong{IPLength: ip, UDPLength: udp, Trailer: 20}
					before := drops(end)
					p.Send(packet)
					stage.Pass(10 * time.Microsecond)
					difference := moved(before, drops(end))
					require.Len(t, difference, 1, "IP length %+d, UDP length %+d", ip, udp)
					for _, n := range difference {
						require.Equal(t, uint64(1), n)
					}
				}
			}
			p.ExpectNothing(time.Second)
			require.Equal(t, attributes, end.QP.Query())
			packet := write(end, 100)
			packet.Wrong = puppet.Wrong{IPLength: 20, Trailer: 20}
			p.Send(packet)
			p.ExpectAck(100, 1)
		})
	}
	support.Fault(t, "lengths of IP and UDP that do not fit", support.Outcome{Wire: "nothing", Responder: "dropped and counted"})
}

// TestCase_A4_WrongPad: a request in sequence whose pad does not fit its length, but which can be taken apart, is an
// invalid request (drivers/infiniband/sw/rxe/rxe_resp.c: rxe_resp_check_length). A response or a packet out of
// sequence is dropped.
func TestCase_A4_WrongPad(t *testing.T) {
	for _, opcode := range []roce.Opcode{roce.RCSendOnly, roce.RCSendOnlyImmediate, roce.RCWriteOnly, roce.RCWriteOnlyImmediate, roce.RCReadRequest} {
		for length := range 9 {
			for pad := range 4 {
				if opcode == roce.RCReadRequest && length > 0 {
					continue
				}
				t.Run(fmt.Sprintf("%v %d bytes pad %d", opcode, length, pad), func(t *testing.T) {
					_, end, p := sender(t)
					end.PostRecv(1, 4096, 64)
					image := bytes.Clone(end.MR.Bytes())
					packet := puppet.Packet{
						Opcode: opcode, PSN: 101, Payload: make([]byte, length), AckRequest: true, RETH: end.RETH(0, length),
						Wrong: puppet.Wrong{Pad: &pad, PadCount: new(uint8(pad))},
					}
					p.Send(packet)
					p.ExpectNAK(100, roce.SyndromeNAKSequence)
					require.Equal(t, verbs.StateRTS, end.QP.State())
					packet.PSN = 100
					p.Send(packet)
					switch {
					case pad != -length&3:
						p.ExpectNAK(100, roce.SyndromeNAKInvalidRequest)
						require.Equal(t, verbs.StateError, end.QP.State())
						require.True(t, bytes.Equal(image, end.MR.Bytes()))
					case opcode == roce.RCReadRequest:
						p.ExpectPacket(roce.RCReadResponseOnly, 100)
					default:
						p.ExpectAck(100, 1)
					}
				})
			}
		}
	}
	support.Fault(t, "pad count that does not fit the length", support.Outcome{Wire: roce.SyndromeNAKInvalidRequest, Responder: verbs.StateError})
}

// TestCase_A4_OtherPad: another pad count than meant, where all the lengths fit, is a message of another length,
// which a WRITE does not have room for.
func TestCase_A4_OtherPad(t *testing.T) {
	for pad := range uint8(4) {
		_, end, p := sender(t)
		p.Send(puppet.Packet{
			Opcode: roce.RCWriteOnly, PSN: 100, Payload: []byte("rose"), RETH: end.RETH(0, 4-int(pad)),
			Wrong: puppet.Wrong{PadCount: new((pad + 1) % 4)},
		})
		p.ExpectNAK(100, roce.SyndromeNAKInvalidRequest)
	}
}

// extensions is a packet whose extension headers are all zero, so that it asks for 0 bytes if it asks for anything.
func extensions(opcode roce.Opcode, psn roce.PSN) puppet.Packet {
	payload := 0
	if opcode == roce.RCAtomicWrite {
		payload = 8
	}
	if opcode == roce.CNP {
		payload = 16
	}
	return puppet.Packet{Opcode: opcode, PSN: psn, AckRequest: true, Payload: make([]byte, payload)}
}

// TestCase_A5 sends all 256 opcodes to a live queue pair, with the expected PSN, one behind it and one ahead of it,
// with right and wrong ICRC. A second queue pair must not notice.
func TestCase_A5(t *testing.T) {
	stage := puppet.NewStage(t, mem.Options{})
	end := stage.NewEnd(puppet.EndOptions{})
	p, bystander := stage.NewPuppet(), stage.NewPuppet()
	other := end.NewQP(verbs.QPCap{})
	bystander.ConnectQP(end.Device, other)
	psn, msn := roce.PSN(100), uint32(0)
	try := func(opcode roce.Opcode, distance int, spoilt bool) {
		defer func() {
			if t.Failed() {
				t.Logf("opcode %#x, PSN %+d, ICRC wrong: %v", uint8(opcode), distance, spoilt)
			}
		}()
		qp := end.NewQP(verbs.QPCap{})
		p.ConnectQP(end.Device, qp)
		require.NoError(t, qp.PostRecv(verbs.RecvWR{}))
		packet := extensions(opcode, roce.PSN(100+distance))
		packet.Wrong.ICRC = spoilt
		p.Send(packet)

		sent := stage.Now()
		bystander.Send(write(end, psn))
		msn++
		require.Equal(t, 2*time.Microsecond, bystander.ExpectAck(psn, msn).At-sent)
		psn++
		expectAnswer(t, p, qp, opcode, distance, spoilt)
	}
	for opcode := range 256 {
		for _, distance := range []int{0, -1, 1} {
			try(roce.Opcode(opcode), distance, true)
			try(roce.Opcode(opcode), distance, false)
		}
	}
	support.Fault(t, "opcode without an entry, or of another service", support.Outcome{Wire: "nothing", Responder: "dropped"})
	support.Fault(t, "wrong ICRC, any opcode", support.Outcome{Wire: "nothing", Responder: "dropped"})
}

// expectAnswer says what a queue pair must make of a packet of TestCase_A5.
func expectAnswer(t *testing.T, p *puppet.Puppet, qp *verbs.QP, opcode roce.Opcode, distance int, spoilt bool) {
	request := opcode.Info() != nil && opcode.Info().Request && opcode.Transport() == roce.TransportRC
	state, how := verbs.StateRTS, support.Ignored
	switch {
	case spoilt || !request || distance < 0: // nothing was executed yet that a duplicate could be of
	case distance > 0:
		p.ExpectNAK(100, roce.SyndromeNAKSequence)
	case opcode == roce.RCSendOnly, opcode == roce.RCSendOnlyImmediate, opcode == roce.RCWriteOnly, opcode == roce.RCWriteOnlyImmediate:
		p.ExpectAck(100, 1)
		how = support.Received
	case opcode == roce.RCReadRequest:
		p.ExpectPacket(roce.RCReadResponseOnly, 100).Says(roce.SyndromeAckNoCredits, 1)
		how = support.Received
	case opcode == roce.RCCompareSwap, opcode == roce.RCFetchAdd: // nothing has the key 0
		p.ExpectNAK(100, roce.SyndromeNAKRemoteAccess)
		state, how = verbs.StateError, support.Refused
	case opcode == roce.RCSendOnlyInvalidate: // the message has arrived, but nothing has the key 0
		p.ExpectAck(100, 1)
		state, how = verbs.StateError, ""
	default:
		p.ExpectNAK(100, roce.SyndromeNAKInvalidRequest)
		state, how = verbs.StateError, support.Refused
	}
	p.ExpectNothing(10 * time.Microsecond)
	require.Equal(t, state, qp.State())
	if !spoilt && distance == 0 && opcode.Info() != nil && how != "" {
		support.Opcode(t, opcode, how)
	}
}

// TestCase_A17 sends packets to the right number that are not meant for the queue pair.
func TestCase_A17(t *testing.T) {
	for name, c := range map[string]struct {
		wrong  puppet.Wrong
		reason string
	}{
		"destination address": {puppet.Wrong{Destination: netip.MustParseAddr("10.0.0.9")}, "address_mismatch"},
		"source address":      {puppet.Wrong{Source: netip.MustParseAddr("10.0.0.9")}, "address_mismatch"},
		"partition key":       {puppet.Wrong{PKey: new(uint16(0xFFFE))}, "pkey_bad"},
		"partition key 0":     {puppet.Wrong{PKey: new(uint16(0))}, "pkey_bad"},
		"number":              {puppet.Wrong{QPN: new(roce.QPN(2))}, "qpn_unknown"},
		"QP1":                 {puppet.Wrong{QPN: new(roce.QPNGSI)}, "qpn_unknown"},
		"multicast number":    {puppet.Wrong{QPN: new(roce.QPNMulticast)}, "qpn_unknown"},
	} {
		t.Run(name, func(t *testing.T) {
			stage := puppet.NewStage(t, mem.Options{})
			end := stage.NewEnd(puppet.EndOptions{})
			p := stage.NewPuppet()
			p.Connect(end)
			attributes := end.QP.Query()
			// One that would be answered with a NAK, one that would be executed, one that would be acknowledged.
			for _, psn := range []roce.PSN{101, 100, 99} {
				packet := write(end, psn)
				packet.Wrong = c.wrong
				p.Send(packet)
			}
			ack := puppet.Packet{Opcode: roce.RCAcknowledge, PSN: 40, Wrong: c.wrong}
			end.Post(end.Request(1, verbs.WRSend, 0, 0))
			p.ExpectPacket(roce.RCSendOnly, 40)
			p.Send(ack)
			p.ExpectNothing(time.Millisecond)
			end.ExpectNoCompletion()
			require.Equal(t, map[string]uint64{c.reason: 4}, drops(end))
			require.Equal(t, attributes, end.QP.Query())
			p.Ack(40, 1)
			end.ExpectSend(1, verbs.WCSuccess)
			p.Send(write(end, 100))
			p.ExpectAck(100, 1)
			support.Fault(t, "not for this queue pair: "+name, support.Outcome{Wire: "nothing", Responder: c.reason})
		})
	}
}

// TestCase_A5_Noise is what a fuzzer on the network does: random bytes behind good addresses.
func TestCase_A5_Noise(t *testing.T) {
	stage := puppet.NewStage(t, mem.Options{Seed: 5, Faults: mem.Faults{Corrupt: 1}})
	end := stage.NewEnd(puppet.EndOptions{})
	p := stage.NewPuppet()
	p.Connect(end)
	image := string(end.MR.Bytes())
	for i := range 5000 {
		packet := write(end, 100)
		binary.BigEndian.PutUint32(packet.Payload, uint32(i))
		p.Send(packet)
		stage.Pass(5 * time.Microsecond)
	}
	// Damage to what the ICRC leaves out does no harm: source MAC, type of service, time to live, congestion bits.
	require.Equal(t, verbs.StateRTS, end.QP.State())
	require.Equal(t, image[4:], string(end.MR.Bytes()[4:]))
	counters := opener.Counters(end.Device)
	counted := counters.Transport.ReceivedPackets
	for _, n := range counters.DropReasons() {
		counted += n
	}
	require.Equal(t, counters.Link.Received, counted, "every frame is counted once: %v", counters.DropReasons())
	require.Greater(t, counters.Transport.Drops[roce.DropICRC], uint64(1000))
	support.Fault(t, "random damage to every frame", support.Outcome{Responder: "stays in RTS, counts every frame once"})
}
