package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/xroce/xroce/internal/control"
	"github.com/xroce/xroce/verbs"
)

// statCommand shows rates of the devices that processes of this machine serve, as they tell at their control sockets.
type statCommand struct {
	servedFlag
	JSON     bool          `name:"json" help:"Print a line of JSON for each report: rates, and everything that the device tells."`
	Count    int           `short:"n" default:"0" help:"Number of reports; 0 goes on until it is stopped, or no process is left."`
	Interval time.Duration `default:"1s" help:"Time between two reports."`
}

// minimumInterval keeps the command from being a load itself.
const minimumInterval = 10 * time.Millisecond

// Run prints reports.
func (c *statCommand) Run(app *application) error {
	if c.Count < 0 {
		return usage("-n/--count %d is below 0", c.Count)
	}
	if c.Interval < minimumInterval {
		return usage("--interval %v is below %v", c.Interval, minimumInterval)
	}
	folder, err := controlFolder()
	if err != nil {
		return err
	}
	network, err := c.network()
	if err != nil {
		return err
	}
	told := make(map[string]bool)
	look := func() ([]observation, error) {
		list, failures, err := c.look(app.ctx, folder, network)
		for path, failure := range failures {
			if err == nil && !told[path] {
				fmt.Fprintln(app.stderr, "xroce: not shown:", oneLine(failure))
			}
			told[path] = true
		}
		return list, err
	}
	before, err := look()
	if err != nil {
		return err
	}
	if len(before) == 0 {
		return c.none(folder)
	}
	print := c.printer(app.stdout)
	tick := time.NewTicker(c.Interval)
	defer tick.Stop()
	for n := 0; c.Count == 0 || n < c.Count; n++ {
		select {
		case <-app.ctx.Done():
			return context.Cause(app.ctx)
		case <-tick.C:
		}
		now, err := look()
		if err != nil {
			return err
		}
		if len(now) == 0 {
			fmt.Fprintf(app.stderr, "no process serves %s any more\n", c.text())
			return nil
		}
		if err := print(reports(before, now)); err != nil {
			return err
		}
		before = now
	}
	return nil
}

// observation is what a device has told.
type observation struct {
	path     string
	snapshot verbs.Snapshot
	document json.RawMessage // the snapshot as it was told
}

// answerTime is how long a process may take to answer; one that is stopped never does.
const answerTime = 3 * time.Second

// look asks every process. One that has ended meanwhile is left out, and so is one that does not answer as it should, whose
// failure is returned by the path of its socket. If none answers that is an error.
func (c *statCommand) look(ctx context.Context, folder, network string) (list []observation, failures map[string]error, err error) {
	sockets, err := listSockets(folder)
	if err != nil {
		return nil, nil, err
	}
	want := verbs.WantCounters
	if c.JSON {
		want = verbs.WantSnapshot
	}
	failures = make(map[string]error)
	for _, s := range sockets {
		if c.Device != "" && s.Device != c.Device {
			continue
		}
		o := observation{path: s.Path}
		limited, cancel := context.WithTimeoutCause(ctx, answerTime, errNoAnswer)
		err := control.Get(limited, s.Path, want, &o.document)
		cancel()
		if err == nil {
			err = json.Unmarshal(o.document, &o.snapshot)
		}
		if err == nil && o.snapshot.Format != verbs.SnapshotFormat {
			err = fmt.Errorf("%s tells format %d, this xroce (%s) knows %d", s.Path, o.snapshot.Format, version(), verbs.SnapshotFormat)
		}
		switch {
		case ctx.Err() != nil:
			return nil, nil, context.Cause(ctx)
		case err == nil && network != "" && o.snapshot.Device.Network != network:
		case err == nil:
			list = append(list, o)
		case !errors.Is(err, control.ErrGone):
			failures[s.Path] = fmt.Errorf("%s of process %d: %w", s.Device, s.PID, explainAccess(err))
		}
	}
	if len(list) == 0 && len(failures) > 0 {
		return nil, nil, usage("%w", errors.Join(slices.Collect(maps.Values(failures))...))
	}
	return list, failures, nil
}

// statReport is what a device did between two looks. It is also the line of JSON.
type statReport struct {
	Time    time.Time          `json:"time"`
	PID     int                `json:"pid"`
	Device  string             `json:"device"`
	Network string             `json:"network"` // the network namespace
	Program string             `json:"program"`
	Seconds float64            `json:"seconds"` // between the looks
	Rates   map[string]float64 `json:"rates"`   // counters of the transport and "drops" per second

	Snapshot json.RawMessage `json:"snapshot"` // verbs.Snapshot
	now      verbs.Snapshot
	where    string // what tells it from another one of its name; empty without one
}

// reports compares two looks. A device that came in between has no rates yet.
func reports(before, now []observation) (list []statReport) {
	earlier := make(map[string]verbs.Snapshot)
	for _, o := range before {
		earlier[o.path] = o.snapshot
	}
	for _, o := range now {
		s := o.snapshot
		last, known := earlier[o.path]
		if !known || last.PID != s.PID || last.Device.QPNBase != s.Device.QPNBase || last.Device.Uptime >= s.Device.Uptime {
			continue // the name belonged to another one
		}
		r := statReport{
			Time: s.Time, PID: s.PID, Device: s.Device.Name, Network: s.Device.Network, Program: s.Program, Seconds: s.Device.Uptime - last.Device.Uptime,
			Rates: make(map[string]float64), Snapshot: o.document, now: s,
		}
		for name, n := range s.Counters.Counts {
			r.Rates[name] = float64(n-last.Counters.Counts[name]) / r.Seconds
		}
		r.Rates["drops"] = float64(total(s.Counters.Drops)-total(last.Counters.Drops)) / r.Seconds
		list = append(list, r)
	}
	tellApart(list)
	return list
}

