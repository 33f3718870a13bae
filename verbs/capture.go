package verbs

// A capture is written by a goroutine of its own. It looks for packets now and then instead of being woken, so that the
// data path does nothing for it but the copying.

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/xroce/xroce/internal/control"
	"github.com/xroce/xroce/internal/pcapng"
	"github.com/xroce/xroce/roce"
	"github.com/xroce/xroce/roce/driver"
	"github.com/xroce/xroce/roce/link/capture"
)

// WantCapture asks the control socket for a capture: Request.Options are CaptureOptions, and the answer is a capture
// that goes on until the client shuts down its end of the connection.
const WantCapture = "capture"

const (
	// lookInterval is how often a capture looks for packets: in a millisecond 10 Gbit/s fill a quarter of the buffer.
	lookInterval = time.Millisecond
	// flushPackets is after how many packets in a row it looks whether it is to end.
	flushPackets = 1024
)

// CaptureOptions of StartCapture; the zero value captures everything.
type CaptureOptions struct {
	// SnapLength is how many bytes of each frame are kept, from its Ethernet header on; 0 keeps all.
	SnapLength int `json:"snapLength,omitempty"`
	// QPNs chooses the packets of queue pairs that have one of these numbers here or at the peer, at most 64.
	QPNs []QPN `json:"qpns,omitempty"`
	// Opcodes chooses packets by the names that counters have, "RC_SEND_ONLY" for one; "RC_RDMA_READ*" is a pattern.
	// Frames that are no packets for any queue pair, which the engine drops, are only there if nothing is chosen.
	Opcodes []string `json:"opcodes,omitempty"`
	// BufferSize is the memory for packets that are not written yet, in bytes for each queue of the device; 0 means 4
	// MiB.
	BufferSize int `json:"bufferSize,omitempty"`
}

// Check says what is wrong with the options, with an error that wraps ErrInvalid.
func (o CaptureOptions) Check() error {
	_, err := o.driver()
	return err
}

