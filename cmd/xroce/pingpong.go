package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"time"

	"github.com/xroce/xroce/internal/jsonline"
	"github.com/xroce/xroce/verbs"
)

// pingpongCommand is a test between two machines. The one that gives a host is the client.
type pingpongCommand struct {
	Host   string `arg:"" optional:"" help:"Host where the other end waits; without it, wait."`
	Port   uint16 `short:"p" default:"18515" help:"TCP port for the exchange of addresses; whoever waits may let the kernel choose one by 0."`
	Device string `short:"d" name:"ib-dev" placeholder:"NAME" help:"Network device (default: towards the host, or the only one that can serve)."`
	IBPort int    `short:"i" name:"ib-port" default:"1" help:"Port of the device, of which there is only 1."`
	Level  int    `short:"l" name:"sl" default:"0" help:"Service level, of which there is only 0."`
	Size   int    `short:"s" default:"4096" help:"Bytes of a message."`
	MTU    int    `short:"m" name:"mtu" placeholder:"BYTES" help:"Path MTU: 256, 512, 1024, 2048 or 4096 (default: the largest that both ends carry)."`
	Depth  int    `short:"r" name:"rx-depth" default:"500" help:"Receives to post at a time."`
	Iters  int    `short:"n" name:"iters" default:"1000" help:"Round trips."`
	Events bool   `short:"e" name:"events" help:"Sleep while waiting instead of polling."`
	GID    int    `short:"g" name:"gid-idx" placeholder:"INDEX" default:"-1" help:"Index of the local GID (default: the address that reaches the host)."`
	Check  bool   `short:"c" name:"chk" help:"Check the content of every message."`
	JSON   bool   `name:"json" help:"Print the result as JSON."`
	modeFlag
	netnsFlag
}

// pingpongResult is the result, also as JSON.
type pingpongResult struct {
	Device      string            `json:"device"`
	XDPMode     string            `json:"xdpMode"`
	ZeroCopy    bool              `json:"zeroCopy"`
	MultiBuffer bool              `json:"multiBuffer"` // frames may take more than one buffer
	NotTaken    []string          `json:"notTaken"`    // better ways of carrying frames, and why they were not taken
	PathMTU     int               `json:"pathMTU"`     // bytes
	Local       verbs.Endpoint    `json:"local"`
	Remote      verbs.Endpoint    `json:"remote"`
	Iterations  int               `json:"iterations"`
	CutShort    bool              `json:"cutShort"` // by a signal, before all that were asked for
	Bytes       int64             `json:"bytes"`    // both ways
	Seconds     float64           `json:"seconds"`
	Mbit        float64           `json:"mbitPerSecond"`
	RoundTrip   float64           `json:"microsecondsPerIteration"`
	Retransmits uint64            `json:"retransmissions"`
	Drops       map[string]uint64 `json:"drops"`
}

// Run runs either end.
func (c *pingpongCommand) Run(app *application) (err error) {
	if err := c.check(); err != nil {
		return err
	}
	device, err := chooseDevice(app.ctx, c.netnsFlag, c.Device, c.Host)
	if err != nil {
		return err
	}
	var pathMTU verbs.MTU
	if c.MTU != 0 {
		if pathMTU, err = parsePathMTU(c.MTU); err != nil {
			return err
		}
	}
	r, err := openRDMA(app.ctx, device, c.path(), c.mode(), pathMTU, c.Depth+1)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.close()) }()
	memory, err := verbs.AllocBuffer(2 * c.Size)
	if err != nil {
		return err
	}
	if err := r.register(memory); err != nil {
		return err
	}
	if c.Host == "" {
		return c.serve(app, r)
	}
	connection, err := c.reach(app.ctx, c.Host, c.Port, "pingpong")
	if err != nil {
		return err
	}
	return c.play(app, r, connection)
}

func (c *pingpongCommand) check() error {
	for _, limit := range []struct {
		flag               string
		value, least, most int
	}{
		{"-s/--size", c.Size, 1, 1 << 30},
		{"-r/--rx-depth", c.Depth, 1, verbs.MaxQPWR - 1},
		{"-n/--iters", c.Iters, 1, 1 << 30},
		{"-g/--gid-idx", c.GID, -1, 1 << 16},
	} {
		if limit.value < limit.least || limit.value > limit.most {
			return usage("%s %d is not in %d..%d", limit.flag, limit.value, limit.least, limit.most)
		}
	}
	switch {
	case c.IBPort != 1:
		return usage("-i/--ib-port %d: a device has only port 1", c.IBPort)
	case c.Level != 0:
		return usage("-l/--sl %d: RoCEv2 over a network device has only service level 0", c.Level)
	case c.Host != "" && c.Port == 0:
		return usage("-p/--port 0: name the port at which %s waits", c.Host)
	}
	if c.MTU != 0 {
		if _, err := parsePathMTU(c.MTU); err != nil {
			return err
		}
	}
	return checkHost(c.Host, c.Device)
}

