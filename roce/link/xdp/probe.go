package xdp

import (
	"net/netip"

	"github.com/xroce/xroce/bpf"
	"github.com/xroce/xroce/roce"
	"github.com/xroce/xroce/roce/link"
)

// Rung is one way in which the XDP program can be attached, see the constants in package bpf.
type Rung = bpf.Rung

// ProbeOptions of Probe and List. The zero value works.
type ProbeOptions struct {
	// NetNS is as in Options.
	NetNS string
	// Attach has each device that could serve opened for a moment, which tells for sure. It can bounce the link of
	// a NIC, and takes RoCE packets away from the kernel meanwhile. Without it the device carries packets as before.
	Attach bool
	// Look skips the attempt, for a caller that opens the device next anyway. Obstacle and Missing then say only what
	// is known without it.
	Look bool
}

// Port is what Probe and List say about a network device.
type Port struct {
	Name         string
	Index        int
	Driver       string // "veth"; empty if unknown
	HardwareAddr roce.MAC
	Running      bool     // up, and with carrier
	MTU          int      // bytes, without the Ethernet header
	ActiveMTU    roce.MTU // the largest path MTU that Open is expected to give, 0 if there is none
	Queues       int      // receive queues in use
	Addresses    []netip.Addr

	// Rungs are those that Open would try in ModeAuto, best first, without those that the driver does not
	// offer. DriverTells says that kernel and driver do tell what is offered (Linux 6.3); otherwise
	// Rungs and ZeroCopy are only what is possible.
	Rungs       []Rung
	ZeroCopy    bool
	DriverTells bool
	// MultiBuffer is nil if Open with MultiBufferAuto is expected to allow frames of several buffers, and otherwise
	// why not: then the active path MTU is at most 2048. Only Open tells for sure.
	MultiBuffer error

	// Obstacle says why the device cannot serve now: Open would fail, there is no carrier, or no address for a GID.
	// Without ProbeOptions.Look it was tried: the program was loaded, and a socket bound to each queue, in copy mode,
	// for a moment.
	Obstacle error
	// Missing are the capabilities that Open needs and the calling thread lacks, such as "CAP_BPF".
	Missing []string
	// Obtained is what Open got; nil without ProbeOptions.Attach or with an Obstacle.
	Obtained *link.Information
}

// Feature is something that the kernel has to have, or that Devices are better with.
type Feature struct {
	Name   string
	Since  string // the first kernel with it: "Linux 5.9"
	Needed bool   // Open fails without it
	// Err is nil if the kernel has it, matches ErrNotSupported if not, and is otherwise why that cannot be found out,
	// such as a missing capability.
	Err error
}
