//go:build linux

// Command interop takes xroce and Linux's rdma_rxe through a matrix of transfers and faults, in a virtual machine
// (internal/vm): rdma_rxe at one end of a veth pair, xroce at the other.
//
// The program on this machine makes a plan (package plan) and boots a machine with it (run.go). Within, the same
// program runs the plan (package guest) and leaves a report (package report) with the captures of what failed
// (package wire). The program on this machine prints it. "interop report" makes docs/interop.md of the reports of all
// runs, and the section on kernels of docs/support.md.
package main

import (
	"context"
	"fmt"
	"os"

	"github.com/alecthomas/kong"

	"github.com/xroce/xroce/hack/interop/guest"
	"github.com/xroce/xroce/internal/vm"
)

type commandLine struct {
	Run    runCommand        `cmd:"" default:"withargs" help:"Run the matrix in a virtual machine (the default)."`
	Report reportCommand     `cmd:"" help:"Make docs/interop.md of the results that runs have left, of those kernels and devices alone."`
	Guest  guest.Command     `cmd:"" hidden:"" help:"Within the machine."`
	Peer   guest.PeerCommand `cmd:"" hidden:"" help:"The end made of xroce."`

	PingPong guest.PingPongCommand `cmd:"" hidden:"" help:"The end made of xroce for a ping-pong program of rdma-core."`
}

func main() {
	ctx, stop := vm.Interruptible()
	defer stop()
	var c commandLine
	parsed := kong.Parse(&c, kong.Name("interop"), kong.Description("xroce and rdma_rxe, cell by cell."),
		kong.Exit(vm.ExitUsage), kong.BindTo(ctx, (*context.Context)(nil)))
	if err := parsed.Run(); err != nil {
		fmt.Fprintln(os.Stderr, "interop:", err)
		os.Exit(1)
	}
}
