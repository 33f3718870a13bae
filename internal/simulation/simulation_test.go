package simulation_test

import (
	"crypto/sha256"
	"encoding/hex"
	"flag"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/xroce/xroce/internal/simulation"
	"github.com/xroce/xroce/internal/support"
	"github.com/xroce/xroce/roce"
	"github.com/xroce/xroce/verbs"
)

var (
	seeds = flag.Int("seeds", 500, "number of seeds to run")
	first = flag.Uint64("seed", 1, "first seed")
	soak  = flag.Duration("soak", 0, "run random seeds for this long instead")
	dump  = flag.String("pcapng", "", "write the packets of the last run to this `file`")
)

// TestSimulation runs random programs over a network that loses, doubles, damages and reorders up to 5 % of the frames
// each way. Every request must complete once, in order, with the right bytes.
func TestSimulation(t *testing.T) {
	for _, queues := range []int{1, 2} {
		passed := t.Run(fmt.Sprintf("queues=%d", queues), func(t *testing.T) {
			if *soak > 0 {
				count := 0
				for end := time.Now().Add(*soak / 2); time.Now().Before(end); count++ {
					run(t, queues, rand.Uint64())
				}
				t.Logf("%d seeds", count)
				return
			}
			for seed := *first; seed < *first+uint64(*seeds); seed++ {
				run(t, queues, seed)
			}
		})
		if !passed && *dump != "" {
			return // the file holds the packets of the run that failed
		}
	}
	support.Fault(t, "frames lost, doubled, damaged and reordered at random", support.Outcome{Requester: verbs.WCSuccess})
}

func run(t *testing.T, queues int, seed uint64) {
	parameters := simulation.Parameters{Seed: seed, Queues: queues, WorstFault: 0.05}
	if *dump != "" {
		defer capture(t, *dump, &parameters)()
	}
	program, err := simulation.NewProgram(parameters)
	if err == nil {
		err = program.Run()
	}
	if err != nil {
		t.Fatalf("seed %d: %v\nreplay: go test ./internal/simulation -run '%s' -seed %d -seeds 1 -pcapng /tmp/run.pcapng",
			seed, err, t.Name(), seed)
	}
}

// TestReplay: a seed gives the same packets at the same times, however often it is run.
func TestReplay(t *testing.T) {
	var packet roce.Packet
	opcodes := make(map[roce.Opcode]bool)
	packets := func(seed uint64) string {
		log := sha256.New()
		program, err := simulation.NewProgram(simulation.Parameters{
			Seed: seed, Queues: 2, WorstFault: 0.05,
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
	for seed := range uint64(10) {
		require.Equal(t, packets(seed), packets(seed), "seed %d", seed)
	}
	require.NotEqual(t, packets(1), packets(2))
	for opcode := range opcodes {
		support.Opcode(t, opcode, support.Sent, support.Received) // the programs got what they wanted
	}
}
