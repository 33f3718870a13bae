//go:build linux

package guest

import (
	"bytes"
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/xroce/xroce/hack/interop/report"
	"github.com/xroce/xroce/internal/opener"
	"github.com/xroce/xroce/verbs"
)

// PingPongCommand is the end made of xroce for the ping-pong programs of rdma-core (libibverbs/examples), as a user
// would write it with package verbs. It takes turns with the other end, the client first, in SENDs of one size.
//
// What either end tells the other over TCP is text in one write of fixed length: LID, QPN, PSN and GID in hexadecimal
// with colons between, and a byte 0. The server answers when its queue pair is ready, and the client then says
// "done".
//
// The stock program has one buffer, filled with 0x7b (ibv_srq_pingpong: with 0), into which it receives and from
// which it sends: so it returns what it has got last. With -c its client puts 0 at the beginning of each page before
// it starts, and its server looks for that in what it has got last.
type PingPongCommand struct {
	Pattern   string        `arg:""`
	Server    string        `help:"Address of the stock program; without, this end is the server."`
	Device    string        `default:"v1"`
	Address   string        `default:"10.0.0.2" help:"GID of this end."`
	MTU       int           `default:"1024"`
	Size      int           `default:"4096"`
	Count     int           `default:"300" help:"Messages each way."`
	Endpoints int           `default:"1" help:"Endpoints that the stock program exchanges; it uses the first one."`
	Fill      byte          `default:"123" help:"What the stock program fills its buffer with."`
	Checked   bool          `help:"The stock program has -c."`
	Limit     time.Duration `default:"60s"`
}

const (
	stockPort  = "18515"
	stockPage  = 4096
	stockGuard = 0xee // what is behind the room for messages
)

// Run prints one answer, and before that, as the server, one that says that it listens.
func (c *PingPongCommand) Run() error {
	ctx, cancel := context.WithTimeout(context.Background(), c.Limit)
	defer cancel()
	seen, err := c.play(ctx)
	a := answer{Counters: seen}
	if err != nil {
		a.Error = report.OneLine(err.Error())
		_, a.Refused = sole[*unfit](err)
	}
	return errors.Join(err, json.NewEncoder(os.Stdout).Encode(a))
}

// unfit says that the path MTU is refused, which is all that may be.
type unfit struct{ error }

func (c *PingPongCommand) play(ctx context.Context) (seen map[string]uint64, err error) {
	pattern, err := mapFile(c.Pattern)
	if err != nil {
		return nil, err
	}
	device, err := verbs.OpenDevice(ctx, c.Device, opener.CheckOwners(verbs.Options{NoControl: true}))
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, device.Close()) }()
	p := &peer{device: device}
	if p.pd, err = device.AllocPD(); err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, p.pd.Dealloc()) }()
	defer func() { err = errors.Join(err, p.destroy()) }()
	local, err := p.create(&command{Length: 2*c.Size + stockPage, Address: c.Address})
	if err != nil {
		return nil, err
	}
	b := &ball{PingPongCommand: c, peer: p, pattern: pattern}
	if err := b.connect(ctx, local); err != nil {
		return nil, err
	}
	for b.received < c.Count || b.sent < c.Count {
		if err := b.complete(ctx); err != nil {
			return nil, fmt.Errorf("after %d messages sent and %d received: %w", b.sent, b.received, err)
		}
	}
	if rest := b.mr.Bytes()[2*c.Size:]; !bytes.Equal(rest, bytes.Repeat([]byte{stockGuard}, len(rest))) {
		return nil, errors.New("what is behind the room for messages has changed")
	}
	return map[string]uint64{"received": uint64(b.received), "sent": uint64(b.sent), "bytes": uint64(b.bytes)}, nil
}

// ball is the state of a game. Messages are sent from the beginning of the region and received behind that.
type ball struct {
	*PingPongCommand
	*peer
	pattern        []byte
	posted         int // sends
	sent, received int
	bytes          int
}

// connect exchanges the endpoints and connects the queue pair; receives are posted before the other end can send.
func (b *ball) connect(ctx context.Context, local *endpoint) error {
	connection, err := b.meet(ctx)
	if err != nil {
		return err
	}
	defer connection.Close()
	if deadline, ok := ctx.Deadline(); ok {
		_ = connection.SetDeadline(deadline)
	}
	mine := bytes.Repeat([]byte(endpointText(endpoint{Address: "::"})), b.Endpoints)
	copy(mine, endpointText(*local))
	if b.Server != "" {
		if _, err := connection.Write(mine); err != nil {
			return fmt.Errorf("send the endpoint: %w", err)
		}
	}
	theirs := make([]byte, len(mine))
	if _, err := io.ReadFull(connection, theirs); err != nil {
		return fmt.Errorf("read the endpoint: %w", err)
	}
	remote, err := parseEndpoint(theirs[:len(mine)/b.Endpoints])
	if err != nil {
		return err
	}
	copy(b.mr.Bytes()[2*b.Size:], bytes.Repeat([]byte{stockGuard}, stockPage))
	if err := b.peer.connect(&command{Remote: &remote, MTU: b.MTU, Retry: 7, RNRRetry: 7}); errors.Is(err, verbs.ErrPathMTU) {
		return &unfit{err}
	} else if err != nil {
		return err
	}
	for range 2 {
		if err := b.receive(); err != nil {
			return err
		}
	}
	const done = "done\x00"
	if b.Server != "" {
		if _, err := connection.Write([]byte(done)); err != nil {
			return fmt.Errorf("send \"done\": %w", err)
		}
		return b.send()
	}
	if _, err := connection.Write(mine); err != nil {
		return fmt.Errorf("send the endpoint: %w", err)
	}
	said := make([]byte, len(done))
	if _, err := io.ReadFull(connection, said); err != nil {
		return fmt.Errorf("read \"done\": %w", err)
	}
	if string(said) != done {
		return fmt.Errorf("the client says %q instead of \"done\"", said)
	}
	return nil
}

