package bpf

import (
	"bytes"
	"cmp"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// clangMajor is the version of clang that made the objects in this folder.
const clangMajor = "14"

// skip skips a test that the machine cannot run, and fails it where it should have run.
func skip(t *testing.T, reason string) {
	t.Helper()
	if os.Getenv("CI") == "true" {
		t.Fatal(reason)
	}
	t.Skip(reason)
}

// The objects are those that the source makes, in any folder.
func TestObjectsAreCurrent(t *testing.T) {
	clang, strip := cmp.Or(os.Getenv("BPF2GO_CC"), "clang"), cmp.Or(os.Getenv("BPF2GO_STRIP"), "llvm-strip")
	version, err := exec.Command(clang, "-dumpversion").Output()
	if err != nil || !strings.HasPrefix(string(version), clangMajor+".") {
		skip(t, fmt.Sprintf("needs clang %s, found %q (%v)", clangMajor, version, err))
	}
	if _, err := exec.LookPath(strip); err != nil {
		skip(t, err.Error())
	}
	folder := t.TempDir()
	tool := filepath.Join(folder, "bpf2go")
	output, err := exec.Command("go", "build", "-o", tool, "github.com/cilium/ebpf/cmd/bpf2go").CombinedOutput()
	require.NoError(t, err, "%s", output)

	elsewhere := filepath.Join(folder, "else", "where")
	require.NoError(t, os.MkdirAll(elsewhere, 0o755))
	source, err := os.ReadFile("xdp_roce.c")
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(elsewhere, "xdp_roce.c"), source, 0o644))

	generate := exec.Command(tool, generateArguments(t)...)
	generate.Dir = elsewhere
	generate.Env = append(os.Environ(), "GOPACKAGE=bpf")
	output, err = generate.CombinedOutput()
	require.NoError(t, err, "%s", output)
	for _, name := range []string{"xdp_roce_bpfel.o", "xdp_roce_bpfeb.o", "xdp_roce_bpfel.go", "xdp_roce_bpfeb.go"} {
		want, err := os.ReadFile(filepath.Join(elsewhere, name))
		require.NoError(t, err)
		got, err := os.ReadFile(name)
		require.NoError(t, err)
		require.True(t, bytes.Equal(want, got), "%s is out of date: go generate ./bpf", name)
	}
}

// generateArguments returns the arguments of bpf2go in the go:generate line.
func generateArguments(t *testing.T) []string {
	t.Helper()
	program, err := os.ReadFile("program.go")
	require.NoError(t, err)
	_, line, found := strings.Cut(string(program), "//go:generate go run github.com/cilium/ebpf/cmd/bpf2go ")
	require.True(t, found)
	line, _, _ = strings.Cut(line, "\n")
	return strings.Fields(line)
}
