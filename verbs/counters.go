package verbs

import (
	"github.com/xroce/xroce/roce/link"
	"github.com/xroce/xroce/roce/transport"
)

// Counts are counters by name.
type Counts map[string]uint64

// TransportCounters are counts of packets and of what they were for.
type TransportCounters struct {
	Counts   Counts `json:"counts"`   // named as Linux's hardware counters, where it has them: "retransmitted_pkts" for one
	Sent     Counts `json:"sent"`     // packets by opcode
	Received Counts `json:"received"` // packets by opcode
	Drops    Counts `json:"drops"`    // packets by reason, without the reasons that never occurred
}

// LinkCounters are counts of frames.
type LinkCounters struct {
	Received           uint64 `json:"received"`           // that came to the engine
	Transmitted        uint64 `json:"transmitted"`        // that the engine gave to the network device
	ReceiveDropped     uint64 `json:"receiveDropped"`     // by the kernel: no free buffer, ring full, frame too long for the buffers
	TransmitDropped    uint64 `json:"transmitDropped"`    // that the kernel reported as not sent
	Kicks              uint64 `json:"kicks"`              // calls into the kernel
	KickRetries        uint64 `json:"kickRetries"`        // those that asked to be repeated
	InvalidDescriptors uint64 `json:"invalidDescriptors"` // that the kernel refused; anything but 0 is a defect
}

// Counters are the counts of a device since it was opened.
type Counters struct {
	TransportCounters
	Link LinkCounters `json:"link"`
}

// Counters returns the device's counts.
func (d *Device) Counters() Counters {
	must(d.check())
	t, l := d.driver.Counters()
	return Counters{newTransportCounters(&t), newLinkCounters(l)}
}

func newTransportCounters(c *transport.Counters) TransportCounters {
	return TransportCounters{Counts: c.Named(), Sent: c.Sent(), Received: c.Received(), Drops: c.Dropped()}
}

func newLinkCounters(c link.Counters) LinkCounters {
	return LinkCounters{
		Received: c.Received, Transmitted: c.Transmitted, ReceiveDropped: c.ReceiveDropped, TransmitDropped: c.TransmitDropped,
		Kicks: c.Kicks, KickRetries: c.KickRetries, InvalidDescriptors: c.InvalidDescriptors,
	}
}
