package perf

import (
	"bufio"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/xroce/xroce/verbs"
)

// Side is what one end has used and counted in a run.
type Side struct {
	Wait            Wait              `json:"wait"`
	Messages        uint64            `json:"messages"`         // that it has posted: of its own, or as answers
	Seconds         float64           `json:"seconds"`          // first post to last completion; 0 if it only answers
	UserSeconds     float64           `json:"userCPUSeconds"`   // of the process
	SystemSeconds   float64           `json:"systemCPUSeconds"` // of the process
	CPUPerGiB       float64           `json:"cpuSecondsPerGiB"` // both, for a GiB of data of either direction
	Softirq         *Softirq          `json:"softirq"`          // of the whole machine; null if its kernel does not tell
	PacketsSent     uint64            `json:"packetsSent"`
	PacketsReceived uint64            `json:"packetsReceived"`
	Retransmissions uint64            `json:"retransmissions"` // packets
	Drops           map[string]uint64 `json:"drops"`           // packets, by reason
}

// Softirq is the time that the CPUs of the machine have spent in soft interrupts, whoever caused them, in steps of a
// tick: 10 ms as a rule (proc_stat(5)). Packets are received there, by the XDP program too. A kernel that accounts by
// ticks (without CONFIG_IRQ_TIME_ACCOUNTING and CONFIG_VIRT_CPU_ACCOUNTING_GEN) charges what interrupts a process, or
// runs in its system call, to that process as well, so the two figures overlap.
type Softirq struct {
	Seconds    float64      `json:"seconds"`
	CPUSeconds []cpuSeconds `json:"cpuSeconds"` // by CPU, without those that have spent nothing
}

type cpuSeconds struct {
	CPU     int     `json:"cpu"`
	Seconds float64 `json:"seconds"`
}

// reading is what the meters show at a moment.
type reading struct {
	user, system time.Duration
	softirq      map[int]float64 // seconds by CPU; nil if the kernel does not tell
	counters     verbs.Counters
}

func readMeters(d *verbs.Device) (r reading, err error) {
	if r.user, r.system, err = processTimes(); err != nil {
		return r, err
	}
	r.softirq = readSoftirq("/proc/stat")
	r.counters = d.Counters()
	return r, nil
}

// readSoftirq returns nil if there is nothing to be read.
func readSoftirq(file string) map[int]float64 {
	opened, err := os.Open(file)
	if err != nil {
		return nil
	}
	defer opened.Close()
	const (
		softirqField   = 7 // after the name: user, nice, system, idle, iowait, irq
		ticksPerSecond = 100
	)
	var seconds map[int]float64
	for lines := bufio.NewScanner(opened); lines.Scan(); {
		fields := strings.Fields(lines.Text())
		if len(fields) <= softirqField || !strings.HasPrefix(fields[0], "cpu") {
			continue
		}
		cpu, err := strconv.Atoi(strings.TrimPrefix(fields[0], "cpu"))
		if err != nil {
			continue // the line of all CPUs
		}
		ticks, err := strconv.ParseUint(fields[softirqField], 10, 64)
		if err != nil {
			return nil
		}
		if seconds == nil {
			seconds = make(map[int]float64)
		}
		seconds[cpu] = float64(ticks) / ticksPerSecond
	}
	return seconds
}

// since returns what was used between an earlier reading and this one.
func (r *reading) since(before *reading) Side {
	s := Side{
		UserSeconds: (r.user - before.user).Seconds(), SystemSeconds: (r.system - before.system).Seconds(),
		Softirq:         softirqSince(before.softirq, r.softirq),
		PacketsSent:     sum(r.counters.Sent) - sum(before.counters.Sent),
		PacketsReceived: sum(r.counters.Received) - sum(before.counters.Received),
		Retransmissions: r.counters.Counts[retransmitted] - before.counters.Counts[retransmitted],
		Drops:           make(map[string]uint64),
	}
	for reason, n := range r.counters.Drops {
		if more := n - before.counters.Drops[reason]; more > 0 {
			s.Drops[reason] = more
		}
	}
	return s
}

// retransmitted is the name of the counter in Linux, too.
const retransmitted = "retransmitted_pkts"

func softirqSince(before, after map[int]float64) *Softirq {
	if before == nil || after == nil {
		return nil
	}
	s := &Softirq{CPUSeconds: []cpuSeconds{}}
	for _, cpu := range slices.Sorted(maps.Keys(after)) {
		if spent := after[cpu] - before[cpu]; spent > 0 {
			s.CPUSeconds = append(s.CPUSeconds, cpuSeconds{cpu, spent})
			s.Seconds += spent
		}
	}
	return s
}

func sum(counts verbs.Counts) (total uint64) {
	for _, n := range counts {
		total += n
	}
	return total
}
