package verbs_test

import (
	"os/exec"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/xroce/xroce/internal/netlab"
	"github.com/xroce/xroce/verbs"
)

// TestCrowdedPollers: two pollers on a machine with more runnable threads than CPUs go on, and no queue pair ends.
func TestCrowdedPollers(t *testing.T) {
	da, db := vethDevices(t, netlab.PairOptions{}, verbs.Options{})
	p := &pingPong{}
	p.a, p.b = newEnd(t, da, make([]byte, 64), verbs.QPCap{}), newEnd(t, db, make([]byte, 64), verbs.QPCap{})
	connect(t, p.a, p.b, verbs.ConnectOptions{})
	for range 4 {
		spinner := exec.Command("sh", "-c", "while kill -0 $PPID; do :; done") // until the test is gone, however it ends
		require.NoError(t, spinner.Start())
		defer func() {
			_ = spinner.Process.Kill()
			_ = spinner.Wait()
		}()
	}
	// A poller that gives whole rounds away takes 6 ms and more for half of its round trips (Linux 6.18, 2 CPUs). How
	// late the last ones are says something of this machine's other tests, too, and counts at full size only.
	rounds, part, limit := 200, 50, 2*time.Millisecond
	if *fullSize {
		rounds, part, limit = 5000, 99, 20*time.Millisecond
	}
	late := time.Hour
	for try := 0; try < 5 && late >= limit; try++ { // other things may keep the machine busy
		times := p.run(t, rounds)
		late = times[rounds*part/100]
		t.Logf("p50 %v, p99 %v, longest %v", times[rounds/2], times[rounds*99/100], times[rounds-1])
	}
	require.Less(t, late, limit, "percentile %d", part)
	for _, e := range []*end{p.a, p.b} {
		require.Equal(t, verbs.StateRTS, e.qp.State())
	}
}