// meet is the TCP connection. The stock program says nothing when it listens, so its client tries until it does.
func (b *ball) meet(ctx context.Context) (net.Conn, error) {
	if b.Server == "" {
		listener, err := new(net.ListenConfig).Listen(ctx, "tcp", net.JoinHostPort(b.Address, stockPort))
		if err != nil {
			return nil, err
		}
		defer listener.Close()
		if err := json.NewEncoder(os.Stdout).Encode(answer{State: "listening"}); err != nil {
			return nil, err
		}
		if deadline, ok := ctx.Deadline(); ok {
			_ = listener.(*net.TCPListener).SetDeadline(deadline)
		}
		return listener.Accept()
	}
	for {
		connection, err := new(net.Dialer).DialContext(ctx, "tcp", net.JoinHostPort(b.Server, stockPort))
		if !errors.Is(err, unix.ECONNREFUSED) {
			return connection, err
		}
		select {
		case <-time.After(50 * time.Millisecond):
		case <-ctx.Done():
			return nil, err
		}
	}
}

func endpointText(e endpoint) string {
	gid := netip.MustParseAddr(e.Address).As16()
	return fmt.Sprintf("%04x:%06x:%06x:%x\x00", 0, e.QPN, e.PSN, gid)
}

func parseEndpoint(text []byte) (e endpoint, err error) {
	fields := bytes.Split(bytes.TrimSuffix(text, []byte{0}), []byte(":"))
	var gid [16]byte
	if len(fields) == 4 {
		_, err = fmt.Sscanf(string(fields[1])+" "+string(fields[2]), "%x %x", &e.QPN, &e.PSN)
		if n, failed := hex.Decode(gid[:], fields[3][:min(32, len(fields[3]))]); failed == nil && n == 16 && err == nil {
			e.Address = netip.AddrFrom16(gid).Unmap().String()
			return e, nil
		}
	}
	return e, fmt.Errorf("%q is no endpoint", text)
}

// content is message number i of this end: another one each time, with 0 where the stock program wants it.
func (b *ball) content(i int) []byte {
	from := i * 4099 % (len(b.pattern) - b.Size)
	message := slices.Clone(b.pattern[from : from+b.Size])
	for at := 0; at < len(message); at += stockPage {
		message[at] = 0
	}
	return message
}

// expected is message number i of the stock program.
func (b *ball) expected(i int) []byte {
	switch {
	case b.Server != "":
		return b.content(i)
	case i > 0:
		return b.content(i - 1)
	}
	message := bytes.Repeat([]byte{b.Fill}, b.Size)
	for at := 0; b.Checked && at < len(message); at += stockPage {
		message[at] = 0
	}
	return message
}

func (b *ball) receive() error {
	return b.qp.PostRecv(verbs.RecvWR{SGList: []verbs.SGE{b.mr.SGE(b.Size, b.Size)}})
}

func (b *ball) send() error {
	copy(b.mr.Bytes(), b.content(b.posted))
	b.posted++
	return b.qp.PostSend(verbs.SendWR{Opcode: verbs.WRSend, Flags: verbs.SendSignaled, SGList: []verbs.SGE{b.mr.SGE(0, b.Size)}})
}

// complete waits for completions and does what comes next: the next message goes out when the last one has arrived
// and that of the other end is here.
func (b *ball) complete(ctx context.Context) error {
	if err := b.cq.Wait(ctx); err != nil {
		return err
	}
	var wcs [4]verbs.WC
	n, err := b.cq.Poll(wcs[:])
	if err != nil {
		return err
	}
	for _, wc := range wcs[:n] {
		switch {
		case wc.Status != verbs.WCSuccess:
			return errors.New(b.qp.Explain(wc))
		case wc.Opcode != verbs.WCRecv:
			b.sent++
			continue
		case int(wc.ByteLen) != b.Size:
			return fmt.Errorf("message of %d bytes instead of %d", wc.ByteLen, b.Size)
		}
		want, got := b.expected(b.received), b.mr.Bytes()[b.Size:2*b.Size]
		if !bytes.Equal(want, got) {
			return fmt.Errorf("content differs from byte %d on", differs(want, got))
		}
		b.received++
		b.bytes += len(got)
		if err := b.receive(); err != nil {
			return err
		}
	}
	first := 0
	if b.Server != "" {
		first = 1 // the client's first message answers none
	}
	if b.posted < b.Count && b.sent == b.posted && b.received == b.posted+1-first {
		return b.send()
	}
	return nil
}

func differs(a, b []byte) int {
	for i := range a {
		if a[i] != b[i] {
			return i
		}
	}
	return len(a)
}
