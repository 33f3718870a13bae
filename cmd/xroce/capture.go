package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/xroce/xroce/internal/control"
	"github.com/xroce/xroce/verbs"
)

// captureCommand writes the packets of devices that processes of this machine serve. The processes stream the packets
// from their control sockets. The letters of the flags are tcpdump's.
type captureCommand struct {
	servedFlag
	Write       string        `short:"w" required:"" placeholder:"FILE" help:"Where the capture goes, in the pcapng format; - is the standard output."`
	QPN         []qpnFlag     `name:"qpn" placeholder:"QPN" help:"Only the packets of queue pairs with this number, here or at the peer; can be given several times."`
	Opcode      []string      `placeholder:"NAME" help:"Only packets of this opcode, by its name in the counters, or by a pattern: RC_SEND_ONLY, 'RC_RDMA_READ*'; can be given several times."`
	Count       uint64        `short:"c" default:"0" help:"End after so many packets; 0 does not."`
	Duration    time.Duration `default:"0s" help:"End after this time; 0 does not."`
	SnapLength  int           `name:"snaplen" short:"s" default:"0" help:"Bytes of each frame that are kept; 0 keeps all."`
	RotateSize  int64         `short:"C" default:"0" placeholder:"MB" help:"Go on in another file, with a number behind its name, before one gets larger than so many millions of bytes."`
	RotateFiles int           `short:"W" default:"0" placeholder:"N" help:"With -C: begin again with the first file after so many."`
	BufferSize  int           `short:"B" default:"0" placeholder:"KIB" help:"Memory in each process for packets that are not written yet, in KiB for each queue; 0 means 4096."`
}

// qpnFlag is a QPN, decimal or hexadecimal with 0x.
type qpnFlag verbs.QPN

// UnmarshalText implements encoding.TextUnmarshaler.
func (q *qpnFlag) UnmarshalText(text []byte) error {
	n, err := strconv.ParseUint(string(text), 0, 24)
	if err != nil {
		return fmt.Errorf("%q is no QPN: it has 24 bits, such as 0x4711 or 18193", text)
	}
	*q = qpnFlag(n)
	return nil
}

func (c *captureCommand) options() verbs.CaptureOptions {
	o := verbs.CaptureOptions{SnapLength: c.SnapLength, Opcodes: c.Opcode, BufferSize: c.BufferSize << 10}
	for _, n := range c.QPN {
		o.QPNs = append(o.QPNs, verbs.QPN(n))
	}
	return o
}

// check looks at the command line.
func (c *captureCommand) check(app *application) error {
	const million = 1_000_000
	switch {
	case c.Duration < 0:
		return usage("--duration %v is below 0", c.Duration)
	case c.RotateSize < 0 || c.RotateSize > 1<<20:
		return usage("-C/--rotate-size %d is not in 0..%d", c.RotateSize, 1<<20)
	case c.RotateFiles < 0 || c.RotateFiles > million:
		return usage("-W/--rotate-files %d is not in 0..%d", c.RotateFiles, million)
	case c.RotateFiles > 0 && c.RotateSize == 0:
		return usage("-W/--rotate-files needs -C/--rotate-size")
	case c.RotateSize > 0 && c.Write == "-":
		return usage("-C/--rotate-size needs a file to write to, -w - is the standard output")
	case c.Write == "-" && isTerminal(app.stdout):
		return usage("a capture is not for a terminal: name a file with -w, or pipe it to wireshark -k -i -")
	case c.BufferSize < 0 || c.BufferSize > 1<<20:
		return usage("-B/--buffer-size %d is not in 0..%d", c.BufferSize, 1<<20)
	}
	if err := c.options().Check(); err != nil {
		return usage("%w", err)
	}
	return nil
}

// Run captures until a signal, the count, the duration, or the end of the last process.
func (c *captureCommand) Run(app *application) error {
	if err := c.check(app); err != nil {
		return err
	}
	options, err := json.Marshal(c.options())
	if err != nil {
		return err
	}
	sockets, err := c.choose(app.ctx)
	if err != nil {
		return err
	}
	sources, err := c.connect(app, sockets, options)
	if err != nil {
		return err
	}
	defer func() {
		for _, s := range sources {
			_ = s.connection.Close()
		}
	}()
	out, err := newCaptureOutput(app.ctx, app.stdout, c.Write, sources, c.Count, c.RotateSize*1_000_000, c.RotateFiles)
	switch {
	case app.ctx.Err() != nil:
		return context.Cause(app.ctx)
	case err != nil:
		return usage("%w", err)
	}
	return c.capture(app, sources, out)
}

