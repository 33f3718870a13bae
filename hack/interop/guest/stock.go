//go:build linux

package guest

import (
	"bytes"
	"cmp"
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/xroce/xroce/hack/interop/plan"
	"github.com/xroce/xroce/hack/interop/report"
)

// Stock programs are those of rdma-core as they come with the distribution, on rdma_rxe at v0, with xroce as a user
// would program it at v1 (pingpong.go): other people's code decides there what is right.

// stockLimit is the time that both ends have to end by themselves. Xroce's end gives up sooner, to say what it has
// seen. stockGrace is what the stock program has after a failure of xroce's end.
const (
	stockLimit  = 2 * time.Minute
	stockGiveUp = stockLimit - 10*time.Second
	stockGrace  = 15 * time.Second
)

// differences are those of the programs for xroce's end and for their own. ibv_srq_pingpong exchanges as many
// endpoints as it could have queue pairs (MAX_QP). It has one of them here: with more it ends when all together have
// had their turns, in the middle of those of others.
func differences(s plan.Game) (xroce, program []string) {
	if s.Events {
		program = append(program, "-e")
	}
	if s.Program == plan.SRQPingPong {
		return []string{"--endpoints", "256", "--fill", "0"}, append(program, "-q", "1")
	}
	return nil, program
}

// stock runs the games, when no end has the device open.
func (g *guest) stock() {
	if err := g.setLoss(plan.NoLoss); err != nil {
		g.add(report.Result{Kind: "stock", Name: "network without loss", Outcome: report.Fails, Detail: err.Error()},
			time.Now())
		return
	}
	for _, s := range g.plan.Games {
		g.alone("stock", s.Row(), s.String(), func() (string, error) {
			return "", g.setting().permitted(play(s), terms{mtu: s.MTU})
		})
	}
}

// play runs both ends to their ends.
func play(s plan.Game) error {
	own, err := os.Executable()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), stockLimit)
	defer cancel()
	program := exec.CommandContext(ctx, s.Program, "-d", "rxe0", "-g", gidIndex("rxe0", "10.0.0.1"), "-c",
		"-m", strconv.Itoa(s.MTU), "-s", strconv.Itoa(s.Size), "-n", strconv.Itoa(s.Count))
	xroce := exec.CommandContext(ctx, "ip", "netns", "exec", "n1", own, "ping-pong", patternFile, "--checked", "--limit",
		stockGiveUp.String(),
		"--mtu", strconv.Itoa(s.MTU), "--size", strconv.Itoa(s.Size), "--count", strconv.Itoa(s.Count))
	more, options := differences(s)
	xroce.Args, program.Args = append(xroce.Args, more...), append(program.Args, options...)
	if s.Server {
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
	if s.Server {
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
	return judgeGame(s, seen, err, said.String(), programErr, ctx.Err())
}

// judgeGame says whether both ends saw what they should, and ended by themselves: ended is why they were ended. The
// stock program's exit status says nothing of the content: it prints what is wrong.
func judgeGame(s plan.Game, seen answer, xroceErr error, said string, programErr, ended error) error {
	switch {
	case seen.Refused && ended == nil:
		return &endError{plan.Xroce, "connect", seen.Error, true}
	case ended != nil || xroceErr != nil:
		return fmt.Errorf("xroce: %s (%v); %s: %v: %q; ended by force: %v", cmp.Or(seen.Error, "no complaint"), xroceErr,
			s.Program, programErr, said, ended)
	case programErr != nil:
		return fmt.Errorf("%s: %w: %q", s.Program, programErr, said)
	case strings.Contains(said, "invalid data"):
		return fmt.Errorf("%s finds other content: %q", s.Program, said)
	}
	for _, line := range []string{
		fmt.Sprintf("\n%d bytes in ", 2*s.Size*s.Count),
		fmt.Sprintf("\n%d iters in ", s.Count),
	} {
		if !strings.Contains(said, line) {
			return fmt.Errorf("%s does not say %q: %q", s.Program, strings.TrimSpace(line), said)
		}
	}
	for what, want := range map[string]int{"sent": s.Count, "received": s.Count, "bytes": s.Count * s.Size} {
		if got := seen.Counters[what]; got != uint64(want) {
			return fmt.Errorf("xroce: %s %d instead of %d", what, got, want)
		}
	}
	return nil
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
