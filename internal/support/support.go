// Package support lets tests say what they have shown, so that docs/support.md is made of tests that passed and not of
// claims. A test calls one of the functions where it has checked something:
//
//	support.Opcode(t, roce.RCSendOnly, support.Sent)
//	support.Transition(t, from, to, transport.MaskTimeout, "required")
//	support.Fault(t, "no receive is posted", support.Outcome{Wire: roce.RNRNAK(12)})
//
// Names and outcomes are values that the test has in its hands, rather than words, where there is one: they are
// written with fmt.Sprint, so a change of the value changes the table. The package knows no other of this module, so
// that tests within any can use it.
//
// Unless the environment variable XROCE_SUPPORT names a folder, nothing happens. internal/support/matrix runs all tests
// with it and writes the table; it fails if any test failed or was skipped.
package support

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"runtime/debug"
	"strings"
	"sync"
	"testing"
)

// Environment is the variable that names the folder for the records.
const Environment = "XROCE_SUPPORT"

// The tables that a record may belong to.
const (
	TableOpcode     = "opcode"
	TableTransition = "transition"
	TableFault      = "fault"
	TableLimit      = "limit"
	TableObject     = "object"
)

// Record is what a test has shown: a line of JSON in the folder.
type Record struct {
	Package string // the test's, without the module's path
	Test    string // with its subtests
	Table   string
	Key     []string // the row
	// Value is what the test found there. An empty string is something that the test did not look at; what two tests
	// found in the same row must not differ.
	Value []string
}

// How is the way in which an opcode was checked.
type How string

// Ways in which an opcode was checked. Sent and Received are those that make it a supported one.
const (
	Codec    How = "parsed and built"   // the bytes of somebody else's packet, taken apart and made again
	Sent     How = "sent"               // by a queue pair, as the specification has it
	Received How = "received"           // by a queue pair, which did what it asks for
	Looped   How = "over loopback"      // between queue pairs of one process, both of the above
	Refused  How = "refused with a NAK" // by a queue pair, as an invalid or forbidden request, or in the wrong place
	Ignored  How = "dropped"            // by a queue pair, without an answer
)

// Opcode records that packets of an opcode were checked. Opcode prints as in roce: "RC_SEND_ONLY".
func Opcode(t testing.TB, opcode fmt.Stringer, how ...How) {
	for _, h := range how {
		add(t, TableOpcode, []any{opcode, h}, nil)
	}
}

// Transition records that a queue pair takes an attribute with a transition, which is "required" or "optional".
// Attribute nil is the transition with no attribute but those that it requires.
func Transition(t testing.TB, from, to, attribute fmt.Stringer, rule string) {
	var name any = attribute
	if attribute == nil {
		name = ""
	}
	add(t, TableTransition, []any{from, to, name}, []any{rule})
}

// Outcome is what a fault leads to. A test leaves nil what it did not look at: other tests may fill it in.
type Outcome struct {
	Wire      any // what the responder answers
	Responder any // what becomes of the queue pair that the fault reaches
	Receive   any // the status of that queue pair's oldest receive
	Event     any // the asynchronous event of that queue pair, or "none"
	Requester any // what the requester does, or the status of its completion
}

// Fault records what a fault leads to.
func Fault(t testing.TB, fault string, o Outcome) {
	add(t, TableFault, []any{fault}, []any{o.Wire, o.Responder, o.Receive, o.Event, o.Requester})
}

// Limit records the words with which something beyond a limit is refused.
func Limit(t testing.TB, what string, refusal error) { add(t, TableLimit, []any{what, refusal}, nil) }

// Object records what an operation on an object of the verbs results in.
func Object(t testing.TB, object, operation string, outcome any) {
	add(t, TableObject, []any{object, operation}, []any{outcome})
}

// folder keeps what was written, so that a loop leaves one line of each kind.
var folder struct {
	sync.Mutex
	written map[string]bool
}

// add has a record written when the test has passed. Cleanups that the test registered before and that fail after this
// are noticed by the generator, which wants all tests to pass.
func add(t testing.TB, table string, key, value []any) {
	dir := os.Getenv(Environment)
	if dir == "" {
		return
	}
	r := Record{Package: testedPackage(), Test: t.Name(), Table: table, Key: words(key), Value: words(value)}
	t.Cleanup(func() {
		if t.Failed() || t.Skipped() {
			return
		}
		if err := write(dir, r); err != nil {
			t.Errorf("support: %v", err)
		}
	})
}

func words(values []any) []string {
	list := make([]string, len(values))
	for i, v := range values {
		if v != nil {
			list[i] = fmt.Sprint(v)
		}
	}
	return list
}

// testedPackage is the package that the running test binary was made for.
func testedPackage() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "unknown"
	}
	return strings.TrimPrefix(strings.TrimSuffix(info.Path, ".test"), info.Main.Path+"/")
}

func write(dir string, r Record) error {
	line, err := json.Marshal(r)
	if err != nil {
		return err
	}
	folder.Lock()
	defer folder.Unlock()
	if folder.written[dir+string(line)] {
		return nil
	}
	// Tests of different packages run at once, in processes of their own: each has its file.
	name := strings.ReplaceAll(r.Package, "/", "-") + ".jsonl"
	file, err := os.OpenFile(filepath.Join(dir, name), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o666)
	if err != nil {
		return err
	}
	if _, err := file.Write(append(line, '\n')); err != nil {
		_ = file.Close()
		return err
	}
	if folder.written == nil {
		folder.written = make(map[string]bool)
	}
	folder.written[dir+string(line)] = true
	return file.Close()
}

// Read returns the records of a folder.
func Read(dir string) ([]Record, error) {
	files, err := filepath.Glob(filepath.Join(dir, "*.jsonl"))
	if err != nil {
		return nil, err
	}
	var records []Record
	for _, name := range files {
		content, err := os.ReadFile(name)
		if err != nil {
			return nil, err
		}
		for line := range strings.Lines(string(content)) {
			var r Record
			if err := json.Unmarshal([]byte(line), &r); err != nil {
				return nil, fmt.Errorf("%s: %w", name, err)
			}
			records = append(records, r)
		}
	}
	return records, nil
}
