//go:build linux

package xsk

import (
	"flag"
	"fmt"
	"os"
	"testing"

	"go.uber.org/goleak"
)

// childVariable selects what the test binary does when a test runs it again as
// another process with other privileges.
const childVariable = "XSK_TEST_CHILD"

var fullSize = flag.Bool("full", false, "run the cases whose full size takes long at full size")

// size is the size of a case.
func size(test, full int) int {
	if *fullSize {
		return full
	}
	return test
}

func TestMain(m *testing.M) {
	if name := os.Getenv(childVariable); name != "" {
		if err := children[name](); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	goleak.VerifyTestMain(m)
}
