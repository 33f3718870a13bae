//go:build linux

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/xroce/xroce/hack/interop/guest"
	"github.com/xroce/xroce/hack/interop/plan"
	"github.com/xroce/xroce/hack/interop/report"
	"github.com/xroce/xroce/internal/vm"
)

// runCommand boots machines and has them run a plan.
type runCommand struct {
	plan.Options `embed:""`

	Kernels []string      `name:"kernel" short:"k" default:"new" help:"Kernels: 6.1, 6.12, new."`
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
	_, err := plan.New(c.Options)
	return err
}

// Run boots a machine for each kernel. A machine that fails does not keep the others from running.
func (c *runCommand) Run(ctx context.Context) error {
	begin := time.Now()
	count := map[string]int{}
	var trouble []error
	for _, kernel := range c.Kernels {
		r, err := c.boot(ctx, kernel)
		if err == nil && r.Empty() {
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
	fmt.Printf("%d %s, %d %s, %d %s, %d %s in %v; results, logs and captures: %s\n", count[report.Works], report.Works,
		count[report.Refused], report.Refused,
		count[report.RxeFault], report.RxeFault, count[report.Fails], report.Fails, time.Since(begin).Round(time.Second), c.Keep)
	if count[report.Fails] > 0 {
		trouble = append(trouble, fmt.Errorf("%d cells fail, see %s", count[report.Fails], c.Keep))
	}
	return errors.Join(trouble...)
}

// boot runs the plan on one kernel.
func (c *runCommand) boot(ctx context.Context, kernel string) (*report.Report, error) {
	version, err := vm.Prepare(ctx, kernel, func(what string) { fmt.Fprintln(os.Stderr, "interop:", what) })
	if err != nil {
		return nil, err
	}
	work, remove, err := vm.TempDir(ctx)
	if err != nil {
		return nil, err
	}
	defer remove()
	files, err := c.pack(work)
	if err != nil {
		return nil, err
	}
	name := "veth"
	if c.NIC != "" {
		name, _, _ = strings.Cut(c.NIC, ",")
	}
	folder := filepath.Join(c.Keep, name+"-"+c.Left, version)
	if err := errors.Join(os.RemoveAll(folder+report.Running), os.MkdirAll(folder+report.Running, 0o755)); err != nil {
		return nil, err
	}
	status, err := vm.Run(ctx, vm.Options{
		Kernel: version, Script: filepath.Join(work, scriptFile), Files: files, Results: folder + report.Running, NIC: c.NIC,
		Limit: c.Limit, Output: os.Stdout,
	})
	if err == nil && status != 0 {
		err = fmt.Errorf("the program in the machine ended with status %d", status)
	}
	r, keepErr := report.Keep(folder)
	return r, errors.Join(err, keepErr)
}

const scriptFile = "script.sh"

// pack writes what the machine needs into the folder: the plan, this program, and the script that starts it there.
// files are those beside the script.
func (c *runCommand) pack(folder string) (files []string, err error) {
	own, err := os.Executable()
	if err != nil {
		return nil, err
	}
	program, err := os.ReadFile(own)
	if err != nil {
		return nil, err
	}
	p, err := plan.New(c.Options)
	if err != nil {
		return nil, err
	}
	p.Made.Revision = report.Revision(own)
	text, err := json.Marshal(p)
	if err != nil {
		return nil, err
	}
	all := map[string][]byte{
		"interop": program, "plan.json": text, "peer.py": guest.PeerScript, "setup.sh": guest.SetupScript,
		scriptFile: []byte("cp interop /tmp/ && exec /tmp/interop guest plan.json\n"),
	}
	for name, content := range all {
		path := filepath.Join(folder, name)
		if err := os.WriteFile(path, content, 0o755); err != nil {
			return nil, err
		}
		if name != scriptFile {
			files = append(files, path)
		}
	}
	return files, nil
}
