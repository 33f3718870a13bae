package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"slices"
	"time"

	"github.com/xroce/xroce/cmd/xroce/internal/perf"
	"github.com/xroce/xroce/verbs"
)

// perfCommand measures between two machines. The one that gives a host is the client, which says what is measured.
type perfCommand struct {
	Operation string `arg:"" optional:"" help:"send, write, write-imm, read or atomic (server: whatever the client says)."`
	Test      string `arg:"" optional:"" help:"bw for bandwidth, lat for latency (server: whatever the client says)."`
	Host      string `arg:"" optional:"" help:"Host where the server waits; without it, be the server."`

	Size       *int     `short:"s" placeholder:"BYTES" help:"Bytes of a message (default: 65536 for bw, 2 for lat, 8 for atomic)."`
	Iters      *int     `short:"n" placeholder:"N" help:"Messages of each queue pair (default: 5000 for bw, 1000 for lat)."`
	Duration   *float64 `short:"D" placeholder:"SECONDS" help:"Run for so long instead of for a number of messages (default with -a: 1 for each size)."`
	QP         *int     `short:"q" name:"qp" placeholder:"N" help:"Queue pairs (default: 1)."`
	Depth      *int     `short:"t" name:"tx-depth" placeholder:"N" help:"Requests of each queue pair in flight (default: 128)."`
	MTU        *int     `short:"m" name:"mtu" placeholder:"BYTES" help:"Path MTU: 256, 512, 1024, 2048 or 4096 (default: the largest that both ends carry)."`
	All        *bool    `short:"a" name:"all" help:"Sizes from 2 bytes to 8 MiB, one after the other."`
	Both       *bool    `short:"b" name:"bidirectional" help:"Both ways at once."`
	Inline     *int     `short:"I" name:"inline" placeholder:"BYTES" help:"Messages of up to so many bytes lie in their requests (default: 0)."`
	Moderation *int     `short:"Q" name:"cq-mod" placeholder:"N" help:"Requests that are posted at once, of which the last has a completion (default: 16, and at most a quarter of -t)."`
	Verify     *bool    `name:"verify" help:"Check the data where they arrive."`

	Wait   string `enum:",poll,block,thread" default:"" help:"How this end waits: poll, block (sleep on the socket), thread (the background of the engine drives). Default: poll; thread for an end that has no completions to wait for."`
	Gbits  bool   `name:"report-gbits" help:"Gbit/s instead of MiB/s."`
	JSON   bool   `name:"json" help:"Print the result as JSON."`
	Port   uint16 `short:"p" default:"18515" help:"TCP port for the exchange; a server may let the kernel choose one by 0."`
	Device string `short:"d" name:"ib-dev" placeholder:"NAME" help:"Network device (default: towards the host, or the only one that can serve)."`
	GID    int    `short:"x" name:"gid-index" placeholder:"INDEX" default:"-1" help:"Index of the local GID (default: the address that reaches the host)."`
	modeFlag
	netnsFlag
}

// perfTerms is what the two ends tell each other first.
type perfTerms struct {
	Program string    `json:"program"`
	Version int       `json:"version"`
	Wish    perf.Wish `json:"wish"`
}

func (t *perfTerms) program() string { return t.Program }

func (c *perfCommand) wish() perf.Wish {
	return perf.Wish{
		Operation: c.Operation, Test: c.Test, Size: c.Size, Sweep: c.All, Iterations: c.Iters, Duration: c.Duration,
		QPs: c.QP, Depth: c.Depth, PathMTU: c.MTU, Both: c.Both, Inline: c.Inline, Moderation: c.Moderation,
		Verify: c.Verify,
	}
}

// Run runs either end.
func (c *perfCommand) Run(app *application) error { return misuse(c.run(app)) }

// misuse gives what package perf refuses the exit status of wrong use.
func misuse(err error) error {
	if errors.Is(err, perf.ErrMisuse) {
		return &environmentError{err}
	}
	return err
}

func (c *perfCommand) run(app *application) (err error) {
	pathMTU, err := c.check()
	if err != nil {
		return err
	}
	name, err := chooseDevice(app.ctx, c.netnsFlag, c.Device, c.Host)
	if err != nil {
		return err
	}
	device, err := openDevice(app.ctx, name, c.path(), c.mode(), pathMTU)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, device.Close()) }()
	if c.Host == "" {
		return c.serve(app, device)
	}
	connection, err := c.reach(app.ctx, c.Host, c.Port, "perf")
	if err != nil {
		return err
	}
	return c.play(app, device, connection)
}

