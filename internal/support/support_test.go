package support

import (
	"errors"
	"os"
	"os/exec"
	"testing"

	"github.com/stretchr/testify/require"
)

type name string

func (n name) String() string { return string(n) }

// TestRecords: one line of each kind, with the names of test and package.
func TestRecords(t *testing.T) {
	dir := t.TempDir()
	t.Setenv(Environment, dir)
	t.Run("sub", func(t *testing.T) {
		for range 3 {
			Opcode(t, name("RC_SEND_ONLY"), Sent, Received)
		}
		Transition(t, name("RTR"), name("RTS"), name("TIMEOUT"), "required")
		Transition(t, name("RTS"), name("ERR"), nil, "")
		Fault(t, "loss", Outcome{Requester: name("again")})
		Limit(t, "memory", errors.New("too much"))
		Object(t, "PD", "Dealloc in use", name("EBUSY"))
		records, err := Read(dir)
		require.NoError(t, err)
		require.Empty(t, records, "the test has not passed yet")
	})
	records, err := Read(dir)
	require.NoError(t, err)
	row := func(table string, key, value []string) Record {
		return Record{Package: "internal/support", Test: "TestRecords/sub", Table: table, Key: key, Value: value}
	}
	require.ElementsMatch(t, []Record{
		row(TableOpcode, []string{"RC_SEND_ONLY", "sent"}, []string{}),
		row(TableOpcode, []string{"RC_SEND_ONLY", "received"}, []string{}),
		row(TableTransition, []string{"RTR", "RTS", "TIMEOUT"}, []string{"required"}),
		row(TableTransition, []string{"RTS", "ERR", ""}, []string{""}),
		row(TableFault, []string{"loss"}, []string{"", "", "", "", "again"}),
		row(TableLimit, []string{"memory", "too much"}, []string{}),
		row(TableObject, []string{"PD", "Dealloc in use"}, []string{"EBUSY"}),
	}, records)
}

// TestNothing: a test that fails or is skipped leaves no record, nor does any if the variable is not set. The tests
// that do so are TestBad's, in a process of their own.
func TestNothing(t *testing.T) {
	for test, want := range map[string]int{"TestBad/failed": 0, "TestBad/skipped": 0, "TestBad/passed": 1} {
		dir := t.TempDir()
		command := exec.Command(os.Args[0], "-test.run", test)
		command.Env = append(os.Environ(), Environment+"="+dir, "SUPPORT_BAD=1")
		output, err := command.CombinedOutput()
		require.Equal(t, test == "TestBad/failed", err != nil, "%s", output)
		records, err := Read(dir)
		require.NoError(t, err)
		require.Len(t, records, want, test)
	}
	t.Setenv(Environment, "")
	t.Chdir(t.TempDir())
	t.Run("unset", func(t *testing.T) { Opcode(t, name("RC_SEND_ONLY"), Sent) })
	left, err := os.ReadDir(".")
	require.NoError(t, err)
	require.Empty(t, left)
}

func TestBad(t *testing.T) {
	if os.Getenv("SUPPORT_BAD") == "" {
		return // only for TestNothing
	}
	t.Run("failed", func(t *testing.T) {
		Opcode(t, name("RC_SEND_ONLY"), Sent)
		t.Fail()
	})
	t.Run("skipped", func(t *testing.T) {
		Opcode(t, name("RC_SEND_ONLY"), Sent)
		t.Skip("on purpose")
	})
	t.Run("passed", func(t *testing.T) { Opcode(t, name("RC_SEND_ONLY"), Sent) })
}

// TestReadRefuses what is no record.
func TestReadRefuses(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(dir+"/a.jsonl", []byte("{\n"), 0o600))
	_, err := Read(dir)
	require.ErrorContains(t, err, "a.jsonl")
}
