package perf

import (
	"fmt"
	"io"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/HdrHistogram/hdrhistogram-go"

	"github.com/xroce/xroce/verbs"
)

// Result is what was measured, from the view of one end, also as JSON.
type Result struct {
	Role          string     `json:"role"` // "client" or "server"
	Device        string     `json:"device"`
	Driver        string     `json:"driver"`
	XDPMode       string     `json:"xdpMode"`
	ZeroCopy      bool       `json:"zeroCopy"`
	MultiBuffer   bool       `json:"multiBuffer"` // frames may take more than one buffer
	NotTaken      []string   `json:"notTaken"`    // better ways of carrying frames, and why they were not taken
	PathMTU       int        `json:"pathMTU"`     // bytes
	LocalAddress  netip.Addr `json:"localAddress"`
	RemoteAddress netip.Addr `json:"remoteAddress"`
	Plan          *Plan      `json:"plan"`
	Runs          []*Run     `json:"runs"`
}

// Run is the result of one size.
type Run struct {
	Bytes    int    `json:"bytes"`    // of a message
	Messages uint64 `json:"messages"` // of the client, and of both ends if they go both ways
	// Rates are the sums of both directions; of latency tests they are those of the round trips.
	MessagesPerSecond float64  `json:"messagesPerSecond"`
	GbitPerSecond     float64  `json:"gbitPerSecond"`
	MiBPerSecond      float64  `json:"mibPerSecond"`
	Latency           *Latency `json:"latency"` // null for bandwidth
	Local             Side     `json:"local"`
	Remote            Side     `json:"remote"`
}

// Latency is in microseconds, of an HDR histogram with three significant digits.
type Latency struct {
	// Of is "half of the round trip" for a ping-pong of SENDs or WRITEs, and "round trip" for READs and atomics.
	Of      string  `json:"of"`
	Samples int64   `json:"samples"`
	Min     float64 `json:"minMicroseconds"`
	Mean    float64 `json:"meanMicroseconds"`
	P50     float64 `json:"p50Microseconds"`
	P99     float64 `json:"p99Microseconds"`
	P999    float64 `json:"p999Microseconds"`
	Max     float64 `json:"maxMicroseconds"`
}

func (s *session) newResult() *Result {
	i := s.Device.Information()
	role := "server"
	if s.Client {
		role = "client"
	}
	return &Result{
		Role: role, Device: i.Name, Driver: i.Driver, XDPMode: i.Mode, ZeroCopy: i.ZeroCopy, MultiBuffer: i.MultiBuffer,
		NotTaken: append([]string{}, i.NotTaken...), PathMTU: s.station.mtu.Bytes(), LocalAddress: s.station.local.Address,
		RemoteAddress: s.station.far.Address, Plan: s.Plan, Runs: []*Run{},
	}
}

// newRun makes a result of what both ends, this one first, have measured.
func newRun(p *Plan, client bool, size int, latency *Latency, both sides) *Run {
	r := &Run{Bytes: size, Latency: latency, Local: both[0], Remote: both[1]}
	for i := range both {
		if measures := (i == 0) == client || p.Both; measures && both[i].Seconds > 0 {
			r.Messages += both[i].Messages
			r.MessagesPerSecond += float64(both[i].Messages) / both[i].Seconds
		}
	}
	r.MiBPerSecond = r.MessagesPerSecond * float64(size) / (1 << 20)
	r.GbitPerSecond = r.MessagesPerSecond * float64(size) * 8 / 1e9
	moved := float64(r.Messages) * float64(size) / (1 << 30)
	if latency != nil && !p.operation().fetches {
		moved *= 2 // there and back
	}
	for _, s := range []*Side{&r.Local, &r.Remote} {
		if moved > 0 {
			s.CPUPerGiB = (s.UserSeconds + s.SystemSeconds) / moved
		}
	}
	return r
}

// newLatency takes a histogram of round trips in nanoseconds.
func newLatency(h *hdrhistogram.Histogram, whole bool) *Latency {
	l := &Latency{Of: "half of the round trip", Samples: h.TotalCount()}
	unit := 2 * 1e3
	if whole {
		l.Of, unit = "round trip", 1e3
	}
	at := func(percentile float64) float64 { return float64(h.ValueAtPercentile(percentile)) / unit }
	l.Min, l.Mean, l.Max = float64(h.Min())/unit, h.Mean()/unit, float64(h.Max())/unit
	l.P50, l.P99, l.P999 = at(50), at(99), at(99.9)
	return l
}

// Table prints a result for people, row by row.
type Table struct {
	Out  io.Writer
	Gbit bool // Gbit/s instead of MiB/s
}

