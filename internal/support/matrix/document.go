package main

import (
	"bytes"
	"cmp"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/xroce/xroce/internal/support"
	"github.com/xroce/xroce/roce"
)

const detailsPreface = `# What is supported, test by test

"make support" makes this page from what tests recorded that passed (package internal/support): do not edit it. Each row names the tests that have shown
it, with their package, so a row without a test does not exist. What the specification has and no test has shown is listed behind the tables.
[support.md](support.md) is the short form.
`

// row is what tests found about one key.
type row struct {
	key, value []string
	tests      map[string]bool
}

func (r *row) cells() []string {
	return slices.Concat(r.key, r.value, []string{strings.Join(slices.Sorted(maps.Keys(r.tests)), ", ")})
}

// table holds rows by key.
type table map[string]*row

func joined(key ...string) string { return strings.Join(key, "\x00") }

func (t table) find(key ...string) *row { return t[joined(key...)] }

func (t table) sorted() [][]string {
	rows := make([][]string, 0, len(t))
	for _, r := range t {
		rows = append(rows, r.cells())
	}
	slices.SortFunc(rows, slices.Compare[[]string])
	return rows
}

// collect merges records into tables. What one test found out about a row and another one did not look at makes one
// row; what they found out differently is an error.
func collect(records []support.Record) (map[string]table, error) {
	slices.SortFunc(records, func(a, b support.Record) int {
		return cmp.Or(cmp.Compare(a.Package, b.Package), cmp.Compare(a.Test, b.Test))
	})
	tables := make(map[string]table)
	for _, r := range records {
		if tables[r.Table] == nil {
			tables[r.Table] = make(table)
		}
		top, _, _ := strings.Cut(r.Test, "/")
		test := path.Base(r.Package) + "." + top
		known := tables[r.Table].find(r.Key...)
		if known == nil {
			known = &row{key: r.Key, value: make([]string, len(r.Value)), tests: make(map[string]bool)}
			tables[r.Table][joined(r.Key...)] = known
		}
		for i, v := range r.Value {
			if known.value[i] == "" {
				known.value[i] = v
			} else if v != "" && v != known.value[i] {
				return nil, fmt.Errorf("%s %q: %s found %q, and %s found %q",
					r.Table, r.Key, test, v, strings.Join(slices.Sorted(maps.Keys(known.tests)), ", "), known.value[i])
			}
		}
		known.tests[test] = true
	}
	return tables, nil
}

// documents writes the short page and the one with the tests.
func documents(records []support.Record) (short, details []byte, err error) {
	tables, err := collect(records)
	if err != nil {
		return nil, nil, err
	}
	opcodes, missingOpcodes, err := opcodeRows(tables[support.TableOpcode])
	if err != nil {
		return nil, nil, err
	}
	changes, missingChanges, err := transitionRows(tables[support.TableTransition])
	if err != nil {
		return nil, nil, err
	}
	var b bytes.Buffer
	b.WriteString(detailsPreface)
	section(&b, "## Opcodes", "", []string{"Transport", "Opcode", "Checked", "Tests"}, opcodes)
	section(&b, "## Transitions of RC queue pairs", "A row without an attribute is the transition with what it requires and nothing else.",
		[]string{"Transition", "Attribute", "Rule", "Tests"}, changes)
	section(&b, "## Faults", "An empty cell is something that no test has looked at.",
		[]string{"Fault", "On the wire", "Responder", "Its receive", "Its event", "Requester", "Tests"}, tables[support.TableFault].sorted())
	section(&b, "## Limits", "", []string{"Limit", "What is beyond is refused with", "Tests"}, tables[support.TableLimit].sorted())
	section(&b, "## Objects", "", []string{"Object", "Operation", "Outcome", "Tests"}, tables[support.TableObject].sorted())
	b.WriteString("\n## Not supported or not checked\n")
	section(&b, "### Opcodes without a test that sends and receives them", "", []string{"Opcode", "Sent", "Received"}, missingOpcodes)
	section(&b, "### Transitions and attributes", "", []string{"Transition", "Attribute"}, missingChanges)
	return summary(tables), b.Bytes(), nil
}