func (c *perfCommand) check() (pathMTU verbs.MTU, err error) {
	client := c.Host != ""
	if c.Operation != "" && !slices.Contains(perf.Operations(), c.Operation) {
		return 0, usage("no operation is called %q: choose send, write, write-imm, read or atomic", c.Operation)
	}
	if c.Test != "" && !slices.Contains(perf.Tests(), c.Test) {
		return 0, usage("no test is called %q: choose bw or lat", c.Test)
	}
	if c.GID < -1 || c.GID > 1<<16 {
		return 0, usage("-x/--gid-index %d is not in -1..65536", c.GID)
	}
	if client && c.Port == 0 {
		return 0, usage("-p/--port 0: name the port at which %s waits", c.Host)
	}
	if c.MTU != nil {
		if pathMTU, err = parsePathMTU(*c.MTU); err != nil {
			return 0, err
		}
	}
	wish := c.wish()
	if err = wish.Check(); err == nil && client {
		_, err = wish.Complete().Plan()
	}
	if err != nil {
		return 0, err
	}
	return pathMTU, checkHost(c.Host, c.Device)
}

// serve waits for a client. Strangers that connect are turned away.
func (c *perfCommand) serve(app *application, device *verbs.Device) error {
	listener, err := c.listen(app.ctx, c.Port)
	if err != nil {
		return usage("wait for a client: %w", err)
	}
	defer listener.Close()
	defer context.AfterFunc(app.ctx, func() { _ = listener.Close() })()
	fmt.Fprintf(app.stderr, "waiting for the other end at %v, with %s\n", listener.Addr(), device.Name())
	for {
		connection, err := listener.Accept()
		if err != nil {
			return err
		}
		if err = c.play(app, device, connection); !errors.Is(err, errStranger) || app.ctx.Err() != nil {
			return err
		}
		fmt.Fprintln(app.stderr, oneLine(err))
	}
}

// play agrees with the other end on what is measured, has it measured and prints the result. It closes the connection.
func (c *perfCommand) play(app *application, device *verbs.Device, connection net.Conn) (err error) {
	defer connection.Close()
	plan, err := c.agree(app.ctx, connection)
	if err != nil {
		return err
	}
	address, err := chooseAddress(device, c.GID, connection)
	if err != nil {
		return err
	}
	table := perf.Table{Out: app.stdout, Gbit: c.Gbits}
	bar := newProgress(app.stderr)
	session := perf.Session{
		Device: device, Connection: connection, Client: c.Host != "", Plan: plan, Wait: perf.Wait(c.Wait), Address: address,
		Connected: func(r *perf.Result) {
			if !c.JSON {
				table.Begin(r)
			}
		},
		Ran: func(_ *perf.Result, run *perf.Run) {
			bar.end()
			if !c.JSON {
				table.Row(run)
			}
		},
		Progress: bar.show,
	}
	result, err := session.Run(app.ctx)
	bar.end()
	if err != nil {
		return err
	}
	if c.JSON {
		encoder := json.NewEncoder(app.stdout)
		encoder.SetIndent("", "  ")
		return encoder.Encode(result)
	}
	table.End(result)
	return nil
}

// agree tells the other end the wish of this one, and returns what follows from both.
func (c *perfCommand) agree(ctx context.Context, connection net.Conn) (*perf.Plan, error) {
	client := c.Host != ""
	stop := context.AfterFunc(ctx, func() { _ = connection.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	patience := 10 * time.Second
	if !client {
		patience = 3 * time.Second // a stranger must not keep the client waiting for longer than that one has patience
	}
	if err := limit(ctx, connection, patience); err != nil {
		return nil, err
	}
	terms := &perfTerms{Program: perf.Program, Version: perf.Version, Wish: c.wish()}
	other, err := exchangeTerms(connection, terms, client)
	if err != nil {
		return nil, err
	}
	if other.Version != perf.Version {
		return nil, usage("xroce perf speaks version %d here and %d at the other end", perf.Version, other.Version)
	}
	server, wish := terms.Wish, other.Wish
	if client {
		server, wish = wish, server
	}
	if err := wish.Check(); err != nil {
		return nil, err
	}
	wish = wish.Complete()
	if err := perf.Differ(wish, server, client); err != nil {
		return nil, err
	}
	if wish.PathMTU == nil {
		wish.PathMTU = server.PathMTU
	}
	return wish.Plan()
}
