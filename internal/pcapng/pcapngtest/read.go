// Package pcapngtest reads captures in tests, by a library that has nothing to do with the writer.
package pcapngtest

import (
	"io"
	"testing"
	"time"

	"github.com/gopacket/gopacket/layers"
	"github.com/gopacket/gopacket/pcapgo"
	"github.com/stretchr/testify/require"
)

// Packet is a packet of a capture.
type Packet struct {
	Interface int
	At        time.Time
	Outbound  bool
	Frame     []byte // what was kept of it
	Length    int    // of the whole frame
	LeftOut   uint64 // packets before it
	Comment   string
}

// Capture is all that a capture holds.
type Capture struct {
	Interfaces []pcapgo.NgInterface
	Packets    []Packet
}

// Read reads a capture, which must be complete. Every packet must have a direction.
func Read(t testing.TB, from io.Reader) (c Capture) {
	t.Helper()
	r, err := pcapgo.NewNgReader(from, pcapgo.DefaultNgReaderOptions)
	require.NoError(t, err)
	require.Equal(t, layers.LinkTypeEthernet, r.LinkType())
	for {
		frame, info, options, err := r.ReadPacketDataWithOptions()
		if err == io.EOF {
			break
		}
		require.NoError(t, err)
		p := Packet{Interface: info.InterfaceIndex, At: info.Timestamp, Frame: frame, Length: info.Length}
		require.NotNil(t, options.Flags)
		switch options.Flags.Direction {
		case pcapgo.NgEpbFlagDirectionInbound:
		case pcapgo.NgEpbFlagDirectionOutbound:
			p.Outbound = true
		default:
			require.Fail(t, "no direction", "%+v", options.Flags)
		}
		if options.DropCount != nil {
			p.LeftOut = *options.DropCount
		}
		require.LessOrEqual(t, len(options.Comments), 1)
		for _, comment := range options.Comments {
			p.Comment = comment
		}
		c.Packets = append(c.Packets, p)
	}
	for i := range r.NInterfaces() {
		one, err := r.Interface(i)
		require.NoError(t, err)
		c.Interfaces = append(c.Interfaces, one)
	}
	return c
}
