package main

import (
	"bytes"
	"encoding/json"
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
		record("TestA", support.TableTransition, []string{"RESET", "INIT", ""}, ""),
		record("TestA", support.TableTransition, []string{"RESET", "INIT", "PORT"}, "required"),
		record("TestA", support.TableFault, []string{"loss | of all"}, "", "", "", "", "again"),
		record("TestB", support.TableFault, []string{"loss | of all"}, "NAK", "", "", "", ""),
	}
	text, err := document(records)
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
	require.True(t, strings.HasSuffix(string(text), "\n\n"+kernels))
	require.True(t, strings.HasPrefix(kernels, "## Kernels and drivers\n"))
	require.Contains(t, string(text), "\nQP fatal error, QP invalid request error, ")
	require.Contains(t, string(text), "table at all: 0x15, 0x18 to 0x1b, 0x1e to 0x1f, 0x2c to 0x63, 0x66 to 0x80, 0x82 to 0xff.")

	for i, j := 0, len(records)-1; i < j; i, j = i+1, j-1 {
		records[i], records[j] = records[j], records[i]
	}
	again, err := document(records)
	require.NoError(t, err)
	require.Equal(t, string(text), string(again))
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
		_, err := document(c.records)
		require.Error(t, err, name)
		for _, part := range c.parts {
			require.ErrorContains(t, err, part, name)
		}
	}
}

// TestShow: what passes is one line; what fails is told in full, also what has not come to an end when its package fails; what
// is skipped is returned.
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
