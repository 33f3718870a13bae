package verbs

import (
	"sync/atomic"

	"github.com/xroce/xroce/roce"
	"github.com/xroce/xroce/roce/driver"
	"github.com/xroce/xroce/roce/link"
	"github.com/xroce/xroce/roce/transport"
)

// Device is an open RDMA device. All methods may be called concurrently.
type Device struct {
	driver  *driver.Device
	domains atomic.Int64
}

// EngineOptions tune the engine of a device; the zero value works.
type EngineOptions = driver.Options

// NewDevice opens a device on any link. The device owns the link from then on. With the links of
// package link/mem programs can test their verbs code in one process, without root and without a network.
func NewDevice(l link.Device, o EngineOptions) (*Device, error) {
	d, err := driver.Open(l, o)
	if err != nil {
		return nil, err
	}
	return &Device{driver: d}, nil
}

// Close closes the device. It fails with ErrInUse while objects exist.
func (d *Device) Close() error { return d.driver.Close() }

// Name is the name of the network device.
func (d *Device) Name() string { return d.driver.Link().Information().Name }

// Information tells what carries the device's frames, and in which mode.
func (d *Device) Information() link.Information { return d.driver.Link().Information() }

// Driver is the engine behind the device: for tools and simulations, not for programs that move data.
func (d *Device) Driver() *driver.Device { return d.driver }

// PortState is the state of a port; the values are those of enum ibv_port_state.
type PortState uint8

// States of a port.
const (
	PortDown   PortState = 1
	PortActive PortState = 4
)

// PortAttr describes the port of a device.
type PortAttr struct {
	State       PortState
	MaxMTU      MTU // of any device
	ActiveMTU   MTU // what the network device carries now
	GIDTableLen int
	MaxMsgSize  uint32
}

// QueryPort describes the device's one port as it is now.
func (d *Device) QueryPort() (PortAttr, error) {
	gids, err := d.driver.GIDs()
	if err != nil {
		return PortAttr{}, err
	}
	active, err := d.driver.ActiveMTU()
	if err != nil {
		return PortAttr{}, err
	}
	return PortAttr{
		State: PortActive, MaxMTU: MTU4096, ActiveMTU: active, GIDTableLen: len(gids), MaxMsgSize: MaxMsgSize,
	}, nil
}

// QueryGID returns an entry of the GID table: the addresses that the network device has right now.
func (d *Device) QueryGID(index int) (GID, error) { return d.driver.GID(index) }

// QueryGIDTable returns the whole GID table.
func (d *Device) QueryGIDTable() ([]GID, error) { return d.driver.GIDs() }

// Counters are the counts of a device since it was opened.
type Counters struct {
	Transport transport.Counters
	Link      link.Counters
}

// Counters returns the device's counts.
func (d *Device) Counters() Counters {
	t, l := d.driver.Counters()
	return Counters{Transport: t, Link: l}
}

// DropReasons returns how many packets were dropped for which reason, without the reasons that never occurred.
func (c *Counters) DropReasons() map[string]uint64 {
	m := make(map[string]uint64)
	for r, n := range c.Transport.Drops {
		if n > 0 {
			m[roce.DropReason(r).String()] = n
		}
	}
	return m
}
