// Package link is the seam between the transport and whatever carries its frames: an AF_XDP socket
// (link/xdp) or memory (link/mem).
//
// A Device is a port on an Ethernet network; a Queue is one of its receive and transmit pairs. All data
// moves in batches and no call on the data path allocates.
//
// Life of a received frame: Receive lends frames to the caller; the caller reads (it may write, the bytes are
// its own until then) and gives all of them back with Release.
//
// Life of a transmitted frame: Buffer lends the next free transmit buffer; the caller writes one whole frame
// into it and Commits its length; Publish makes all committed frames visible to the carrier; Kick, which is
// the only call that may enter the kernel, makes the carrier look. The buffer comes back by itself once the
// frame is on its way. The carrier promises nothing: frames may be lost, duplicated and reordered.
//
// It is the engine's own and changes as that needs; programs use package verbs.
package link

import (
	"context"
	"errors"
	"net/netip"

	"github.com/xroce/xroce/internal/enum"
	"github.com/xroce/xroce/roce"
)

// Frame is one Ethernet frame without its FCS, in one or more pieces. All protocol headers lie in the
// first; the pieces belong to the queue and are lent from Receive until Release.
type Frame struct {
	Segments [][]byte
}

// Length is the number of bytes in all segments.
func (f Frame) Length() int {
	n := 0
	for _, s := range f.Segments {
		n += len(s)
	}
	return n
}

var (
	// ErrClosed is returned by every call on something that was closed.
	ErrClosed = errors.New("closed")
	// ErrDown is returned when the network device is down or gone.
	ErrDown = errors.New("network device is down")
	// ErrNoNeighbour is returned by Resolve when an address has no route or no answering neighbour.
	ErrNoNeighbour = errors.New("no neighbour")
)

// Queue is one receive and transmit pair of a Device.
//
// Receive, Release, Buffer, Commit and Publish belong to one goroutine at a time: the driver holds the
// shard's lock around them. Kick, Pending, FD and Counters may be called at any time from any goroutine.
type Queue interface {
	// Receive fills frames with as many waiting frames as there are and returns their number. It
	// never blocks. The frames are valid until Release.
	Receive(frames []Frame) int
	// Release gives back all frames that Receive has lent.
	Release()

	// Buffer returns the next free transmit buffer, large enough for any frame the device carries,
	// or nil if none is free. Without a Commit in between it returns the same buffer again.
	Buffer() []byte
	// Commit queues the first length bytes of the buffer that Buffer returned last.
	Commit(length int)
	// Publish makes all committed frames visible to the carrier.
	Publish()

	// Kick makes the carrier look at what was published; it may enter the kernel and is therefore
	// called without any lock. It need not take everything: while Pending, call again. After an error (the device
	// is down, the kernel is out of memory) that is not worth while for some time.
	Kick() error
	// Pending says whether published frames wait for a Kick.
	Pending() bool

	// FD is a descriptor that poll(2) reports readable while frames wait, or -1 if there is none.
	FD() int

	// Renew puts to use what the device has made anew under the queue (ChangedQueues), if anything. Frames that were
	// published and not sent are lost, Counters go on, and FD is another one: whoever polls the old one has to
	// be woken. It is a call like Receive, made while no frame is lent.
	Renew()
	// Counters returns the counts of this queue since it was opened.
	Counters() Counters
}

// Waker is implemented by Queues without a descriptor, so that whoever waits for frames can sleep in the Go runtime.
// Its methods may be called at any time from any goroutine.
type Waker interface {
	// OnArrival has arrived called whenever frames begin to wait. It is called once, before the queue is used; arrived
	// must neither block nor call the queue.
	OnArrival(arrived func())
	// Waiting says whether frames wait for a Receive.
	Waiting() bool
}

// Counters are the counts of one queue, frames unless said otherwise.
type Counters struct {
	Received    uint64 // frames handed out by Receive
	Transmitted uint64 // frames published
	// ReceiveDropped counts frames that the carrier dropped before Receive could see them
	// (no free receive buffer, ring full, frame too long for the buffers).
	ReceiveDropped uint64
	// TransmitDropped counts published frames that the carrier reported as not sent.
	TransmitDropped uint64
	// Kicks counts calls into the kernel, KickRetries those that asked to be repeated.
	Kicks, KickRetries uint64
	// InvalidDescriptors counts descriptors that the carrier refused; anything but 0 is a defect here.
	InvalidDescriptors uint64
}

// Add adds the counts of o to c.
func (c *Counters) Add(o *Counters) {
	c.Received += o.Received
	c.Transmitted += o.Transmitted
	c.ReceiveDropped += o.ReceiveDropped
	c.TransmitDropped += o.TransmitDropped
	c.Kicks += o.Kicks
	c.KickRetries += o.KickRetries
	c.InvalidDescriptors += o.InvalidDescriptors
}

// Detailer is implemented by Devices and Queues that count more than all have in common. Details may be called at any
// time from any goroutine; the names are those of whoever counts.
type Detailer interface {
	Details() map[string]uint64
}

