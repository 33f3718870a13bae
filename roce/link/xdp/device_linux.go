package xdp

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"sync/atomic"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/xroce/xroce/bpf"
	"github.com/xroce/xroce/internal/lockorder"
	"github.com/xroce/xroce/internal/netns"
	"github.com/xroce/xroce/roce"
	"github.com/xroce/xroce/roce/link"
	"github.com/xroce/xroce/xsk"
)

// carrierDeadline bounds the wait for a NIC that bounces its link when a program is attached.
const carrierDeadline = 10 * time.Second

// Device is a link.Device on a Linux network device.
type Device struct {
	netdev  resolver
	network string
	home    *netns.Namespace // that of the network device; nil without /proc
	options Options
	driver  string
	label   atomic.Pointer[string] // present name of the network device
	was     identity               // of the network device, as it was last seen alive; guarded by mu

	program *bpf.Program
	sockets []*queue
	queues  []link.Queue
	watcher *watcher

	delivery delivery
	added    added

	closing atomic.Bool
	changed atomic.Pointer[func(link.Change)] // who watches

	mu       lockorder.Mutex[lockorder.XDPDevice] // guards what follows and index and name of netdev, and is held while the maps of the program change
	obtained obtained
	state    netdevState
	told     netdevState // of what who watches was told
	gone     error       // why there is no network device to serve, or nil: see remake_linux.go
}

var _ link.Device = (*Device)(nil)

// Open makes a device of the network device that name names: sockets on its queues and the XDP program. It needs
// root, or CAP_NET_RAW, CAP_NET_ADMIN and CAP_BPF, and CAP_SYS_ADMIN to enter another namespace. No packet
// is delivered before Steer. Open takes up to two seconds longer for each queue that is still being given up by another
// process, and waits for the carrier of a NIC that loses it when a program is attached; with ctx these waits end.
//
// Errors that are due to the machine or the options match IsEnvironment, and nothing is left behind.
func Open(ctx context.Context, name string, o Options) (*Device, error) {
	var d *Device
	err := o.validate()
	if err == nil {
		err = ctx.Err()
	}
	if err == nil {
		err = inNamespace(o.NetNS, func() (err error) { d, err = open(ctx, name, o); return err })
	}
	if err != nil {
		if ended := ctx.Err(); ended != nil && !errors.Is(err, ended) {
			err = fmt.Errorf("%w: %w", ended, err)
		}
		return nil, fmt.Errorf("open %s: %w", name, explainUnsupported(classify(err), kernelProbes))
	}
	return d, nil
}

// inNamespace runs f in the network namespace that path names, or in that of the calling thread.
func inNamespace(path string, f func() error) error {
	if path == "" {
		return f()
	}
	namespace, err := netns.Open(path)
	if err != nil {
		return fmt.Errorf("%w: network namespace: %w", ErrInvalidOptions, err)
	}
	defer namespace.Close()
	return namespace.Do(f)
}

// open runs in the namespace of the device. All that is bound to it is made here.
func open(ctx context.Context, name string, o Options) (*Device, error) {
	sockets, err := openNetlink()
	if err != nil {
		return nil, err
	}
	d := &Device{options: o, netdev: resolver{netlinkSockets: sockets, name: name, hops: newHops()}, network: networkOfThread()}
	d.home, _ = netns.Open(namespaceOfThread)
	d.setName(name)
	if err := d.open(ctx); err != nil {
		return nil, errors.Join(err, d.Close())
	}
	return d, nil
}

func (d *Device) open(ctx context.Context) error {
	attributes, err := d.netdev.find(d.netdev.name)
	if err != nil {
		return err
	}
	d.netdev.index = attributes.Index
	d.setName(attributes.Name) // it may have been opened by an alternative one
	if err := suitable(attributes); err != nil {
		return err
	}
	receive, transmit, err := xsk.ChannelCount(d.netdev.index)
	if err != nil {
		return err
	}
	count, err := chooseQueues(d.netdev.name, receive, transmit, d.options.Queues)
	if err != nil {
		return err
	}
	// Each step below would name only what it lacks itself.
	if err := lacking(missingCapabilities()); err != nil {
		return err
	}
	d.was = d.netdev.identify(attributes)
	d.driver = d.was.driver
	d.program, err = bpf.Load(bpf.Options{Queues: receive, MAC: macOf(attributes.HardwareAddr)})
	if err != nil {
		return err
	}
	sockets, obtained, err := d.serve(ctx, d.netdev.index, count, d.options, openPatience)
	if err != nil {
		return err
	}
	d.obtained, d.added.opened = obtained, receive
	for _, socket := range sockets {
		q := newQueue(socket, &d.label, &d.closing)
		d.sockets = append(d.sockets, q)
		d.queues = append(d.queues, q)
	}
	// Changes from here on are seen, so that none is missed.
	if d.watcher, err = newWatcher(d.notice); err != nil {
		return err
	}
	d.watcher.start()
	if err := d.refresh(); err != nil {
		return err
	}
	if d.Information().ZeroCopy {
		d.watchDelivery(deliveryInterval, warnOfDelivery)
	}
	d.watchQueues()
	if isRunning(attributes) {
		return d.awaitCarrier(ctx)
	}
	return nil
}

