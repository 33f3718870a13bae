package simulation_test

import (
	"crypto/sha256"
	"encoding/hex"
	"flag"
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/xroce/xroce/internal/simulation"
	"github.com/xroce/xroce/verbs"
)

var (
	seeds = flag.Int("seeds", 3000, "number of seeds to run")
	first = flag.Uint64("seed", 1, "first seed")
	soak  = flag.Duration("soak", 0, "run random seeds for this long instead")
)

// TestSimulation runs random programs over a network that loses, doubles, damages, delays and reorders frames; see the package
// comment for what must hold. The seeds are shared among as many goroutines as there are CPUs.
func TestSimulation(t *testing.T) {
	var next, count atomic.Uint64
	next.Store(*first)
	end := time.Now().Add(*soak)
	var workers sync.WaitGroup
	for range runtime.GOMAXPROCS(0) {
		workers.Go(func() {
			for !t.Failed() {
				seed := next.Add(1) - 1
				if *soak > 0 {
					if seed = rand.Uint64(); time.Now().After(end) {
						return
					}
				} else if seed >= *first+uint64(*seeds) {
					return
				}
				if err := run(seed, nil); err != nil {
					t.Errorf("seed %d: %v\nreplay: go test ./internal/simulation -run '^TestSimulation$' -seed %d -seeds 1", seed, err, seed)
				}
				count.Add(1)
			}
		})
	}
	workers.Wait()
	t.Logf("%d seeds", count.Load())
}

func run(seed uint64, tap func(at time.Duration, frame []byte)) error {
	program, err := simulation.NewProgram(simulation.Parameters{Seed: seed, WorstFault: 0.05, Tap: tap})
	if err != nil {
		return err
	}
	return program.Run()
}

// TestVariety: the programs contain what they are to prove.
func TestVariety(t *testing.T) {
	outcomes := make(map[simulation.Outcome]int)
	drains := 0
	for seed := range uint64(300) {
		program, err := simulation.NewProgram(simulation.Parameters{Seed: seed, WorstFault: 0.05})
		require.NoError(t, err)
		require.NoError(t, program.Run())
		for o, n := range program.Outcomes() {
			outcomes[o] += n
		}
		drains += program.Drains()
	}
	for o := range verbs.WRRegMR + 1 {
		if o.Known() {
			require.Greater(t, outcomes[simulation.Outcome{Opcode: o}], 100, "success of %v", o)
			require.NotZero(t, outcomes[simulation.Outcome{Opcode: o, Status: verbs.WCWRFlushErr}], "flush of %v", o)
		}
	}
	for _, o := range []simulation.Outcome{
		{Opcode: verbs.WRRDMAWrite, Status: verbs.WCRemAccessErr}, {Opcode: verbs.WRRDMARead, Status: verbs.WCRemAccessErr},
		{Opcode: verbs.WRAtomicFetchAdd, Status: verbs.WCRemAccessErr}, {Opcode: verbs.WRAtomicWrite, Status: verbs.WCRemAccessErr},
		{Opcode: verbs.WRSend, Status: verbs.WCRemInvReqErr}, {Opcode: verbs.WRRDMAWrite, Status: verbs.WCLocProtErr},
		{Opcode: verbs.WRRDMARead, Status: verbs.WCRetryExcErr}, {Opcode: verbs.WRSend, Status: verbs.WCRetryExcErr},
	} {
		require.NotZero(t, outcomes[o], "%v: %v", o.Opcode, o.Status)
	}
	require.Greater(t, drains, 50)
	t.Logf("%d drains, %v", drains, outcomes)
}

// TestReplay: a seed gives the same packets at the same times, however often it is run.
func TestReplay(t *testing.T) {
	packets := func(seed uint64) string {
		log := sha256.New()
		require.NoError(t, run(seed, func(at time.Duration, frame []byte) { fmt.Fprintf(log, "%d %x\n", at, frame) }))
		return hex.EncodeToString(log.Sum(nil))
	}
	for seed := range uint64(30) {
		require.Equal(t, packets(seed), packets(seed), "seed %d", seed)
	}
	require.NotEqual(t, packets(1), packets(2))
}
