package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"

	"github.com/xroce/xroce/internal/netlab"
	"github.com/xroce/xroce/roce"
	"github.com/xroce/xroce/verbs"
)

// demoCommand is the parent of the demo's processes.
type demoCommand struct {
	File       string `placeholder:"PATH" help:"File to move, at least 64 MiB (default: a tar archive of the machine's Go toolchain)."`
	MTU        int    `name:"mtu" placeholder:"BYTES" default:"2048" help:"Path MTU: 256, 512, 1024, 2048 or 4096. The devices get MTU 1500, 3000 for 2048, or 4192 for 4096."`
	IPv6       bool   `name:"ipv6" help:"Use IPv6."`
	Iterations int    `default:"30000" help:"Round trips of the latency measurement, which ends after 10 s at the latest."`
	JSON       bool   `name:"json" help:"Print the report as JSON."`
	modeFlag
}

// Run plays the demo and prints its report.
func (c *demoCommand) Run(app *application) error {
	pathMTU, err := c.check()
	if err != nil {
		return err
	}
	file, opened, err := chooseFile(app.ctx, c.File)
	if err != nil {
		return err
	}
	if opened != nil {
		defer opened.Close()
	}
	if err := file.checkMemory(); err != nil {
		return err
	}
	progress := newProgress(app.stderr)
	defer progress.end()
	p := &performance{
		progress: progress, opened: opened, v6: c.IPv6,
		configuration: configuration{Mode: c.mode(), PathMTU: pathMTU, Iterations: c.Iterations, File: file},
	}
	report, err := p.play(app.ctx)
	if err != nil {
		return err
	}
	report.File.describe(c.File, file)
	progress.end()
	if c.JSON {
		encoder := json.NewEncoder(app.stdout)
		encoder.SetIndent("", "  ")
		err = encoder.Encode(report)
	} else {
		err = report.print(app.stdout)
	}
	return errors.Join(err, report.verdict())
}

func (c *demoCommand) check() (verbs.MTU, error) {
	mtu, err := parsePathMTU(c.MTU)
	if err != nil {
		return 0, err
	}
	if c.Iterations < 1 || c.Iterations > 100_000_000 {
		return 0, usage("--iterations %d is not in 1..100000000", c.Iterations)
	}
	return mtu, nil
}

// parsePathMTU checks a path MTU in bytes.
func parsePathMTU(bytes int) (verbs.MTU, error) {
	mtu, ok := roce.MTUFromBytes(bytes)
	if !ok {
		return 0, usage("path MTU %d does not exist: choose 256, 512, 1024, 2048 or 4096", bytes)
	}
	return mtu, nil
}

// performance is one run of the demo.
type performance struct {
	progress      *progress
	opened        *os.File
	v6            bool
	configuration configuration // common to both processes

	namespaces    [2]*netlab.Namespace // of the active and of the passive process
	sniffers      [2]*sniffer          // in the same order
	pair, tcpPair *netlab.Pair
	children      *children
}

// play makes the network, has the processes do their parts and puts the report together. Nothing is left behind: the
// namespaces have no names, so they go with the last process and descriptor, and their devices with them.
func (p *performance) play(ctx context.Context) (_ *report, err error) {
	defer func() { err = errors.Join(err, p.closeNetwork()) }()
	if err := p.makeNetwork(); err != nil {
		return nil, err
	}
	if err := p.startProcesses(); err != nil {
		return nil, err
	}
	defer p.children.end()

	measured, err := gather(ctx, p, func(m *childMessage) *measurement { return m.Measured })
	if err != nil {
		return nil, err
	}
	report := newReport(measured.active, measured.passive)
	report.Device.NetdevMTU = p.pair.MTU
	for i, side := range []*sideReport{&report.Active, &report.Passive} {
		if side.KernelPackets, err = p.sniffers[i].count(); err != nil {
			return nil, err
		}
	}
	// From here on they would only slow TCP down.
	if err := p.closeSniffers(); err != nil {
		return nil, err
	}
	for _, c := range []*child{p.children.active, p.children.passive} {
		if err := c.channel.send(stepContinue); err != nil && !errors.Is(err, errPeerGone) {
			return nil, err
		}
	}
	finished, err := gather(ctx, p, func(m *childMessage) *ending { return m.Finished })
	if err != nil {
		return nil, err
	}
	report.TCP = finished.active.TCP
	return report, nil
}

