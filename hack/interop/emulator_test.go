//go:build linux

package main

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
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
	for loss, want := range map[string]disturbance{
		losses[1]: {emulated{201, 20}, emulated{258, 21}},
		losses[2]: {emulated{201, 59}, emulated{258, 69}},
		losses[3]: {emulated{201, 59}, emulated{258, 75}},
	} {
		got, err := parseEmulator(loss, []byte(qdiscsText), egress, ingress)
		require.NoError(t, err)
		require.Equal(t, want, got, loss)
	}
	for _, texts := range [][3]string{
		{"", string(egress), string(ingress)}, {"[]", string(egress), string(ingress)}, {qdiscsText, "[]", string(ingress)}, {qdiscsText, string(egress), ""},
	} {
		_, err := parseEmulator(losses[1], []byte(texts[0]), []byte(texts[1]), []byte(texts[2]))
		require.ErrorContains(t, err, "tc")
	}
	before := disturbance{emulated{100, 20}, emulated{200, 10}}
	require.Equal(t, disturbance{emulated{11, 0}, emulated{22, 3}}, disturbance{emulated{111, 20}, emulated{222, 13}}.since(before))
}

// TestJudgeDisturbance: a network with faults without faults does not go unnoticed.
func TestJudgeDisturbance(t *testing.T) {
	for _, c := range []struct {
		kind, note, err string
		d               disturbance
	}{
		{"transfer", "", "", disturbance{emulated{64, 1}, emulated{2, 0}}},
		{"transfer", "nothing was lost", "", disturbance{emulated{64, 0}, emulated{2, 0}}},
		{"transfer", "", "no packet from rdma_rxe has passed", disturbance{emulated{0, 0}, emulated{2, 1}}},
		{"transfer", "", "no packet to rdma_rxe has passed", disturbance{emulated{64, 1}, emulated{0, 0}}},
		{"bulk", "(lost were 650 of 65000 packets from rdma_rxe and 4 of 400 to it)", "", disturbance{emulated{65000, 650}, emulated{400, 4}}},
		{"bulk", "", "none of 400 packets to rdma_rxe was lost", disturbance{emulated{65000, 650}, emulated{400, 0}}},
		{"bulk", "", "none of 65000 packets from rdma_rxe was lost", disturbance{emulated{65000, 0}, emulated{400, 4}}},
	} {
		note, err := c.d.judge(c.kind, losses[1])
		require.Equal(t, c.note, note, c)
		if c.err == "" {
			require.NoError(t, err)
		} else {
			require.ErrorContains(t, err, c.err)
		}
	}
}

// TestJudgeEmulator: an operation fails if nothing happened in all of its cells, provided that there were enough of them.
func TestJudgeEmulator(t *testing.T) {
	run := func(changed int) (failed int) {
		g := &guest{saved: time.Now(), saving: time.Hour}
		for _, c := range covering([]string{"xroce", "rxe"}) {
			if c.Loss != losses[0] {
				r := result{Kind: "transfer", Cell: &c, Outcome: works, Disturbed: &disturbance{ToRxe: emulated{100, 0}}}
				if c.Loss == losses[1] {
					r.Disturbed.ToRxe.Changed = changed
				}
				g.report.Results = append(g.report.Results, r)
			}
		}
		n := len(g.report.Results)
		g.judgeEmulator()
		for _, r := range g.report.Results[n:] {
			require.Equal(t, fails, r.Outcome)
			failed++
		}
		return failed
	}
	require.Equal(t, 2*len(operations), run(0)) // of make interop, with each operation and requester
	require.Zero(t, run(1))
	few := &guest{report: report{Results: []result{{
		Kind: "transfer", Outcome: works, Disturbed: &disturbance{ToRxe: emulated{64, 0}},
		Cell: &cell{Operation: opFetchAdd, Requester: "rxe", MTU: 256, Size: 8, Loss: losses[1]},
	}}}}
	few.judgeEmulator()
	require.Len(t, few.report.Results, 1)
}
