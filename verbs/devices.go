package verbs

import (
	"context"
	"net"

	"github.com/xroce/xroce/roce"
	"github.com/xroce/xroce/roce/link/xdp"
)

// DevicesOptions of Devices; the zero value works.
type DevicesOptions struct {
	// NetNS is the network namespace to look into, a path such as /run/netns/blue. Empty means that of the calling
	// thread.
	NetNS string
}

// DeviceDescription is what Devices says about a network device.
type DeviceDescription struct {
	Name string
	// Obstacle says why the network device cannot serve now; nil if it can. Unless Missing names capabilities it was
	// tried: the XDP program was loaded, and a socket bound to each queue, in copy mode, for a moment.
	Obstacle error
	// Missing are the capabilities that OpenDevice needs and the calling thread lacks, such as "CAP_BPF".
	Missing      []string
	Driver       string // "veth"; empty if unknown
	HardwareAddr net.HardwareAddr
	Running      bool  // up, and with carrier
	MTU          int   // bytes, without the Ethernet header
	ActiveMTU    MTU   // the largest path MTU that OpenDevice is expected to give, 0 if there is none
	Queues       int   // receive queues in use
	GIDs         []GID // by index
	// XDPModes are those that OpenDevice would try with XDPAuto, best first: "native+frags" for one. DriverTells says
	// that kernel and driver tell what is offered (Linux 6.3); otherwise XDPModes and ZeroCopy are only what is
	// possible.
	XDPModes    []string
	DriverTells bool
	ZeroCopy    bool
	// SingleBuffer says why OpenDevice is not expected to allow frames of several buffers, without which the path MTU
	// is at most 2048; nil if it is.
	SingleBuffer error
}

// Devices describes the network devices, in the order of their index. It attaches nothing, so they carry packets as
// before. It needs no privileges, but without them nothing can be tried.
func Devices(ctx context.Context, o DevicesOptions) ([]DeviceDescription, error) {
	if ctx == nil {
		return nil, errNoContext
	}
	ports, err := xdp.List(ctx, xdp.ProbeOptions{NetNS: o.NetNS})
	if err != nil {
		return nil, err
	}
	list := make([]DeviceDescription, len(ports))
	for i := range ports {
		list[i] = newDeviceDescription(&ports[i])
	}
	return list, nil
}

func newDeviceDescription(p *xdp.Port) DeviceDescription {
	d := DeviceDescription{
		Name: p.Name, Obstacle: p.Obstacle, Missing: p.Missing, Driver: p.Driver, HardwareAddr: p.HardwareAddr[:],
		Running: p.Running, MTU: p.MTU, ActiveMTU: p.ActiveMTU, Queues: p.Queues,
		DriverTells: p.DriverTells, ZeroCopy: p.ZeroCopy, SingleBuffer: p.MultiBuffer,
	}
	for _, address := range p.Addresses {
		d.GIDs = append(d.GIDs, roce.GIDFromAddr(address))
	}
	for _, rung := range p.Rungs {
		d.XDPModes = append(d.XDPModes, rung.String())
	}
	return d
}
