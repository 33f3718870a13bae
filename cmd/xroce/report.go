package main

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// rocePort is the UDP port of RoCEv2 (IBTA annex A17).
const rocePort = 4791

// report is the result of the demo, also as JSON.
type report struct {
	Device   deviceReport   `json:"device"`
	File     fileReport     `json:"file"`
	Write    transferReport `json:"write"` // from the active to the passive process
	Read     transferReport `json:"read"`  // and back
	PingPong pingPongReport `json:"pingPong"`
	Active   sideReport     `json:"active"`
	Passive  sideReport     `json:"passive"`
	TCP      transferReport `json:"tcp"` // from the active to the passive process, over devices without XDP program
}

// deviceReport describes the device of the active process; that of the passive one is its mirror.
type deviceReport struct {
	Name        string     `json:"name"`
	Driver      string     `json:"driver"`
	XDPMode     string     `json:"xdpMode"` // the rung obtained
	ZeroCopy    bool       `json:"zeroCopy"`
	MultiBuffer bool       `json:"multiBuffer"` // frames may take more than one buffer
	NotTaken    []string   `json:"notTaken"`    // better ways of carrying frames, and why they were not taken
	PathMTU     int        `json:"pathMTU"`     // bytes
	NetdevMTU   int        `json:"netdevMTU"`   // bytes
	Local       netip.Addr `json:"local"`
	Remote      netip.Addr `json:"remote"`
}

type fileReport struct {
	Name   string `json:"name"`
	Bytes  int    `json:"bytes"`
	SHA256 string `json:"sha256"`
}

// describe names what was moved.
func (f *fileReport) describe(name string, file demoFile) {
	if f.Name = name; file.Toolchain != "" {
		f.Name = "tar archive of the Go toolchain in " + file.Toolchain
	}
}

// transferReport is one way of the file. The hash is that of what has arrived.
type transferReport struct {
	Bytes         int     `json:"bytes"`
	Seconds       float64 `json:"seconds"`
	GbitPerSecond float64 `json:"gbitPerSecond"`
	SHA256        string  `json:"sha256"`
	Matches       bool    `json:"matches"`
}

func newTransferReport(bytes int, took time.Duration) transferReport {
	return transferReport{Bytes: bytes, Seconds: took.Seconds(), GbitPerSecond: float64(bytes) * 8 / took.Seconds() / 1e9}
}

// pingPongReport is about half of the round trips.
type pingPongReport struct {
	Iterations         int           `json:"iterations"`
	CutShort           bool          `json:"cutShort"` // by its time limit, before all that were asked for
	Bytes              int           `json:"bytes"`    // of a message
	OneWayMicroseconds latencyReport `json:"oneWayMicroseconds"`
}

type latencyReport struct {
	P50  float64 `json:"p50"`
	P90  float64 `json:"p90"`
	P99  float64 `json:"p99"`
	P999 float64 `json:"p999"`
	Max  float64 `json:"max"`
}

// newPingPongReport takes a histogram of round trips in nanoseconds.
func newPingPongReport(h *hdrhistogram.Histogram, bytes int) pingPongReport {
	half := func(percentile float64) float64 { return float64(h.ValueAtPercentile(percentile)) / 2 / 1e3 }
	return pingPongReport{
		Iterations: int(h.TotalCount()), Bytes: bytes,
		OneWayMicroseconds: latencyReport{P50: half(50), P90: half(90), P99: half(99), P999: half(99.9), Max: half(100)},
	}
}

// sideReport is what was counted in one namespace.
type sideReport struct {
	XDPPackets       uint64            `json:"xdpPackets"`       // that the XDP program redirected
	XDPPassedPackets uint64            `json:"xdpPassedPackets"` // for UDP port 4791 that it left to the kernel
	KernelPackets    uint64            `json:"kernelPackets"`    // to UDP port 4791 that a packet socket saw in the kernel's stack
	Retransmissions  uint64            `json:"retransmissions"`  // packets
	Drops            map[string]uint64 `json:"drops"`            // packets, by reason
}

func newReport(active, passive *measurement) *report {
	return &report{
		Device: active.Device, File: active.File, Write: active.Write, Read: active.Read, PingPong: active.PingPong,
		Active: active.Side, Passive: passive.Side,
	}
}

