//go:build linux

package guest

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/xroce/xroce/hack/interop/plan"
	"github.com/xroce/xroce/hack/interop/report"
)

// What tc of iproute2 6.15 says, but for the fields that are of no interest.
const (
	qdiscsText = `[{"kind":"noqueue","dev":"lo","packets":7,"drops":7,"requeues":7},
{"kind":"netem","dev":"v0","root":true,"options":{"limit":10000},"bytes":25424,"packets":260,"drops":20,"overlimits":0,"requeues":59},
{"kind":"clsact","dev":"v0","parent":"ffff:fff1","options":{},"packets":1255,"drops":9,"requeues":9},
{"kind":"netem","dev":"ifb0","root":true,"options":{},"packets":330,"drops":21,"requeues":69,"backlog":300,"qlen":3}]`
	filterText = `[{"protocol":"all","kind":"matchall","chain":0},{"protocol":"all","kind":"matchall","chain":0,"options":{"handle":1,"rule_hit":607,
"actions":[{"order":1,"kind":"gact","stats":{"bytes":59198,"packets":%d,"drops":0,"overlimits":0,"requeues":0}}]}}]`
)

func TestParseEmulator(t *testing.T) {
	egress, ingress := fmt.Appendf(nil, filterText, 201), fmt.Appendf(nil, filterText, 258)
	for loss, want := range map[string]report.Disturbance{
		plan.Lost:       {FromRxe: report.Emulated{Packets: 201, Changed: 20}, ToRxe: report.Emulated{Packets: 258, Changed: 21}},
		plan.Reordered:  {FromRxe: report.Emulated{Packets: 201, Changed: 59}, ToRxe: report.Emulated{Packets: 258, Changed: 69}},
		plan.Duplicated: {FromRxe: report.Emulated{Packets: 201, Changed: 59}, ToRxe: report.Emulated{Packets: 258, Changed: 75}},
	} {
		got, err := parseEmulator(loss, []byte(qdiscsText), egress, ingress)
		require.NoError(t, err)
		require.Equal(t, want, got, loss)
	}
	for _, texts := range [][3]string{
		{"", string(egress), string(ingress)}, {"[]", string(egress), string(ingress)}, {qdiscsText, "[]", string(ingress)}, {qdiscsText, string(egress), ""},
	} {
		_, err := parseEmulator(plan.Lost, []byte(texts[0]), []byte(texts[1]), []byte(texts[2]))
		require.ErrorContains(t, err, "tc")
	}
	before := report.Disturbance{FromRxe: report.Emulated{Packets: 100, Changed: 20}, ToRxe: report.Emulated{Packets: 200, Changed: 10}}
	require.Equal(t, report.Disturbance{FromRxe: report.Emulated{Packets: 11, Changed: 0}, ToRxe: report.Emulated{Packets: 22, Changed: 3}}, since(report.Disturbance{FromRxe: report.Emulated{Packets: 111, Changed: 20}, ToRxe: report.Emulated{Packets: 222, Changed: 13}}, before))
}

// TestJudgeDisturbance: a network with faults without faults does not go unnoticed.
func TestJudgeDisturbance(t *testing.T) {
	for _, c := range []struct {
		kind, note, err string
		d               report.Disturbance
	}{
		{"transfer", "", "", report.Disturbance{FromRxe: report.Emulated{Packets: 64, Changed: 1}, ToRxe: report.Emulated{Packets: 2, Changed: 0}}},
		{"transfer", "nothing was lost", "", report.Disturbance{FromRxe: report.Emulated{Packets: 64, Changed: 0}, ToRxe: report.Emulated{Packets: 2, Changed: 0}}},
		{"transfer", "", "no packet from rdma_rxe has passed", report.Disturbance{FromRxe: report.Emulated{Packets: 0, Changed: 0}, ToRxe: report.Emulated{Packets: 2, Changed: 1}}},
		{"transfer", "", "no packet to rdma_rxe has passed", report.Disturbance{FromRxe: report.Emulated{Packets: 64, Changed: 1}, ToRxe: report.Emulated{Packets: 0, Changed: 0}}},
		{"bulk", "(lost were 650 of 65000 packets from rdma_rxe and 4 of 400 to it)", "", report.Disturbance{FromRxe: report.Emulated{Packets: 65000, Changed: 650}, ToRxe: report.Emulated{Packets: 400, Changed: 4}}},
		{"bulk", "", "none of 400 packets to rdma_rxe was lost", report.Disturbance{FromRxe: report.Emulated{Packets: 65000, Changed: 650}, ToRxe: report.Emulated{Packets: 400, Changed: 0}}},
		{"bulk", "", "none of 65000 packets from rdma_rxe was lost", report.Disturbance{FromRxe: report.Emulated{Packets: 65000, Changed: 0}, ToRxe: report.Emulated{Packets: 400, Changed: 4}}},
	} {
		note, err := judge(&c.d, c.kind, plan.Lost)
		require.Equal(t, c.note, note, c)
		if c.err == "" {
			require.NoError(t, err)
		} else {
			require.ErrorContains(t, err, c.err)
		}
	}
}

// TestJudgeEmulator: an operation fails if nothing happened in all of its cells, provided that there were enough of
// them.
func TestJudgeEmulator(t *testing.T) {
	run := func(changed int) (failed int) {
		g := &guest{saved: time.Now(), saving: time.Hour}
		for _, c := range plan.Covering([]string{"xroce", "rxe"}) {
			if c.Loss != plan.NoLoss {
				r := report.Result{Kind: "transfer", Cell: &c, Outcome: report.Works, Disturbed: &report.Disturbance{ToRxe: report.Emulated{Packets: 100, Changed: 0}}}
				if c.Loss == plan.Lost {
					r.Disturbed.ToRxe.Changed = changed
				}
				g.report.Results = append(g.report.Results, r)
			}
		}
		n := len(g.report.Results)
		g.judgeEmulator()
		for _, r := range g.report.Results[n:] {
			require.Equal(t, report.Fails, r.Outcome)
			failed++
		}
		return failed
	}
	require.Equal(t, 2*len(plan.Operations), run(0)) // of make interop, with each operation and requester
	require.Zero(t, run(1))
	few := &guest{report: report.Report{Results: []report.Result{{
		Kind: "transfer", Outcome: report.Works, Disturbed: &report.Disturbance{ToRxe: report.Emulated{Packets: 64, Changed: 0}},
		Cell: &plan.Cell{Operation: plan.FetchAdd, Requester: "rxe", MTU: 256, Size: 8, Loss: plan.Lost},
	}}}}
	few.judgeEmulator()
	require.Len(t, few.report.Results, 1)
}
