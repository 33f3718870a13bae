//go:build linux

package main

import (
	"bytes"
	"fmt"
	"io"
	"os"

	"github.com/xroce/xroce/hack/interop/report"
)

// reportCommand makes the documents of what runs have left.
type reportCommand struct {
	Keep  string `default:"bin/interop-results" help:"Folder of the results."`
	Write string `default:"docs/interop.md" help:"The document."`
	Short string `default:"internal/support/matrix/kernels.md" help:"The section for docs/support.md."`
}

// Run reads all results below the folder.
func (c *reportCommand) Run() error {
	reports, err := report.ReadAll(c.Keep)
	if err != nil {
		return err
	}
	if len(reports) == 0 {
		return fmt.Errorf("no results below %s: make interop", c.Keep)
	}
	report.Warn(os.Stderr, reports)
	for name, write := range map[string]func(io.Writer, []report.Report){c.Write: report.WriteDocument, c.Short: report.WriteKernels} {
		var b bytes.Buffer
		write(&b, reports)
		if err := os.WriteFile(name, b.Bytes(), 0o644); err != nil {
			return err
		}
	}
	return nil
}