// choose returns the sockets of the devices that are meant.
func (c *captureCommand) choose(ctx context.Context) ([]control.Socket, error) {
	folder, err := controlFolder()
	if err != nil {
		return nil, err
	}
	network, err := c.network()
	if err != nil {
		return nil, err
	}
	all, err := listSockets(folder)
	if err != nil {
		return nil, err
	}
	var chosen []control.Socket
	var others []string
	for _, s := range all {
		wanted, silent := c.Device == "" || s.Device == c.Device, ""
		if wanted {
			var err error
			if wanted, err = in(ctx, network, s); err != nil {
				silent = fmt.Sprintf(" (%v)", explainAccess(err))
			}
		}
		if wanted {
			chosen = append(chosen, s)
		} else {
			others = append(others, fmt.Sprintf("%s by process %d%s", s.Device, s.PID, silent))
		}
	}
	switch {
	case len(chosen) > 0:
		return chosen, nil
	case len(others) > 0:
		return nil, usage("no process serves %s; served are %s", c.text(), strings.Join(others, ", "))
	}
	return nil, c.none(folder)
}

// connect begins the captures. Processes that have ended meanwhile are left out.
func (c *captureCommand) connect(app *application, sockets []control.Socket,
	options []byte) (list []*captureSource, err error) {
	var failures []error
	for _, socket := range sockets {
		limited, cancel := context.WithTimeoutCause(app.ctx, answerTime, errNoAnswer)
		s, err := newCaptureSource(limited, socket, options, len(list))
		cancel()
		switch {
		case app.ctx.Err() != nil:
			err = context.Cause(app.ctx)
			for _, s := range list {
				_ = s.connection.Close()
			}
			return nil, err
		case err == nil:
			list = append(list, s)
		default:
			failures = append(failures, fmt.Errorf("%s of process %d: %w", socket.Device, socket.PID, explainAccess(err)))
		}
	}
	if len(list) == 0 {
		return nil, usage("%w", errors.Join(failures...))
	}
	for _, f := range failures {
		fmt.Fprintln(app.stderr, "xroce: not captured:", oneLine(f))
	}
	return list, nil
}

var errNoAnswer = errors.New("no answer: is the process stopped?")

const (
	// flushInterval is how long a packet may stay in the tool: a reader at the end of a pipe sees it then.
	flushInterval = 100 * time.Millisecond
	// endTime is how long a process may take to send the rest of a capture that is to end.
	endTime = 3 * time.Second
)

// capture copies from the sources until the end.
func (c *captureCommand) capture(app *application, sources []*captureSource, out *captureOutput) error {
	var running sync.WaitGroup
	for _, s := range sources {
		running.Go(func() {
			s.copyTo(out)
			if s.failure != nil {
				fmt.Fprintln(app.stderr, "xroce:", oneLine(s.failure))
			}
		})
	}
	finished := make(chan struct{})
	go func() { running.Wait(); close(finished) }()

	var over <-chan time.Time
	if c.Duration > 0 {
		over = time.After(c.Duration)
	}
	closing := make(chan struct{})
	defer close(closing)
	go out.flushUntil(closing) // it waits where the output is not read, and what follows must not
	gone := false
	select {
	case <-finished:
		gone = true
	case <-app.ctx.Done():
	case <-over:
	case <-out.enough:
	}
	for _, s := range sources {
		s.stop()
	}
	closed := make(chan error, 1)
	go func() { <-finished; closed <- out.close() }()
	var err error
	select {
	case err = <-closed:
	case <-time.After(endTime + time.Second):
		return fmt.Errorf("%s is not read: the capture is incomplete", out.describe())
	}
	packets, leftOut := uint64(0), uint64(0)
	for _, s := range sources {
		packets += s.statistics.Delivered
		leftOut += s.statistics.Dropped
		err = errors.Join(err, s.failure)
	}
	if gone && err == nil {
		fmt.Fprintf(app.stderr, "no process serves %s any more\n", c.text())
	}
	fmt.Fprintf(app.stderr, "%d packets captured, %d left out%s\n", packets, leftOut, remedy(leftOut))
	switch {
	case err == nil:
		return nil
	case out.err == nil: // the sources have told
		return errReported
	}
	return out.err
}

// isTerminal says whether a writer is a terminal.
func isTerminal(out any) bool {
	file, ok := out.(*os.File)
	return ok && terminal(file)
}

// remedy says what to do about packets that were left out.
func remedy(leftOut uint64) string {
	if leftOut == 0 {
		return ""
	}
	return " since they came faster than they were written: a larger -B, a smaller -s, or --qpn and --opcode let more through"
}
