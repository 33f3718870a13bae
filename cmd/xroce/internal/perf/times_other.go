//go:build !unix

package perf

import (
	"errors"
	"time"
)

func processTimes() (user, system time.Duration, err error) { return 0, 0, errors.ErrUnsupported }
