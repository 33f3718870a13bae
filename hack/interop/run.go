//go:build linux

package main

import (
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/xroce/xroce/internal/vm"
)

//go:embed peer.py
var peerScript []byte

//go:embed setup.sh
var setupScript []byte

type runCommand struct {
	Kernels []string      `name:"kernel" short:"k" default:"new" help:"Kernels: 6.1, 6.12, new."`
	Full    bool          `help:"All cells instead of a covering selection."`
	Parts   []string      `default:"cells,faults,cases,brief" help:"What to run: cells, faults, cases, stock, ladder, brief (a little of stock and ladder), bulk, speed."`
	Only    string        `placeholder:"TEXT" help:"Only cells and cases whose description contains this."`
	NIC     string        `name:"nic" placeholder:"MODEL" help:"Two network devices of this model instead of a veth pair: virtio, igb, e1000e, vmxnet3."`
	Left    string        `default:"rxe" enum:"rxe,xroce" help:"What is at the other end: rxe or xroce."`
	Copy    string        `default:"" enum:",copy,zero" help:"Ask xroce for copy or zero copy: copy, zero."`
	NetMTU  int           `name:"netdev-mtu" default:"9000" help:"MTU of the network devices."`
	Keep    string        `default:"bin/interop-results" help:"Folder for results, logs, and captures of cells that fail."`
	Limit   time.Duration `default:"20m" help:"Time limit of a machine."`
}

// Validate is called by kong.
func (c *runCommand) Validate() error {
	if len(c.Kernels) == 0 {
		return errors.New("no kernel")
	}
	for _, kernel := range c.Kernels {
		if err := vm.Validate(kernel, c.NIC); err != nil {
			return err
		}
	}
	return nil
}

// Run boots a machine for each kernel.
func (c *runCommand) Run(ctx context.Context) error {
	bad := 0
	for _, kernel := range c.Kernels {
		r, err := c.boot(ctx, kernel)
		if err != nil {
			return err
		}
		for _, x := range r.Results {
			if x.Outcome == fails {
				bad++
			}
		}
	}
	if bad > 0 {
		return fmt.Errorf("%d cells fail, see %s", bad, c.Keep)
	}
	return nil
}

func (c *runCommand) plan() plan {
	p := plan{Only: c.Only, NIC: c.NIC, Layout: "veth", NetMTU: c.NetMTU, Left: c.Left, Copy: c.Copy}
	if c.NIC != "" {
		p.Layout = "nics"
	}
	left := c.Left
	if left == "xroce" {
		left = "xroce at v0"
	}
	for _, part := range c.Parts {
		switch part {
		case "cells":
			all := covering
			if c.Full {
				all = everything
			}
			for _, x := range all([]string{"xroce", left}) {
				if strings.Contains(x.String(), c.Only) {
					p.Cells = append(p.Cells, x)
				}
			}
		case "faults":
			p.Faults = true
		case "cases":
			p.Cases = caseNames(left, c.Only)
		case "bulk":
			p.Bulk = losses[1]
			if c.NIC != "" {
				p.Bulk = losses[0]
			}
		case "stock":
			p.Stock = c.NIC == "" && c.Left == "rxe"
		case "ladder":
			p.Ladder = c.Left == "rxe"
		case "brief":
			p.Stock, p.Ladder, p.Brief = c.NIC == "" && c.Left == "rxe", c.Left == "rxe", true
		case "speed":
			p.Speed = true
		}
	}
	return p
}

// boot runs the plan on one kernel.
func (c *runCommand) boot(ctx context.Context, kernel string) (*report, error) {
	version, err := vm.Prepare(ctx, kernel, func(what string) { fmt.Fprintln(os.Stderr, "interop:", what) })
	if err != nil {
		return nil, err
	}
	work, remove, err := vm.TempDir(ctx)
	if err != nil {
		return nil, err
	}
	defer remove()
	own, err := os.Executable()
	if err != nil {
		return nil, err
	}
	text, err := json.Marshal(c.plan())
	if err != nil {
		return nil, err
	}
	var files []string
	for name, content := range map[string][]byte{"plan.json": text, "peer.py": peerScript, "setup.sh": setupScript} {
		path := filepath.Join(work, name)
		if err := os.WriteFile(path, content, 0o644); err != nil {
			return nil, err
		}
		files = append(files, path)
	}
	program, err := os.ReadFile(own)
	if err != nil {
		return nil, err
	}
	if err := os.WriteFile(filepath.Join(work, "interop"), program, 0o755); err != nil {
		return nil, err
	}
	script := filepath.Join(work, "script.sh")
	if err := os.WriteFile(script, []byte("cp interop /tmp/ && exec /tmp/interop guest plan.json\n"), 0o644); err != nil {
		return nil, err
	}
	name := "veth"
	if c.NIC != "" {
		name, _, _ = strings.Cut(c.NIC, ",")
	}
	folder := filepath.Join(c.Keep, name+"-"+c.Left, version)
	if err := errors.Join(os.RemoveAll(folder), os.MkdirAll(folder, 0o755)); err != nil {
		return nil, err
	}
	status, err := vm.Run(ctx, vm.Options{
		Kernel: version, Script: script, Files: append(files, filepath.Join(work, "interop")), Results: folder, NIC: c.NIC,
		Limit: c.Limit, Output: os.Stdout,
	})
	if err != nil {
		return nil, err
	}
	if status != 0 {
		return nil, fmt.Errorf("the program in the machine ended with status %d", status)
	}
	var r report
	if text, err = os.ReadFile(filepath.Join(folder, "results.json")); err != nil {
		return nil, err
	}
	return &r, json.Unmarshal(text, &r)
}