// Begin prints what is measured, and the heads of the columns.
func (t *Table) Begin(r *Result) {
	p := r.Plan
	test := "bandwidth"
	if p.Test == latency {
		test = "latency"
	}
	copied := "copy"
	if r.ZeroCopy {
		copied = "zero copy"
	}
	fmt.Fprintf(t.Out, "%s %s, %s at %v, other end at %v\n", p.Operation, test, r.Role, r.LocalAddress, r.RemoteAddress)
	fmt.Fprintf(t.Out, "%s (%s), XDP %s, %s, path MTU %d, %s\n",
		r.Device, r.Driver, r.XDPMode, copied, r.PathMTU, p.text())
	const heads = "%10s %12s"
	if p.Test == latency {
		fmt.Fprintf(t.Out, heads+" %9s %9s %9s %9s %9s", "bytes", "round trips", "min us", "p50", "p99", "p99.9", "max")
	} else {
		unit := "MiB/s"
		if t.Gbit {
			unit = "Gbit/s"
		}
		fmt.Fprintf(t.Out, heads+" %10s %10s", "bytes", "messages", unit, "Mmsg/s")
	}
	fmt.Fprintf(t.Out, " %13s %13s %9s %7s\n", "CPU s/GiB here", "there", "packets", "resent")
}

func (p *Plan) text() string {
	text := []string{
		fmt.Sprintf("%d queue pairs", p.QPs),
		fmt.Sprintf("%d requests in flight each, %d with one completion", p.Depth, p.Moderation),
	}
	if p.QPs == 1 {
		text[0] = "1 queue pair"
	}
	if p.Test == latency {
		text = []string{"half of the round trip"}
		if p.operation().fetches {
			text[0] = "round trip"
		}
	}
	if p.Both {
		text = append(text, "both ways at once")
	}
	if p.Inline > 0 {
		text = append(text, fmt.Sprintf("up to %d bytes inline", p.Inline))
	}
	if p.Verify {
		text = append(text, "data checked")
	}
	return strings.Join(text, ", ")
}

// Row prints a run.
func (t *Table) Row(r *Run) {
	fmt.Fprintf(t.Out, "%10d %12d", r.Bytes, r.Messages)
	if l := r.Latency; l != nil {
		fmt.Fprintf(t.Out, " %9.2f %9.2f %9.2f %9.2f %9.2f", l.Min, l.P50, l.P99, l.P999, l.Max)
	} else {
		rate := r.MiBPerSecond
		if t.Gbit {
			rate = r.GbitPerSecond
		}
		fmt.Fprintf(t.Out, " %10.2f %10.6f", rate, r.MessagesPerSecond/1e6)
	}
	fmt.Fprintf(t.Out, " %14.3f %13.3f %9d %7d\n", r.Local.CPUPerGiB, r.Remote.CPUPerGiB,
		r.Local.PacketsSent+r.Remote.PacketsSent, r.Local.Retransmissions+r.Remote.Retransmissions)
}

// End prints what belongs to all runs together.
func (t *Table) End(r *Result) {
	if len(r.Runs) == 0 {
		return
	}
	var here, there Side
	drops := verbs.Counts{}
	softirq := func(all *Side, one *Softirq) {
		switch {
		case one == nil:
		case all.Softirq == nil:
			all.Softirq = &Softirq{Seconds: one.Seconds}
		default:
			all.Softirq.Seconds += one.Seconds
		}
	}
	for _, run := range r.Runs {
		here.UserSeconds += run.Local.UserSeconds
		here.SystemSeconds += run.Local.SystemSeconds
		there.UserSeconds += run.Remote.UserSeconds
		there.SystemSeconds += run.Remote.SystemSeconds
		softirq(&here, run.Local.Softirq)
		softirq(&there, run.Remote.Softirq)
		for _, counts := range []map[string]uint64{run.Local.Drops, run.Remote.Drops} {
			for reason, n := range counts {
				drops[reason] += n
			}
		}
	}
	last := r.Runs[len(r.Runs)-1]
	fmt.Fprintf(t.Out, "here (wait %s): %s\n", last.Local.Wait, here.cpu())
	fmt.Fprintf(t.Out, "there (wait %s): %s\n", last.Remote.Wait, there.cpu())
	if here.Softirq != nil || there.Softirq != nil {
		fmt.Fprintln(t.Out, "softirq is the whole machine's (/proc/stat, in ticks of 10 ms), whoever caused it; "+
			"where the kernel accounts\nby ticks, a part of it is in the figures of the process, too")
	}
	for _, reason := range slices.Sorted(maps.Keys(drops)) {
		fmt.Fprintf(t.Out, "dropped: %d %s\n", drops[reason], reason)
	}
}

func (s *Side) cpu() string {
	text := fmt.Sprintf("%.2f s of CPU in user mode, %.2f s in the kernel", s.UserSeconds, s.SystemSeconds)
	if s.Softirq != nil {
		text += fmt.Sprintf(", softirq %.2f s", s.Softirq.Seconds)
	}
	return text
}