// suitable says why a device cannot carry RoCE at present.
func suitable(a *netlink.LinkAttrs) error {
	switch {
	case a.RawFlags&unix.IFF_LOOPBACK != 0:
		return fmt.Errorf("%w: %s is a loopback device, which AF_XDP does not serve", ErrUnsuitable, a.Name)
	case a.EncapType != "ether" || macOf(a.HardwareAddr) == (roce.MAC{}):
		return fmt.Errorf("%w: %s is no Ethernet device but of type %s", ErrUnsuitable, a.Name, a.EncapType)
	case a.RawFlags&unix.IFF_UP == 0:
		return down(a)
	}
	if _, ok := roce.ActiveMTU(a.MTU); !ok {
		return fmt.Errorf("%w: MTU %d of %s is too small, the smallest path MTU of 256 bytes needs %d",
			ErrUnsuitable, a.MTU, a.Name, roce.MTU256.Bytes()+roce.MTUOverhead)
	}
	return nil
}

func hasProgram(a *netlink.LinkAttrs) bool { return a.Xdp != nil && a.Xdp.Attached }

// chooseQueues returns how many queues of a device to use; asked is 0 for all.
func chooseQueues(name string, receive, transmit, asked int) (int, error) {
	have := fmt.Sprintf("%s has %d receive and %d transmit queues in use (ethtool -L %[1]s changes that)",
		name, receive, transmit)
	switch {
	case asked > min(receive, transmit):
		return 0, fmt.Errorf("%w: %d queues asked for, but %s", ErrInvalidOptions, asked, have)
	case asked > 0:
		return asked, nil
	case receive > transmit:
		return 0, fmt.Errorf("%w: %s, and each receive queue needs a transmit queue", ErrUnsuitable, have)
	}
	return receive, nil
}

// awaitCarrier waits until the device is running again.
func (d *Device) awaitCarrier(ctx context.Context) error {
	for deadline := time.Now().Add(carrierDeadline); ; time.Sleep(time.Millisecond) {
		if _, err := d.MTU(); !errors.Is(err, link.ErrDown) || time.Now().After(deadline) || ctx.Err() != nil {
			return err
		}
	}
}

// refresh asks for the state of the network device and has the program follow it.
func (d *Device) refresh() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.gone != nil {
		return d.gone
	}
	state, err := d.netdev.state(d.netdev.index, d.netdev.name)
	if errors.Is(err, link.ErrDown) {
		d.state.down, d.state.addresses = err, nil
		return errors.Join(err, d.program.SetAddresses(nil))
	} else if err != nil {
		return err
	}
	if state.mac != d.state.mac {
		if err := d.program.SetMAC(state.mac); err != nil {
			return err
		}
	}
	if !slices.Equal(state.addresses, d.state.addresses) {
		if err := d.program.SetAddresses(state.addresses); err != nil {
			return fmt.Errorf("addresses of %s: %w", d.netdev.name, err)
		}
	}
	d.state, d.was.mac = state, state.mac
	d.setName(state.name)
	return nil
}

// Information describes the device.
func (d *Device) Information() link.Information {
	d.mu.Lock()
	defer d.mu.Unlock()
	i := link.Information{
		Name: d.name(), Driver: d.driver, Mode: d.obtained.rung.String(),
		ZeroCopy: d.obtained.zeroCopy, MultiBuffer: d.obtained.multiBuffer, NotTaken: slices.Clone(d.obtained.notTaken),
	}
	d.explainAdded(&i)
	return i
}

// HardwareAddr returns the present Ethernet address of the network device.
func (d *Device) HardwareAddr() roce.MAC {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.state.mac
}