// verdict returns an error if anything is not as it must be.
func (r *report) verdict() error {
	var wrong []error
	for _, t := range []struct {
		name string
		transferReport
	}{{"RDMA WRITE", r.Write}, {"RDMA READ", r.Read}, {"TCP", r.TCP}} {
		if !t.Matches {
			wrong = append(wrong, fmt.Errorf("%s: SHA-256 %s arrived instead of %s", t.name, t.SHA256, r.File.SHA256))
		}
	}
	for _, s := range []struct {
		name string
		sideReport
	}{{"active", r.Active}, {"passive", r.Passive}} {
		if s.KernelPackets != 0 {
			wrong = append(wrong, fmt.Errorf("the kernel of the %s process saw %d packets to UDP port %d instead of none",
				s.name, s.KernelPackets, rocePort))
		}
		if s.XDPPackets == 0 {
			wrong = append(wrong, fmt.Errorf("the XDP program of the %s process redirected no packet", s.name))
		}
	}
	return errors.Join(wrong...)
}

// print writes the report for people.
func (r *report) print(out io.Writer) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	line := func(name, format string, values ...any) {
		fmt.Fprintf(w, "%s\t%s\n", name, fmt.Sprintf(format, values...))
	}
	d := r.Device
	line("device", "%s (%s) at both ends, XDP %s, %s, %s, path MTU %d, netdev MTU %d, %v to %v",
		d.Name, d.Driver, d.XDPMode, copyMode(d.ZeroCopy), bufferMode(d.MultiBuffer), d.PathMTU, d.NetdevMTU, d.Local, d.Remote)
	for _, reason := range d.NotTaken {
		line("not taken", "%s", reason)
	}
	line("file", "%s, %s", r.File.Name, byteCount(uint64(r.File.Bytes)))
	line("", "SHA-256 %s", r.File.SHA256)
	line("RDMA WRITE", "%s", r.Write.text())
	line("RDMA READ", "%s", r.Read.text())
	l := r.PingPong.OneWayMicroseconds
	cut := ""
	if r.PingPong.CutShort {
		cut = fmt.Sprintf(", cut short by the limit of %v", pingPongLimit)
	}
	line("SEND/RECV", "p50 %.1f us, p99 %.1f us one way (half of the round trip), %d round trips of %d bytes%s, both ends polling",
		l.P50, l.P99, r.PingPong.Iterations, r.PingPong.Bytes, cut)
	line("retransmitted", "%d packets by the active process, %d by the passive one", r.Active.Retransmissions,
		r.Passive.Retransmissions)
	line("dropped", "%s by the active process, %s by the passive one", dropText(r.Active.Drops), dropText(r.Passive.Drops))
	line("XDP took", "%d packets for the active process, %d for the passive one", r.Active.XDPPackets,
		r.Passive.XDPPackets)
	line("kernel saw", "%d packets to UDP port %d at the active end, %d at the passive one", r.Active.KernelPackets,
		rocePort, r.Passive.KernelPackets)
	line("TCP", "%s, TCP at netdev MTU %d over an identical pair of devices without XDP", r.TCP.text(), d.NetdevMTU)
	return w.Flush()
}

func (t transferReport) text() string {
	result := "SHA-256 differs"
	if t.Matches {
		result = "SHA-256 equal"
	}
	return fmt.Sprintf("%.2f Gbit/s (%.2f s), %s", t.GbitPerSecond, t.Seconds, result)
}

func dropText(drops map[string]uint64) string {
	var text []string
	for _, reason := range slices.Sorted(maps.Keys(drops)) {
		text = append(text, fmt.Sprintf("%d %s", drops[reason], reason))
	}
	if len(text) == 0 {
		return "0"
	}
	return strings.Join(text, ", ")
}

func copyMode(zero bool) string {
	if zero {
		return "zero copy"
	}
	return "copy"
}

func bufferMode(multiBuffer bool) string {
	if multiBuffer {
		return "multi-buffer"
	}
	return "one buffer a frame"
}

// byteCount names a number of bytes.
func byteCount(n uint64) string {
	switch {
	case n >= 10<<30:
		return fmt.Sprintf("%.1f GiB", float64(n)/(1<<30))
	case n >= 1<<20:
		return fmt.Sprintf("%.1f MiB", float64(n)/(1<<20))
	}
	return fmt.Sprintf("%d bytes", n)
}
