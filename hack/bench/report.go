//go:build linux

package main

import (
	"fmt"
	"io"
	"os"
	"runtime"
	"strings"
	"text/tabwriter"
	"time"

	"golang.org/x/sys/unix"
)

// report is all of a benchmark.
type report struct {
	Command   string    `json:"command"`
	Machine   machine   `json:"machine"`
	Started   time.Time `json:"started"`
	LoadAfter string    `json:"loadAverageAfter"`
	Pairs     int       `json:"rounds"`
	Flows     int       `json:"flows"` // queue pairs of WRITE, SEND and READ
	Seconds   float64   `json:"secondsPerRun"`
	Pinned    bool      `json:"pinned"` // the two processes have a CPU each
	Cells     []cell    `json:"cells"`
}

type machine struct {
	CPUs       int    `json:"cpus"`
	Model      string `json:"model,omitempty"`
	Kernel     string `json:"kernel"`
	Go         string `json:"go"`
	LoadBefore string `json:"loadAverageBefore"` // of 1, 5 and 15 minutes
}

func describeMachine() machine {
	m := machine{CPUs: runtime.NumCPU(), Go: runtime.Version(), LoadBefore: loadAverage()}
	var name unix.Utsname
	if unix.Uname(&name) == nil {
		m.Kernel = unix.ByteSliceToString(name.Release[:]) + " " + unix.ByteSliceToString(name.Machine[:])
	}
	information, _ := os.ReadFile("/proc/cpuinfo") // only for the eye
	for entry := range strings.Lines(string(information)) {
		if key, value, found := strings.Cut(entry, ":"); found && strings.TrimSpace(key) == "model name" {
			m.Model = strings.TrimSpace(value)
			break
		}
	}
	return m
}

func loadAverage() string {
	text, _ := os.ReadFile("/proc/loadavg") // only for the eye
	fields := strings.Fields(string(text))
	return strings.Join(fields[:min(3, len(fields))], " ")
}

// print writes a table per cell.
func (r report) print(w io.Writer) {
	placement := "each process on a CPU of its own"
	if !r.Pinned {
		placement = "processes placed by the scheduler"
	}
	if r.Flows > 1 {
		placement += fmt.Sprintf("; %d flows", r.Flows)
	}
	fmt.Fprintf(w, "%s\n%d CPUs, %s, Linux %s, %s; %s\nload average %s before, %s after\n", r.Command, r.Machine.CPUs,
		r.Machine.Model, r.Machine.Kernel, r.Machine.Go, placement, r.Machine.LoadBefore, r.LoadAfter)
	fmt.Fprintf(w, "medians (lower..upper quartile) of %d rounds of %v; ratios within a round\n", r.Pairs,
		time.Duration(r.Seconds*float64(time.Second)))
	for _, c := range r.Cells {
		c.print(w)
	}
}

func (c cell) print(w io.Writer) {
	fmt.Fprintf(w, "\n%s XDP, path MTU %d, netdev MTU %d", c.Mode, c.PathMTU, c.NetdevMTU)
	if c.XDPMode != "" {
		fmt.Fprintf(w, " (obtained: %s)", c.XDPMode)
	}
	fmt.Fprintln(w)
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "\t\tMpkt/s\t/ raw\t/ raw+work\t/ TCP\t/ beside")
	for _, l := range c.Lines {
		packets := ""
		if l.Megapackets > 0 {
			packets = fmt.Sprintf("%.3f", l.Megapackets)
		}
		fmt.Fprintf(table, "%s\t%s %s\t%s", l.Name, l.quartiles, l.Unit, packets)
		for _, other := range []string{raw, rawWork, tcp, l.Name + beside} {
			if l.Name == pingPong && other == raw {
				other = rawPingPong // in the same column
			}
			fmt.Fprint(table, "\t")
			if q, found := l.Ratios[other]; found {
				fmt.Fprint(table, q)
			}
		}
		fmt.Fprintln(table)
	}
	_ = table.Flush() // as for w, where a failure shows at once
	if c.Skipped != "" {
		fmt.Fprintln(w, "no RDMA:", c.Skipped)
	}
	for _, reason := range c.Void {
		fmt.Fprintln(w, "VOID:", reason)
	}
	for _, reason := range c.Repeated {
		fmt.Fprintln(w, "repeated:", strings.ReplaceAll(reason, "\n", "; "))
	}
}

func (q quartiles) String() string {
	return fmt.Sprintf("%.2f (%.2f..%.2f)", q.Median, q.Lower, q.Upper)
}
