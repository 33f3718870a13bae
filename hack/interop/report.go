//go:build linux

package main

import (
	"bytes"
	"cmp"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// reportCommand makes the document of what runs have left.
type reportCommand struct {
	Keep  string `default:"bin/interop-results" help:"Folder of the results."`
	Write string `default:"docs/interop.md" help:"The document."`
	Short string `default:"internal/support/matrix/kernels.md" help:"The section for docs/support.md."`
}

// Run collects all results below the folder.
func (c *reportCommand) Run() error {
	var reports []report
	err := filepath.WalkDir(c.Keep, func(path string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir() && slices.Contains([]string{running, incomplete}, filepath.Ext(path)):
			return fs.SkipDir
		case entry.Name() != "results.json":
			return nil
		}
		r, err := readReport(filepath.Dir(path))
		if err == nil {
			reports = append(reports, *r)
		}
		return err
	})
	if err != nil {
		return err
	}
	if len(reports) == 0 {
		return fmt.Errorf("no results below %s: make interop", c.Keep)
	}
	slices.SortStableFunc(reports, func(a, b report) int { return compareVersions(a.Kernel, b.Kernel) })
	warn(os.Stderr, reports)
	for name, write := range map[string]func(io.Writer, []report){c.Write: writeDocument, c.Short: writeKernels} {
		var b bytes.Buffer
		write(&b, reports)
		if err := os.WriteFile(name, b.Bytes(), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// row is the row of a table that has it.
func (r *result) row() string { return cmp.Or(r.Row, r.Name) }

// compareVersions orders "6.1.0" before "6.12.1".
func compareVersions(a, b string) int {
	var x, y [2]int
	_, _ = fmt.Sscanf(a, "%d.%d", &x[0], &x[1])
	_, _ = fmt.Sscanf(b, "%d.%d", &y[0], &y[1])
	return cmp.Or(slices.Compare(x[:], y[:]), cmp.Compare(a, b))
}

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

func (t *table) add(row, kernel string, r result) {
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
	if r.Kind == "transfer" && r.Outcome == works && r.Disturbed != nil && r.Disturbed.none() {
		x.undisturbed++
	}
	if (r.Outcome != works || r.Kind == "case" && r.Detail != "") && !slices.Contains(x.details, r.Detail) {
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
	t.add(row, kernel, result{Outcome: works, Short: text})
}

func (t *tally) String() string {
	if t == nil {
		return ""
	}
	if t.short != "" {
		return t.short
	}
	var all []string
	for _, outcome := range []string{works, refused, fault, fails} {
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

const introduction = `# xroce and Linux's rdma_rxe

What the two did with each other, in virtual machines with kernels of Debian: rdma_rxe at one end of a veth pair, driven through
rdma-core (pyverbs), and xroce at the other. ` + "`bin/interop report`" + ` makes this file of the results of runs, ` + "`make interop-full`" + ` all of them
and this file; ` + "`make interop`" + ` runs the cells of the first three tables, and a little of the next ones, on the newest kernel and fails if one does. Both need apt and no KVM: see hack/interop and internal/vm.
` + "`make interop-full`" + ` is what to run every night: it tells whose packets are wrong when a new kernel breaks something.

"Refused" is a clean refusal by one of the ends, with a reason, where something is missing that is known to be missing there
(hack/interop/refusals.go); any other refusal fails. "rxe's fault" is something that rdma_rxe does wrong, by
evidence of the capture or the counters, which is named.

`

func writeDocument(w io.Writer, reports []report) {
	fmt.Fprint(w, introduction)
	writeRuns(w, reports)
	var transfers, faults, cases, devices table
	var bulk, speed []string
	for _, r := range reports {
		if r.withRxe() && r.has("transfer") {
			transfers.say("cells", r.Kernel, r.Made.selection())
			transfers.say("revision of xroce", r.Kernel, r.xroce())
		}
	}
	for _, r := range reports {
		for _, x := range r.Results {
			x.Detail = oneLine(x.Detail)
			switch {
			case x.Kind == "transfer" && r.withRxe():
				transfers.add(fmt.Sprintf("%s by %s", x.Cell.Operation, x.Cell.Requester), r.Kernel, x)
			case x.Kind == "fault" && r.withRxe():
				faults.add(x.Name, r.Kernel, x)
			case x.Kind == "case" && r.withRxe():
				cases.add(x.Name, r.Kernel, x)
			case x.Kind == "bulk":
				bulk = append(bulk, fmt.Sprintf("%s, %s: %s: %s in %.0f s %s", r.Kernel, r.Devices(), x.Name, x.Outcome, x.Seconds, x.Detail))
			case x.Kind == "open" && x.Outcome != works:
				devices.add(r.Devices()+", "+x.Name, r.Kernel, x)
			case x.Kind == "speed":
				speed = append(speed, fmt.Sprintf("%s, %s: %s", r.Kernel, x.Name, x.Detail))
			}
		}
	}
	fmt.Fprintf(w, "## Transfers\n\nEach cell of the matrix is an operation, who posts it, a path MTU (256 to 4096), IPv4 or IPv6, a size of "+
		"message (0, 1, 33, path MTU - 1, path MTU, path MTU + 1, 64 KiB, 8 MiB), and a network that is fine, loses 1 %%, or "+
		"reorders or duplicates 3 %% of the packets. A selection has each value of each axis with each operation and requester; the counts below tell how many cells there were. Where the network has faults, the emulator's counters say what it did: "+
		"in a few cells, the undisturbed ones, it happened to leave all packets alone. Where it does so in all cells of an operation the run fails, and so does "+
		"a cell whose packets do not come to it. Regions "+
		"of both ends are compared byte by byte, with what lies around the messages; of atomics every result is "+
		"known, so one that is executed twice shows. Where rdma_rxe reads over a network with faults, messages have 1 MiB at most: "+
		"it asks again for all that is missing after every gap.\n\n")
	transfers.write(w, "operation")
	fmt.Fprint(w, "## Faults\n\nWhat must go wrong, and does so with the same status at both ends as rdma_rxe and the specification have it. They differ about "+
		"a SEND that is too long: rdma_rxe answers with a remote operational error (REM_OP_ERR) and its receive completes with LOC_QP_OP_ERR, where the "+
		"specification and xroce have REM_INV_REQ_ERR and LOC_LEN_ERR.\n\n")
	faults.write(w, "fault")
	writeCases(w, &cases)
	writeStock(w, reports)
	writeLadder(w, reports)
	fmt.Fprintf(w, "## Devices\n\nWhat xroce obtained, and what it says why not more.\n\n")
	for _, r := range reports {
		for _, x := range r.Results {
			if x.Kind == "open" && x.Name == "xroce" {
				fmt.Fprintf(w, "- %s, %s: %s\n", r.Kernel, r.Devices(), oneLine(x.Detail))
			}
		}
	}
	fmt.Fprintln(w)
	devices.write(w, "not opened")
	fmt.Fprint(w, "## Bulk transfers\n\nThe time includes filling and comparing, in an emulated machine.\n\n")
	list(w, bulk)
	if len(speed) > 0 {
		fmt.Fprint(w, "## Speed\n\nMedians, with the least and the most, in an emulated machine with two CPUs on a host of two that had other work: what is measured here says "+
			"little about real CPUs. Of xroce nobody polls at the end that answers a READ, so a thread has to wake up for each; rdma_rxe answers in "+
			"the interrupt.\n\n")
		list(w, speed)
	}
}

func list(w io.Writer, items []string) {
	for _, item := range items {
		fmt.Fprintf(w, "- %s\n", strings.TrimSpace(item))
	}
	fmt.Fprintln(w)
}

func oneLine(s string) string { return strings.ReplaceAll(strings.ReplaceAll(s, "\n", "; "), "|", "/") }

// withRxe says that the run is one of those that the tables are about: rdma_rxe at the other end of a veth pair.
func (r *report) withRxe() bool { return r.Layout == "veth" && r.Left == "rxe" }

func (r *report) has(kind string) bool {
	return slices.ContainsFunc(r.Results, func(x result) bool { return x.Kind == kind })
}

// Devices names what the frames went over.
func (r *report) Devices() string {
	name := "veth"
	if r.NIC != "" {
		name = r.NIC
	}
	if r.Left != "rxe" {
		name += ", xroce at both ends"
	}
	if r.Copy == "zero" {
		name += ", zero copy"
	}
	return name
}
