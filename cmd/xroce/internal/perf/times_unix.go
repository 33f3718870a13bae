//go:build unix

package perf

import (
	"time"

	"golang.org/x/sys/unix"
)

// processTimes returns the CPU time of the process.
func processTimes() (user, system time.Duration, err error) {
	var usage unix.Rusage
	err = unix.Getrusage(unix.RUSAGE_SELF, &usage)
	return time.Duration(usage.Utime.Nano()), time.Duration(usage.Stime.Nano()), err
}
