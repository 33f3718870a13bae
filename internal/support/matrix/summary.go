package main

import (
	"bytes"
	_ "embed"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/xroce/xroce/internal/support"
	"github.com/xroce/xroce/roce"
)

const preface = `# What is supported

"make support" makes this page from what tests recorded that passed: do not edit it. It says in short what has been shown, and
[support-details.md](support-details.md) has each row with the tests that have shown it. A number in parentheses is how many rows of the details
an entry stands for, and "and 7 more" are seven entries that are only there. The last section is of virtual machines.
`

// kernels is the last section. It is not of records of tests but of what virtual machines have shown: "bin/interop
// report" writes it.
//
//go:embed kernels.md
var kernels string

// summary writes the short page.
func summary(tables map[string]table) []byte {
	var b bytes.Buffer
	b.WriteString(preface)
	section(&b, "## Opcodes", "Packets are how many opcodes an operation has: First, Middle, Last and Only. \"n of m\" are n of them.",
		[]string{"Transport", "Operation", "Packets", "Parsed and built", "Sent", "Received", "Over loopback", "Refused with a NAK", "Dropped"},
		opcodeGroups(tables[support.TableOpcode]))
	fmt.Fprintf(&b, "\nroce's table does not have %s.\n", unknownOpcodes())
	section(&b, "## Transitions of RC queue pairs", "Each attribute was tried with and without the others.",
		[]string{"Transition", "Required", "Optional", "Not checked"}, transitionGroups(tables[support.TableTransition]))
	wire, local := faultGroups(tables[support.TableFault])
	section(&b, "## Faults", "What the responder answers:", []string{"On the wire", "Faults"}, wire)
	section(&b, "### What the requester does", "Without regard to an answer, or when there is none:", []string{"Requester", "Faults"}, local)
	section(&b, "## Limits", "", []string{"Limit", "What is beyond is refused with"}, limitGroups(tables[support.TableLimit]))
	section(&b, "## Objects", "What was done to the objects of the verbs; the details have the outcome of each.",
		[]string{"Object", "Operations"}, objectGroups(tables[support.TableObject]))
	fmt.Fprintf(&b, "\nNo test has seen these asynchronous events: %s.\n", strings.Join(missingEvents(tables[support.TableObject]), ", "))
	b.WriteString("\n" + kernels)
	return b.Bytes()
}

// place is the part of an opcode's name that says where in a message its packet stands.
var place = regexp.MustCompile(`_(FIRST|MIDDLE|LAST|ONLY)`)

// opcodeGroups has a row for each operation.
func opcodeGroups(t table) (rows [][]string) {
	type group struct{ transport, operation string }
	ways := []support.How{support.Codec, support.Sent, support.Received, support.Looped, support.Refused, support.Ignored}
	var order []group
	packets, count := make(map[group]int), make(map[group]map[support.How]int)
	for number := range 256 {
		o := roce.Opcode(number)
		if o.Info() == nil {
			continue
		}
		transport := o.Transport().String()
		g := group{transport, place.ReplaceAllString(strings.TrimPrefix(o.String(), transport+"_"), "")}
		if packets[g] == 0 {
			order, count[g] = append(order, g), make(map[support.How]int)
		}
		packets[g]++
		for _, how := range ways {
			if t.find(o.String(), string(how)) != nil {
				count[g][how]++
			}
		}
	}
	for _, g := range order {
		row := []string{g.transport, g.operation, fmt.Sprint(packets[g])}
		for _, how := range ways {
			switch n := count[g][how]; n {
			case 0:
				row = append(row, "")
			case packets[g]:
				row = append(row, "yes")
			default:
				row = append(row, fmt.Sprintf("%d of %d", n, packets[g]))
			}
		}
		rows = append(rows, row)
	}
	return rows
}

