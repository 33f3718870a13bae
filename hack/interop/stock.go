//go:build linux

package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// Stock programs are those of rdma-core as they come with the distribution, on rdma_rxe at v0, with xroce as a user would program
// it at v1 (pingpong.go): other people's code decides there what is right. Of rdma-core's and perftest's programs these are the ones that
// xroce can talk to: rping, ucmatose and udaddy meet by librdmacm's connection manager, the others need UC, UD or XRC; and
// perftest's programs compare their versions, page sizes and MTUs over TCP before the endpoints, and their counts behind them, in
// ways that go with the version.

// stockLimit is the time that both ends have to end by themselves. Xroce's end gives up sooner, to say what it has seen. stockGrace is what the
// stock program has after a failure of xroce's end.
const (
	stockLimit  = 2 * time.Minute
	stockGiveUp = stockLimit - 10*time.Second
	stockGrace  = 15 * time.Second
)

// stockRun is one game. Server says that the stock program is the server.
type stockRun struct {
	program          string
	server           bool
	mtu, size, count int
	events           bool // -e: it sleeps until there is an event
}

const (
	rcPingPong  = "ibv_rc_pingpong"
	srqPingPong = "ibv_srq_pingpong"
)

// differences are those of the programs for xroce's end and for their own. ibv_srq_pingpong exchanges as many endpoints as it could have
// queue pairs (MAX_QP). It has one of them here: with more it ends when all together have had their turns, in the middle of those of others.
func (s stockRun) differences() (xroce, program []string) {
	if s.events {
		program = append(program, "-e")
	}
	if s.program == srqPingPong {
		return []string{"--endpoints", "256", "--fill", "0"}, append(program, "-q", "1")
	}
	return nil, program
}

// row is what a table has of it.
func (s stockRun) row() string {
	role := "client"
	if s.server {
		role = "server"
	}
	text := fmt.Sprintf("%s as %s, path MTU %d", s.program, role, s.mtu)
	if s.events {
		text += ", events"
	}
	return text
}

func (s stockRun) String() string {
	return fmt.Sprintf("%s, %d times %d bytes", s.row(), s.count, s.size)
}

// stockRuns are all games, or the two that make interop plays.
func stockRuns(brief bool) (all []stockRun) {
	const count = 300
	if brief {
		return []stockRun{{rcPingPong, true, 1024, 4096, 100, false}, {rcPingPong, false, 1024, 4096, 100, false}}
	}
	for _, server := range []bool{true, false} {
		for _, mtu := range []int{256, 1024, 4096} {
			for _, size := range []int{1, 33, 4096, 65536} {
				all = append(all, stockRun{rcPingPong, server, mtu, size, count, false})
			}
		}
		all = append(all, stockRun{rcPingPong, server, 1024, 4096, count, true}, stockRun{srqPingPong, server, 1024, 4096, count, false})
	}
	return all
}

// stock runs the games, when no end has the device open.
func (g *guest) stock() {
	if err := g.setLoss(losses[0]); err != nil {
		g.add(result{Kind: "stock", Name: "network without loss", Outcome: fails, Detail: err.Error()}, time.Now())
		return
	}
	for _, s := range stockRuns(g.plan.Brief) {
		if strings.Contains(s.String(), g.plan.Only) {
			g.alone("stock", s.row(), s.String(), func() (string, error) {
				return "", g.setting().permitted(s.play(), terms{mtu: s.mtu})
			})
		}
	}
}

// alone is for what opens its devices itself: it runs it and notes what became of it, with a capture that is kept if it fails. Row is what a
// table has of it, short what it has in place of the outcome.
func (g *guest) alone(kind, row, name string, run func() (short string, err error)) {
	begin := time.Now()
	r := result{Kind: kind, Row: row, Name: name}
	capture := startCapture(false)
	var err error
	r.Short, err = run()
	capture.stop(err != nil)
	r.Outcome, r.Detail = conclude(err, nil)
	if r.Outcome == fails {
		folder := filepath.Join(results, fmt.Sprintf("failure-%03d", g.failures))
		g.failures++
		_ = os.MkdirAll(folder, 0o755)
		_ = os.WriteFile(filepath.Join(folder, "cell"), []byte(name+"\n"+r.Detail+"\n"), 0o644)
		_ = shell("cp", captureFile, folder)
	}
	g.add(r, begin)
}

