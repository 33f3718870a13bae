package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
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
	skipped, err := show(events, output)
	if err != nil {
		_ = command.Process.Kill()
		_ = command.Wait()
		return err
	}
	if err := command.Wait(); err != nil {
		return fmt.Errorf("not all tests have passed: %w", err)
	}
	if len(skipped) > 0 {
		return errors.New("tests were skipped, and nobody knows what they would have shown:\n" + strings.Join(skipped, ""))
	}
	return nil
}

// show reads the events of go test -json (go doc test2json) and returns what the skipped tests say.
func show(events io.Reader, output io.Writer) (skipped []string, err error) {
	printed := make(map[[2]string]string) // by package and test
	for decoder := json.NewDecoder(events); ; {
		var e struct{ Action, Package, Test, Output string }
		if err := decoder.Decode(&e); errors.Is(err, io.EOF) {
			return skipped, nil
		} else if err != nil {
			return nil, fmt.Errorf("output of go test -json: %w", err)
		}
		key := [2]string{e.Package, e.Test}
		switch {
		case e.Action == "build-output", e.Action == "output" && e.Test == "" && e.Output != "PASS\n":
			fmt.Fprint(output, e.Output)
		case e.Action == "output":
			printed[key] += e.Output
		case e.Action == "fail":
			fmt.Fprint(output, printed[key])
			delete(printed, key)
		case e.Action == "skip" && e.Test != "": // without a test it is a package that has none
			skipped = append(skipped, e.Package+"\n"+printed[key])
			delete(printed, key)
		case e.Action == "pass":
			delete(printed, key)
		}
	}
}