// transitionGroups has a row for each transition with attributes, and one for all without.
func transitionGroups(t table) (rows [][]string) {
	var plain, unchecked []string
	for _, s := range transitions {
		name := s.from + " to " + s.to
		if t.find(s.from, s.to, "") == nil {
			unchecked = append(unchecked, name)
			continue
		}
		var missing []string
		checked := func(attributes []string) string {
			known := slices.DeleteFunc(slices.Clone(attributes), func(a string) bool { return t.find(s.from, s.to, a) == nil })
			for _, a := range attributes {
				if !slices.Contains(known, a) {
					missing = append(missing, a)
				}
			}
			return strings.Join(known, ", ")
		}
		if len(s.required)+len(s.optional) == 0 {
			plain = append(plain, name)
			continue
		}
		required, optional := checked(s.required), checked(s.optional)
		rows = append(rows, []string{name, required, optional, strings.Join(missing, ", ")})
	}
	if len(plain) > 0 {
		rows = append(rows, []string{strings.Join(plain, ", "), "", "", ""})
	}
	if len(unchecked) > 0 {
		rows = append(rows, []string{strings.Join(unchecked, ", "), "", "", "all"})
	}
	return rows
}

// faultGroups has a row for each answer of the responder, and one for each thing that the requester does where the
// answer was not looked at.
func faultGroups(t table) (wire, local [][]string) {
	const onTheWire, requester = 0, 4 // places in a row's value, see support.Fault
	answers, others := make(map[string][]string), make(map[string][]string)
	for _, r := range t {
		switch {
		case r.value[onTheWire] != "":
			answers[r.value[onTheWire]] = append(answers[r.value[onTheWire]], r.key[0])
		case r.value[requester] != "":
			others[r.value[requester]] = append(others[r.value[requester]], r.key[0])
		default:
			others[strings.Join(r.value, " ")] = append(others[strings.Join(r.value, " ")], r.key[0])
		}
	}
	return condensed(answers), condensed(others)
}

// limitGroups has a row for each limit.
func limitGroups(t table) (rows [][]string) {
	groups := make(map[string][]string)
	for _, r := range t {
		text := strings.TrimPrefix(strings.TrimPrefix(r.key[1], "invalid QP attribute: "), "device limit exceeded: ")
		groups[r.key[0]] = append(groups[r.key[0]], text)
	}
	for _, name := range slices.Sorted(maps.Keys(groups)) {
		slices.Sort(groups[name])
		rows = append(rows, []string{name, list(groups[name])})
	}
	return rows
}

// objectGroups has a row for each kind of objects.
func objectGroups(t table) [][]string {
	groups := make(map[string][]string)
	for _, r := range t {
		groups[r.key[0]] = append(groups[r.key[0]], r.key[1])
	}
	return condensed(groups)
}

// condensed has a row for each group, with its names condensed.
func condensed(groups map[string][]string) (rows [][]string) {
	for _, name := range slices.Sorted(maps.Keys(groups)) {
		rows = append(rows, []string{strings.TrimSpace(name), condense(groups[name])})
	}
	return rows
}

// condense writes names of the form "RDMA READ, wrong key" shorter: those with the same end, or else those with the
// same beginning, are one entry with their number.
func condense(names []string) string {
	slices.Sort(names)
	ends, begins := make(map[string]int), make(map[string]int)
	for _, name := range names {
		begin, end := parts(name)
		ends[end]++
		begins[begin]++
	}
	var entries []string
	for _, name := range names {
		begin, end := parts(name)
		entry := name
		switch {
		case end != "" && ends[end] > 1:
			entry = fmt.Sprintf("%s (%d)", end, ends[end])
		case begins[begin] > 1:
			// Without those that went to the entries of their ends.
			n := 0
			for _, other := range names {
				if b, e := parts(other); b == begin && (e == "" || ends[e] == 1) {
					n++
				}
			}
			if n > 1 {
				entry = fmt.Sprintf("%s (%d)", begin, n)
			}
		}
		if !slices.Contains(entries, entry) {
			entries = append(entries, entry)
		}
	}
	return list(entries)
}

// cellLength is how many characters of entries a cell shows at least before it only counts the others: more than three
// lines of a table nobody reads.
const cellLength = 300

// list writes the entries of a cell. Those that find no room are in the details.
func list(entries []string) string {
	text := ""
	for i, entry := range entries {
		if len(text) > cellLength {
			return fmt.Sprintf("%s; and %d more", text, len(entries)-i)
		}
		if i > 0 {
			text += "; "
		}
		text += entry
	}
	return text
}

// second is where a second thing begins in a name.
var second = regexp.MustCompile(`, |: | with MAX| of MTU `)

// parts takes a name apart there.
func parts(name string) (begin, end string) {
	at := second.FindStringIndex(name)
	if at == nil {
		return name, ""
	}
	return name[:at[0]], strings.TrimLeft(name[at[0]:], ",: ")
}
