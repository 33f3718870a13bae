//go:build linux

package report

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
)

const (
	unknownRevision = "unknown"
	resultsFile     = "results.json"
)

// Revision is that of the source that the program is made of: what the build has noted or, without that, what git
// says of the folder where the program lies.
func Revision(program string) string {
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
	text, _ := exec.Command("git", "-C", filepath.Dir(program), "describe", "--always", "--exclude=*", "--abbrev=12",
		"--dirty=+changes").Output()
	return cmp.Or(strings.TrimSpace(string(text)), unknownRevision)
}

// xroce is the revision, and whether the run came to its end.
func (r *Report) xroce() string {
	text := cmp.Or(r.Made.Revision, unknownRevision)
	if r.CutShort {
		text += " (cut short)"
	}
	return text
}

// Empty says that nothing has come out of a run. A device that is refused is a result.
func (r *Report) Empty() bool {
	return !slices.ContainsFunc(r.Results, func(x Result) bool { return x.Kind != "open" || x.Outcome != Works })
}

// Folders of results beside those of the runs that came to their ends.
const (
	Running    = ".running"    // of a run that goes on, or has died
	incomplete = ".incomplete" // of one that was cut short
)

// Keep puts what a run has left, in folder.running, in the place of earlier results. A run that was cut short does
// not replace one that came to its end: it stays beside it.
func Keep(folder string) (*Report, error) {
	fresh, target := folder+Running, folder
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
func readReport(folder string) (*Report, error) {
	path := filepath.Join(folder, resultsFile)
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var r Report
	if err := json.Unmarshal(text, &r); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return &r, nil
}

// compareVersions orders "6.1.0" before "6.12.1".
func compareVersions(a, b string) int {
	var x, y [2]int
	_, _ = fmt.Sscanf(a, "%d.%d", &x[0], &x[1])
	_, _ = fmt.Sscanf(b, "%d.%d", &y[0], &y[1])
	return cmp.Or(slices.Compare(x[:], y[:]), cmp.Compare(a, b))
}

// ReadAll reads what all runs below a folder have left that came to their ends, by kernel.
func ReadAll(folder string) (reports []Report, err error) {
	err = filepath.WalkDir(folder, func(path string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir() && slices.Contains([]string{Running, incomplete}, filepath.Ext(path)):
			return fs.SkipDir
		case entry.Name() != resultsFile:
			return nil
		}
		r, err := readReport(filepath.Dir(path))
		if err == nil {
			reports = append(reports, *r)
		}
		return err
	})
	slices.SortStableFunc(reports, func(a, b Report) int { return compareVersions(a.Kernel, b.Kernel) })
	return reports, err
}

// Save writes the report into the folder, in a way that leaves a whole file whenever the machine ends.
func (r *Report) Save(folder string) error {
	text, err := json.MarshalIndent(r, "", " ")
	if err != nil {
		return err
	}
	path := filepath.Join(folder, resultsFile)
	return errors.Join(os.WriteFile(path+".new", text, 0o644), os.Rename(path+".new", path))
}

// writeRuns writes what the document is made of.
func writeRuns(w io.Writer, reports []Report) {
	fmt.Fprint(w, "## Runs\n\nEach line is a run that this page is made of. A run of a selection says nothing of the other cells.\n\n"+
		"| kernel | devices | cells | parts | revision of xroce | begun |\n|---|---|---|---|---|---|\n")
	for _, r := range reports {
		cells := "none"
		if slices.Contains(r.Made.Parts, "cells") {
			cells = r.Made.Selection()
		} else if r.Made.Date == "" {
			cells = "not known"
		}
		fmt.Fprintf(w, "| %s | %s | %s | %s | %s | %s |\n", r.Kernel, r.Devices(), cells, strings.Join(r.Made.Parts, ", "),
			r.xroce(), r.Made.Date)
	}
	fmt.Fprintln(w)
}

// Warn tells of runs that do not belong together.
func Warn(w io.Writer, reports []Report) {
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
