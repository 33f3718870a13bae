//go:build linux

package guest

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/xroce/xroce/hack/interop/report"
)

// TestNothingCaptured: transfers without any packet in their captures fail, and a run without transfers has nothing
// to say of packets.
func TestNothingCaptured(t *testing.T) {
	transfer := func(outcome string) report.Result { return report.Result{Kind: "transfer", Outcome: outcome} }
	for _, c := range []struct {
		left string
		ran  []report.Result
		fail int
	}{
		{"rxe", []report.Result{transfer(report.Works), transfer(report.Refused)}, 2},
		{"rxe", []report.Result{transfer(report.Fails)}, 2},
		{"rxe", []report.Result{transfer(report.Refused), {Kind: "open", Outcome: report.Works}}, 0},
		{"xroce at v0", []report.Result{transfer(report.Works)}, 0}, // has no captures looked at
	} {
		g := &guest{left: &end{name: c.left}, saved: time.Now(), saving: time.Hour, report: report.Report{Results: c.ran}}
		g.cases()
		got := g.report.Results[len(c.ran):]
		require.Len(t, got, c.fail)
		for _, r := range got {
			require.Equal(t, report.Fails, r.Outcome)
			require.Contains(t, r.Name, "G7")
		}
	}
}
