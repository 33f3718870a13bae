// Package capture carries copies of frames from a shard, which knows what became of them, to whoever writes them down.
//
// Life of a captured frame: the shard asks the Filter and Adds the frame to its Buffer, which copies it; the reader, in
// a goroutine of its own, looks at the oldest one with Front and gives its room back with Release. Neither ever waits
// for the other: a frame that finds no room is left out and counted, and the next one tells how many were.
//
// It is the engine's own and changes as that needs; programs use package verbs.
package capture

import (
	"fmt"
	"path"
	"strings"

	"github.com/xroce/xroce/internal/enum"
	"github.com/xroce/xroce/roce"
)

// Mark is what the engine knows about a frame, a bit each.
type Mark uint8

// Marks.
const (
	Outbound  Mark = 1 << iota // sent; a received frame is without it
	Request                    // the opcode is one of a requester
	Again                      // sent before: a request that was lost or whose answer was, or a response that was asked for again
	Unsent                     // thrown away, because the link is down or the device that it was for is closed
	Duplicate                  // received: a request that was executed before, and is answered again
)

var markNames = []enum.Flag[Mark]{
	{Bit: Outbound, Name: "OUTBOUND"},
	{Bit: Request, Name: "REQUEST"},
	{Bit: Again, Name: "AGAIN"},
	{Bit: Unsent, Name: "UNSENT"},
	{Bit: Duplicate, Name: "DUPLICATE"},
}

// String names the bits, such as "OUTBOUND|REQUEST"; "0" is none.
func (m Mark) String() string { return enum.Flags(m, markNames) }

// MarshalText returns the text of String, for logs and JSON.
func (m Mark) MarshalText() ([]byte, error) { return []byte(m.String()), nil }

// UnmarshalText takes what MarshalText returns.
func (m *Mark) UnmarshalText(text []byte) error { return enum.ParseFlags(m, text) }

// Packet is a captured frame.
type Packet struct {
	Time    int64 // nanoseconds of the device's clock
	Mark    Mark
	Drop    roce.DropReason // why it was dropped
	LeftOut uint64          // frames before it that found no room
	Length  int             // of the frame, of which Data may be the beginning only
	// Data is the frame from its Ethernet header on, in two pieces of which the second may be empty. They belong to the
	// Buffer.
	Data [2][]byte
}

// Comment is what a packet cannot tell by itself; usually nothing. Reasons have the names of the counters of drops.
func (p *Packet) Comment() string {
	if p.Mark&(Again|Unsent|Duplicate) == 0 && p.Drop == roce.DropNone && p.LeftOut == 0 {
		return ""
	}
	var list []string
	if p.LeftOut > 0 {
		list = append(list, fmt.Sprintf("%d packets before this one are left out: the capture was read too slowly", p.LeftOut))
	}
	switch {
	case p.Drop != roce.DropNone:
		list = append(list, "dropped: "+p.Drop.String())
	case p.Mark&Duplicate != 0:
		list = append(list, "duplicate request")
	}
	switch {
	case p.Mark&Again == 0:
	case p.Mark&Request != 0:
		list = append(list, "retransmission")
	default:
		list = append(list, "response sent again")
	}
	if p.Mark&Unsent != 0 {
		list = append(list, "not sent: the link is down, or the device that it is for is closed")
	}
	return strings.Join(list, "; ")
}

// MaxQPNs is how many QPNs a Filter can have: each packet is compared with all of them.
const MaxQPNs = 64

// Filter chooses packets. The zero value chooses all.
type Filter struct {
	qpns    []roce.QPN
	opcodes *[256]bool
}

// NewFilter chooses the packets of queue pairs of which one end or the other has one of the QPNs, and whose opcode is
// one of the opcodes. An empty list of either chooses all.
func NewFilter(qpns []roce.QPN, opcodes []roce.Opcode) Filter {
	f := Filter{qpns: qpns}
	if len(opcodes) > 0 {
		f.opcodes = new([256]bool)
		for _, o := range opcodes {
			f.opcodes[o] = true
		}
	}
	return f
}

// All says that it chooses every frame, those included that are no packets.
func (f *Filter) All() bool { return len(f.qpns) == 0 && f.opcodes == nil }

// Match says whether it chooses a packet with an opcode, of a queue pair here and one at the peer; a QPN that is not
// known is 0.
func (f *Filter) Match(opcode roce.Opcode, local, remote roce.QPN) bool {
	if f.opcodes != nil && !f.opcodes[opcode] {
		return false
	}
	for _, n := range f.qpns {
		if n == local || n == remote {
			return true
		}
	}
	return len(f.qpns) == 0
}

// Opcodes returns the opcodes with the given names, those that the counters use (RC_SEND_ONLY). Upper and lower case
// are the same, and a name may be a pattern of path.Match: "RC_RDMA_READ*".
func Opcodes(names []string) (list []roce.Opcode, err error) {
	for _, name := range names {
		found := false
		for o := range 256 {
			info := roce.Opcode(o).Info()
			if info == nil {
				continue
			}
			match, err := path.Match(strings.ToUpper(name), info.Name)
			if err != nil {
				return nil, fmt.Errorf("opcode %q: %w", name, err)
			}
			if match {
				list, found = append(list, roce.Opcode(o)), true
			}
		}
		if !found {
			return nil, fmt.Errorf("no opcode is called %q: they are called %v, %v and so on, and RC_RDMA_READ* stands for all that begin so",
				name, roce.RCSendOnly, roce.RCReadRequest)
		}
	}
	return list, nil
}
