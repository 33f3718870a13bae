//go:build linux

package vm

import (
	"context"
	"os"
	"os/signal"
	"syscall"
)

// Interruptible returns a context for a whole program: it ends with SIGINT, SIGTERM and, unless nohup has it ignored,
// SIGHUP. The second signal ends the program. A write to a pipe that nobody reads any more becomes an error, where it
// would end the program and leave behind what it has made.
func Interruptible() (ctx context.Context, stop func()) {
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
	signals := []os.Signal{syscall.SIGINT, syscall.SIGTERM}
	if !signal.Ignored(syscall.SIGHUP) {
		signals = append(signals, syscall.SIGHUP)
	}
	ctx, stop = signal.NotifyContext(context.Background(), signals...)
	context.AfterFunc(ctx, stop)
	return ctx, stop
}

// ExitUsage ends a program whose arguments kong has refused, with status 2, or shown the help for, with 0.
func ExitUsage(status int) { os.Exit(min(status, 2)) }
