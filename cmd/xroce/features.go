package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"text/tabwriter"

	"github.com/xroce/xroce/roce/link/xdp"
)

// featuresCommand lists what the kernel has of what devices need.
type featuresCommand struct {
	JSON bool `name:"json" help:"Print JSON."`
}

// featureEntry is what is said about a feature, also as JSON.
type featureEntry struct {
	Name   string `json:"name"`
	Since  string `json:"since"`  // the first kernel with it
	Needed bool   `json:"needed"` // nothing works without it
	State  string `json:"state"`  // "yes", "no" or "unknown"
	Reason string `json:"reason,omitempty"`
}

// Run prints the table, and fails if something is missing that is needed.
func (c *featuresCommand) Run(app *application) error {
	list := xdp.Features()
	entries := make([]featureEntry, len(list))
	for i, f := range list {
		entries[i] = newFeatureEntry(f)
	}
	if c.JSON {
		encoder := json.NewEncoder(app.stdout)
		encoder.SetIndent("", "  ")
		if err := encoder.Encode(entries); err != nil {
			return err
		}
		return xdp.CheckFeatures(list)
	}
	table := tabwriter.NewWriter(app.stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintf(table, "KERNEL %s\tSINCE\tNEEDED\tTHERE\n", xdp.KernelRelease())
	for _, e := range entries {
		needed := "no"
		if e.Needed {
			needed = "yes"
		}
		state := e.State
		if e.Reason != "" {
			state += ": " + e.Reason
		}
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\n", e.Name, e.Since, needed, state)
	}
	if err := table.Flush(); err != nil {
		return err
	}
	return xdp.CheckFeatures(list)
}

func newFeatureEntry(f xdp.Feature) featureEntry {
	e := featureEntry{Name: f.Name, Since: f.Since, Needed: f.Needed, State: "yes"}
	switch {
	case f.Err == nil:
		return e
	case errors.Is(f.Err, xdp.ErrNotSupported):
		e.State = "no"
	default:
		e.State = "unknown"
	}
	e.Reason = oneLine(f.Err)
	return e
}