// MTU asks for the present MTU. A device that is down or without carrier gives its MTU and link.ErrDown, one
// that is gone 0 and link.ErrDown.
func (d *Device) MTU() (int, error) {
	if err := d.refresh(); err != nil {
		return 0, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.state.mtu, d.state.down
}

// Speed asks the driver for the speed of the link.
func (d *Device) Speed() (megabits int) {
	if d.refresh() != nil { // the driver is asked by the name of the network device, which may be new
		return 0
	}
	_ = d.netdev.do(func(*netlink.Handle) error {
		megabits = speed(d.netdev.control, d.name())
		return nil
	})
	return megabits
}

// MaximumFrame is the longest frame in bytes that fits into the buffers: 3840, which suffices for path MTU 2048, or
// 7680 with multi-buffer (Information.MultiBuffer). It never becomes less.
func (d *Device) MaximumFrame() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return maximumFrame(d.obtained.multiBuffer)
}

// ReceiveBuffers is the number of chunks of each queue for receiving, and what a frame may fill of one.
func (d *Device) ReceiveBuffers() (count, size int) {
	if count = d.options.ReceiveFrames; count == 0 {
		count = xsk.DefaultReceiveFrames
	}
	return count, chunkSize - receiveReserve
}

// Addresses asks for the unicast addresses of the network device: ascending, IPv4 before IPv6, link-local ones
// last and without a zone. IPv6 addresses found to be duplicates are left out. It needs no call for packets to
// new addresses to be delivered, nor for those to removed ones to stop.
func (d *Device) Addresses() ([]netip.Addr, error) {
	if err := d.refresh(); err != nil {
		return nil, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Clone(d.state.addresses), nil
}

// Resolve finds the Ethernet address for packets from source to destination, over this network device only.
// An invalid source leaves its choice to the routes. Multicast destinations need no answer. Link-local
// addresses may carry the zone of this device. Errors match link.ErrNoNeighbour where there is no route over this
// device or no answer while ctx lasted, and then ctx.Err() too. Close ends a Resolve that waits.
func (d *Device) Resolve(ctx context.Context, source, destination netip.Addr) (link.Neighbour, error) {
	d.mu.Lock()
	netdev, gone := d.netdev, d.gone
	d.mu.Unlock()
	if gone != nil {
		return link.Neighbour{}, gone
	}
	return netdev.resolve(ctx, source, destination)
}

// Network names the network namespace that the device was opened in.
func (d *Device) Network() string { return d.network }

const namespaceOfThread = "/proc/thread-self/ns/net"

// networkOfThread names the network namespace of the calling thread, such as "net:[4026531833]". The number stays its
// own as long as anything is open in it (fs/nsfs.c). It is empty without /proc.
func networkOfThread() string {
	name, err := os.Readlink(namespaceOfThread)
	if err != nil {
		return ""
	}
	return name
}

// Queues returns the queues, queue i of the network device at index i.
func (d *Device) Queues() []link.Queue { return slices.Clone(d.queues) }

// SteeringCounters counts the frames that the network device has received since Open, by what became of them.
func (d *Device) SteeringCounters() ([]SteeringCounter, error) {
	counters, err := d.program.Counters()
	if d.closing.Load() {
		return nil, link.ErrClosed
	}
	return counters, err
}

// Details implements link.Detailer: SteeringCounters by the names of their reasons, without those that never occurred,
// and "undelivered": the frames that were redirected and that no socket has got; and "queues_added": the receive queues
// that came after Open and are not served.
func (d *Device) Details() map[string]uint64 {
	counters, err := d.SteeringCounters()
	if err != nil {
		return nil
	}
	m := make(map[string]uint64)
	for _, c := range counters {
		if c.Packets > 0 {
			m[c.Reason.String()] = c.Packets
		}
	}
	if n := d.undelivered(); n > 0 {
		m["undelivered"] = n
	}
	if n := d.Information().QueuesAdded; n > 0 {
		m["queues_added"] = uint64(n)
	}
	return m
}

// Close gives everything back: the sockets before the program, so that nothing is redirected to a socket that is
// going away, and a driver has let go of the buffers before they are unmapped. Closing twice is allowed.
func (d *Device) Close() error {
	if d.closing.Swap(true) {
		return nil
	}
	var failures []error
	if d.watcher != nil {
		d.watcher.close()
	}
	d.stopDelivery()
	d.stopQueues()
	for _, q := range d.sockets {
		failures = append(failures, q.close())
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.program != nil {
		if attachment := d.program.Attachment(); attachment != nil {
			failures = append(failures, attachment.Close())
		}
		failures = append(failures, d.program.Close())
	}
	d.netdev.close()
	if d.home != nil {
		failures = append(failures, d.home.Close())
	}
	return errors.Join(failures...)
}
