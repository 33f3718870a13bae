//go:build linux

package main

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestNothingCaptured: transfers without any packet in their captures fail, and a run without transfers has nothing to say of packets.
func TestNothingCaptured(t *testing.T) {
	transfer := func(outcome string) result { return result{Kind: "transfer", Outcome: outcome} }
	for _, c := range []struct {
		left string
		ran  []result
		fail int
	}{
		{"rxe", []result{transfer(works), transfer(refused)}, 2},
		{"rxe", []result{transfer(fails)}, 2},
		{"rxe", []result{transfer(refused), {Kind: "open", Outcome: works}}, 0},
		{"xroce at v0", []result{transfer(works)}, 0}, // has no captures looked at
	} {
		g := &guest{left: &end{name: c.left}, saved: time.Now(), saving: time.Hour, report: report{Results: c.ran}}
		g.cases()
		got := g.report.Results[len(c.ran):]
		require.Len(t, got, c.fail)
		for _, r := range got {
			require.Equal(t, fails, r.Outcome)
			require.Contains(t, r.Name, "G7")
		}
	}
}