// makeNetwork makes the namespaces, the pair of devices for RoCE, an identical one for TCP, and the sniffers.
func (p *performance) makeNetwork() (err error) {
	for i := range p.namespaces {
		if p.namespaces[i], err = netlab.NewNamespace(); err != nil {
			return fmt.Errorf("demo: %w", err)
		}
	}
	options := netlab.PairOptions{MTU: 1500}
	switch p.configuration.PathMTU {
	case verbs.MTU2048:
		options.MTU = 3000
	case verbs.MTU4096:
		options.MTU = verbs.MTU4096.Bytes() + roce.MTUOverhead
	}
	for _, pair := range []**netlab.Pair{&p.pair, &p.tcpPair} {
		if *pair, err = netlab.Join(p.namespaces[0], p.namespaces[1], options); err != nil {
			return err
		}
	}
	if p.v6 && !p.pair.A.IPv6().IsValid() {
		return usage("--ipv6: this system has no IPv6")
	}
	for i := range p.sniffers {
		if p.sniffers[i], err = newSniffer(p.namespaces[i]); err != nil {
			return err
		}
	}
	return proveSniffers(p.pair, p.sniffers)
}

// closeNetwork closes what there is of the network. The pairs of devices go with their namespaces.
func (p *performance) closeNetwork() error {
	failures := []error{p.closeSniffers()}
	for _, n := range p.namespaces {
		if n != nil {
			failures = append(failures, n.Close())
		}
	}
	return errors.Join(failures...)
}

func (p *performance) closeSniffers() error {
	var failures []error
	for i, s := range p.sniffers {
		if s != nil {
			failures = append(failures, s.close())
			p.sniffers[i] = nil
		}
	}
	return errors.Join(failures...)
}

// startProcesses starts the processes and tells them what to do.
func (p *performance) startProcesses() (err error) {
	p.children, err = startChildren(p.pair.A.Namespace, p.pair.B.Namespace, p.opened)
	if err != nil {
		return err
	}
	p.progress.begin(fmt.Sprintf("started the active process %d and the passive process %d",
		p.children.active.command.Process.Pid, p.children.passive.command.Process.Pid))
	for _, part := range []struct {
		child    *child
		own, tcp *netlab.End
	}{
		{p.children.active, &p.pair.A, &p.tcpPair.A},
		{p.children.passive, &p.pair.B, &p.tcpPair.B},
	} {
		c := p.configuration
		c.Device, c.Address, c.TCPAddress = part.own.Name, address(part.own, p.v6), address(part.tcp, p.v6)
		// A process that has died already says so with its end.
		if err := part.child.channel.send(c); err != nil && !errors.Is(err, errPeerGone) {
			p.children.end()
			return err
		}
	}
	return nil
}

func address(e *netlab.End, v6 bool) netip.Addr {
	if v6 {
		return e.IPv6()
	}
	return e.IPv4()
}

// answers are the messages of one kind from both processes.
type answers[T any] struct{ active, passive *T }

// gather waits until both processes have sent the message that pick takes out. The first sign of trouble ends it.
func gather[T any](ctx context.Context, p *performance, pick func(*childMessage) *T) (got answers[T], err error) {
	c := p.children
	for got.active == nil || got.passive == nil {
		var e event
		select {
		case e = <-c.events:
		case <-ctx.Done():
			return got, context.Cause(ctx)
		}
		if e.ended {
			c.running--
			if e.state.Success() && (e.child == c.active && got.active != nil || e.child == c.passive && got.passive != nil) {
				continue
			}
		}
		if e.ended || e.message.Failure != nil {
			return got, c.reason(e)
		}
		if m := pick(&e.message); m == nil {
			p.show(&e.message)
		} else if e.child == c.active {
			got.active = m
		} else {
			got.passive = m
		}
	}
	return got, nil
}

func (p *performance) show(m *childMessage) {
	if m.Stage != "" {
		p.progress.begin(m.Stage)
	}
	if m.Progress != nil {
		p.progress.update(m.Progress.Done, m.Progress.Total)
	}
}
