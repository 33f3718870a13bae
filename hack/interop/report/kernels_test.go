//go:build linux

package report

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/xroce/xroce/hack/interop/plan"
)

// TestKernels: a row for each thing, a column for each kernel, counts of cells, and the same text each time.
func TestKernels(t *testing.T) {
	send := func(requester, outcome string) Result {
		return Result{Kind: "transfer", Outcome: outcome, Cell: &plan.Cell{Operation: plan.Send, Requester: requester}}
	}
	reports := []Report{
		{Kernel: "6.1.0", NIC: "virtio", Layout: "nics", Left: "rxe", Copy: "zero", Results: []Result{
			{Kind: "feature", Name: "F", Row: "F", Outcome: Works, Short: "no"}, // told once is enough
			{Kind: "rung", Row: "default", Outcome: Works, Short: "native+frags, copy, path MTU 2048"},
		}},
		{Kernel: "6.1.0", Layout: "veth", Left: "rxe", Results: []Result{
			{Kind: "feature", Name: "F", Row: "F", Outcome: Works, Short: "no"},
			{Kind: "rung", Row: "default", Outcome: Refused, Detail: "why"},
			send("xroce", Works), send("rxe", Refused),
		}},
		{Kernel: "6.12.1", Layout: "veth", Left: "rxe", Results: []Result{
			{Kind: "feature", Name: "F", Row: "F", Outcome: Works, Short: "yes"},
			{Kind: "stock", Row: "P", Outcome: Fails}, send("xroce", Works), send("rxe", Works),
			{
				Kind: "transfer", Outcome: Works, Cell: &plan.Cell{Operation: plan.Send, Loss: plan.Lost},
				Disturbed: &Disturbance{ToRxe: Emulated{64, 0}},
			},
		}},
	}
	write := func() string {
		var b strings.Builder
		WriteKernels(&b, reports)
		return b.String()
	}
	text := write()
	require.Equal(t, `|  | 6.1.0 | 6.12.1 |
|---|---|---|
| revision of xroce | unknown | unknown |
| cells with rdma_rxe | not known | not known |
| F | no | yes |
| veth: default | refused |  |
| virtio_net: default | native+frags, copy, path MTU 2048 |  |
| SEND with rdma_rxe | 1 works, 1 refused | 3 works (1 undisturbed) |
| ping-pong programs on rdma_rxe |  | fails |
`, text[strings.Index(text, "|"):])
	require.Equal(t, text, write())
}

// TestLadderTable: what was obtained stands in the place of the outcome, and why not below.
func TestLadderTable(t *testing.T) {
	var b strings.Builder
	writeLadder(&b, []Report{{Kernel: "6.1.0", Layout: "veth", Left: "rxe", Results: []Result{
		{Kind: "feature", Name: "F", Row: "F", Outcome: Works, Short: "no"},
		{Kind: "rung", Row: "default", Outcome: Works, Short: "native+frags, copy, path MTU 2048"},
		{Kind: "rung", Row: "native, copy, multi-buffer on", Outcome: Refused, Detail: "no such kernel"},
	}}})
	require.Contains(t, b.String(), "\n| F | no |\n")
	require.Contains(t, b.String(), "\n| veth: default | native+frags, copy, path MTU 2048 |\n")
	require.Contains(t, b.String(), "\n| veth: native, copy, multi-buffer on | refused |\n")
	require.Contains(t, b.String(), "\n- 6.1.0: no such kernel (veth: native, copy, multi-buffer on)\n")
}
