package pcapng_test

import (
	"bytes"
	"encoding/binary"
	"io"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/xroce/xroce/internal/pcapng"
	"github.com/xroce/xroce/internal/pcapng/pcapngtest"
)

var (
	epoch      = time.Date(2026, 2, 3, 4, 5, 6, 123456789, time.UTC)
	statistics = pcapng.Statistics{
		Interface: 1, Start: time.Duration(epoch.UnixNano()), End: time.Duration(epoch.Add(time.Second).UnixNano()),
		Received: 1<<40 + 7, Dropped: 7, Delivered: 1 << 40, Comment: "seven left out",
	}
)

// full is a capture with all that a Writer writes.
func fullCapture(t *testing.T) []byte {
	t.Helper()
	var file bytes.Buffer
	w, err := pcapng.NewWriter(&file,
		pcapng.Interface{Name: "eth0", Description: "process 7", SnapLength: 96}, pcapng.Interface{Name: "veth1"})
	require.NoError(t, err)
	at := time.Duration(epoch.UnixNano())
	require.NoError(t, w.WritePacket(&pcapng.Packet{
		At: at, Direction: pcapng.Outbound, Data: [2][]byte{[]byte("abc"), []byte("defgh")}, Length: 100, Comment: "retransmission",
	}))
	require.NoError(t, w.WritePacket(&pcapng.Packet{
		Interface: 1, At: at + 1, Direction: pcapng.Inbound, Data: [2][]byte{nil, []byte("xyz")}, LeftOut: 12,
	}))
	require.NoError(t, w.WriteStatistics(&statistics))
	require.NoError(t, w.Flush())
	return file.Bytes()
}

func TestAllFields(t *testing.T) {
	c := pcapngtest.Read(t, bytes.NewReader(fullCapture(t)))
	require.Equal(t, []pcapngtest.Packet{
		{At: epoch, Outbound: true, Frame: []byte("abcdefgh"), Length: 100, Comment: "retransmission"},
		{Interface: 1, At: epoch.Add(1), Frame: []byte("xyz"), Length: 3, LeftOut: 12},
	}, utc(c.Packets))
	require.Len(t, c.Interfaces, 2)
	require.Equal(t, "eth0", c.Interfaces[0].Name)
	require.Equal(t, "process 7", c.Interfaces[0].Description)
	require.EqualValues(t, 96, c.Interfaces[0].SnapLength)
	require.Equal(t, "veth1", c.Interfaces[1].Name)
	s := c.Interfaces[1].Statistics
	require.Equal(t, statistics.Received, s.PacketsReceived)
	require.Equal(t, statistics.Dropped, s.PacketsDropped)
	require.Equal(t, int64(statistics.Start), s.StartTime.UnixNano())
	require.Equal(t, int64(statistics.End), s.EndTime.UnixNano())
	require.Equal(t, statistics.Comment, s.Comment)
}

func utc(packets []pcapngtest.Packet) []pcapngtest.Packet {
	for i := range packets {
		packets[i].At = packets[i].At.UTC()
	}
	return packets
}

// TestBlocks takes a capture apart and puts it together again, with the interfaces exchanged.
func TestBlocks(t *testing.T) {
	whole := fullCapture(t)
	r := pcapng.NewReader(bytes.NewReader(whole))
	first, err := r.Peek()
	require.NoError(t, err)
	require.EqualValues(t, 0x0A, first)
	var kinds []uint32
	var again []byte
	for {
		b, err := r.Next()
		if err == io.EOF {
			break
		}
		require.NoError(t, err)
		kinds = append(kinds, b.Type())
		switch b.Type() {
		case pcapng.EnhancedPacket:
			require.Equal(t, map[int]uint64{4: 0, 5: 12}[len(kinds)], b.LeftOut())
			b.SetInterface(5 - len(kinds))
		case pcapng.InterfaceStatistics:
			require.Equal(t, statistics, b.Statistics())
			require.Equal(t, b, statistics.Block())
		case pcapng.SectionHeader:
			require.Equal(t, b, pcapng.Section())
		}
		again = append(again, b...)
	}
	require.Equal(t, []uint32{
		pcapng.SectionHeader, pcapng.InterfaceDescription, pcapng.InterfaceDescription,
		pcapng.EnhancedPacket, pcapng.EnhancedPacket, pcapng.InterfaceStatistics,
	}, kinds)
	c := pcapngtest.Read(t, bytes.NewReader(again))
	require.Equal(t, 1, c.Packets[0].Interface)
	require.Equal(t, 0, c.Packets[1].Interface)

	// A capture that ends within a block says so.
	for end := range whole {
		r := pcapng.NewReader(bytes.NewReader(whole[:end]))
		size := 0
		for err = nil; err == nil; {
			var b pcapng.Block
			if b, err = r.Next(); err == nil {
				size += len(b)
			}
		}
		if size == end {
			require.Equal(t, io.EOF, err)
		} else {
			require.Equal(t, io.ErrUnexpectedEOF, err)
		}
	}
}

// FuzzBlocks: nothing that a process sends panics.
func FuzzBlocks(f *testing.F) {
	f.Add([]byte{})
	f.Add(binary.LittleEndian.AppendUint32([]byte{6, 0, 0, 0}, 1<<31))
	f.Fuzz(func(t *testing.T, file []byte) {
		for _, b := range [][]byte{file, append(fullCapture(t), file...)} {
			r := pcapng.NewReader(bytes.NewReader(b))
			for {
				b, err := r.Next()
				if err != nil {
					break
				}
				switch b.Type() {
				case pcapng.EnhancedPacket:
					b.SetInterface(3)
					b.LeftOut()
				case pcapng.InterfaceStatistics:
					b.Statistics()
				}
			}
		}
	})
}
