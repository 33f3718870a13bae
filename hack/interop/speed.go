//go:build linux

package main

import (
	"encoding/hex"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

const (
	speedSize   = 64 << 10
	speedCount  = 1000
	speedDepth  = 16
	latencySize = 8
	speedRuns   = 3
)

// measureSpeed measures rdma_rxe to rdma_rxe and xroce to xroce on the same veth pair in turns, so that both have the same machine: as
// many messages of the same size, as many in flight. rdma_rxe is measured by perftest, which needs one that knows
// network namespaces (Linux 7). Latency is the time of a READ, which is the same for both: the others measure it in ways of their own.
func (g *guest) measureSpeed() {
	if err := shell("ip", "netns", "exec", "n1", "rdma", "link", "add", "rxe1", "type", "rxe", "netdev", "v1"); err != nil {
		r := result{Kind: "speed", Name: "rdma_rxe at both ends", Outcome: refused, Detail: err.Error()}
		if atLeast(g.report.Kernel, "Linux 7.3") {
			r.Outcome = fails // that one was seen to know namespaces
		}
		g.add(r, time.Now())
		return
	}
	if err := g.setLoss(losses[0]); err != nil {
		g.add(result{Kind: "speed", Name: "network without loss", Outcome: fails, Detail: err.Error()}, time.Now())
		return
	}
	for _, mtu := range []int{1024, 4096} {
		for _, operation := range []string{opSend, opWrite, opRead} {
			g.compare(fmt.Sprintf("%s of 64 KiB, MTU %d, MiB/s", operation, mtu),
				func() (float64, error) { return rxeRate(operation, mtu) },
				func() (float64, error) { return g.xroceSpeed(operation, mtu, speedSize, speedDepth) })
		}
		g.compare(fmt.Sprintf("READ of 8 bytes, MTU %d, us", mtu),
			func() (float64, error) {
				return perftest("ib_read_lat", 4, "-m", strconv.Itoa(mtu), "-s", strconv.Itoa(latencySize), "-n", strconv.Itoa(speedCount))
			},
			func() (float64, error) { return g.xroceSpeed(opRead, mtu, latencySize, 1) })
	}
}

// compare runs the two in turns.
func (g *guest) compare(name string, rxe, xroce func() (float64, error)) {
	begin := time.Now()
	r := result{Kind: "speed", Name: name, Outcome: works}
	var a, b []float64
	for range speedRuns {
		x, err := rxe()
		if err == nil {
			a = append(a, x)
			x, err = xroce()
			b = append(b, x)
		}
		if err != nil {
			r.Outcome, r.Detail = fails, err.Error()
			g.add(r, begin)
			return
		}
	}
	r.Detail = fmt.Sprintf("rdma_rxe %s, xroce %s", spread(a), spread(b))
	g.add(r, begin)
}

// spread is the median, with the least and the most.
func spread(all []float64) string {
	slices.Sort(all)
	return fmt.Sprintf("%.0f (%.0f to %.0f)", all[len(all)/2], all[0], all[len(all)-1])
}

// xroceSpeed measures both ends made of xroce, in MiB/s or, with one request at a time, in us.
func (g *guest) xroceSpeed(operation string, mtu, size, depth int) (value float64, failed error) {
	plan := g.plan
	defer func() { g.plan = plan }()
	g.plan.Left = "xroce"
	if err := g.makeEnds(); err != nil {
		return 0, err
	}
	for _, e := range []*end{g.left, g.right} {
		_, err := e.open(results)
		defer func() {
			if closed := e.close(); closed != nil {
				value, failed = 0, errors.Join(failed, closed)
			}
		}()
		if err != nil {
			return 0, err
		}
	}
	p, err := g.connect(g.right.name, terms{mtu: mtu, family: 4, length: speedSize, access: allAccess, retry: 7, rnrRetry: 7})
	if err != nil {
		return 0, err
	}
	const round = 200 // a receive queue has room for so many
	seconds := 0.0
	for range speedCount / round {
		if operation == opSend {
			if err := do(step{p.responder, command{Do: "receive", Slots: slices.Repeat([]slot{{0, size}}, round)}}); err != nil {
				return 0, err
			}
		}
		a, err := p.requester.do(command{
			Do: "measure", Count: round, Depth: depth, Seconds: patience,
			Requests: []request{{Operation: operation, Length: size, Addr: p.remote.Addr, RKey: p.remote.RKey}},
		})
		if err != nil {
			return 0, err
		}
		if operation == opSend {
			if err := do(step{p.responder, command{Do: "wait", Count: round, Seconds: patience}}); err != nil {
				return 0, err
			}
		}
		seconds += a.Seconds
		value = a.Median * 1e6
	}
	if depth > 1 {
		value = speedCount * float64(size) / (1 << 20) / seconds
	}
	return value, do(step{p.requester, command{Do: "destroy"}}, step{p.responder, command{Do: "destroy"}})
}

func rxeRate(operation string, mtu int) (float64, error) {
	program := map[string]string{opWrite: "ib_write_bw", opRead: "ib_read_bw", opSend: "ib_send_bw"}[operation]
	return perftest(program, 3, "-m", strconv.Itoa(mtu), "-s", strconv.Itoa(speedSize), "-n", strconv.Itoa(speedCount), "-t", strconv.Itoa(speedDepth))
}

// perftest returns a column of the one line of figures that the client prints, which begins with the size.
func perftest(program string, column int, args ...string) (float64, error) {
	args = append(args, "-F")
	server := exec.Command("ip", append([]string{"netns", "exec", "n1", program, "-d", "rxe1", "-x", gidIndex("rxe1", "10.0.0.2")}, args...)...)
	if err := server.Start(); err != nil {
		return 0, err
	}
	defer func() { _ = server.Process.Kill(); _ = server.Wait() }()
	args = append(append([]string{"60", program, "-d", "rxe0", "-x", gidIndex("rxe0", "10.0.0.1")}, args...), "10.0.0.2")
	var out []byte
	var err error
	for range 20 { // until the server listens
		time.Sleep(500 * time.Millisecond)
		out, err = exec.Command("timeout", args...).CombinedOutput()
		if err == nil || !strings.Contains(string(out), "Couldn't connect") {
			break
		}
	}
	if err != nil {
		return 0, fmt.Errorf("%s: %w: %s", program, err, out)
	}
	for line := range strings.Lines(string(out)) {
		if f := strings.Fields(line); len(f) > column && (f[0] == strconv.Itoa(speedSize) || f[0] == strconv.Itoa(latencySize)) {
			return strconv.ParseFloat(f[column], 64)
		}
	}
	return 0, fmt.Errorf("%s printed no figures: %s", program, out)
}

// gidIndex is the index of an IPv4 address in the GID table.
func gidIndex(device, address string) string {
	want := netip.AddrFrom16(netip.MustParseAddr(address).As16()).As16()
	files, _ := filepath.Glob("/sys/class/infiniband/" + device + "/ports/1/gids/*")
	for _, f := range files {
		text, _ := os.ReadFile(f)
		if strings.ReplaceAll(strings.TrimSpace(string(text)), ":", "") == hex.EncodeToString(want[:]) {
			return filepath.Base(f)
		}
	}
	return "0"
}
