package simulation_test

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/gopacket/gopacket/pcapgo"
	"github.com/stretchr/testify/require"

	"github.com/xroce/xroce/internal/pcapng"
	"github.com/xroce/xroce/internal/simulation"
	"github.com/xroce/xroce/roce"
)

// capture makes a program write its packets into a file, in virtual time. Each frame is there when it is sent, with the
// comment "sent", and for every time that it arrives, with "arrives" and, if it was damaged, why it will be dropped.
// The function that it returns completes the file.
func capture(t *testing.T, name string, p *simulation.Parameters) (done func()) {
	file, err := os.Create(name)
	require.NoError(t, err)
	w, err := pcapng.NewWriter(file)
	require.NoError(t, err)
	p.Sent = func(at time.Duration, frame []byte) { require.NoError(t, w.Write(at, frame, "sent")) }
	var packet roce.Packet
	p.Tap = func(at time.Duration, frame []byte) {
		comment := "arrives"
		if reason := packet.Parse([][]byte{frame}); reason != roce.DropNone {
			comment += ", " + reason.String()
		}
		require.NoError(t, w.Write(at, frame, comment))
	}
	return func() {
		require.NoError(t, w.Flush())
		require.NoError(t, file.Close())
	}
}

// TestCapture: what is in the file is what a run of the same seed sends and delivers.
func TestCapture(t *testing.T) {
	type event struct {
		at      time.Duration
		frame   string
		arrives bool
	}
	parameters := simulation.Parameters{Seed: 3, Queues: 2, WorstFault: 0.05}
	run := func() {
		program, err := simulation.NewProgram(parameters)
		require.NoError(t, err)
		require.NoError(t, program.Run())
	}
	var want []event
	parameters.Sent = func(at time.Duration, frame []byte) { want = append(want, event{at, string(frame), false}) }
	parameters.Tap = func(at time.Duration, frame []byte) { want = append(want, event{at, string(frame), true}) }
	run()
	name := filepath.Join(t.TempDir(), "run.pcapng")
	done := capture(t, name, &parameters)
	run()
	done()

	file, err := os.Open(name)
	require.NoError(t, err)
	defer file.Close()
	r, err := pcapgo.NewNgReader(file, pcapgo.DefaultNgReaderOptions)
	require.NoError(t, err)
	comments := make(map[string]int)
	last := time.Duration(0)
	sent := make(map[string]time.Duration)
	for _, e := range want {
		frame, info, options, err := r.ReadPacketDataWithOptions()
		require.NoError(t, err)
		require.Len(t, options.Comments, 1)
		comment := options.Comments[0]
		comments[comment]++
		require.Equal(t, e, event{time.Duration(info.Timestamp.UnixNano()), string(frame), comment != "sent"})
		require.GreaterOrEqual(t, e.at, last)
		last = e.at
		tail := e.frame[len(e.frame)-8:] // with the ICRC: damage to what that leaves out goes through
		switch comment {
		case "sent":
			sent[tail] = e.at
		case "arrives":
			before, found := sent[tail]
			require.True(t, found, "what is delivered undamaged was sent")
			require.GreaterOrEqual(t, e.at-before, time.Microsecond)
		}
	}
	_, _, err = r.ReadPacketData()
	require.Error(t, err, "more than was sent and delivered")
	require.NotZero(t, comments["arrives, icrc_bad"], "%v", comments)
	require.Greater(t, comments["sent"], 100, "%v", comments)
}
