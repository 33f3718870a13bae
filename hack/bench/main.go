//go:build linux

// Command bench measures RDMA over veth pairs against what AF_XDP itself carries there (hack/rawprobe) and against
// TCP. It makes namespaces and devices of its own, and needs root.
//
// What is compared runs in turns: a round is one run of everything, each in two fresh processes, and ratios are taken
// within a round. So whatever else changes on the machine during the minutes of a benchmark meets both sides.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/alecthomas/kong"
)

type commandLine struct {
	Run runCommand `cmd:"" default:"withargs" help:"Run the benchmark (the default)."`
	End endCommand `cmd:"" hidden:"" help:"One end of a run."`
}

type runCommand struct {
	Modes    []string      `name:"mode" default:"native,generic" help:"XDP modes: native, generic."`
	MTUs     []int         `name:"mtu" default:"1024,2048,4096" help:"Path MTUs in bytes: 256, 512, 1024, 2048, 4096."`
	Pairs    int           `default:"9" help:"Rounds."`
	Duration time.Duration `default:"1s" help:"Time that each run measures for."`
	Quick    bool          `help:"3 rounds of 0.2 s: to see that it works, not to quote."`
	Free     bool          `help:"Let the scheduler place the two processes, instead of keeping each on a CPU of its own."`
	Polling  bool          `help:"The passive end of WRITE and READ polls, instead of leaving the work to the background."`
	Flows    int           `default:"1" help:"Queue pairs that WRITE, SEND and READ use in turns, 1 to 8."`
	Only     []string      `help:"Some of the measurements: raw, raw+work, TCP, WRITE, SEND, READ, 64 B WRITE, raw ping-pong, ping-pong."`
	Beside   string        `placeholder:"FILE" type:"existingfile" help:"Another build of this program, which measures the same in turns."`
	RawProbe string        `name:"rawprobe" placeholder:"FILE" help:"The program rawprobe (default: beside this one)."`
	JSON     bool          `name:"json" help:"Print JSON instead of a table."`
}

func main() {
	var c commandLine
	parsed := kong.Parse(&c, kong.Name("bench"), kong.Description("RDMA, raw AF_XDP and TCP over veth pairs."),
		kong.UsageOnError())
	if err := parsed.Run(); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", strings.ReplaceAll(err.Error(), "\n", "; "))
		os.Exit(1)
	}
}

// Validate is called by kong.
func (c *runCommand) Validate() error {
	for _, m := range c.Modes {
		if m != "native" && m != "generic" {
			return fmt.Errorf("--mode %q is not native or generic", m)
		}
	}
	for _, m := range c.MTUs {
		if _, err := pathMTU(m); err != nil {
			return fmt.Errorf("--mtu: %w", err)
		}
	}
	for _, m := range c.Only {
		if !slices.Contains(measurements, m) {
			return fmt.Errorf("--only: no measurement %q: %s", m, strings.Join(measurements, ", "))
		}
	}
	if c.Pairs < 1 || c.Duration < 10*time.Millisecond || c.Duration > time.Hour {
		return fmt.Errorf("--pairs %d and --duration %v: at least 1, and 10 ms to an hour", c.Pairs, c.Duration)
	}
	if c.Flows < 1 || c.Flows > inFlight {
		return fmt.Errorf("--flows %d: 1 to %d, the number of messages in flight", c.Flows, inFlight)
	}
	return nil
}

// Run measures each mode with each path MTU.
func (c *runCommand) Run() error {
	if c.Quick {
		c.Pairs, c.Duration = 3, 200*time.Millisecond
	}
	if c.RawProbe == "" {
		own, err := os.Executable()
		if err != nil {
			return err
		}
		c.RawProbe = filepath.Join(filepath.Dir(own), "rawprobe")
	}
	if _, err := os.Stat(c.RawProbe); err != nil {
		return fmt.Errorf("%w: build hack/rawprobe, or name it with --rawprobe", err)
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	r := report{
		Command: strings.Join(os.Args, " "), Machine: describeMachine(), Started: time.Now().UTC().Truncate(time.Second),
		Pairs: c.Pairs, Flows: c.Flows, Seconds: c.Duration.Seconds(), Pinned: !c.Free && len(usableCPUs()) > 1,
	}
	failure := c.measureCells(ctx, &r)
	r.LoadAfter = loadAverage()
	switch {
	case failure != nil && len(r.Cells) == 0:
	case c.JSON:
		encoder := json.NewEncoder(os.Stdout)
		encoder.SetIndent("", "  ")
		return errors.Join(failure, encoder.Encode(r))
	default:
		r.print(os.Stdout)
	}
	return failure
}

// measureCells adds cells to a report until one fails or ctx ends.
func (c *runCommand) measureCells(ctx context.Context, r *report) error {
	for _, mtu := range c.MTUs {
		for _, mode := range c.Modes {
			cell, err := c.measureCell(ctx, mode, mtu)
			if err != nil {
				return err
			}
			r.Cells = append(r.Cells, cell)
		}
	}
	return nil
}
