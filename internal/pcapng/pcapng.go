// Package pcapng writes Ethernet frames into a file that Wireshark and tshark read, with nanoseconds, directions and
// comments, and takes such a file apart into its blocks.
//
// It knows of the format (draft-ietf-opsawg-pcapng) what that needs, in little-endian byte order. A library would do
// the same, but the one that is there (gopacket) brings megabytes of dissectors into every program.
package pcapng

import (
	"bufio"
	"io"
	"time"
)

// Types of blocks.
const (
	SectionHeader        uint32 = 0x0A0D0D0A
	InterfaceDescription uint32 = 1
	InterfaceStatistics  uint32 = 5
	EnhancedPacket       uint32 = 6
)

// Interface is where frames were seen.
type Interface struct {
	Name        string // may be empty, and so may
	Description string
	SnapLength  int // bytes of a frame that are kept at most; 0 is no limit
}

// Direction of a packet, as an interface saw it; the values are those of the format.
type Direction uint32

// Directions.
const (
	Unknown  Direction = 0
	Inbound  Direction = 1
	Outbound Direction = 2
)

// Packet is an Ethernet frame from its destination address on, without FCS.
type Packet struct {
	Interface int           // in the order of NewWriter
	At        time.Duration // since the Unix epoch; times of a virtual clock appear as 1970
	Direction Direction
	Data      [2][]byte // the frame in two pieces, of which either may be empty
	Length    int       // of the frame, if Data holds its beginning only; otherwise 0
	LeftOut   uint64    // packets between the one before it and this one
	Comment   string    // empty is none; less than 64 KiB
}

// Statistics are what is known of an interface at the end of a capture.
type Statistics struct {
	Interface  int
	Start, End time.Duration // since the Unix epoch
	Received   uint64        // packets that were to be captured
	Dropped    uint64        // of these, packets that were left out
	Delivered  uint64        // packets in the file
	Comment    string
}

// Writer writes a capture. It is not safe for concurrent use.
type Writer struct {
	out *bufio.Writer
	builder
}

// bufferSize is some ten large frames: what is written below at once.
const bufferSize = 64 << 10

// NewWriter begins a capture. Without interfaces it has one, "xroce". What is written is buffered until Flush.
func NewWriter(w io.Writer, interfaces ...Interface) (*Writer, error) {
	g := &Writer{out: bufio.NewWriterSize(w, bufferSize)}
	if len(interfaces) == 0 {
		interfaces = []Interface{{Name: "xroce"}}
	}
	err := g.write(g.section())
	for i := range interfaces {
		if err == nil {
			err = g.write(g.description(&interfaces[i]))
		}
	}
	return g, err
}

// Write adds a whole frame of the first interface.
func (w *Writer) Write(at time.Duration, frame []byte, comment string) error {
	return w.WritePacket(&Packet{At: at, Data: [2][]byte{frame}, Comment: comment})
}

// WritePacket adds a packet, which it does not keep.
func (w *Writer) WritePacket(p *Packet) error { return w.write(w.packet(p)) }

// WriteStatistics adds what is known of an interface.
func (w *Writer) WriteStatistics(s *Statistics) error { return w.write(w.statistics(s)) }

// Flush hands everything to the writer below.
func (w *Writer) Flush() error { return w.out.Flush() }

func (w *Writer) write(b Block) error {
	_, err := w.out.Write(b)
	return err
}