// Confirmer is implemented by Devices whose answers of Resolve may go out of date without a Change. Confirm has the
// neighbour on the way from source to destination asked whether it still has the Ethernet address that is known, and
// looked for if not; a Change tells what comes of it. It may take until ctx ends, and need privileges. It may be called
// concurrently.
type Confirmer interface {
	Confirm(ctx context.Context, source, destination netip.Addr) error
}

// Steering tells a Device which packets are this process's own; everything else stays with the host.
type Steering struct {
	// QPNs in [QPNBase, QPNBase + 1<<QPNBits) are delivered to the queues.
	QPNBase roce.QPN
	QPNBits uint8
	// OwnGSI asks for packets to QP1 too.
	OwnGSI bool
}

// Information describes a Device: what was asked of the carrier and what it gave.
type Information struct {
	Name   string // of the network device, "veth0"
	Driver string // of the network device, "veth"; empty if unknown
	Mode   string // how frames are carried, for people: "native+frags", "generic", "memory"
	// ZeroCopy says that frames are not copied between carrier and buffers.
	ZeroCopy bool
	// MultiBuffer says that a frame may take more than one buffer, which path MTU 4096 needs where a buffer is a page.
	MultiBuffer bool
	// NotTaken says, for people and one each, which better ways there are that were not taken, and why:
	// "zero copy: ...".
	NotTaken []string
	// QueuesAdded is how many receive queues the network device got since it was opened: packets that come in there are
	// not received.
	QueuesAdded int
}

// Device is a port: an Ethernet address, some IP addresses, and queues. Except for the data-path calls on
// its queues, all methods may be called concurrently.
type Device interface {
	Information() Information
	HardwareAddr() roce.MAC
	// MTU is the network device's present MTU in bytes, without the Ethernet header.
	MTU() (int, error)
	// Speed is the speed of the link in Mbit/s as the driver tells it; 0 if it is not known.
	Speed() int
	// MaximumFrame is the longest frame in bytes, Ethernet header included, that fits into the buffers of the
	// queues, whatever the MTU of the network device is.
	MaximumFrame() int
	// ReceiveBuffers is how many buffers each queue has for frames that nobody has received yet, and how many bytes of
	// a frame one of them takes: a longer frame takes several.
	ReceiveBuffers() (count, size int)
	// Addresses returns the unicast addresses that the network device has right now, in a stable
	// order. The device's GID table is this list.
	Addresses() ([]netip.Addr, error)
	// Resolve finds the next hop from source towards destination and its Ethernet address. It waits
	// for an answer of the neighbour as long as ctx allows. What the route says is in the Neighbour of one that does
	// not answer, too.
	Resolve(ctx context.Context, source, destination netip.Addr) (Neighbour, error)
	// Network names the network that the device's addresses belong to. Devices of a process whose Network is the same
	// and not empty reach each other by their addresses within the process; empty says that nothing is known.
	Network() string
	// Steer makes the device deliver the packets that s describes. It replaces the previous steering. The first call
	// proposes a range of QPNs and the device answers with the one that it assigns, which has the same size or a
	// smaller one; later calls name that.
	Steer(s Steering) (assigned Steering, err error)
	// Queues returns the device's queues, always the same ones.
	Queues() []Queue
	// Watch has changed called after every change of the device from now on. It is called once, before the device is
	// used. changed must neither block nor call the device; after Close it is not called any more. Several
	// changes may come as one.
	Watch(changed func(Change))
	// Close releases everything. No data-path call may be under way.
	Close() error
}

// Change says what may be different about a Device, a bit each. Who wants to know more asks the device.
type Change uint8

// Changes of a Device.
const (
	ChangedPort   Change = 1 << iota // carrier, MTU, Ethernet address or IP addresses
	ChangedDown                      // it carries nothing, or did so for a moment
	ChangedWays                      // what Resolve answers
	ChangedQueues                    // what is under the queues: call Renew of each
)

var changeNames = []enum.Flag[Change]{
	{Bit: ChangedPort, Name: "PORT"},
	{Bit: ChangedDown, Name: "DOWN"},
	{Bit: ChangedWays, Name: "WAYS"},
	{Bit: ChangedQueues, Name: "QUEUES"},
}

// String names the bits, such as "PORT|DOWN"; "0" is none.
func (c Change) String() string { return enum.Flags(c, changeNames) }

// MarshalText returns the text of String, for logs and JSON.
func (c Change) MarshalText() ([]byte, error) { return []byte(c.String()), nil }

// UnmarshalText takes what MarshalText returns.
func (c *Change) UnmarshalText(text []byte) error { return enum.ParseFlags(c, text) }

// Neighbour is the answer of Resolve.
type Neighbour struct {
	HardwareAddr roce.MAC
	// Frames carry an 802.1Q tag with this VLAN identifier and priority, if Tagged.
	Tagged   bool
	VLAN     uint16
	Priority uint8
	HopLimit uint8 // from the route; 64 where it names none
	// MTU is the longest IP packet in bytes that the route allows, be it configured or learned from ICMP; 0 where it
	// names none.
	MTU int
	// Source is the address that the route chooses for packets without one; invalid if nothing is known.
	Source netip.Addr
}
