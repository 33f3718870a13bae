// Package verbstest is for tests of programs on package verbs: devices on a network in memory, without root, without
// a network device, with faults where the test wants them.
//
//	func TestCacheSurvivesLoss(t *testing.T) {
//		synctest.Test(t, func(t *testing.T) {
//			net := verbstest.New(t, verbstest.Seed(42))
//			a, b := net.Device("a"), net.Device("b")
//			net.Faults(verbstest.Drop(0.01), verbstest.DropNth(3, "RC_RDMA_READ_RESPONSE*"))
//			...
//			net.Kill(b)
//		})
//	}
//
// It works inside testing/synctest: time is virtual there, so that timeouts cost none, and it works without. The
// packets of a test that fails are written to a file for Wireshark. When the test ends, what it has not destroyed on
// a device fails it; [verbs.Device.Close] destroys all.
//
// Virtual time stands still while a goroutine waits for a sync.Mutex. So a program that holds one while it waits for a
// completion hangs inside testing/synctest as soon as another goroutine wants it, if the completion needs time, to send
// a lost packet again for one. A channel of capacity 1 in place of the mutex does not hang.
package verbstest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"time"

	"github.com/xroce/xroce/internal/lockorder"
	"github.com/xroce/xroce/internal/opener"
	"github.com/xroce/xroce/roce/driver"
	"github.com/xroce/xroce/roce/link/mem"
	"github.com/xroce/xroce/verbs"
)

// Network is a network in memory. All methods may be called concurrently.
type Network struct {
	t       testing.TB
	seed    uint64
	network *mem.Network
	wire    wire
	made    atomic.Uint64 // devices so far

	mu      lockorder.Mutex[lockorder.Ends]
	devices []*end
}

// end is a device of the network.
type end struct {
	name   string
	device *verbs.Device
	link   *mem.Device
	killed atomic.Bool
}

// Option is a choice of New.
type Option func(*Network)

// Seed decides the faults, and the numbers and keys of the devices: which packet meets which fault is the same again
// as far as the order of the packets is. Without it a seed is drawn, which a test that fails tells.
func Seed(seed uint64) Option { return func(n *Network) { n.seed = seed } }

// New makes a network. It ends with the test, and so do its devices.
func New(t testing.TB, options ...Option) *Network {
	t.Helper()
	n := &Network{t: t, seed: rand.Uint64()}
	for _, option := range options {
		option(n)
	}
	n.wire.init(n.seed)
	n.network = mem.NewNetwork(mem.Options{Seed: n.seed, NoFD: true, Intercept: n.wire.intercept})
	t.Cleanup(n.close)
	return n
}

// Device adds a device with one port: path MTU up to 4096, one IPv4 and one IPv6 address. The name is the network
// device's.
func (n *Network) Device(name string) *verbs.Device {
	n.t.Helper()
	l, err := n.network.NewDevice(mem.DeviceOptions{Name: name})
	if err != nil {
		n.t.Fatalf("verbstest: device %s: %v", name, err)
	}
	d, err := opener.Open[verbs.Device](l, driver.Options{Seed: n.seed + n.made.Add(1)})
	if err != nil {
		n.t.Fatalf("verbstest: device %s: %v", name, err)
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.devices = append(n.devices, &end{name: name, device: d, link: l})
	return d
}

// end finds a device, or fails the test.
func (n *Network) end(d *verbs.Device) *end {
	n.t.Helper()
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, e := range n.devices {
		if e.device == d {
			return e
		}
	}
	n.t.Fatalf("verbstest: the device is none of this network")
	return nil
}

// Connect connects two queue pairs of devices of the network, with the same options at both ends.
func (n *Network) Connect(a, b *verbs.QP, o verbs.ConnectOptions) {
	n.t.Helper()
	ea, err := a.Endpoint(o)
	if err != nil {
		n.t.Fatalf("verbstest: connect: %v", err)
	}
	eb, err := b.Endpoint(o)
	if err == nil {
		err = a.Connect(context.Background(), eb, o)
	}
	if err == nil {
		err = b.Connect(context.Background(), ea, o)
	}
	if err != nil {
		n.t.Fatalf("verbstest: connect: %v", err)
	}
}

// Kill ends a device as kill -9 ends its process: nothing comes from it any more, not even an answer, and the calls
// on it and on what belongs to it return [verbs.ErrClosed]. What was left on it is no leak.
func (n *Network) Kill(d *verbs.Device) {
	n.t.Helper()
	e := n.end(d)
	if e.killed.Swap(true) {
		return
	}
	n.wire.silence(e.link.HardwareAddr())
	if err := d.Close(); err != nil {
		n.t.Errorf("verbstest: kill %s: %v", e.name, err)
	}
}

// SetDown takes the port of a device down, or up again.
func (n *Network) SetDown(d *verbs.Device, down bool) {
	n.t.Helper()
	n.end(d).link.SetDown(down)
}

// Capture returns the path of the file with the packets so far, for Wireshark. It is removed at the end of the test
// unless that failed; a test that fails writes one in any case. Comments say what a fault has done to a packet. Of a
// test that moves much only the first 64 MiB are kept.
func (n *Network) Capture() string {
	n.t.Helper()
	path, err := n.wire.save()
	if err != nil {
		n.t.Fatalf("verbstest: capture: %v", err)
	}
	return path
}

// close ends the network with the test.
func (n *Network) close() {
	for _, e := range n.devices {
		if e.killed.Load() {
			continue
		}
		// What a test that failed has left is no news.
		if err := opener.InUse(e.device); err != nil && !n.t.Failed() {
			n.t.Errorf("verbstest: device %s: %v", e.name, err)
		}
		if err := e.device.Close(); err != nil && !errors.Is(err, verbs.ErrClosed) { // or the test has closed it
			n.t.Errorf("verbstest: close %s: %v", e.name, err)
		}
	}
	if !n.t.Failed() {
		if err := n.wire.discard(); err != nil {
			n.t.Errorf("verbstest: capture: %v", err)
		}
		return
	}
	path, err := n.wire.save()
	if err != nil {
		n.t.Errorf("verbstest: capture: %v", err)
	}
	n.t.Logf("verbstest: seed %d, packets: %s", n.seed, path)
}

// String describes the network.
func (n *Network) String() string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return fmt.Sprintf("network of %d devices, seed %d", len(n.devices), n.seed)
}

// now is the time of packets: virtual inside testing/synctest.
func now() time.Duration { return time.Duration(time.Now().UnixNano()) }
