//go:build linux

// Command vm runs a script in a virtual machine with a kernel of Debian and rdma-core's programs (see internal/vm):
//
//	go run ./hack/vm run -k 6.12 -f bin/xroce script.sh ARGUMENTS
//
// The script finds the files in /host, and what it leaves in /results comes back with -o. The first run fetches some
// 250 MB of packages and takes minutes, the next ones boot in seconds. The exit status is the script's; 2 is wrong
// use, too, 124 the time limit, 125 a machine that could not be made or died.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/alecthomas/kong"

	"github.com/xroce/xroce/internal/vm"
)

type commandLine struct {
	Build buildCommand `cmd:"" help:"Fetch and lay out kernels, the guest's user space and QEMU."`
	Run   runCommand   `cmd:"" help:"Boot a machine and run a script in it; builds what is missing."`
}

type buildCommand struct {
	Kernels []string `name:"kernel" short:"k" default:"6.1,6.12,new" help:"Kernels: 6.1, 6.12, new (the newest that Debian has for its stable release)."`
}

type runCommand struct {
	Kernel  string        `short:"k" default:"new" help:"6.1, 6.12, new, or the whole version of one that is there."`
	Files   []string      `name:"file" short:"f" placeholder:"FILE" help:"File or folder to have in /host; repeatable."`
	Results string        `short:"o" placeholder:"DIR" help:"Where the contents of /results go."`
	Limit   time.Duration `short:"t" default:"5m" help:"Time limit, boot included."`
	NIC     string        `name:"nic" short:"n" placeholder:"MODEL" help:"Two network devices back to back, eth0 and eth1: virtio, igb, e1000e or vmxnet3, with properties of QEMU's (virtio,mq=on)."`
	CPUs    int           `name:"cpus" short:"c" default:"2"`
	Memory  string        `short:"m" default:"2G"`
	Append  string        `short:"a" placeholder:"ARGUMENTS" help:"More of the kernel's command line."`
	Console bool          `short:"v" help:"Show the kernel's console on standard error at the end."`
	Script  string        `arg:"" type:"existingfile"`
	Args    []string      `arg:"" optional:"" passthrough:""`
}

func main() {
	ctx, stop := vm.Interruptible()
	defer stop()
	var c commandLine
	parsed := kong.Parse(&c, kong.Name("vm"), kong.Description("A virtual machine with rdma_rxe, for scripts."),
		kong.Exit(vm.ExitUsage))
	status, err := 0, error(nil)
	if parsed.Selected().Name == "run" {
		status, err = c.Run.run(ctx)
	} else {
		err = c.Build.run(ctx)
	}
	switch {
	case errors.Is(err, vm.ErrLimit):
		status = 124
	case err != nil:
		status = 125
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "vm:", err)
	}
	os.Exit(status)
}

// Validate is called by kong.
func (c *buildCommand) Validate() error {
	for _, kernel := range c.Kernels {
		if err := vm.Validate(kernel, ""); err != nil {
			return err
		}
	}
	return nil
}

// Validate is called by kong.
func (c *runCommand) Validate() error {
	for _, f := range c.Files {
		if _, err := os.Stat(f); err != nil {
			return err
		}
	}
	return vm.Validate(c.Kernel, c.NIC)
}

func (c *buildCommand) run(ctx context.Context) error {
	for _, kernel := range c.Kernels {
		version, err := vm.Prepare(ctx, kernel, progress)
		if err != nil {
			return err
		}
		fmt.Printf("%s is %s\n", kernel, version)
	}
	return nil
}

func progress(what string) { fmt.Fprintln(os.Stderr, "vm:", what) }

func (c *runCommand) run(ctx context.Context) (int, error) {
	o := vm.Options{
		Kernel: c.Kernel, Script: c.Script, Args: c.Args, Files: c.Files, Results: c.Results, NIC: c.NIC, CPUs: c.CPUs,
		Memory: c.Memory, Append: c.Append, Limit: c.Limit, Output: os.Stdout, Progress: progress,
	}
	if c.Console {
		o.Console = os.Stderr
	}
	return vm.Run(ctx, o)
}
