package main

import (
	"bytes"
	"encoding/json"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/xroce/xroce/internal/support"
)

func record(test, table string, key []string, value ...string) support.Record {
	return support.Record{Package: "roce", Test: test, Table: table, Key: key, Value: value}
}

// TestDocument: rows of one key are one, whatever the order of the records, and what is missing is listed.
func TestDocument(t *testing.T) {
	records := []support.Record{
		record("TestB/sub", support.TableOpcode, []string{"RC_SEND_ONLY", "sent"}),
		record("TestA", support.TableOpcode, []string{"RC_SEND_ONLY", "sent"}),
		record("TestA", support.TableOpcode, []string{"RC_SEND_ONLY", "received"}),
		record("TestA", support.TableOpcode, []string{"RC_SEND_ONLY", "over loopback"}),
		record("TestA", support.TableOpcode, []string{"RC_SEND_ONLY", "refused with a NAK"}),
		record("TestA", support.TableOpcode, []string{"RC_FLUSH", "refused with a NAK"}),
		record("TestA", support.TableObject, []string{"Event", "CQ error"}, "told"),
		record("TestA", support.TableObject, []string{"Event", "cable pulled"}, "port error"),
		record("TestA", support.TableLimit, []string{"PORT", "invalid QP attribute: PORT is 0"}),
		record("TestA", support.TableTransition, []string{"RESET", "INIT", ""}, ""),
		record("TestA", support.TableTransition, []string{"RESET", "INIT", "PORT"}, "required"),
		record("TestA", support.TableFault, []string{"loss | of all"}, "", "", "", "", "again"),
		record("TestB", support.TableFault, []string{"loss | of all"}, "NAK", "", "", "", ""),
	}
	short, text, err := documents(records)
	require.NoError(t, err)
	for _, line := range []string{
		"| RC | SEND_ONLY | sent | roce.TestA, roce.TestB |",
		"| RC | SEND_ONLY | received | roce.TestA |",
		"| RC | SEND_ONLY | over loopback | roce.TestA |",
		"| RC | SEND_ONLY | refused with a NAK | roce.TestA |",
		"| RC_FLUSH | no | no, refused with a NAK |",
		"| UD_SEND_ONLY | no | no |",
		"| RESET to INIT | PORT | required | roce.TestA |",
		"| RESET to INIT | PKEY_INDEX |",
		"| RTS to SQD | with or without attributes |",
		`| loss \| of all | NAK |  |  |  | again | roce.TestA, roce.TestB |`,
	} {
		require.Contains(t, strings.Split(string(text), "\n"), line)
	}
	require.NotContains(t, string(text), "| RC_SEND_ONLY |")
	for _, line := range []string{
		"| RC | SEND | 4 |  | 1 of 4 | 1 of 4 | 1 of 4 | 1 of 4 |  |",
		"| RC | FLUSH | 1 |  |  |  |  | yes |  |",
		"| UD | SEND | 1 |  |  |  |  |  |  |",
		"| RESET to INIT | PORT |  | PKEY_INDEX, ACCESS_FLAGS |",
		`| NAK | loss \| of all |`,
		"| PORT | PORT is 0 |",
		"| Event | CQ error; cable pulled |",
	} {
		require.Contains(t, strings.Split(string(short), "\n"), line)
	}
	require.Contains(t, string(short), "RTS to SQD, SQD to RTS, SQD to SQD")
	require.True(t, strings.HasSuffix(string(short), "\n\n"+kernels))
	require.True(t, strings.HasPrefix(kernels, "## Kernels and drivers\n"))
	require.Contains(t, string(short), "events: QP fatal error, QP invalid request error, ")
	require.NotContains(t, string(short), "port error")
	require.Contains(t, string(short),
		"does not have 0x15, 0x18 to 0x1b, 0x1e to 0x1f, 0x2c to 0x63, 0x66 to 0x80, 0x82 to 0xff.")

	for i, j := 0, len(records)-1; i < j; i, j = i+1, j-1 {
		records[i], records[j] = records[j], records[i]
	}
	shortAgain, again, err := documents(records)
	require.NoError(t, err)
	require.Equal(t, string(text), string(again))
	require.Equal(t, string(short), string(shortAgain))
}

// TestCondense: names with the same end are one entry, and of the others those with the same beginning.
func TestCondense(t *testing.T) {
	require.Equal(t, "wrong (3); no right (2); WRITE, alone; one, and only", condense([]string{
		"READ, wrong", "WRITE, wrong", "FLUSH, wrong", "WRITE, no right", "READ, no right", "WRITE, alone", "one, and only",
	}))
	require.Equal(t, "CreateQP (2); Destroy", condense([]string{"Destroy", "CreateQP, depth", "CreateQP, type"}))
}

