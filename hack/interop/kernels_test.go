//go:build linux

package main

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestKernels: a row for each thing, a column for each kernel, counts of cells, and the same text each time.
func TestKernels(t *testing.T) {
	send := func(requester, outcome string) result {
		return result{Kind: "transfer", Outcome: outcome, Cell: &cell{Operation: opSend, Requester: requester}}
	}
	reports := []report{
		{Kernel: "6.1.0", NIC: "virtio", Layout: "nics", Left: "rxe", Copy: "zero", Results: []result{
			{Kind: "feature", Name: "F", Row: "F", Outcome: works, Short: "no"}, // told once is enough
			{Kind: "rung", Row: "default", Outcome: works, Short: "native+frags, copy, path MTU 2048"},
		}},
		{Kernel: "6.1.0", Layout: "veth", Left: "rxe", Results: []result{
			{Kind: "feature", Name: "F", Row: "F", Outcome: works, Short: "no"},
			{Kind: "rung", Row: "default", Outcome: refused, Detail: "why"},
			send("xroce", works), send("rxe", refused),
		}},
		{Kernel: "6.12.1", Layout: "veth", Left: "rxe", Results: []result{
			{Kind: "feature", Name: "F", Row: "F", Outcome: works, Short: "yes"},
			{Kind: "stock", Row: "P", Outcome: fails}, send("xroce", works), send("rxe", works),
			{
				Kind: "transfer", Outcome: works, Cell: &cell{Operation: opSend, Loss: losses[1]},
				Disturbed: &disturbance{ToRxe: emulated{64, 0}},
			},
		}},
	}
	write := func() string {
		var b strings.Builder
		writeKernels(&b, reports)
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