// tellApart notes the namespace and the program of devices whose names are the same.
func tellApart(list []statReport) {
	named := make(map[string]int)
	for i := range list {
		named[list[i].Device]++
	}
	for i := range list {
		if r := &list[i]; named[r.Device] > 1 {
			r.where = fmt.Sprintf("of %s in %s", programName(r.Program), namespaceName(r.Network))
		}
	}
}

func total(counts map[string]uint64) (n uint64) {
	for _, c := range counts {
		n += c
	}
	return n
}

// printer returns the form of the output: JSON, a table that is rewritten on a terminal, a line for each device elsewhere.
func (c *statCommand) printer(out io.Writer) func([]statReport) error {
	switch {
	case c.JSON:
		encoder := json.NewEncoder(out)
		return func(list []statReport) error {
			for i := range list {
				if err := encoder.Encode(&list[i]); err != nil {
					return err
				}
			}
			return nil
		}
	case newProgress(out).terminal:
		return terminalPrinter(out)
	}
	return func(list []statReport) error {
		for i := range list {
			if _, err := fmt.Fprintln(out, list[i].line()); err != nil {
				return err
			}
		}
		return nil
	}
}

// noWrap has a terminal cut lines that are too long for it, so that as many are on it as were written; wrap ends that
// (DECAWM, ECMA-48 private mode 7).
const noWrap, wrap = "\x1b[?7l", "\x1b[?7h"

// terminalPrinter rewrites the table each time.
func terminalPrinter(out io.Writer) func([]statReport) error {
	lines := 0
	return func(list []statReport) error {
		text := table(list)
		up := ""
		if lines > 0 {
			up = fmt.Sprintf("\x1b[%dA\r\x1b[J", lines) // to the table's first line, and clear from there
		}
		lines = strings.Count(text, "\n")
		_, err := io.WriteString(out, up+noWrap+text+wrap)
		return err
	}
}

func (r *statReport) megabits(counter string) float64 { return r.Rates[counter] * 8 / 1e6 }

// line is a report in one line.
func (r *statReport) line() string {
	where := r.where
	if where != "" {
		where += " "
	}
	return fmt.Sprintf("%s %s pid %d %sqps %d sent %.0f pkt/s %.1f Mbit/s received %.0f pkt/s %.1f Mbit/s resent %.0f/s dropped %.0f/s",
		r.Time.Format(time.TimeOnly), r.Device, r.PID, where, r.now.Device.QPs, r.Rates["sent_pkts"], r.megabits("sent_bytes"),
		r.Rates["rcvd_pkts"], r.megabits("rcvd_bytes"), r.Rates["retransmitted_pkts"], r.Rates["drops"]) + r.port(" ")
}

// port says, behind a prefix, what is wrong with the port, and nothing if it is active.
func (r *statReport) port(prefix string) string {
	if r.now.Device.State == "active" {
		return ""
	}
	return prefix + "port " + r.now.Device.State
}

// troubles are the counters that are shown with their totals when they are not 0.
var troubles = []string{
	"local_ack_timeout_err", "rcvd_seq_err", "send_seq_err", "rcvd_rnr_err", "send_rnr_err", "send_fatal_nak",
	"retry_exceeded_err", "retry_rnr_exceeded_err", "dropped_cqe",
}

const noSocket, queuesAdded = "pass_no_socket", "queues_added"

// table is what a terminal shows.
func table(list []statReport) string {
	var text strings.Builder
	fmt.Fprintf(&text, "%-15s %8s %-14s %5s %11s %10s %11s %10s %8s %8s\n",
		"DEVICE", "PID", "MODE", "QPS", "SENT pkt/s", "Mbit/s", "RCVD pkt/s", "Mbit/s", "RESENT/s", "DROPS/s")
	for i := range list {
		r := &list[i]
		fmt.Fprintf(&text, "%-15s %8d %-14s %5d %11.0f %10.1f %11.0f %10.1f %8.0f %8.0f\n",
			r.Device, r.PID, r.now.Device.Rung, r.now.Device.QPs, r.Rates["sent_pkts"], r.megabits("sent_bytes"),
			r.Rates["rcvd_pkts"], r.megabits("rcvd_bytes"), r.Rates["retransmitted_pkts"], r.Rates["drops"])
		var found []string
		if r.where != "" {
			found = append(found, r.where)
		}
		if port := r.port(""); port != "" {
			found = append(found, port)
		}
		for _, name := range troubles {
			if n := r.now.Counters.Counts[name]; n > 0 {
				found = append(found, fmt.Sprintf("%s %d", name, n))
			}
		}
		// Packets that were for this process, at a queue of the network device that it does not use, and queues where nobody counts them.
		for _, name := range []string{noSocket, queuesAdded} {
			if n := r.now.Steering[name]; n > 0 {
				found = append(found, fmt.Sprintf("%s %d", name, n))
			}
		}
		for _, name := range slices.Sorted(maps.Keys(r.now.Counters.Drops)) {
			found = append(found, fmt.Sprintf("drop %s %d", name, r.now.Counters.Drops[name]))
		}
		// A line each, so that none is long.
		for _, f := range found {
			fmt.Fprintf(&text, "  %s\n", f)
		}
	}
	return text.String()
}
