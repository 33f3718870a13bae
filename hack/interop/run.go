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
	"slices"
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
	Only    string        `placeholder:"TEXT" help:"Only cells, faults, cases, games and choices of options whose description contains this."`
	NIC     string        `name:"nic" placeholder:"MODEL" help:"Two network devices of this model instead of a veth pair: virtio, igb, e1000e, vmxnet3."`
	Left    string        `default:"rxe" enum:"rxe,xroce" help:"What is at the other end: rxe or xroce."`
	Copy    string        `default:"" enum:",copy,zero" help:"Ask xroce for copy or zero copy: copy, zero."`
	NetMTU  int           `name:"netdev-mtu" default:"9000" help:"MTU of the network devices."`
	Keep    string        `default:"bin/interop-results" help:"Folder for results, logs, and captures of cells that fail."`
	Limit   time.Duration `default:"20m" help:"Time limit of a machine."`
}

// Validate refuses a plan with which no machine needs to be booted; kong calls it.
func (c *runCommand) Validate() error {
	if len(c.Kernels) == 0 {
		return errors.New("no kernel")
	}
	for _, kernel := range c.Kernels {
		if err := vm.Validate(kernel, c.NIC); err != nil {
			return err
		}
	}
	_, err := c.plan()
	return err
}

// Run boots a machine for each kernel. A machine that fails does not keep the others from running.
func (c *runCommand) Run(ctx context.Context) error {
	begin := time.Now()
	count := map[string]int{}
	var trouble []error
	for _, kernel := range c.Kernels {
		r, err := c.boot(ctx, kernel)
		if err == nil && r.empty() {
			err = errors.New("no cell has run")
		}
		if err != nil {
			trouble = append(trouble, fmt.Errorf("kernel %s: %w", kernel, err))
		}
		if r != nil {
			for _, x := range r.Results {
				count[x.Outcome]++
			}
		}
		if ctx.Err() != nil {
			break
		}
	}
	fmt.Printf("%d %s, %d %s, %d %s, %d %s in %v; results, logs and captures: %s\n", count[works], works, count[refused], refused,
		count[fault], fault, count[fails], fails, time.Since(begin).Round(time.Second), c.Keep)
	if count[fails] > 0 {
		trouble = append(trouble, fmt.Errorf("%d cells fail, see %s", count[fails], c.Keep))
	}
	return errors.Join(trouble...)
}

// plan is what the options ask for, if that is something and can be done.
func (c *runCommand) plan() (plan, error) {
	p := plan{Only: c.Only, NIC: c.NIC, Layout: "veth", NetMTU: c.NetMTU, Left: c.Left, Copy: c.Copy}
	p.Made = made{Date: time.Now().UTC().Format(time.DateTime), Parts: c.Parts, Full: c.Full, Only: c.Only}
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
		default:
			return p, fmt.Errorf("there is no part %q", part)
		}
	}
	return p, p.check(left)
}

// check refuses what would come to nothing, or not be what it is called.
func (p *plan) check(left string) error {
	if p.Only != "" && !p.matches(left) {
		return fmt.Errorf("nothing in the parts asked for contains %q", p.Only)
	}
	if p.Only == "" && len(p.Cells)+len(p.Cases) == 0 && !p.Faults && p.Bulk == "" && !p.Stock && !p.Ladder && !p.Speed {
		return errors.New("nothing to run: stock, ladder, brief and cases are with rdma_rxe only, and stock on veth only")
	}
	lossy := p.Bulk != "" && p.Bulk != losses[0] || slices.ContainsFunc(p.Cells, func(c cell) bool { return c.Loss != losses[0] })
	if lossy && p.Left == "xroce" {
		return fmt.Errorf("with xroce at both ends no packet can be lost on purpose: AF_XDP passes the network emulator by, see setLoss. "+
			"Cells without loss are those with --only %q", losses[0])
	}
	return nil
}

// matches says whether a cell, fault, case, game or choice of options contains what was asked for. Bulk transfers and speed are not asked.
func (p *plan) matches(left string) bool {
	if len(p.Cells)+len(p.Cases) > 0 || p.Bulk != "" || p.Speed {
		return true
	}
	var names []string
	if p.Faults {
		for _, f := range append(faultCases(), faultCase{name: opFlush}) {
			names = append(names, faultName(f.name, "xroce"), faultName(f.name, left))
		}
	}
	if p.Stock {
		for _, s := range stockRuns(p.Brief) {
			names = append(names, s.String())
		}
	}
	if p.Ladder {
		for _, r := range rungs(p.Brief) {
			names = append(names, r.String())
		}
	}
	return slices.ContainsFunc(names, func(name string) bool { return strings.Contains(name, p.Only) })
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
	p, err := c.plan()
	if err != nil {
		return nil, err
	}
	p.Made.Revision = revision(own)
	text, err := json.Marshal(p)
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
	if err := errors.Join(os.RemoveAll(folder+running), os.MkdirAll(folder+running, 0o755)); err != nil {
		return nil, err
	}
	status, err := vm.Run(ctx, vm.Options{
		Kernel: version, Script: script, Files: append(files, filepath.Join(work, "interop")), Results: folder + running, NIC: c.NIC,
		Limit: c.Limit, Output: os.Stdout,
	})
	if err == nil && status != 0 {
		err = fmt.Errorf("the program in the machine ended with status %d", status)
	}
	r, keepErr := keepResults(folder)
	return r, errors.Join(err, keepErr)
}
