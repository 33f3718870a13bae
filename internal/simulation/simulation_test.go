package simulation_test

import (
	"crypto/sha256"
	"encoding/hex"
	"flag"
	"fmt"
	"math/rand/v2"
	"runtime"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/xroce/xroce/internal/simulation"
	"github.com/xroce/xroce/internal/support"
	"github.com/xroce/xroce/roce"
	"github.com/xroce/xroce/roce/queue"
	"github.com/xroce/xroce/verbs"
)

var (
	seeds = flag.Int("seeds", 3000, "number of seeds to run")
	first = flag.Uint64("seed", 1, "first seed")
	soak  = flag.Duration("soak", 0, "run random seeds for this long instead")
	dump  = flag.String("pcapng", "", "write the packets of the last run to this `file`")
)

// TestSimulation runs random programs over a network that loses, doubles, damages, delays and reorders frames; see
// the package comment for what must hold. The seeds are shared among as many goroutines as there are CPUs.
func TestSimulation(t *testing.T) {
	var next, count atomic.Uint64
	next.Store(*first)
	end := time.Now().Add(*soak)
	workers := runtime.GOMAXPROCS(0)
	if *dump != "" {
		workers = 1 // the last run is the one that failed
	}
	var running sync.WaitGroup
	for range workers {
		running.Go(func() {
			for !t.Failed() {
				seed := next.Add(1) - 1
				if *soak > 0 {
					if seed = rand.Uint64(); time.Now().After(end) {
						return
					}
				} else if seed >= *first+uint64(*seeds) {
					return
				}
				if err := run(t, seed); err != nil {
					t.Errorf("seed %d: %v\nreplay: go test ./internal/simulation -run '^TestSimulation$' -seed %d -seeds 1 -pcapng /tmp/run.pcapng",
						seed, err, seed)
				}
				count.Add(1)
			}
		})
	}
	running.Wait()
	t.Logf("%d seeds", count.Load())
	support.Fault(t, "frames lost, doubled, damaged, delayed and reordered at random", support.Outcome{Requester: verbs.WCSuccess})
}

func run(t *testing.T, seed uint64) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("panic: %v\n%s", p, debug.Stack())
		}
	}()
	parameters := simulation.Parameters{Seed: seed, WorstFault: 0.05}
	if *dump != "" {
		defer capture(t, *dump, &parameters)()
	}
	program, err := simulation.NewProgram(parameters)
	if err != nil {
		return err
	}
	return program.Run()
}

// TestVariety: the programs contain what they are to prove.
func TestVariety(t *testing.T) {
	outcomes := make(map[simulation.Outcome]int)
	drains, moves, movers := 0, uint64(0), 0
	for seed := range uint64(300) {
		program, err := simulation.NewProgram(simulation.Parameters{Seed: seed, WorstFault: 0.05})
		require.NoError(t, err)
		require.NoError(t, program.Run())
		for o, n := range program.Outcomes() {
			outcomes[o] += n
		}
		drains += program.Drains()
		if n := program.Moves(); n > 0 {
			moves += n
			movers++
		}
	}
	for o := range verbs.WRRegMR + 1 {
		if queue.Opcode(o).Known() {
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
	require.Greater(t, moves, uint64(300))
	require.Greater(t, movers, 80)
	t.Logf("%d drains, %d moves in %d programs, %v", drains, moves, movers, outcomes)
}

// TestReplay: a seed gives the same packets at the same times, however often it is run.
func TestReplay(t *testing.T) {
	var packet roce.Packet
	opcodes := make(map[roce.Opcode]bool)
	packets := func(seed uint64) string {
		log := sha256.New()
		program, err := simulation.NewProgram(simulation.Parameters{
			Seed: seed, WorstFault: 0.05,
			Tap: func(at time.Duration, frame []byte) {
				fmt.Fprintf(log, "%d %x\n", at, frame)
				if packet.Parse([][]byte{frame}) == roce.DropNone {
					opcodes[packet.Opcode] = true
				}
			},
		})
		require.NoError(t, err)
		require.NoError(t, program.Run())
		return hex.EncodeToString(log.Sum(nil))
	}
	for seed := range uint64(30) {
		require.Equal(t, packets(seed), packets(seed), "seed %d", seed)
	}
	require.NotEqual(t, packets(1), packets(2))
	for opcode := range opcodes {
		support.Opcode(t, opcode, support.Sent, support.Received) // the programs got what they wanted
	}
}
