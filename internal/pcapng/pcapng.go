// Package pcapng writes Ethernet frames into a file that Wireshark and tshark read, with nanoseconds and comments.
package pcapng

import (
	"io"
	"time"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"github.com/gopacket/gopacket/pcapgo"
)

// Writer writes a capture. It is not safe for concurrent use.
type Writer struct{ ng *pcapgo.NgWriter }

// NewWriter begins a capture of Ethernet frames. What is written is buffered until Flush.
func NewWriter(w io.Writer) (*Writer, error) {
	options := pcapgo.NgWriterOptions{SectionInfo: pcapgo.NgSectionInfo{Application: "xroce"}}
	ng, err := pcapgo.NewNgWriterInterface(w, pcapgo.NgInterface{Name: "xroce", LinkType: layers.LinkTypeEthernet}, options)
	if err != nil {
		return nil, err
	}
	return &Writer{ng}, nil
}

// Write adds a frame from its destination address on, without FCS, which it does not keep. at counts from the Unix epoch:
// times of a virtual clock appear as 1970. An empty comment is none; it must be shorter than 64 KiB.
func (w *Writer) Write(at time.Duration, frame []byte, comment string) error {
	info := gopacket.CaptureInfo{Timestamp: time.Unix(0, int64(at)), CaptureLength: len(frame), Length: len(frame)}
	var o pcapgo.NgPacketOptions
	if comment != "" {
		o.Comments = []string{comment}
	}
	return w.ng.WritePacketWithOptions(info, frame, o)
}

// Flush hands everything to the writer below.
func (w *Writer) Flush() error { return w.ng.Flush() }
