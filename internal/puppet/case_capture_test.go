package puppet_test

import (
	"bytes"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/xroce/xroce/internal/opener"
	"github.com/xroce/xroce/internal/pcapng/pcapngtest"
	"github.com/xroce/xroce/internal/puppet"
	"github.com/xroce/xroce/internal/support"
	"github.com/xroce/xroce/roce"
	"github.com/xroce/xroce/verbs"
)

// TestCase_F7_WhyDropped sends thousands of hostile packets, one at a time. Each is in the capture as it was sent,
// with the reason whose counter it has moved, or without one if none has moved.
func TestCase_F7_WhyDropped(t *testing.T) {
	stage, end, p := sender(t)
	var file bytes.Buffer
	capture, err := end.Device.StartCapture(&file, verbs.CaptureOptions{BufferSize: 64 << 20})
	require.NoError(t, err)
	random := rand.New(rand.NewPCG(2, 7))
	counters := func() opener.EngineCounters { return opener.Counters(end.Device) }
	type event struct {
		frame   []byte
		comment string
	}
	const packets = 4000
	var sent []event
	fatal := 0
	for i := range packets {
		if i%50 == 25 {
			end.PostRecv(1, 2048, 64)
		}
		s, err := end.Device.Snapshot()
		require.NoError(t, err)
		before := counters()
		frame := hostile(random, p, end, s.QPs[0].ExpectedPSN)
		p.Raw(frame)
		stage.Pass(10 * time.Microsecond)
		for p.Waiting() {
			p.Expect()
		}
		after := counters()
		comment := ""
		if after.Transport.DuplicateRequests > before.Transport.DuplicateRequests {
			comment = "duplicate request"
		}
		for reason, n := range moved(before.DropReasons(), after.DropReasons()) {
			require.EqualValues(t, 1, n)
			comment = "dropped: " + reason
		}
		sent = append(sent, event{frame, comment})
		s, err = end.Device.Snapshot()
		require.NoError(t, err)
		if s.QPs[0].State != "ERR" {
			continue
		}
		if fatal++; fatal%3 == 0 { // in the error state for a while, too
			require.NoError(t, end.QP.Modify(t.Context(), verbs.QPAttr{State: verbs.StateReset}, verbs.QPStateMask))
			p.Connect(end)
		}
	}
	stats, err := capture.Stop()
	require.NoError(t, err)
	require.Zero(t, stats.LeftOut)

	c := pcapngtest.Read(t, &file)
	require.Len(t, c.Packets, int(stats.Packets))
	seen := make(map[string]int)
	var answers uint64
	for _, got := range c.Packets {
		if got.Outbound {
			require.Empty(t, got.Comment)
			answers++
			continue
		}
		want := sent[0]
		sent = sent[1:]
		require.Equal(t, want.frame, got.Frame)
		require.Equal(t, want.comment, got.Comment, "%x", got.Frame)
		seen[got.Comment]++
	}
	require.Empty(t, sent)
	require.Equal(t, counters().Transport.SentPackets, answers)
	for _, reason := range []string{
		"icrc_bad", "pkey_bad", "qpn_unknown", "address_mismatch", "opcode_unknown", "transport_mismatch", "transport_version_bad",
		"qp_state", "out_of_sequence", "response_unexpected", "too_short", "udp_length_bad",
	} {
		require.NotZero(t, seen["dropped: "+reason], reason)
	}
	require.NotZero(t, seen["duplicate request"])
	t.Logf("%v, %d answers", seen, answers)
}

// TestCase_F7_Marks: a packet that was lost, and an answer that is asked for again.
func TestCase_F7_Marks(t *testing.T) {
	stage, end, p := sender(t)
	var file bytes.Buffer
	capture, err := end.Device.StartCapture(&file, verbs.CaptureOptions{})
	require.NoError(t, err)

	end.Post(end.Request(1, verbs.WRSend, 0, 4), end.Request(2, verbs.WRSend, 0, 4))
	p.ExpectPacket(roce.RCSendOnly, 40)
	p.ExpectPacket(roce.RCSendOnly, 41)
	p.NAK(41, roce.SyndromeNAKSequence)
	p.ExpectPacket(roce.RCSendOnly, 41)
	p.Ack(41, 2)
	end.ExpectSend(1, verbs.WCSuccess)
	end.ExpectSend(2, verbs.WCSuccess)

	read := puppet.Packet{Opcode: roce.RCReadRequest, PSN: 100, RETH: end.RETH(0, 8)}
	p.Send(read)
	p.ExpectPacket(roce.RCReadResponseOnly, 100)
	p.Send(read)
	p.ExpectPacket(roce.RCReadResponseOnly, 100)
	stage.Pass(time.Microsecond)
	_, err = capture.Stop()
	require.NoError(t, err)

	type line struct {
		outbound bool
		opcode   roce.Opcode
		psn      roce.PSN
		comment  string
	}
	var lines []line
	var packet roce.Packet
	for _, got := range pcapngtest.Read(t, &file).Packets {
		require.Equal(t, roce.DropNone, packet.Parse([][]byte{got.Frame}), "the ICRC is right")
		lines = append(lines, line{got.Outbound, packet.Opcode, packet.PSN, got.Comment})
	}
	require.Equal(t, []line{
		{true, roce.RCSendOnly, 40, ""},
		{true, roce.RCSendOnly, 41, ""},
		{false, roce.RCAcknowledge, 41, ""},
		{true, roce.RCSendOnly, 41, "retransmission"},
		{false, roce.RCAcknowledge, 41, ""},
		{false, roce.RCReadRequest, 100, ""},
		{true, roce.RCReadResponseOnly, 100, ""},
		{false, roce.RCReadRequest, 100, "duplicate request"},
		{true, roce.RCReadResponseOnly, 100, "response sent again"},
	}, lines)
	support.Object(t, "Device", "StartCapture", "packets of both directions as they are on the wire, marked if dropped or sent again")
}
