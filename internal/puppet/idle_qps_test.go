package puppet_test

import (
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/xroce/xroce/internal/puppet"
	"github.com/xroce/xroce/roce/link/mem"
	"github.com/xroce/xroce/verbs"
)

// TestIdleQPsCostNothing compares the time per message of a busy queue pair with and without 1,000 connected ones
// beside it that do nothing. Both ends run in one goroutine and in virtual time, so it is the engine's own time. Runs
// alternate, and the fastest of each kind counts: what the machine does beside is of no interest.
func TestIdleQPsCostNothing(t *testing.T) {
	const idle, runs, messages = 1000, 200, 320
	alone, crowded := busyQP(t, 0), busyQP(t, idle)
	ratio := math.Inf(1)
	for try := 0; try < 5 && ratio >= 1.05; try++ { // a machine that has other work may spoil all runs of a try
		best := [2]time.Duration{math.MaxInt64, math.MaxInt64}
		for range runs {
			best[0] = min(best[0], alone(messages))
			best[1] = min(best[1], crowded(messages))
		}
		ratio = float64(best[1]) / float64(best[0])
		t.Logf("%d ns per message alone, %d beside %d idle queue pairs: x %.3f",
			best[0].Nanoseconds()/messages, best[1].Nanoseconds()/messages, idle, ratio)
	}
	require.Less(t, ratio, 1.05)
}

// busyQP makes two ends with so many idle connections, and returns what measures a number of small WRITEs over
// another one.
func busyQP(t *testing.T, idle int) func(messages int) time.Duration {
	stage := puppet.NewStage(t, mem.Options{})
	a, b := stage.NewEnd(puppet.EndOptions{}), stage.NewEnd(puppet.EndOptions{})
	for range idle {
		beside := [2]puppet.End{*a, *b}
		for i := range beside {
			beside[i].QP = beside[i].NewQP(verbs.QPCap{MaxSendWR: 2, MaxRecvWR: 2})
		}
		stage.Connect(&beside[0], &beside[1])
	}
	stage.Connect(a, b)
	wr := a.Request(1, verbs.WRRDMAWrite, 0, 8)
	wr.RemoteAddr, wr.RKey = b.MR.Addr(), b.MR.RKey()
	var wcs [16]verbs.WC
	return func(messages int) time.Duration {
		start := time.Now()
		for done := 0; done < messages; {
			for range wcs {
				require.NoError(t, a.QP.PostSend(wr))
			}
			for left := len(wcs); left > 0; {
				stage.World.Step()
				n, err := a.SendCQ.Poll(wcs[:])
				require.NoError(t, err)
				left -= n
			}
			done += len(wcs)
		}
		return time.Since(start)
	}
}