// serve waits for the other end. Strangers that connect are turned away.
func (c *pingpongCommand) serve(app *application, r *rdma) error {
	listener, err := c.listen(app.ctx, c.Port)
	if err != nil {
		return usage("wait for the other end: %w", err)
	}
	defer listener.Close()
	defer context.AfterFunc(app.ctx, func() { _ = listener.Close() })()
	fmt.Fprintf(app.stderr, "waiting for the other end at %v, with %s\n", listener.Addr(), r.device.Name())
	for {
		connection, err := listener.Accept()
		if err != nil {
			return err
		}
		if err = c.play(app, r, connection); !errors.Is(err, errStranger) || app.ctx.Err() != nil {
			return err
		}
		fmt.Fprintln(app.stderr, oneLine(err))
	}
}

// play agrees with the other end, connects the queue pairs, has the messages go and prints the result. It closes the
// connection.
func (c *pingpongCommand) play(app *application, r *rdma, connection net.Conn) error {
	defer connection.Close()
	ctx, cancel := context.WithCancelCause(app.ctx)
	defer cancel(nil)
	// Ends whatever is read from the other end.
	defer context.AfterFunc(ctx, func() { _ = connection.SetDeadline(time.Unix(1, 0)) })()
	local, remote, err := c.connect(ctx, r, connection)
	if err != nil {
		return err
	}
	if !c.JSON {
		printEndpoint(app.stdout, "local", local)
		printEndpoint(app.stdout, "remote", remote)
	}
	// The other end says when it is done. Until then it is needed, and afterwards no acknowledgement to it is missing.
	over := make(chan error, 1)
	go func() {
		err := otherEnd(expectLine(connection, pingpongDone))
		if err != nil {
			cancel(err)
		}
		over <- err
	}()
	took, done, err := c.exchange(ctx, r)
	if err == nil {
		if err = otherEnd(jsonline.Write(connection, pingpongDone)); err == nil {
			err = <-over
		}
	}
	// Whoever interrupted either end wants to know what there is so far.
	interrupted := app.ctx.Err() != nil || errors.Is(err, errOtherEndGone)
	if done > 0 && (err == nil || interrupted) {
		err = errors.Join(err, c.print(app, c.report(r, local, remote, took, done)))
	}
	return err
}

// Lines that both ends send by TCP after their terms.
const (
	pingpongReady = "ready"
	pingpongDone  = "done"
)

var errOtherEndGone = errors.New("the other end is gone")

// otherEnd explains an error of the TCP connection.
func otherEnd(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%w: %w", errOtherEndGone, err)
}

func expectLine(connection net.Conn, want string) error {
	var got string
	if err := jsonline.Read(connection, &got); err != nil {
		return err
	}
	if got != want {
		return fmt.Errorf("it says %q instead of %q", got, want)
	}
	return nil
}

// limit bounds the time of what is read and written next. The end of ctx, which sets the deadline too, is not
// overwritten.
func limit(ctx context.Context, connection net.Conn, d time.Duration) error {
	err := connection.SetDeadline(time.Now().Add(d))
	if ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	return err
}

// connect agrees with the other end on the terms, connects the queue pairs and posts the receives.
func (c *pingpongCommand) connect(ctx context.Context, r *rdma, connection net.Conn) (local, remote verbs.Endpoint, err error) {
	r.options.Address, err = chooseAddress(r.device, c.GID, connection)
	if c.MTU == 0 {
		peer := connection.RemoteAddr().(*net.TCPAddr).AddrPort().Addr().Unmap()
		r.options.PathMTU, r.options.Peer = 0, peer
	}
	if err == nil {
		local, err = r.qp.Endpoint(r.options)
	}
	if err == nil {
		patience := 10 * time.Second
		if c.Host == "" {
			patience = 3 * time.Second // a stranger must not keep the client waiting for longer than that one has patience
		}
		err = limit(ctx, connection, patience)
	}
	if err != nil {
		return local, remote, err
	}
	terms := c.terms(local)
	others, err := exchangeTerms(connection, terms, c.Host != "")
	if err != nil {
		return local, remote, err
	}
	remote = others.Endpoint
	if err := terms.differ(others); err != nil {
		return local, remote, err
	}
	if err := limit(ctx, connection, 10*time.Second); err != nil {
		return local, remote, err
	}
	r.options.PathMTU = min(local.MTU, remote.MTU)
	limited, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	if err := r.qp.Connect(limited, remote, r.options); err != nil {
		return local, remote, err
	}
	for range c.Depth {
		if err := c.postReceive(r); err != nil {
			return local, remote, err
		}
	}
	if err = jsonline.Write(connection, pingpongReady); err == nil {
		err = expectLine(connection, pingpongReady)
	}
	err = otherEnd(err)
	if err == nil {
		err = connection.SetDeadline(time.Time{})
	}
	return local, remote, err
}

