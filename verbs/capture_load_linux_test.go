package verbs_test

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/xroce/xroce/internal/netlab"
	"github.com/xroce/xroce/internal/opener"
	"github.com/xroce/xroce/internal/pcapng/pcapngtest"
	"github.com/xroce/xroce/verbs"
)

// TestCase_F7_FullLoad: WRITEs as fast as a veth pair carries them, with and without a capture into a file, in turn.
// Nothing gets lost by it, and what is not in the file is counted.
func TestCase_F7_FullLoad(t *testing.T) {
	da, db := vethDevices(t, netlab.PairOptions{}, verbs.Options{})
	a, b := newEnd(t, da, make([]byte, 1<<20), verbs.QPCap{}), newEnd(t, db, make([]byte, 1<<20), verbs.QPCap{})
	connect(t, a, b, verbs.ConnectOptions{Timeout: noTimeout})
	for range 10 {
		require.Equal(t, verbs.WCSuccess, writeAll(t, a, b, 1<<20))
	}
	frames := func() uint64 {
		c := opener.Counters(da).Link
		return c.Transmitted + c.Received
	}
	settle := func() {
		require.Eventually(t, func() bool { return opener.Counters(da).Link.Received == opener.Counters(db).Link.Transmitted }, patience, tick)
	}
	// load returns the bytes per second of some WRITEs.
	load := func() float64 {
		const count = 40
		start := time.Now()
		for range count {
			require.Equal(t, verbs.WCSuccess, writeAll(t, a, b, 1<<20))
		}
		return count * (1 << 20) / time.Since(start).Seconds()
	}
	var ratios []float64
	var seen, missing uint64
	for range 5 {
		without := load()
		settle()
		before := frames()
		name := filepath.Join(t.TempDir(), "load.pcapng")
		file, err := os.Create(name)
		require.NoError(t, err)
		capture, err := da.StartCapture(file, verbs.CaptureOptions{})
		require.NoError(t, err)
		with := load()
		settle()
		stats, err := capture.Stop()
		require.NoError(t, err)
		require.NoError(t, file.Close())
		require.Equal(t, frames()-before, stats.Packets+stats.LeftOut)
		content, err := os.ReadFile(name)
		require.NoError(t, err)
		c := pcapngtest.Read(t, bytes.NewReader(content))
		require.Len(t, c.Packets, int(stats.Packets))
		require.Equal(t, stats.LeftOut, c.Interfaces[0].Statistics.PacketsDropped)
		ratios = append(ratios, with/without)
		seen += stats.Packets
		missing += stats.LeftOut
	}
	slices.Sort(ratios)
	require.Zero(t, opener.Counters(da).Transport.Retransmitted)
	require.Empty(t, opener.Counters(db).DropReasons())
	t.Logf("throughput with a capture of one end into a file: %.2f (%.2f to %.2f) of that without; %d packets, %d left out",
		ratios[2], ratios[0], ratios[4], seen, missing)
}
