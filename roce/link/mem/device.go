package mem

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"sync/atomic"

	"github.com/xroce/xroce/roce"
	"github.com/xroce/xroce/roce/link"
)

// DeviceOptions describe a device; the zero value works.
type DeviceOptions struct {
	Name      string       // "memN" by default
	MAC       roce.MAC     // 02:00:00:00:00:NN by default
	Addresses []netip.Addr // 10.0.0.N and fd00::N by default
	MTU       int          // 4200 by default
	Queues    int          // 1 by default
	// ReceiveFrames is how many frames wait in a queue before more are dropped; 1024 by default.
	ReceiveFrames int
	// TransmitFrames is how many transmit buffers a queue has; 512 by default.
	TransmitFrames int
}

// Device is a port of a Network. What may be set about it is guarded by the network's lock.
type Device struct {
	network *Network
	options DeviceOptions
	down    bool
	changed func(link.Change) // nil if nobody watches
	queues  []*queue
	links   []link.Queue
}

var _ link.Device = (*Device)(nil)

// NewDevice adds a device to the network.
func (n *Network) NewDevice(o DeviceOptions) (*Device, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.made++
	number := byte(n.made)
	if o.Name == "" {
		o.Name = fmt.Sprintf("mem%d", number)
	}
	if o.MAC == (roce.MAC{}) {
		o.MAC = roce.MAC{2, 0, 0, 0, 0, number}
	}
	if o.Addresses == nil {
		o.Addresses = []netip.Addr{
			netip.AddrFrom4([4]byte{10, 0, 0, number}),
			netip.AddrFrom16([16]byte{0: 0xfd, 15: number}),
		}
	}
	o.MTU = orDefault(o.MTU, 4200)
	o.Queues = orDefault(o.Queues, 1)
	o.ReceiveFrames = orDefault(o.ReceiveFrames, 1024)
	o.TransmitFrames = orDefault(o.TransmitFrames, 512)
	if n.devices[o.MAC] != nil {
		return nil, fmt.Errorf("mem: address %v is in use", o.MAC)
	}
	d := &Device{network: n, options: o}
	for i := range o.Queues {
		q, err := newQueue(d, i)
		if err != nil {
			d.closeQueues()
			return nil, err
		}
		d.queues = append(d.queues, q)
		d.links = append(d.links, q)
	}
	n.devices[o.MAC] = d
	return d, nil
}

func orDefault(value, fallback int) int {
	if value == 0 {
		return fallback
	}
	return value
}

// Information implements link.Device.
func (d *Device) Information() link.Information {
	return link.Information{Name: d.options.Name, Driver: "memory", Mode: "memory"}
}

// HardwareAddr implements link.Device.
func (d *Device) HardwareAddr() roce.MAC {
	d.network.mu.Lock()
	defer d.network.mu.Unlock()
	return d.options.MAC
}

// MTU implements link.Device.
func (d *Device) MTU() (int, error) {
	d.network.mu.Lock()
	defer d.network.mu.Unlock()
	return d.options.MTU, d.state()
}

// MaximumFrame implements link.Device.
func (d *Device) MaximumFrame() int { return bufferSize }

// ReceiveBuffers implements link.Device.
func (d *Device) ReceiveBuffers() (count, size int) { return d.options.ReceiveFrames, bufferSize }

// Addresses implements link.Device.
func (d *Device) Addresses() ([]netip.Addr, error) {
	d.network.mu.Lock()
	defer d.network.mu.Unlock()
	return slices.Clone(d.options.Addresses), nil
}

// Resolve implements link.Device: it asks the other devices of the network.
func (d *Device) Resolve(_ context.Context, source, destination netip.Addr) (link.Neighbour, error) {
	d.network.mu.Lock()
	defer d.network.mu.Unlock()
	if err := d.state(); err != nil {
		return link.Neighbour{}, err
	}
	for mac, other := range d.network.devices {
		if slices.Contains(other.options.Addresses, destination) {
			return link.Neighbour{HardwareAddr: mac, HopLimit: 64}, nil
		}
	}
	return link.Neighbour{}, fmt.Errorf("%w: %v, from %v on %s", link.ErrNoNeighbour, destination, source, d.options.Name)
}

// Speed implements link.Device: memory has none.
func (d *Device) Speed() int { return 0 }

// Network implements link.Device: devices reach each other over the network in memory, faults included.
func (d *Device) Network() string { return "" }

// Steer implements link.Device: all frames to the device's address arrive, whatever they are.
func (d *Device) Steer(s link.Steering) (link.Steering, error) { return s, nil }

