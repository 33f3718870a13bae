//go:build linux

// Command interop takes xroce and Linux's rdma_rxe through a matrix of transfers and faults, in a virtual machine (internal/vm):
// rdma_rxe at one end of a veth pair, xroce at the other.
//
// Life of a cell: the program on this machine makes a plan of cells and boots a machine with it (run). Within, the same program (guest)
// sets up the devices and starts an end of each kind as processes (peer, peer.py) that obey one set of commands (protocol.go).
// For each cell it has them make and connect queue pairs, fill their regions, post, wait and compare, while tcpdump
// captures. The capture of a cell that fails is kept. Stock programs against xroce (stock.go, pingpong.go) and choices of xroce's options
// (ladder.go) come behind, since they open the devices themselves. What came out goes back as results.json, and the
// program on this machine prints it and makes docs/interop.md of it, and the section on kernels of docs/support.md.
package main

import (
	"context"
	"fmt"
	"os"

	"github.com/alecthomas/kong"

	"github.com/xroce/xroce/internal/vm"
)

type commandLine struct {
	Run    runCommand    `cmd:"" default:"withargs" help:"Run the matrix in a virtual machine (the default)."`
	Report reportCommand `cmd:"" help:"Make docs/interop.md of the results that runs have left, of those kernels and devices alone."`
	Guest  guestCommand  `cmd:"" hidden:"" help:"Within the machine."`
	Peer   peerCommand   `cmd:"" hidden:"" help:"The end made of xroce."`

	PingPong pingPongCommand `cmd:"" hidden:"" help:"The end made of xroce for a ping-pong program of rdma-core."`
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
