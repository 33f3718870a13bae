//go:build linux

package main

import (
	"errors"
	"fmt"
	"os/exec"
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

// measureSpeed measures xroce to xroce and rdma_rxe to rdma_rxe on the same veth pair, one after the other, so that both have the
// same machine: as many messages of the same size, as many in flight. rdma_rxe is measured by perftest, which needs one that knows
// network namespaces (Linux 7).
func (g *guest) measureSpeed() {
	for _, mtu := range []int{1024, 4096} {
		for _, operation := range []string{opWrite, opRead, opSend} {
			g.speed(fmt.Sprintf("rxe %s MTU %d", operation, mtu), func() (string, error) { return rxeSpeed(operation, mtu) })
			g.speed(fmt.Sprintf("xroce %s MTU %d", operation, mtu), func() (string, error) { return g.xroceSpeed(operation, mtu) })
		}
	}
}

func (g *guest) speed(name string, run func() (string, error)) {
	begin := time.Now()
	r := result{Kind: "speed", Name: name, Outcome: works}
	var err error
	if r.Detail, err = run(); err != nil {
		r.Outcome, r.Detail = fails, err.Error()
	}
	g.add(r, begin)
}

// xroceSpeed measures both ends made of xroce. Of SEND the receiver posts all receives before, in rounds as its queue is shorter.
func (g *guest) xroceSpeed(operation string, mtu int) (string, error) {
	return "", errors.New("not here yet")
}

// rxeSpeed runs perftest at both ends.
func rxeSpeed(operation string, mtu int) (string, error) {
	tool := map[string]string{opWrite: "write", opRead: "read", opSend: "send"}[operation]
	rate, err := perftest("ib_"+tool+"_bw", 3, "-m", strconv.Itoa(mtu), "-s", strconv.Itoa(speedSize), "-n", strconv.Itoa(speedCount), "-t", strconv.Itoa(speedDepth))
	if err != nil {
		return "", err
	}
	latency, err := perftest("ib_"+tool+"_lat", 4, "-m", strconv.Itoa(mtu), "-s", strconv.Itoa(latencySize), "-n", strconv.Itoa(speedCount))
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("%s MiB/s, %s us", rate, latency), nil
}

// perftest returns a column of the one line of figures that the client prints, which begins with the size.
func perftest(program string, column int, args ...string) (string, error) {
	args = append(args, "-F", "-x", "1")
	server := exec.Command("ip", append([]string{"netns", "exec", "n1", program, "-d", "rxe1"}, args...)...)
	if err := server.Start(); err != nil {
		return "", err
	}
	defer func() { _ = server.Process.Kill(); _ = server.Wait() }()
	time.Sleep(time.Second)
	out, err := exec.Command(program, append(append([]string{"-d", "rxe0"}, args...), "10.0.0.2")...).CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("%s: %w: %s", program, err, out)
	}
	for line := range strings.Lines(string(out)) {
		if f := strings.Fields(line); len(f) > column && (f[0] == strconv.Itoa(speedSize) || f[0] == strconv.Itoa(latencySize)) {
			return f[column], nil
		}
	}
	return "", fmt.Errorf("%s printed no figures: %s", program, out)
}
