package driver

// Captures: copies of the packets that pass through a device, with what became of them.
//
// A received frame is shown by the shard that judges it: where its QP is at home or, if nobody there will see it, where
// it came in. A sent one is shown when its queue pair has written it, on loopback too, so that a packet from the device
// to itself appears twice, as it would on two devices. Without a capture a shard looks at the length of an empty list
// for each frame. Taps are changed under the lock of the shard.

import (
	"fmt"
	"slices"

	"github.com/xroce/xroce/internal/lockorder"
	"github.com/xroce/xroce/roce"
	"github.com/xroce/xroce/roce/link/capture"
	"github.com/xroce/xroce/roce/transport"
)

// maxCaptures is how many captures a device can have at once: each copies all that it chooses.
const maxCaptures = 8

// CaptureOptions of a Capture; the zero value works.
type CaptureOptions struct {
	Filter     capture.Filter
	SnapLength int // bytes of a frame that are kept; 0 keeps all
	BufferSize int // bytes for each shard, as capture.NewBuffer has it; 0 means 4 MiB
}

// defaultBufferSize is what passes in some milliseconds at 10 Gbit/s, so that a reader has to come that often.
const defaultBufferSize = 4 << 20

// captures are those of a device.
type captures struct {
	mu   lockorder.Mutex[lockorder.Captures]
	list []*Capture
}

// Capture collects packets until it is closed. Its methods belong to one goroutine at a time.
type Capture struct {
	device  *Device
	buffers []*capture.Buffer // by shard
	last    *capture.Buffer   // has lent a packet
}

// StartCapture begins a capture: every packet that the device judges or sends after the return is in it.
func (d *Device) StartCapture(o CaptureOptions) (*Capture, error) {
	if o.SnapLength < 0 || o.BufferSize < 0 || o.BufferSize > capture.MaximumSize {
		return nil, fmt.Errorf("%w: snap length %d and buffer size %d must not be below 0, nor the latter above %d",
			ErrInvalid, o.SnapLength, o.BufferSize, capture.MaximumSize)
	}
	if o.BufferSize == 0 {
		o.BufferSize = defaultBufferSize
	}
	d.captures.mu.Lock()
	defer d.captures.mu.Unlock()
	select {
	case <-d.done:
		return nil, fmt.Errorf("device %s: %w", d.link.Information().Name, ErrClosed)
	default:
	}
	if len(d.captures.list) >= maxCaptures {
		return nil, fmt.Errorf("%w: capture number %d of %s, there can be %d at once",
			ErrLimit, len(d.captures.list)+1, d.link.Information().Name, maxCaptures)
	}
	c := &Capture{device: d}
	for range d.shards {
		c.buffers = append(c.buffers, capture.NewBuffer(o.BufferSize, o.SnapLength, o.Filter))
	}
	for i, s := range d.shards {
		s.mu.Lock()
		s.taps = append(slices.Clip(s.taps), c.buffers[i])
		s.engine.SetTap((*tap)(s))
		s.unlock()
	}
	d.captures.list = append(d.captures.list, c)
	return c, nil
}

// Stop ends the collection. What was collected can still be read.
func (c *Capture) Stop() {
	d := c.device
	d.captures.mu.Lock()
	defer d.captures.mu.Unlock()
	for i, s := range d.shards {
		s.mu.Lock()
		s.taps = slices.DeleteFunc(slices.Clone(s.taps), func(b *capture.Buffer) bool { return b == c.buffers[i] })
		if len(s.taps) == 0 {
			s.engine.SetTap(nil)
		}
		s.unlock()
	}
	d.captures.list = slices.DeleteFunc(d.captures.list, func(o *Capture) bool { return o == c })
}

// Next returns the oldest packet that was collected and not returned yet, found is false if there is none now. Its Data
// are valid until the next call. Packets of different shards may be in another order than their times by what a turn
// takes.
func (c *Capture) Next() (p capture.Packet, found bool) {
	if c.last != nil {
		c.last.Release()
		c.last = nil
	}
	for _, b := range c.buffers {
		if front, some := b.Front(); some && (!found || front.Time < p.Time) {
			p, found, c.last = front, true, b
		}
	}
	return p, found
}

// LeftOut is how many packets were left out so far because their buffer was full.
func (c *Capture) LeftOut() (n uint64) {
	for _, b := range c.buffers {
		n += b.LeftOut()
	}
	return n
}

// Done is closed when the device is closed: nothing is collected any more.
func (d *Device) Done() <-chan struct{} { return d.done }

// captureReceived shows the captures a received frame. The packet of the shard holds its headers, if they could be
// read.
func (s *Shard) captureReceived(now transport.Time, q *QP, verdict transport.Verdict, segments [][]byte) {
	var mark capture.Mark
	drop := verdict.Dropped
	if verdict.Duplicate {
		mark |= capture.Duplicate
	}
	isPacket := drop == roce.DropNone || drop >= roce.DropICRC
	opcode, local, remote := roce.Opcode(0), roce.QPN(0), roce.QPN(0)
	if isPacket {
		opcode, local = s.packet.Opcode, s.packet.DestinationQPN
		if s.packet.Info.Request {
			mark |= capture.Request
		}
		if q != nil && q.place.Load() == &s.place {
			remote = q.transport.DestinationQPN()
		}
	}
	for _, b := range s.taps {
		if b.Filter.All() || isPacket && b.Filter.Match(opcode, local, remote) {
			b.Add(int64(now), mark, drop, segments)
		}
	}
}

// tap is a shard as its engine shows it what it sends.
type tap Shard

// Sent implements transport.Tap.
func (t *tap) Sent(p transport.SentPacket) {
	mark := capture.Outbound
	if p.Again {
		mark |= capture.Again
	}
	if p.Opcode.Info().Request {
		mark |= capture.Request
	}
	switch by := p.By.(type) {
	case *transmitter:
		if by.wasted {
			mark |= capture.Unsent
		}
	case *loopback:
		if by.inbox == nil {
			mark |= capture.Unsent
		}
	}
	t.sent[0] = p.Frame
	for _, b := range t.taps {
		if b.Filter.Match(p.Opcode, p.QP.QPN(), p.QP.DestinationQPN()) {
			b.Add(int64(p.Time), mark, roce.DropNone, t.sent[:])
		}
	}
	t.sent[0] = nil
}
