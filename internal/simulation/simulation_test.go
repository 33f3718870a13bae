package simulation_test

import (
	"flag"
	"fmt"
	"testing"

	"github.com/xroce/xroce/internal/simulation"
)

var (
	seeds = flag.Int("seeds", 500, "number of seeds to run")
	first = flag.Uint64("seed", 1, "first seed")
)

// TestSimulation runs random programs over a network that loses, doubles, damages and reorders up to 5 % of the frames
// each way. Every request must complete once, in order, with the right bytes.
func TestSimulation(t *testing.T) {
	for _, queues := range []int{1, 2} {
		t.Run(fmt.Sprintf("queues=%d", queues), func(t *testing.T) {
			for seed := *first; seed < *first+uint64(*seeds); seed++ {
				run(t, simulation.Parameters{Seed: seed, Queues: queues, WorstFault: 0.05})
			}
		})
	}
}

func run(t *testing.T, p simulation.Parameters) {
	program, err := simulation.NewProgram(p)
	if err == nil {
		err = program.Run()
	}
	if err != nil {
		t.Fatalf("seed %d: %v\nreplay: go test ./internal/simulation -run '%s' -seed %d -seeds 1", p.Seed, err, t.Name(), p.Seed)
	}
}