func (o CaptureOptions) driver() (driver.CaptureOptions, error) {
	d := driver.CaptureOptions{SnapLength: o.SnapLength, BufferSize: o.BufferSize}
	switch {
	case o.SnapLength < 0:
		return d, fmt.Errorf("%w: snap length %d is below 0", ErrInvalid, o.SnapLength)
	case o.BufferSize < 0 || o.BufferSize > capture.MaximumSize:
		return d, fmt.Errorf("%w: buffer of %d bytes is not in 0..%d", ErrInvalid, o.BufferSize, capture.MaximumSize)
	case len(o.QPNs) > capture.MaxQPNs:
		return d, fmt.Errorf("%w: %d QPNs, the limit is %d", ErrInvalid, len(o.QPNs), capture.MaxQPNs)
	}
	for _, n := range o.QPNs {
		if n == 0 || n > roce.QPNMask {
			return d, fmt.Errorf("%w: QPN %#x is not in 1..%#x", ErrInvalid, uint32(n), roce.QPNMask)
		}
	}
	opcodes, err := capture.Opcodes(o.Opcodes)
	if err != nil {
		return d, fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	d.Filter = capture.NewFilter(o.QPNs, opcodes)
	return d, nil
}

// CaptureStats says what became of the packets that a capture was to have.
type CaptureStats struct {
	Packets uint64 // written
	LeftOut uint64 // not written, because the writer was too slow for them; the capture says where
}

// Capture writes the packets of a device. All methods may be called concurrently.
type Capture struct {
	device  *Device
	source  *driver.Capture
	out     *pcapng.Writer
	begun   time.Duration // since the Unix epoch, when the device's clock was at zero
	started time.Duration // since the Unix epoch

	end      chan struct{} // closed by Stop
	endOnce  sync.Once
	finished chan struct{}

	stats CaptureStats // valid when it has finished, and so is
	err   error
}

// StartCapture writes the RoCE packets that the device receives and sends from now on to w, in the pcapng format, for
// Wireshark: tcpdump does not see what XDP has redirected. Comments tell which packets were dropped, with the names of
// the counters of drops, and which were sent again. Packets are as they were on the wire, ICRC included, with the time
// of the turn of the engine that dealt with them. Traffic that stays in the process (to an address of the device
// itself) appears sent and received.
//
// The engine never waits for w. What is written too slowly is left out and counted, in the comment of the next packet
// and in CaptureStats. The capture ends by Stop, by an error of w, or with the device. Several can go on at once.
func (d *Device) StartCapture(w io.Writer, o CaptureOptions) (*Capture, error) {
	if err := d.check(); err != nil {
		return nil, err
	}
	if w == nil {
		return nil, fmt.Errorf("capture: %w: no writer", ErrInvalid)
	}
	options, err := o.driver()
	if err != nil {
		return nil, err
	}
	c := &Capture{device: d, end: make(chan struct{}), finished: make(chan struct{})}
	program := "a program"
	if len(os.Args) > 0 {
		program = filepath.Base(os.Args[0])
	}
	c.out, err = pcapng.NewWriter(w, pcapng.Interface{
		Name: d.Name(), SnapLength: o.SnapLength, Description: fmt.Sprintf("process %d, %s", os.Getpid(), program),
	})
	if err != nil {
		return nil, err
	}
	d.belongings.life.RLock()
	defer d.belongings.life.RUnlock()
	if d.belongings.closed {
		return nil, d.closedError()
	}
	c.started = wallClock()
	c.begun = c.started - d.driver.Clock()
	if c.source, err = d.driver.StartCapture(options); err != nil {
		return nil, err
	}
	d.captures.Go(c.run)
	return c, nil
}

func wallClock() time.Duration { return time.Duration(time.Now().UnixNano()) }

// check tells a capture that was started from nil and from a zero value.
func (c *Capture) check() error {
	if c == nil || c.device == nil {
		return fmt.Errorf("capture: %w: nil, or not made by StartCapture", ErrInvalid)
	}
	return nil
}

// Stop ends the capture, waits until everything was written that it has, and says how much that is. The error is that
// of the writer, if any. The writer is the caller's again. Calling it again returns the same.
func (c *Capture) Stop() (CaptureStats, error) {
	if err := c.check(); err != nil {
		return CaptureStats{}, err
	}
	c.endOnce.Do(func() { close(c.end) })
	<-c.finished
	return c.stats, c.err
}

// Done is closed when the capture has ended, by itself or by Stop.
func (c *Capture) Done() <-chan struct{} {
	must(c.check())
	return c.finished
}

// run writes packets until the end, and then what there is.
func (c *Capture) run() {
	defer close(c.finished)
	tick := time.NewTicker(lookInterval)
	defer tick.Stop()
	err := c.out.Flush() // a reader has a valid capture before the first packet
	for err == nil && !c.ending() {
		select {
		case <-c.end:
		case <-c.device.driver.Done():
		case <-tick.C:
			for more := true; more && err == nil && !c.ending(); {
				more, err = c.write(flushPackets)
			}
		}
	}
	c.source.Stop()
	for more := err == nil; more; {
		more, err = c.write(flushPackets)
	}
	c.stats.LeftOut = c.source.LeftOut()
	c.err = errors.Join(err, c.finish(err))
}

// ending says that it was stopped, or that the device was closed.
func (c *Capture) ending() bool {
	select {
	case <-c.end:
		return true
	case <-c.device.driver.Done():
		return true
	default:
		return false
	}
}

// write writes at most so many packets, and reports whether there may be more.
func (c *Capture) write(most int) (more bool, err error) {
	var out pcapng.Packet
	n := 0
	for ; n < most; n++ {
		p, found := c.source.Next()
		if !found {
			break
		}
		out = pcapng.Packet{
			At: c.begun + time.Duration(p.Time), Direction: pcapng.Inbound, Data: p.Data, Length: p.Length,
			LeftOut: p.LeftOut, Comment: p.Comment(),
		}
		if p.Mark&capture.Outbound != 0 {
			out.Direction = pcapng.Outbound
		}
		if err := c.out.WritePacket(&out); err != nil {
			return false, err
		}
		c.stats.Packets++
	}
	if n == 0 {
		return false, nil
	}
	return n == most, c.out.Flush()
}

// finish writes the statistics, unless the writer has failed.
func (c *Capture) finish(failure error) error {
	if failure != nil {
		return nil
	}
	s := pcapng.Statistics{
		Start: c.started, End: wallClock(),
		Received: c.stats.Packets + c.stats.LeftOut, Dropped: c.stats.LeftOut, Delivered: c.stats.Packets,
	}
	if c.stats.LeftOut > 0 {
		s.Comment = fmt.Sprintf("%d packets are left out: the capture was read too slowly", c.stats.LeftOut)
	}
	return errors.Join(c.out.WriteStatistics(&s), c.out.Flush())
}

// answerCapture streams a capture to a client of the control socket, until that has enough of it or is gone.
func (d *Device) answerCapture(ctx context.Context, request control.Request, out io.Writer) error {
	var o CaptureOptions
	if len(request.Options) > 0 {
		if err := json.Unmarshal(request.Options, &o); err != nil {
			return fmt.Errorf("%w: options of a capture: %w", ErrInvalid, err)
		}
	}
	c, err := d.StartCapture(out, o)
	if err != nil {
		return err
	}
	select {
	case <-ctx.Done():
	case <-c.Done():
	}
	_, err = c.Stop()
	return err
}