func section(b *bytes.Buffer, title, note string, head []string, rows [][]string) {
	fmt.Fprintf(b, "\n%s\n\n", title)
	if note != "" {
		fmt.Fprintf(b, "%s\n\n", note)
	}
	line := func(cells []string) {
		for _, c := range cells {
			b.WriteString("| " + strings.NewReplacer("|", `\|`, "\n", " ").Replace(c) + " ")
		}
		b.WriteString("|\n")
	}
	line(head)
	b.WriteString(strings.Repeat("|---", len(head)) + "|\n")
	for _, r := range rows {
		line(r)
	}
}

// opcodeRows returns the opcodes with the ways in which they were checked, and those that no test has sent and
// received.
func opcodeRows(t table) (rows, missing [][]string, err error) {
	used := 0
	for number := range 256 {
		o := roce.Opcode(number)
		if o.Info() == nil {
			continue
		}
		transport := o.Transport().String()
		name := strings.TrimPrefix(o.String(), transport+"_")
		check := func(how support.How) bool {
			r := t.find(o.String(), string(how))
			if r == nil {
				return false
			}
			used++
			rows = append(rows, append([]string{transport, name}, r.cells()[1:]...))
			return true
		}
		check(support.Codec)
		sent, received := yes(check(support.Sent)), yes(check(support.Received))
		supported := sent == yes(true) && received == yes(true)
		check(support.Looped)
		if check(support.Refused) {
			received += ", " + string(support.Refused)
		}
		if check(support.Ignored) {
			received += ", " + string(support.Ignored)
		}
		if !supported {
			missing = append(missing, []string{o.String(), sent, received})
		}
	}
	if used != len(t) {
		return nil, nil, fmt.Errorf("%d rows are about opcodes that roce's table does not have: %q", len(t)-used, slices.Sorted(maps.Keys(t)))
	}
	return rows, missing, nil
}

func yes(b bool) string {
	if b {
		return "yes"
	}
	return "no"
}

// missingEvents lists the events that no test has seen. A row of an event has its name as the operation or, where
// several things lead to it, as the outcome.
func missingEvents(objects table) (missing []string) {
	seen := make(map[string]bool)
	for _, r := range objects {
		if r.key[0] == "Event" {
			seen[r.key[1]], seen[r.value[0]] = true, true
		}
	}
	for _, event := range events {
		if !seen[event] {
			missing = append(missing, event)
		}
	}
	return missing
}

// unknownOpcodes lists the opcodes without an entry as ranges.
func unknownOpcodes() string {
	var ranges []string
	for first := 0; first < 256; first++ {
		last := first
		for last < 256 && roce.Opcode(last).Info() == nil {
			last++
		}
		switch last - first {
		case 0:
			continue
		case 1:
			ranges = append(ranges, fmt.Sprintf("%#02x", first))
		default:
			ranges = append(ranges, fmt.Sprintf("%#02x to %#02x", first, last-1))
		}
		first = last
	}
	return strings.Join(ranges, ", ")
}

// transitionRows returns the transitions with the attributes that were checked, and those of the specification that
// were not. Every row must be in the specification, with the same rule.
func transitionRows(t table) (rows, missing [][]string, err error) {
	used := 0
	for _, s := range transitions {
		name := s.from + " to " + s.to
		if t.find(s.from, s.to, "") == nil {
			missing = append(missing, []string{name, "with or without attributes"})
			continue
		}
		check := func(rule string, attributes ...string) error {
			for _, a := range attributes {
				r := t.find(s.from, s.to, a)
				if r == nil {
					missing = append(missing, []string{name, a})
					continue
				}
				used++
				if r.value[0] != rule {
					return fmt.Errorf("%s: %s is %q in the tests, and %q in the specification", name, a, r.value[0], rule)
				}
				rows = append(rows, append([]string{name}, r.cells()[2:]...))
			}
			return nil
		}
		for _, group := range []struct {
			rule       string
			attributes []string
		}{{"", []string{""}}, {"required", s.required}, {"optional", s.optional}} {
			if err := check(group.rule, group.attributes...); err != nil {
				return nil, nil, err
			}
		}
	}
	if used != len(t) {
		return nil, nil, fmt.Errorf("%d rows are about transitions that the specification does not have: %q", len(t)-used, slices.Sorted(maps.Keys(t)))
	}
	return rows, missing, nil
}
