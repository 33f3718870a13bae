package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"slices"
	"strings"

	"github.com/xroce/xroce/internal/support"
)

// runTests runs all tests, which leave their records in dir. It shows what go test shows: a line for each package, and
// all that a failed test has printed.
func runTests(dir string, output io.Writer) error {
	command := exec.Command("go", "test", "-json", "-count=1", "-timeout", "5m", "./...")
	command.Env = append(os.Environ(), support.Environment+"="+dir)
	command.Stderr = os.Stderr
	events, err := command.StdoutPipe()
	if err != nil {
		return err
	}
	if err := command.Start(); err != nil {
		return err
	}
	failed, skipped, err := show(events, output)
	if err != nil {
		_ = command.Process.Kill()
		_ = command.Wait()
		return err
	}
	if err := command.Wait(); err != nil {
		return fmt.Errorf("not all tests have passed: %w\n%s", err, strings.Join(failed, "\n"))
	}
	if len(skipped) > 0 {
		return errors.New("tests were skipped, and nobody knows what they would have shown:\n" + strings.Join(skipped, ""))
	}
	return nil
}

// show reads the events of go test -json (go doc test2json) and returns the names of what failed and what the skipped
// tests say.
func show(events io.Reader, output io.Writer) (failed, skipped []string, err error) {
	printed := make(map[string]map[string]string) // by package and test
	// tell prints what the tests of a package have printed that have not ended, in the order of their names.
	tell := func(name string) {
		for _, test := range slices.Sorted(maps.Keys(printed[name])) {
			failed = append(failed, name+" "+test)
			fmt.Fprint(output, printed[name][test])
		}
		delete(printed, name)
	}
	for decoder := json.NewDecoder(events); ; {
		var e struct{ Action, Package, Test, Output string }
		if err := decoder.Decode(&e); errors.Is(err, io.EOF) {
			return failed, skipped, nil
		} else if err != nil {
			for _, name := range slices.Sorted(maps.Keys(printed)) {
				tell(name)
			}
			_, _ = io.Copy(output, io.MultiReader(decoder.Buffered(), events))
			return failed, nil, fmt.Errorf("output of go test -json: %w", err)
		}
		tests := printed[e.Package]
		if tests == nil {
			tests = make(map[string]string)
			printed[e.Package] = tests
		}
		switch {
		case e.Action == "build-output", e.Action == "output" && e.Test == "" && e.Output != "PASS\n":
			fmt.Fprint(output, e.Output)
		case e.Action == "output" && e.Test != "":
			tests[e.Test] += e.Output
		case e.Action == "fail" && e.Test == "":
			// A test that a panic of another goroutine, a timeout or os.Exit has cut short has no result of its own.
			tell(e.Package)
			failed = append(failed, e.Package)
		case e.Action == "fail":
			failed = append(failed, e.Package+" "+e.Test)
			fmt.Fprint(output, tests[e.Test])
			delete(tests, e.Test)
		case e.Action == "skip" && e.Test != "": // without a test it is a package that has none
			skipped = append(skipped, e.Package+"\n"+tests[e.Test])
			delete(tests, e.Test)
		case e.Action == "pass":
			delete(tests, e.Test)
		}
	}
}