// play runs both ends to their ends.
func (s stockRun) play() error {
	own, err := os.Executable()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), stockLimit)
	defer cancel()
	program := exec.CommandContext(ctx, s.program, "-d", "rxe0", "-g", gidIndex("rxe0", "10.0.0.1"), "-c",
		"-m", strconv.Itoa(s.mtu), "-s", strconv.Itoa(s.size), "-n", strconv.Itoa(s.count))
	xroce := exec.CommandContext(ctx, "ip", "netns", "exec", "n1", own, "ping-pong", patternFile, "--checked", "--limit", stockGiveUp.String(),
		"--mtu", strconv.Itoa(s.mtu), "--size", strconv.Itoa(s.size), "--count", strconv.Itoa(s.count))
	more, options := s.differences()
	xroce.Args, program.Args = append(xroce.Args, more...), append(program.Args, options...)
	if s.server {
		xroce.Args = append(xroce.Args, "--server", "10.0.0.1")
	} else {
		program.Args = append(program.Args, "10.0.0.2")
	}
	var said, complaint bytes.Buffer
	program.Stdout, program.Stderr, xroce.Stderr = &said, &said, &complaint
	answers, err := xroce.StdoutPipe()
	if err != nil {
		return err
	}
	defer answers.Close()
	if s.server {
		if err := program.Start(); err != nil {
			return err
		}
	}
	if err := xroce.Start(); err != nil {
		cancel()
		return errors.Join(err, program.Wait())
	}
	var seen answer
	decoder := json.NewDecoder(answers)
	err = decoder.Decode(&seen)
	if err == nil && seen.State == "listening" {
		if err = program.Start(); err == nil {
			seen = answer{}
			err = decoder.Decode(&seen)
		}
	}
	_, _ = io.Copy(io.Discard, answers)
	err = errors.Join(err, xroce.Wait())
	if program.Process == nil {
		return fmt.Errorf("xroce: %w: %s", err, &complaint)
	}
	if err != nil { // a program that plays already waits for ever
		defer time.AfterFunc(stockGrace, cancel).Stop()
	}
	programErr := program.Wait()
	return s.judge(seen, err, said.String(), programErr, ctx.Err())
}

// judge says whether both ends saw what they should, and ended by themselves: ended is why they were ended. The stock program's exit status
// says nothing of the content: it prints what is wrong.
func (s stockRun) judge(seen answer, xroceErr error, said string, programErr, ended error) error {
	switch {
	case seen.Refused && ended == nil:
		return &endError{"xroce", "connect", seen.Error, true}
	case ended != nil || xroceErr != nil:
		return fmt.Errorf("xroce: %s (%v); %s: %v: %q; ended by force: %v", cmp.Or(seen.Error, "no complaint"), xroceErr, s.program, programErr, said, ended)
	case programErr != nil:
		return fmt.Errorf("%s: %w: %q", s.program, programErr, said)
	case strings.Contains(said, "invalid data"):
		return fmt.Errorf("%s finds other content: %q", s.program, said)
	}
	for _, line := range []string{
		fmt.Sprintf("\n%d bytes in ", 2*s.size*s.count),
		fmt.Sprintf("\n%d iters in ", s.count),
	} {
		if !strings.Contains(said, line) {
			return fmt.Errorf("%s does not say %q: %q", s.program, strings.TrimSpace(line), said)
		}
	}
	for what, want := range map[string]int{"sent": s.count, "received": s.count, "bytes": s.count * s.size} {
		if got := seen.Counters[what]; got != uint64(want) {
			return fmt.Errorf("xroce: %s %d instead of %d", what, got, want)
		}
	}
	return nil
}

// writeStock writes what became of the games.
func writeStock(w io.Writer, reports []report) {
	var games table
	for _, r := range reports {
		for _, x := range r.Results {
			if x.Kind == "stock" {
				x.Detail = oneLine(x.Detail)
				games.add(x.row(), r.Kernel, x)
			}
		}
	}
	if len(games.rows) == 0 {
		return
	}
	fmt.Fprint(w, "## Stock programs\n\nPing-pong programs of rdma-core, as the distribution has them, on rdma_rxe, with xroce at the other end. Each game is 300 messages "+
		"each way, of 1, 33, 4096 and 65536 bytes, and the counts below are of sizes. The stock program validates (`-c`), ends with status 0 and says how much it has moved; "+
		"xroce compares each message with what has to be in it. They tell each other the endpoints over TCP, which the kernel carries over the "+
		"same network device. Without librdmacm, UC, UD and XRC, which xroce does not have, there are no rping, ucmatose and udaddy, nor the other ping-pongs; "+
		"the programs of perftest tell each other much more over TCP, in ways that go with the version.\n\n")
	games.write(w, "program")
}
