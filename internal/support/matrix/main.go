// Command matrix runs all tests of the module and writes docs/support.md and docs/support-details.md from what those
// that passed have recorded (see package support), and from kernels.md, which "bin/interop report" writes. It fails
// if a test failed or was skipped, if two tests contradict each other, or if one records what the specification does
// not have. With -check it compares with the files instead, with -records it takes what a run of the tests has
// recorded already (with CI=true, so that none was skipped). Run it at the module's root, as root.
package main

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/xroce/xroce/internal/support"
)

func main() {
	check := flag.Bool("check", false, "compare with the files, do not write them")
	folder := flag.String("folder", "docs", "the `folder` of the files")
	recorded := flag.String("records", "", "do not run the tests, take the records in this `folder`")
	flag.Parse()
	if err := run(*folder, *recorded, *check); err != nil {
		fmt.Fprintln(os.Stderr, "matrix:", err)
		os.Exit(1)
	}
}

func run(folder, dir string, check bool) error {
	if dir == "" {
		var err error
		if dir, err = os.MkdirTemp("", "support"); err != nil {
			return err
		}
		defer os.RemoveAll(dir)
		if err := runTests(dir, os.Stdout); err != nil {
			return err
		}
	}
	records, err := support.Read(dir)
	if err != nil {
		return err
	}
	short, details, err := documents(records)
	if err != nil {
		return err
	}
	return errors.Join(
		put(filepath.Join(folder, "support.md"), short, check),
		put(filepath.Join(folder, "support-details.md"), details, check),
	)
}

// put writes a file, or says what of it is not so.
func put(file string, fresh []byte, check bool) error {
	if !check {
		return os.WriteFile(file, fresh, 0o644)
	}
	committed, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	if bytes.Equal(fresh, committed) {
		return nil
	}
	return errors.New(file + " is not what the tests show; make support writes it anew:\n" +
		difference(string(committed), string(fresh)))
}

// difference lists the lines that only one of two texts has.
func difference(committed, fresh string) string {
	var b strings.Builder
	for _, side := range []struct{ sign, lines, others string }{{"-", committed, fresh}, {"+", fresh, committed}} {
		known := make(map[string]bool)
		for line := range strings.Lines(side.others) {
			known[line] = true
		}
		for line := range strings.Lines(side.lines) {
			if !known[line] {
				b.WriteString(side.sign + line)
			}
		}
	}
	return b.String()
}
