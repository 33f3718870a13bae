package roce

import "fmt"

// QPN is a queue pair number, 24 bits.
type QPN uint32

const (
	// QPNGSI is the queue pair of the general services interface, where the connection manager lives.
	QPNGSI QPN = 1
	// QPNMulticast is the destination of every multicast packet.
	QPNMulticast QPN = 0xFFFFFF
	// QPNMask holds the 24 bits of a QPN.
	QPNMask = 1<<24 - 1
)

// FlowLabel returns the 20-bit flow label of a connection that was given none. It is symmetric, so
// both ends compute the same one. Same rule as rdma_calc_flow_label in include/rdma/ib_verbs.h,
// which the Linux drivers share.
func FlowLabel(local, remote QPN) uint32 {
	v := uint64(local&QPNMask) * uint64(remote&QPNMask)
	v ^= v >> 20
	v ^= v >> 40
	return uint32(v) & flowLabelMask
}

// UDPSourcePort spreads a 20-bit flow label over the 2^14 ports 0xC000 to 0xFFFF, as IBTA annex A17
// recommends and rdma_flow_label_to_udp_sport in include/rdma/ib_verbs.h does. Switches choose among
// equal paths by this port, so it must stay the same for the life of a queue pair.
func UDPSourcePort(flowLabel uint32) uint16 {
	low := flowLabel & 0x03FFF
	high := flowLabel & 0xFC000
	return uint16(low^high>>14) | 0xC000
}

const flowLabelMask = 1<<20 - 1

// String returns the number with all its six digits, such as 0x00d802.
func (q QPN) String() string { return fmt.Sprintf("0x%06x", uint32(q)) }
