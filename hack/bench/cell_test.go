//go:build linux

package main

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestQuartiles(t *testing.T) {
	for _, c := range []struct {
		values []float64
		want   quartiles
	}{
		{[]float64{7}, quartiles{7, 7, 7}},
		{[]float64{9, 1, 8, 2, 7, 3, 6, 4, 5}, quartiles{3, 5, 7}},
		{[]float64{4, 1, 3, 2}, quartiles{1.75, 2.5, 3.25}},
	} {
		require.Equal(t, c.want, quartilesOf(c.values), "%v", c.values)
	}
}

// TestRatiosWithinRounds: a machine that becomes half as fast after the first round changes no ratio.
func TestRatiosWithinRounds(t *testing.T) {
	var c cell
	plan := (&runCommand{Beside: "other"}).plan()
	require.Len(t, plan, 14)
	c.summarize(plan, map[string][]float64{
		raw: {8, 4, 4}, rawWork: {6, 3, 3}, tcp: {16, 8, 8}, write: {4, 2, 2}, write + beside: {2, 1, 1},
		rawPingPong: {3, 6, 6}, pingPong: {6, 12, 12},
	})
	ratio := map[string]map[string]quartiles{}
	for _, l := range c.Lines {
		ratio[l.Name] = l.Ratios
	}
	half, two := quartiles{0.5, 0.5, 0.5}, quartiles{2, 2, 2}
	require.Equal(t, map[string]map[string]quartiles{
		raw: nil, rawWork: {raw: {0.75, 0.75, 0.75}}, tcp: {raw: two},
		write:       {raw: half, rawWork: {4. / 6, 4. / 6, 4. / 6}, tcp: {0.25, 0.25, 0.25}, write + beside: two},
		rawPingPong: nil, write + beside: nil, pingPong: {rawPingPong: two},
	}, ratio)
	require.Equal(t, []float64{8, 4, 4}, c.Lines[0].Runs)
	require.Equal(t, "Gbit/s", c.Lines[0].Unit)
	require.Equal(t, "us", c.Lines[len(c.Lines)-1].Unit)
}

// TestVoid: a cell whose raw runs vary too much says so, and what is built upon them does not matter for that.
func TestVoid(t *testing.T) {
	for _, c := range []struct {
		runs map[string][]float64
		want string
	}{
		{map[string][]float64{raw: {10, 10, 14.9, 14.9}, rawWork: {1, 1, 9, 9}}, ""},
		{map[string][]float64{raw: {10, 10, 15.1, 15.1}}, "the quartiles of raw are 1.51 apart, more than 1.5"},
		{map[string][]float64{raw: {10}, rawPingPong: {3, 3, 6, 6}}, "the quartiles of raw ping-pong are 2.00 apart, more than 1.5"},
		{map[string][]float64{raw: {10}, rawWork: {9}, tcp: {20}, write: {11}}, ""},
		{map[string][]float64{raw: {10}, rawWork: {9}, tcp: {20}, read: {12}}, "READ is 1.20 of raw, which should be more than it"},
	} {
		var result cell
		result.summarize(measurements, c.runs)
		require.Equal(t, c.want, strings.Join(result.Void, "; "))
		var table strings.Builder
		result.print(&table)
		require.Equal(t, c.want != "", strings.Contains(table.String(), "VOID: "), table.String())
	}
}
