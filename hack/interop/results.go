//go:build linux

package main

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"
	"time"
)

// made says what results are of: of which xroce, when, and of which part of all that there is.
type made struct {
	Revision string   `json:"revision"` // of xroce, or unknownRevision
	Date     string   `json:"date"`     // when the run began, UTC
	Parts    []string `json:"parts"`
	Full     bool     `json:"full"`
	Only     string   `json:"only,omitempty"`
}

const unknownRevision = "unknown"

// revision is that of the source that the program is made of: what the build has noted or, without that, what git says of the folder where
// the program lies.
func revision(program string) string {
	if info, ok := debug.ReadBuildInfo(); ok {
		noted := map[string]string{}
		for _, s := range info.Settings {
			noted[s.Key] = s.Value
		}
		if r := noted["vcs.revision"]; r != "" {
			if noted["vcs.modified"] == "true" {
				return r[:min(12, len(r))] + "+changes"
			}
			return r[:min(12, len(r))]
		}
	}
	text, _ := exec.Command("git", "-C", filepath.Dir(program), "describe", "--always", "--exclude=*", "--abbrev=12", "--dirty=+changes").Output()
	return cmp.Or(strings.TrimSpace(string(text)), unknownRevision)
}

// selection says which cells of the matrix there are.
func (m made) selection() string {
	text := "a selection"
	switch {
	case m.Date == "":
		return "not known"
	case m.Full:
		text = "all"
	}
	if m.Only != "" {
		text += fmt.Sprintf(" with %q", m.Only)
	}
	return text
}

// xroce is the revision, and whether the run came to its end.
func (r *report) xroce() string {
	text := cmp.Or(r.Made.Revision, unknownRevision)
	if r.CutShort {
		text += " (cut short)"
	}
	return text
}

// empty says that nothing has come out of a run. A device that is refused is a result.
func (r *report) empty() bool {
	return !slices.ContainsFunc(r.Results, func(x result) bool { return x.Kind != "open" || x.Outcome != works })
}

// Folders of results beside those of the runs that came to their ends.
const (
	running    = ".running"    // of a run that goes on, or has died
	incomplete = ".incomplete" // of one that was cut short
)

// keepResults puts what a run has left, in folder.running, in the place of earlier results. A run that was cut short does not replace one that
// came to its end: it stays beside it.
func keepResults(folder string) (*report, error) {
	fresh, target := folder+running, folder
	r, err := readReport(fresh)
	if err == nil && !r.CutShort {
		err = os.RemoveAll(folder + incomplete)
	} else if before, readErr := readReport(folder); err != nil || readErr == nil && !before.CutShort {
		target += incomplete
	}
	const before = ".before" // so that only a moment is without either
	if err := os.RemoveAll(folder + before); err != nil {
		return r, err
	}
	if err := os.Rename(target, folder+before); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return r, err
	}
	return r, errors.Join(err, os.Rename(fresh, target), os.RemoveAll(folder+before))
}

// readReport reads what a run has left in a folder.
func readReport(folder string) (*report, error) {
	path := filepath.Join(folder, "results.json")
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var r report
	if err := json.Unmarshal(text, &r); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return &r, nil
}

// save writes what has come out so far, in a way that leaves a whole file whenever the machine ends. It is to take a twentieth of the time
// at most: what came out since the last time is lost if the machine dies.
func (g *guest) save(now bool) error {
	begin := time.Now()
	if !now && begin.Sub(g.saved) < 20*g.saving {
		return nil
	}
	text, err := json.MarshalIndent(g.report, "", " ")
	if err != nil {
		return err
	}
	path := filepath.Join(results, "results.json")
	err = errors.Join(os.WriteFile(path+".new", text, 0o644), os.Rename(path+".new", path))
	g.saved = time.Now()
	g.saving = g.saved.Sub(begin)
	return err
}

// writeRuns writes what the document is made of.
func writeRuns(w io.Writer, reports []report) {
	fmt.Fprint(w, "## Runs\n\nWhat this is made of: each line is a run. A run of a selection says nothing of the other cells.\n\n"+
		"| kernel | devices | cells | parts | revision of xroce | begun |\n|---|---|---|---|---|---|\n")
	for _, r := range reports {
		cells := "none"
		if slices.Contains(r.Made.Parts, "cells") {
			cells = r.Made.selection()
		} else if r.Made.Date == "" {
			cells = "not known"
		}
		fmt.Fprintf(w, "| %s | %s | %s | %s | %s | %s |\n", r.Kernel, r.Devices(), cells, strings.Join(r.Made.Parts, ", "), r.xroce(), r.Made.Date)
	}
	fmt.Fprintln(w)
}

// warn tells of runs that do not belong together.
func warn(w io.Writer, reports []report) {
	of := map[string][]string{}
	for _, r := range reports {
		revision := cmp.Or(r.Made.Revision, unknownRevision)
		of[revision] = append(of[revision], r.Kernel+" "+r.Devices())
		if r.CutShort {
			fmt.Fprintf(w, "interop: the run of %s, %s has not come to its end\n", r.Kernel, r.Devices())
		}
	}
	if len(of) < 2 {
		return
	}
	fmt.Fprintln(w, "interop: these results are of several revisions of xroce:")
	for _, r := range slices.Sorted(maps.Keys(of)) {
		fmt.Fprintf(w, "interop:   %s: %s\n", r, strings.Join(of[r], "; "))
	}
}
