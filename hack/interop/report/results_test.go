//go:build linux

package report

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/xroce/xroce/hack/interop/plan"
)

// TestKeepResults: a run that came to its end replaces what was there, one that was cut short does not replace one
// that was not.
func TestKeepResults(t *testing.T) {
	folder := filepath.Join(t.TempDir(), "7.3")
	leave := func(r *Report) {
		require.NoError(t, os.Mkdir(folder+Running, 0o755))
		if r != nil {
			text, err := json.Marshal(r)
			require.NoError(t, err)
			require.NoError(t, os.WriteFile(filepath.Join(folder+Running, "results.json"), text, 0o644))
		}
	}
	kept := func(folder string) string {
		r, err := readReport(folder)
		if err != nil {
			return ""
		}
		return r.Made.Date
	}
	for _, step := range []struct {
		date            string
		cut             bool
		whole, cutShort string // what is there afterwards
	}{
		{"1", true, "1", ""}, // nothing better is there
		{"2", true, "2", ""},
		{"3", false, "3", ""},
		{"4", true, "3", "4"},
		{"5", true, "3", "5"},
		{"", true, "3", ""}, // a machine that died before it had any results
		{"6", true, "3", "6"},
		{"7", false, "7", ""},
	} {
		if leave(&Report{Made: plan.Made{Date: step.date}, CutShort: step.cut}); step.date == "" {
			require.NoError(t, os.Remove(filepath.Join(folder+Running, "results.json")))
		}
		r, err := Keep(folder)
		if step.date == "" {
			require.ErrorIs(t, err, os.ErrNotExist)
		} else {
			require.NoError(t, err)
			require.Equal(t, step.cut, r.CutShort)
		}
		require.Equal(t, step.whole, kept(folder), step)
		require.Equal(t, step.cutShort, kept(folder+incomplete), step)
		require.NoDirExists(t, folder+Running)
		require.NoDirExists(t, folder+".before")
	}
}

func TestRevision(t *testing.T) {
	require.Equal(t, unknownRevision, Revision(filepath.Join(t.TempDir(), "interop")))
	own, err := os.Getwd() // a checkout, unless somebody has unpacked an archive
	require.NoError(t, err)
	require.Regexp(t, `^([0-9a-f]{12}(\+changes)?|unknown)$`, Revision(filepath.Join(own, "interop")))
}

// TestReport: the tables about rdma_rxe have no results of others, the runs that each column is made of are named,
// and those that do not belong together.
func TestReport(t *testing.T) {
	kinds := func(outcome string) []Result {
		return []Result{
			{Kind: "transfer", Outcome: outcome, Cell: &plan.Cell{Operation: plan.Send, Requester: "xroce"}},
			{Kind: "fault", Name: "broken", Outcome: outcome}, {Kind: "case", Name: "A1", Outcome: outcome},
		}
	}
	reports := []Report{
		{Kernel: "6.1", Layout: "veth", Left: "rxe", Results: kinds(Works), Made: plan.Made{Revision: "aaa", Date: "2026-01-01 00:00:00", Parts: []string{"cells", "faults"}, Full: true, Only: ""}},
		{Kernel: "6.1", Layout: "veth", Left: "xroce", Results: kinds(Fails), Made: plan.Made{Revision: "aaa", Date: "2026-01-02 00:00:00", Parts: []string{"cells"}, Full: false, Only: "x"}},
		{Kernel: "6.1", Layout: "nics", NIC: "igb", Left: "rxe", Results: kinds(Refused), Made: plan.Made{Revision: "bbb", Date: "2026-01-03 00:00:00", Parts: []string{"bulk"}, Full: false, Only: ""}, CutShort: true},
	}
	var document, kernels, warning strings.Builder
	WriteDocument(&document, reports)
	WriteKernels(&kernels, reports)
	for _, text := range []string{
		"| 6.1 | veth | all | cells, faults | aaa | 2026-01-01 00:00:00 |\n| 6.1 | veth, xroce at both ends | a selection with \"x\" | cells | aaa | 2026-01-02 00:00:00 |\n" +
			"| 6.1 | igb | none | bulk | bbb (cut short) | 2026-01-03 00:00:00 |\n",
		"|---|---|\n| cells | all |\n| revision of xroce | aaa |\n| SEND by xroce | works |\n", "|---|---|\n| broken | works |\n", "|---|---|\n| A1 | works |\n",
	} {
		require.Contains(t, document.String(), text)
	}
	require.Contains(t, kernels.String(), "| revision of xroce | aaa; bbb (cut short) |\n| cells with rdma_rxe | all |\n| SEND with rdma_rxe | works |\n| faults with rdma_rxe | works |\n")
	Warn(&warning, reports)
	require.Equal(t, "interop: the run of 6.1, igb has not come to its end\ninterop: these results are of several revisions of xroce:\n"+
		"interop:   aaa: 6.1 veth; 6.1 veth, xroce at both ends\ninterop:   bbb: 6.1 igb\n", warning.String())
	warning.Reset()
	Warn(&warning, reports[:2])
	require.Empty(t, warning.String())
}
