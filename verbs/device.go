package verbs

import (
	"errors"
	"fmt"
	"sync"

	"github.com/xroce/xroce/internal/control"
	"github.com/xroce/xroce/internal/enum"
	"github.com/xroce/xroce/roce/driver"
	"github.com/xroce/xroce/roce/link"
	"github.com/xroce/xroce/roce/transport"
)

// Device is an open RDMA device. All methods may be called concurrently.
type Device struct {
	driver           *driver.Device
	client           *driver.Client  // the one that the program is
	control          *control.Server // or nil
	regions, windows count
	captures         sync.WaitGroup

	mu       sync.Mutex
	domains  int
	channels int
	closed   bool
}

// EngineOptions tune the engine of a device; the zero value works.
type EngineOptions = driver.Options

// NewDevice opens a device on any link. The device owns the link from then on. With the links of
// package link/mem programs can test their verbs code in one process, without root and without a network.
func NewDevice(l link.Device, o EngineOptions) (*Device, error) {
	if l == nil {
		return nil, fmt.Errorf("device: %w: link is nil", ErrInvalid)
	}
	d, err := driver.Open(l, o)
	if err != nil {
		return nil, err
	}
	client, err := d.NewClient(driver.ClientConfig{})
	if err != nil {
		return nil, errors.Join(err, d.Close())
	}
	return &Device{driver: d, client: client}, nil
}

// check tells a device that was opened from nil and from a zero value.
func (d *Device) check() error {
	if d == nil || d.driver == nil {
		return fmt.Errorf("device: %w: nil, or not made by OpenDevice or NewDevice", ErrInvalid)
	}
	return nil
}

// Close closes the device. It fails with ErrInUse while objects exist. Captures are completed first, as fast as their
// writers take it.
func (d *Device) Close() error {
	if err := d.check(); err != nil {
		return err
	}
	if err := d.closeDriver(); err != nil {
		return err
	}
	var err error
	if d.control != nil {
		err = d.control.Close()
	}
	d.captures.Wait() // they end with the driver
	return err
}

func (d *Device) closeDriver() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.domains > 0 {
		return fmt.Errorf("device %s: %w: %d protection domains", d.Name(), ErrInUse, d.domains)
	}
	if d.channels > 0 {
		return fmt.Errorf("device %s: %w: %d completion channels", d.Name(), ErrInUse, d.channels)
	}
	if err := d.driver.Close(); err != nil {
		return err
	}
	d.closed = true
	return nil
}

// Name is the name of the network device.
func (d *Device) Name() string { return d.Information().Name }

// Information tells what carries the device's frames, and in which mode.
func (d *Device) Information() link.Information {
	if d.check() != nil {
		return link.Information{}
	}
	return d.driver.Link().Information()
}

// Driver is the engine behind the device, for tools and simulations; nil if the device was not opened. It is no part of the
// verbs, and changes as the engine needs it.
func (d *Device) Driver() *driver.Device {
	if d.check() != nil {
		return nil
	}
	return d.driver
}

// PortState is the state of a port; the values are those of enum ibv_port_state.
type PortState uint8

// States of a port.
const (
	PortDown   PortState = 1
	PortActive PortState = 4
)

func (s PortState) String() string {
	switch s {
	case PortDown:
		return "down"
	case PortActive:
		return "active"
	}
	return fmt.Sprintf("port state %d", uint8(s))
}

// MarshalText returns the text of String, for logs and JSON.
func (s PortState) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// UnmarshalText takes what MarshalText returns.
func (s *PortState) UnmarshalText(text []byte) error { return enum.Parse(s, text) }

// PortAttr describes the port of a device.
type PortAttr struct {
	State       PortState
	MaxMTU      MTU // what the device's buffers have room for
	ActiveMTU   MTU // what the network device carries now
	NetdevMTU   int // of the network device, bytes without the Ethernet header
	LinkSpeed   int // Mbit/s as the driver tells it, 0 if it does not
	GIDTableLen int // slots without an address included
	MaxMsgSize  uint32
}

// QueryPort describes the device's one port as it is now. The port of a network device that is gone is down and has no GIDs.
func (d *Device) QueryPort() (PortAttr, error) {
	if err := d.check(); err != nil {
		return PortAttr{}, err
	}
	gids, err := d.driver.GIDs()
	if err != nil && !errors.Is(err, ErrDown) {
		return PortAttr{}, err
	}
	active, netdev, err := d.driver.ActiveMTU()
	state := PortActive
	switch {
	case errors.Is(err, ErrDown):
		state = PortDown
	case err != nil:
		return PortAttr{}, err
	}
	return PortAttr{
		State: state, LinkSpeed: d.driver.Link().Speed(), MaxMTU: d.driver.MaxMTU(), ActiveMTU: active, NetdevMTU: netdev,
		GIDTableLen: len(gids), MaxMsgSize: MaxMsgSize,
	}, nil
}

// QueryPKey returns an entry of the partition key table, which has one: the default key of a full member.
func (d *Device) QueryPKey(index int) (uint16, error) {
	if err := d.check(); err != nil {
		return 0, err
	}
	if index != 0 {
		return 0, fmt.Errorf("%w: partition key %d, the table has 1", ErrInvalid, index)
	}
	return 0xFFFF, nil
}

// CheckPathMTU says whether the device carries a path MTU now; ErrPathMTU comes with both numbers.
func (d *Device) CheckPathMTU(m MTU) error {
	if err := d.check(); err != nil {
		return err
	}
	return d.driver.CheckPathMTU(m)
}

// QueryGID returns an entry of the GID table: the addresses that the network device has right now.
func (d *Device) QueryGID(index int) (GID, error) {
	if err := d.check(); err != nil {
		return GID{}, err
	}
	return d.driver.GID(index)
}

// QueryGIDTable returns the whole GID table. An index keeps its meaning while its address is there; slots whose address has
// gone are zero until a new one takes them.
func (d *Device) QueryGIDTable() ([]GID, error) {
	if err := d.check(); err != nil {
		return nil, err
	}
	return d.driver.GIDs()
}

// Counters are the counts of a device since it was opened.
type Counters struct {
	Transport transport.Counters
	Link      link.Counters
}

// Counters returns the device's counts.
func (d *Device) Counters() Counters {
	if d.check() != nil {
		return Counters{}
	}
	t, l := d.driver.Counters()
	return Counters{Transport: t, Link: l}
}

// DropReasons returns how many packets were dropped for which reason, without the reasons that never occurred.
func (c Counters) DropReasons() map[string]uint64 { return c.Transport.Dropped() }
