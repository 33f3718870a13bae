package verbs

import (
	"errors"
	"fmt"
	"sync"

	"github.com/xroce/xroce/internal/control"
	"github.com/xroce/xroce/internal/enum"
	"github.com/xroce/xroce/internal/opener"
	"github.com/xroce/xroce/roce/driver"
	"github.com/xroce/xroce/roce/link"
)

// Device is an open RDMA device. All methods may be called concurrently.
type Device struct {
	driver     *driver.Device
	client     *driver.Client  // the one that the program is
	control    *control.Server // or nil
	captures   sync.WaitGroup
	belongings belongings
}

// init gives the tools and tests of this module their way to the engine.
func init() {
	opener.Set(opener.Hooks{
		Open:        func(l link.Device, o driver.Options) (any, error) { return newDevice(l, o) },
		Driver:      func(device any) *driver.Device { return device.(*Device).driver },
		InUse:       func(device any) error { return device.(*Device).belongings.inUse() },
		CheckOwners: func(options any) { options.(*Options).checkOwners = true },
	})
}

// newDevice opens a device on any link, which it owns from then on.
func newDevice(l link.Device, o driver.Options) (*Device, error) {
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

// must is for methods without an error to return: they panic on nil and on a zero value, like those of os.File.
func must(err error) {
	if err != nil {
		panic(err)
	}
}

// check tells a device that was opened from nil and from a zero value.
func (d *Device) check() error {
	if d == nil || d.driver == nil {
		return fmt.Errorf("device: %w: nil, or not made by OpenDevice", ErrInvalid)
	}
	return nil
}

// Close closes the device and destroys all that belongs to it: queue pairs first, then SRQs, windows, regions,
// completion queues, channels and protection domains. Whoever is blocked in one of them gets ErrClosed, and so does
// every later call that makes, changes, posts or waits for something. Acknowledgements that are due are sent. When it
// returns, no byte of a registered buffer is read or written any more. Captures are completed, as fast as their writers
// take it.
func (d *Device) Close() error {
	if err := d.check(); err != nil {
		return err
	}
	if err := d.destroy(); err != nil {
		return err
	}
	var err error
	if d.control != nil {
		err = d.control.Close()
	}
	d.captures.Wait() // they end with the driver
	return err
}

// destroy closes the driver and what is on it.
func (d *Device) destroy() error {
	d.belongings.life.Lock()
	defer d.belongings.life.Unlock()
	if d.belongings.closed {
		return d.closedError()
	}
	if err := d.belongings.destroy(); err != nil {
		return err
	}
	if err := d.driver.Close(); err != nil {
		return err
	}
	d.belongings.closed = true
	return nil
}

// Name is the name of the network device.
func (d *Device) Name() string { return d.Information().Name }

// Information says what was asked of the network device and what it gave.
type Information struct {
	Name   string // of the network device, "veth0"
	Driver string // of the network device, "veth"; empty if unknown
	Mode   string // how frames are carried, for people: "native+frags", "generic", "memory"
	// ZeroCopy says that frames are not copied between the driver and the engine.
	ZeroCopy bool
	// MultiBuffer says that a frame may take more than one buffer, which path MTU 4096 needs.
	MultiBuffer bool
	// NotTaken says, for people and one each, which better ways there are that were not taken, and why:
	// "zero copy: ...".
	NotTaken []string
	// QueuesAdded is how many receive queues the network device got since it was opened: packets that come in there
	// are not received.
	QueuesAdded int
}

// Information tells what carries the device's frames, and in which mode.
func (d *Device) Information() Information {
	must(d.check())
	return Information(d.driver.Link().Information())
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

// QueryPort describes the device's one port as it is now. The port of a network device that is gone is down and has
// no GIDs.
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

// QueryGIDTable returns the whole GID table. An index keeps its meaning while its address is there; slots whose
// address has gone are zero until a new one takes them.
func (d *Device) QueryGIDTable() ([]GID, error) {
	if err := d.check(); err != nil {
		return nil, err
	}
	return d.driver.GIDs()
}