// TestList: a cell counts what would make it too long.
func TestList(t *testing.T) {
	long := strings.Repeat("x", cellLength)
	require.Equal(t, "a; b", list([]string{"a", "b"}))
	require.Equal(t, long+"; b", list([]string{long, "b"}))
	require.Equal(t, long+"; b; and 2 more", list([]string{long, "b", "c", "d"}))
}

// TestShortPage: the page is one that a person reads.
func TestShortPage(t *testing.T) {
	page, err := os.ReadFile("../../../docs/support.md")
	require.NoError(t, err)
	require.Less(t, bytes.Count(page, []byte("\n")), 200)
	for line := range strings.Lines(string(page)) {
		require.Less(t, len(line), 2*cellLength, line)
	}
}

// TestContradictions: the document is not written with what cannot be true.
func TestContradictions(t *testing.T) {
	for name, c := range map[string]struct {
		records []support.Record
		parts   []string
	}{
		"two outcomes": {[]support.Record{
			record("TestA", support.TableFault, []string{"loss"}, "NAK", "", "", "", ""),
			record("TestB", support.TableFault, []string{"loss"}, "ACK", "", "", "", ""),
		}, []string{"loss", "TestA", "TestB", "NAK", "ACK"}},
		"no such opcode":     {[]support.Record{record("TestA", support.TableOpcode, []string{"RC_SEND", "sent"})}, []string{"RC_SEND"}},
		"no such transition": {[]support.Record{record("TestA", support.TableTransition, []string{"RESET", "RTS", ""}, "")}, []string{"RTS"}},
		"no such attribute": {[]support.Record{
			record("TestA", support.TableTransition, []string{"RESET", "INIT", ""}, ""),
			record("TestA", support.TableTransition, []string{"RESET", "INIT", "TIMEOUT"}, "optional"),
		}, []string{"TIMEOUT"}},
		"another rule": {[]support.Record{
			record("TestA", support.TableTransition, []string{"RESET", "INIT", ""}, ""),
			record("TestA", support.TableTransition, []string{"RESET", "INIT", "PORT"}, "optional"),
		}, []string{"PORT", "required", "optional"}},
	} {
		_, _, err := documents(c.records)
		require.Error(t, err, name)
		for _, part := range c.parts {
			require.ErrorContains(t, err, part, name)
		}
	}
}

// TestShow: what passes is one line; what fails is told in full, also what has not come to an end when its package
// fails; what is skipped is returned.
func TestShow(t *testing.T) {
	var events bytes.Buffer
	for _, e := range []map[string]string{
		{"Action": "build-output", "Output": "a.go:1: no\n"},
		{"Action": "output", "Package": "p", "Test": "TestGood", "Output": "chatter\n"},
		{"Action": "output", "Package": "p", "Test": "TestBad", "Output": "broken\n"},
		{"Action": "pass", "Package": "p", "Test": "TestGood"},
		{"Action": "fail", "Package": "p", "Test": "TestBad"},
		{"Action": "output", "Package": "p", "Test": "TestRoot", "Output": "needs root\n"},
		{"Action": "skip", "Package": "p", "Test": "TestRoot"},
		{"Action": "skip", "Package": "without"},
		{"Action": "output", "Package": "q", "Test": "TestDeadly/sub", "Output": "panic\n"},
		{"Action": "output", "Package": "q", "Test": "TestDeadly", "Output": "begins\n"},
		{"Action": "output", "Package": "other", "Test": "TestRunning", "Output": "chatter\n"},
		{"Action": "output", "Package": "p", "Output": "FAIL p\n"},
		{"Action": "fail", "Package": "p"},
		{"Action": "output", "Package": "q", "Output": "FAIL q\n"},
		{"Action": "fail", "Package": "q"},
	} {
		require.NoError(t, json.NewEncoder(&events).Encode(e))
	}
	var output strings.Builder
	failed, skipped, err := show(&events, &output)
	require.NoError(t, err)
	require.Equal(t, []string{"p TestBad", "p", "q TestDeadly", "q TestDeadly/sub", "q"}, failed)
	require.Equal(t, []string{"p\nneeds root\n"}, skipped)
	require.Equal(t, "a.go:1: no\nbroken\nFAIL p\nFAIL q\nbegins\npanic\n", output.String())
	output.Reset()
	_, _, err = show(strings.NewReader(`{"Action":"output","Package":"p","Test":"TestRunning","Output":"chatter\n"}`+"\nno JSON, but words\n"), &output)
	require.Error(t, err)
	require.Equal(t, "chatter\n\nno JSON, but words\n", output.String())
}

func TestDifference(t *testing.T) {
	require.Equal(t, "-b\n+c\n", difference("a\nb\n", "a\nc\n"))
}
