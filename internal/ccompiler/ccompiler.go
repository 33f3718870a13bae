// Package ccompiler compiles the C programs of tests. They are programs of their own: nothing here uses cgo.
package ccompiler

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// T is the part of testing.TB that Build uses.
type T interface {
	Helper()
	TempDir() string
	Skip(...any)
	Fatal(...any)
}

// Build compiles a source file, whose headers are in the folder include, and returns the program. Without a C compiler
// it skips the test, or fails it if the environment says CI=true.
func Build(t T, source, include string, arguments ...string) (program string) {
	t.Helper()
	compiler, err := exec.LookPath("cc")
	if err != nil {
		if os.Getenv("CI") == "true" {
			t.Fatal("this test must run in CI, and cannot: ", err)
		}
		t.Skip(err)
	}
	program = filepath.Join(t.TempDir(), strings.TrimSuffix(filepath.Base(source), ".c"))
	arguments = append([]string{
		"-std=gnu11", "-O2", "-g", "-Wall", "-Wextra", "-Werror", "-I", include, "-o", program, source,
	}, arguments...)
	if out, err := exec.Command(compiler, arguments...).CombinedOutput(); err != nil {
		t.Fatal(compiler, " ", strings.Join(arguments, " "), ": ", err, "\n", string(out))
	}
	return program
}
