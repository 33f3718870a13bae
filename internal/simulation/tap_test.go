package simulation_test

import (
	"bytes"
	"fmt"
	"maps"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/xroce/xroce/internal/opener"
	"github.com/xroce/xroce/internal/pcapng/pcapngtest"
	"github.com/xroce/xroce/internal/simulation"
	"github.com/xroce/xroce/internal/support"
	"github.com/xroce/xroce/roce"
	"github.com/xroce/xroce/verbs"
)

// seenFrame is a frame at a virtual time.
type seenFrame struct {
	at    time.Duration
	bytes string
}

// TestCase_F7_BothDirections: over a network that does everything to packets, the captures of the devices hold what
// was sent and what has arrived, each frame at its time and as often as that was, and their marks are as many as the
// counters say, by reason and opcode.
func TestCase_F7_BothDirections(t *testing.T) {
	seen := make(map[string]int)
	for seed := range uint64(20) {
		sent, arrived := make(map[seenFrame]int), make(map[seenFrame]int)
		program, err := simulation.NewProgram(simulation.Parameters{
			Seed: seed, WorstFault: 0.05,
			Sent: func(at time.Duration, frame []byte) { sent[seenFrame{at, string(frame)}]++ },
			Tap:  func(at time.Duration, frame []byte) { arrived[seenFrame{at, string(frame)}]++ },
		})
		require.NoError(t, err)
		var files [2]bytes.Buffer
		var captures [2]*verbs.Capture
		devices := program.Devices()
		for i, d := range devices {
			captures[i], err = d.StartCapture(&files[i], verbs.CaptureOptions{BufferSize: 16 << 20})
			require.NoError(t, err)
		}
		require.NoError(t, program.Run(), "it closes the devices, and that ends the captures")
		for i, d := range devices {
			stats, err := captures[i].Stop()
			require.NoError(t, err)
			require.Zero(t, stats.LeftOut)
			judge(t, fmt.Sprintf("seed %d, device %d", seed, i), pcapngtest.Read(t, &files[i]), opener.Counters(d), sent,
				arrived, seen)
		}
		for frame, n := range sent {
			require.Zero(t, n, "sent at %v, but not captured: %x", frame.at, frame.bytes)
		}
		for frame, n := range arrived {
			require.Zero(t, n, "arrived at %v, but not captured: %x", frame.at, frame.bytes)
		}
	}
	for _, comment := range []string{
		"", "retransmission", "response sent again", "duplicate request", "dropped: icrc_bad", "dropped: out_of_sequence",
		"dropped: response_stale", "dropped: qpn_unknown", "dropped: qp_state", "dropped: duplicate_unanswerable",
	} {
		require.NotZero(t, seen[comment], comment)
	}
	t.Logf("%v", seen)
	support.Object(t, "Device", "StartCapture, on a network that loses and damages packets", "as many marks as the counters say")
}

// judge compares a capture with the counters of its device, and takes its frames out of those sent and arrived.
func judge(
	t *testing.T, name string, c pcapngtest.Capture, counters opener.EngineCounters, sent, arrived map[seenFrame]int, seen map[string]int,
) {
	var packet roce.Packet
	total := counters.Transport
	sentOpcodes, drops := make(map[string]uint64), make(map[string]uint64)
	var inbound, retransmitted, duplicates uint64
	// The capture tells the time of the day, and the virtual clock was at a nanosecond when it began.
	begun := c.Interfaces[0].Statistics.StartTime.Add(-time.Nanosecond)
	for _, p := range c.Packets {
		require.Equal(t, p.Length, len(p.Frame))
		frame := seenFrame{p.At.Sub(begun), string(p.Frame)}
		seen[p.Comment]++
		if p.Outbound {
			require.Equal(t, roce.DropNone, packet.Parse([][]byte{p.Frame}), "%s: the ICRC is right", name)
			sentOpcodes[packet.Opcode.String()]++
			sent[frame]--
		} else {
			inbound++
			arrived[frame]--
		}
		switch {
		case p.Comment == "retransmission":
			require.True(t, packet.Info.Request)
			retransmitted++
		case p.Comment == "response sent again":
			require.False(t, packet.Info.Request)
		case p.Comment == "duplicate request":
			duplicates++
		case p.Comment != "":
			var reason string
			_, err := fmt.Sscanf(p.Comment, "dropped: %s", &reason)
			require.NoError(t, err, p.Comment)
			drops[reason]++
			if reason == roce.DropDuplicateUnanswerable.String() {
				duplicates++
			}
		}
	}
	require.Equal(t, total.Sent(), sentOpcodes, name)
	require.Equal(t, counters.Link.Received, inbound, name)
	require.Equal(t, total.Retransmitted, retransmitted, name)
	require.Equal(t, total.DuplicateRequests, duplicates, name)
	// A READ that is asked for again and whose region has gone meanwhile is dropped later than it came.
	unanswerable := roce.DropDuplicateUnanswerable.String()
	want := maps.Clone(total.Dropped())
	require.LessOrEqual(t, drops[unanswerable], want[unanswerable], name)
	delete(want, unanswerable)
	delete(drops, unanswerable)
	require.Equal(t, want, drops, name)
}
