//go:build linux

package report

import (
	"cmp"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"
)

// row is the row of a table that has it.
func (r *Result) row() string { return cmp.Or(r.Row, r.Name) }

// table collects rows of text by kernel.
type table struct {
	rows    []string
	kernels []string
	cells   map[[2]string]*tally
}

type tally struct {
	outcomes map[string]int
	details  []string
	short    string
	// undisturbed are those over a network with faults where it happened to leave all packets alone.
	undisturbed int
}

func (t *table) add(row, kernel string, r Result) {
	if t.cells == nil {
		t.cells = map[[2]string]*tally{}
	}
	if !slices.Contains(t.rows, row) {
		t.rows = append(t.rows, row)
	}
	if !slices.Contains(t.kernels, kernel) {
		t.kernels = append(t.kernels, kernel)
	}
	at := [2]string{row, kernel}
	if t.cells[at] == nil {
		t.cells[at] = &tally{outcomes: map[string]int{}}
	}
	x := t.cells[at]
	x.outcomes[r.Outcome]++
	x.short = r.Short
	if r.Kind == "transfer" && r.Outcome == Works && r.Disturbed != nil && r.Disturbed.None() {
		x.undisturbed++
	}
	if (r.Outcome != Works || r.Kind == "case" && r.Detail != "") && !slices.Contains(x.details, r.Detail) {
		x.details = append(x.details, r.Detail)
	}
}

// say adds a row of text. What several runs say of one kernel stands there once each.
func (t *table) say(row, kernel, text string) {
	if x := t.cells[[2]string{row, kernel}]; x != nil && !slices.Contains(strings.Split(x.short, "; "), text) {
		text = x.short + "; " + text
	} else if x != nil {
		return
	}
	t.add(row, kernel, Result{Outcome: Works, Short: text})
}

func (t *tally) String() string {
	if t == nil {
		return ""
	}
	if t.short != "" {
		return t.short
	}
	var all []string
	for _, outcome := range []string{Works, Refused, RxeFault, Fails} {
		if n := t.outcomes[outcome]; n > 0 && len(t.outcomes) == 1 && n == 1 {
			all = append(all, outcome)
		} else if n > 0 {
			all = append(all, fmt.Sprintf("%d %s", n, outcome))
		}
	}
	if t.undisturbed > 0 {
		return fmt.Sprintf("%s (%d undisturbed)", strings.Join(all, ", "), t.undisturbed)
	}
	return strings.Join(all, ", ")
}

// numbers are those in details that differ from cell to cell.
var numbers = regexp.MustCompile(`0x[0-9a-f]+ at [0-9a-f.:]+[0-9a-f]|\b\d+ (packets|times)|all \d+`)

// grid prints the table.
func (t *table) grid(w io.Writer, head string) {
	fmt.Fprintf(w, "| %s | %s |\n|---|%s\n", head, strings.Join(t.kernels, " | "), strings.Repeat("---|", len(t.kernels)))
	for _, row := range t.rows {
		fmt.Fprintf(w, "| %s |", row)
		for _, k := range t.kernels {
			fmt.Fprintf(w, " %v |", t.cells[[2]string{row, k}])
		}
		fmt.Fprintln(w)
	}
}

// write prints the table, and then once each what the outcomes other than "works" say.
func (t *table) write(w io.Writer, head string) {
	if len(t.rows) == 0 {
		return
	}
	t.grid(w, head)
	var said []string
	where := map[string][]string{}
	for _, row := range t.rows {
		for _, k := range t.kernels {
			x := t.cells[[2]string{row, k}]
			if x == nil {
				continue
			}
			for _, d := range x.details {
				if d = k + ": " + numbers.ReplaceAllString(d, "N"); !slices.Contains(said, d) {
					said = append(said, d)
				}
				if !slices.Contains(where[d], row) {
					where[d] = append(where[d], row)
				}
			}
		}
	}
	fmt.Fprintln(w)
	for _, s := range said {
		fmt.Fprintf(w, "- %s (%s)\n", s, strings.Join(where[s], "; "))
	}
	if len(said) > 0 {
		fmt.Fprintln(w)
	}
}