// Queues implements link.Device.
func (d *Device) Queues() []link.Queue { return d.links }

// Close implements link.Device.
func (d *Device) Close() error {
	d.network.mu.Lock()
	defer d.network.mu.Unlock()
	if d.network.devices[d.options.MAC] == d {
		delete(d.network.devices, d.options.MAC)
		d.closeQueues()
	}
	return nil
}

func (d *Device) closeQueues() {
	for _, q := range d.queues {
		q.bell.close()
	}
}

// queue is one receive and transmit pair.
type queue struct {
	device *Device
	index  int
	bell   bell

	// Guarded by the network's lock:
	waiting   [][]byte // frames that have arrived
	published [][]byte
	dropped   uint64

	pending               atomic.Int32 // len(published)
	received, sent, kicks atomic.Uint64

	// The caller's:
	current   []byte      // the transmit buffer that is lent
	committed [][]byte    // frames that are not published yet
	lent      [][]byte    // received frames that are not released yet
	segments  [][1][]byte // backs the segment lists of lent frames
}

func newQueue(d *Device, index int) (*queue, error) {
	q := &queue{device: d, index: index, segments: make([][1][]byte, d.options.ReceiveFrames), bell: silentBell}
	if d.network.options.Manual {
		return q, nil // nobody sleeps where time stands still
	}
	return q, q.bell.open()
}

// arrive is called under the network's lock.
func (q *queue) arrive(frame []byte) {
	if len(q.waiting) == q.device.options.ReceiveFrames {
		q.dropped++
		q.device.network.recycle(frame)
		return
	}
	q.waiting = append(q.waiting, frame)
	if len(q.waiting) == 1 {
		q.bell.ring()
	}
}

// Receive implements link.Queue.
func (q *queue) Receive(frames []link.Frame) int {
	n := q.device.network
	n.mu.Lock()
	defer n.mu.Unlock()
	count := min(len(q.waiting), len(frames), len(q.segments)-len(q.lent))
	if count == 0 {
		return 0
	}
	for i := range count {
		s := &q.segments[len(q.lent)]
		s[0] = q.waiting[i]
		q.lent = append(q.lent, q.waiting[i])
		frames[i] = link.Frame{Segments: s[:]}
	}
	q.waiting = q.waiting[:copy(q.waiting, q.waiting[count:])]
	if len(q.waiting) == 0 {
		q.bell.silence()
	}
	q.received.Add(uint64(count))
	return count
}

// Release implements link.Queue.
func (q *queue) Release() {
	if len(q.lent) == 0 {
		return
	}
	n := q.device.network
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, b := range q.lent {
		n.recycle(b)
	}
	q.lent = q.lent[:0]
}

// Buffer implements link.Queue.
func (q *queue) Buffer() []byte {
	if q.current == nil {
		n := q.device.network
		n.mu.Lock()
		defer n.mu.Unlock()
		if len(q.committed)+len(q.published) >= q.device.options.TransmitFrames {
			return nil
		}
		q.current = n.buffer()
	}
	return q.current
}

// Commit implements link.Queue.
func (q *queue) Commit(length int) {
	q.committed = append(q.committed, q.current[:length])
	q.current = nil
}

// Publish implements link.Queue.
func (q *queue) Publish() {
	n := q.device.network
	n.mu.Lock()
	defer n.mu.Unlock()
	q.published = append(q.published, q.committed...)
	q.sent.Add(uint64(len(q.committed)))
	q.committed = q.committed[:0]
	q.pending.Store(int32(len(q.published)))
}

// Kick implements link.Queue.
func (q *queue) Kick() error {
	n := q.device.network
	n.mu.Lock()
	defer n.mu.Unlock()
	if err := q.device.state(); err != nil {
		return err // the frames stay, as in a transmit ring of the kernel
	}
	for _, frame := range q.published {
		n.send(frame, q.index)
	}
	q.published = q.published[:0]
	q.pending.Store(0)
	q.kicks.Add(1)
	return nil
}

// Pending implements link.Queue.
func (q *queue) Pending() bool { return q.pending.Load() > 0 }

// Renew implements link.Queue: memory is never made anew.
func (q *queue) Renew() {}

// FD implements link.Queue.
func (q *queue) FD() int { return q.bell.fd }

// Counters implements link.Queue.
func (q *queue) Counters() link.Counters {
	q.device.network.mu.Lock()
	dropped := q.dropped
	q.device.network.mu.Unlock()
	return link.Counters{
		Received: q.received.Load(), Transmitted: q.sent.Load(), ReceiveDropped: dropped, Kicks: q.kicks.Load(),
	}
}
