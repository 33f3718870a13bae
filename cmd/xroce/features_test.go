package main

import (
	"encoding/json"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/xroce/xroce/internal/netlab"
	"github.com/xroce/xroce/roce/link/xdp"
)

// TestCase_F11_Table: the table of what the kernel has; who may not find out is told so.
func TestCase_F11_Table(t *testing.T) {
	netlab.RequireRoot(t)
	run := newProgram("features")
	require.Equal(t, 0, run.run(t, nil), &run.stderr)
	require.Regexp(t, `(?m)^KERNEL \S+ +SINCE +NEEDED +THERE$`, run.stdout.String())
	require.Regexp(t, `(?m)^bpf_link for XDP +Linux 5\.9 +yes +yes$`, run.stdout.String())
	t.Log("\n" + run.stdout.String())

	run = asNobody(t, nil, "features", "--json")
	require.Equal(t, 0, run.run(t, nil), &run.stderr)
	var entries []featureEntry
	require.NoError(t, json.Unmarshal([]byte(run.stdout.String()), &entries))
	require.Len(t, entries, 5)
	for _, e := range entries {
		require.Equal(t, "unknown", e.State, e.Name)
		require.Contains(t, e.Reason, "CAP_")
		require.NotContains(t, e.Reason, "\n")
	}

	require.Equal(t, featureEntry{Name: "a", Since: "Linux 9", Needed: true, State: "no", Reason: "b; " + xdp.ErrNotSupported.Error()},
		newFeatureEntry(xdp.Feature{Name: "a", Since: "Linux 9", Needed: true, Err: errors.Join(errors.New("b"), xdp.ErrNotSupported)}))
}