// The first half of the memory is what is sent, the second what is received: of a ping-pong, one message is under way.
func (c *pingpongCommand) postReceive(r *rdma) error {
	return r.qp.PostRecv(verbs.RecvWR{SGList: []verbs.SGE{r.mr.SGE(c.Size, c.Size)}})
}

// exchange has the messages go. The client sends first. It returns how many have arrived, also with an error, and in
// which time.
func (c *pingpongCommand) exchange(ctx context.Context, r *rdma) (took time.Duration, received int, err error) {
	client := c.Host != ""
	done := completions{rdma: r, events: c.Events}
	start := time.Now()
	for sent, completed := 0, 0; received < c.Iters || completed < c.Iters; {
		if sent < c.Iters && sent == completed && (client && sent == received || !client && sent < received) {
			if c.Check {
				fill(r.mr.Bytes()[:c.Size], sent)
			}
			if err := r.qp.PostSend(verbs.SendWR{
				Opcode: verbs.WRSend, Flags: verbs.SendSignaled, SGList: []verbs.SGE{r.mr.SGE(0, c.Size)},
			}); err != nil {
				return time.Since(start), received, err
			}
			sent++
		}
		wc, err := done.wait(ctx)
		if err != nil {
			return time.Since(start), received, fmt.Errorf("after %d of %d messages: %w", received, c.Iters, err)
		}
		if wc.Opcode == verbs.WCSend {
			completed++
			continue
		}
		if int(wc.ByteLen) != c.Size {
			return time.Since(start), received, fmt.Errorf("message %d has %d bytes instead of %d", received, wc.ByteLen, c.Size)
		}
		if c.Check {
			if err := verify(r.mr.Bytes()[c.Size:], received); err != nil {
				return time.Since(start), received, err
			}
		}
		received++
		if err := c.postReceive(r); err != nil {
			return time.Since(start), received, err
		}
	}
	return time.Since(start), received, nil
}

// fill makes the content of a message, which depends on its number.
func fill(message []byte, number int) {
	for i := range message {
		message[i] = byte(i + i>>8 + number)
	}
}

func verify(message []byte, number int) error {
	for i, b := range message {
		if want := byte(i + i>>8 + number); b != want {
			return fmt.Errorf("message %d: byte %d is %#x instead of %#x", number, i, b, want)
		}
	}
	return nil
}

func printEndpoint(out io.Writer, name string, e verbs.Endpoint) {
	// There are no LIDs in RoCE; the field keeps the line that of ibv_rc_pingpong.
	fmt.Fprintf(out, "  %-15s LID 0x0000, QPN %v, PSN 0x%06x, GID %v\n",
		name+" address:", e.QPN, uint32(e.PSN), e.Address)
}

func (c *pingpongCommand) report(r *rdma, local, remote verbs.Endpoint, took time.Duration, iterations int) *pingpongResult {
	i := r.device.Information()
	counters := r.device.Counters()
	bytes := 2 * int64(c.Size) * int64(iterations)
	return &pingpongResult{
		Device: i.Name, XDPMode: i.Mode, ZeroCopy: i.ZeroCopy, MultiBuffer: i.MultiBuffer,
		NotTaken: append([]string{}, i.NotTaken...), PathMTU: r.options.PathMTU.Bytes(), Local: local, Remote: remote,
		Iterations: iterations, CutShort: iterations < c.Iters, Bytes: bytes, Seconds: took.Seconds(), Mbit: float64(bytes) * 8 / took.Seconds() / 1e6,
		RoundTrip: took.Seconds() * 1e6 / float64(iterations), Retransmits: counters.Counts["retransmitted_pkts"],
		Drops: counters.Drops,
	}
}

func (c *pingpongCommand) print(app *application, r *pingpongResult) error {
	if c.JSON {
		encoder := json.NewEncoder(app.stdout)
		encoder.SetIndent("", "  ")
		return encoder.Encode(r)
	}
	_, err := fmt.Fprintf(app.stdout, "%d bytes in %.2f seconds = %.2f Mbit/sec\n%d iters in %.2f seconds = %.2f usec/iter\n",
		r.Bytes, r.Seconds, r.Mbit, r.Iterations, r.Seconds, r.RoundTrip)
	return err
}
