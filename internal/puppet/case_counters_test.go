package puppet_test

import (
	"bytes"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/xroce/xroce/internal/opener"
	"github.com/xroce/xroce/internal/puppet"
	"github.com/xroce/xroce/roce"
	"github.com/xroce/xroce/verbs"
)

// hostile makes a packet of which anything may be wrong, or nothing.
func hostile(random *rand.Rand, p *puppet.Puppet, end *puppet.End, expected roce.PSN) []byte {
	opcodes := []roce.Opcode{
		roce.RCWriteOnly, roce.RCWriteOnly, roce.RCWriteOnly, roce.RCSendOnly, roce.RCWriteFirst, roce.RCWriteMiddle, roce.RCReadRequest,
		roce.RCFetchAdd, roce.RCAcknowledge, roce.RCReadResponseOnly, roce.RCAtomicAcknowledge, roce.UDSendOnly, roce.UCWriteOnly,
		roce.CNP, 0x1F, 0xFF,
	}
	length := random.IntN(9)
	packet := puppet.Packet{
		Opcode: opcodes[random.IntN(len(opcodes))], PSN: expected, AckRequest: random.IntN(2) == 0,
		RETH: end.RETH(random.IntN(64), length), Payload: bytes.Repeat([]byte{byte(random.Uint32())}, length),
		Atomic: roce.AtomicETHFields{VA: end.MR.Addr() + 7, RKey: end.MR.RKey(), SwapAdd: 1},
		AETH:   roce.AETHFields{Syndrome: roce.Syndrome(random.Uint32N(256))},
	}
	if random.IntN(4) == 0 {
		packet.PSN = expected.Add(random.Uint32N(7) - 3)
	}
	stranger := opener.Driver(end.Device).Link()
	addresses, _ := stranger.Addresses()
	wrongKey, wrongQPN, pad := uint16(random.Uint32()), roce.QPN(random.Uint32N(1<<24)), uint8(random.Uint32N(4))
	switch random.IntN(16) {
	case 0:
		packet.Wrong.ICRC = true
	case 1:
		packet.Wrong.PKey = &wrongKey
	case 2:
		packet.Wrong.QPN = &wrongQPN
	case 3:
		packet.Wrong.PadCount = &pad
	case 4:
		packet.Wrong.Source = addresses[0]
	case 5:
		packet.Wrong.IPLength = random.IntN(20) - 10
	case 6:
		packet.Wrong.UDPLength = random.IntN(20) - 10
	case 7:
		packet.Wrong.TransportVersion = uint8(random.Uint32N(3))
	}
	frame := p.Frame(packet)
	switch random.IntN(12) {
	case 0:
		frame[12+random.IntN(len(frame)-12)] ^= 1 << random.IntN(8)
	case 1:
		frame = frame[:14+random.IntN(len(frame)-14)]
	}
	return frame
}

// TestCase_G5_DroppedOnce sends thousands of hostile packets, one at a time. A packet that changes nothing and is not
// answered was dropped, and is in exactly one of the counters of drops; one that changes something is in none.
func TestCase_G5_DroppedOnce(t *testing.T) {
	stage, end, p := sender(t)
	random := rand.New(rand.NewPCG(1, 5))
	status := func() (verbs.QPStatus, *opener.EngineCounters) {
		s, err := end.Device.Snapshot()
		require.NoError(t, err)
		c := opener.Counters(end.Device)
		return s.QPs[0], &c
	}
	total := func(c *opener.EngineCounters) (n uint64) {
		for _, k := range c.DropReasons() {
			n += k
		}
		return n
	}
	const packets = 6000
	seen := make(map[string]uint64)
	effects, fatal := 0, 0
	for i := range packets {
		if i%50 == 25 {
			end.PostRecv(1, 2048, 64)
		}
		before, countersBefore := status()
		image := bytes.Clone(end.MR.Bytes())
		frame := hostile(random, p, end, before.ExpectedPSN)
		p.Raw(frame)
		stage.Pass(10 * time.Microsecond)
		answers := 0
		refusedSequence := false
		for p.Waiting() {
			a := p.Expect()
			refusedSequence = a.AETH() != nil && a.AETH().Syndrome() == roce.SyndromeNAKSequence
			answers++
		}
		after, counters := status()
		drops := total(counters) - total(countersBefore)
		changed := !bytes.Equal(image, end.MR.Bytes()) || before.ExpectedPSN != after.ExpectedPSN || before.State != after.State
		effect := changed || answers > 0
		for reason, n := range moved(countersBefore.DropReasons(), counters.DropReasons()) {
			seen[reason] += n
		}
		switch {
		case refusedSequence:
			// It is dropped, and the peer is told which one is missing.
			require.EqualValues(t, 1, drops, "packet %d: %x", i, frame)
			require.False(t, changed)
		case effect:
			require.Zero(t, drops, "packet %d: %x\n%+v\n%+v", i, frame, before, after)
			effects++
		default:
			require.EqualValues(t, 1, drops, "packet %d: %x\n%+v\n%+v", i, frame, before, after)
		}
		requireAllCounted(t, counters, i+1)
		if after.State == "ERR" {
			fatal++
			if fatal%3 == 0 { // in the error state for a while, too
				require.NoError(t, end.QP.Modify(t.Context(), verbs.QPAttr{State: verbs.StateReset}, verbs.QPStateMask))
				p.Connect(end)
			}
		}
	}
	t.Logf("%d packets, %d had an effect, drops %v", packets, effects, seen)
	require.Greater(t, effects, packets/50)
	for _, reason := range []string{
		"icrc_bad", "pkey_bad", "qpn_unknown", "address_mismatch", "opcode_unknown", "transport_mismatch", "transport_version_bad",
		"qp_state", "out_of_sequence", "response_unexpected", "duplicate_unanswerable", "too_short", "udp_length_bad",
	} {
		require.NotZero(t, seen[reason], reason)
	}
}

// requireAllCounted: no packet is missing between the link and the queue pair.
func requireAllCounted(t *testing.T, counters *opener.EngineCounters, packets int) {
	t.Helper()
	c := counters.Transport
	onTheWay := uint64(0)
	for r := range roce.DropTransportMismatch {
		onTheWay += c.Drops[r]
	}
	require.EqualValues(t, packets, counters.Link.Received)
	// The address of a packet is looked at before its QP is asked, too.
	require.Equal(t, counters.Link.Received, onTheWay+c.ReceivedPackets)
	admitted := uint64(0)
	for _, n := range c.ReceivedOpcodes {
		admitted += n
	}
	refused := c.Drops[roce.DropTransportMismatch] + c.Drops[roce.DropQPState] + c.Drops[roce.DropAddressMismatch] + c.Drops[roce.DropPKey]
	require.Equal(t, c.ReceivedPackets, admitted+refused)
}
