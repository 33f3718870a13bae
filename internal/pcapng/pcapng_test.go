package pcapng_test

import (
	"bytes"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/gopacket/gopacket/layers"
	"github.com/gopacket/gopacket/pcapgo"
	"github.com/stretchr/testify/require"

	"github.com/xroce/xroce/internal/pcapng"
)

type packet struct {
	at      time.Duration
	frame   []byte
	comment string
}

// packets have all lengths modulo 4, of frame and comment, which the file pads.
func packets() []packet {
	var list []packet
	for i, comment := range []string{"", "a", "sent", "ICRC wrong", "Länge"} {
		for _, length := range []int{60, 61, 62, 63, 4192} {
			at := 3*time.Hour + time.Duration(len(list))*time.Microsecond + 7
			list = append(list, packet{at, bytes.Repeat([]byte{byte(16 * i)}, length), comment})
		}
	}
	return append(list, packet{0, make([]byte, 14), "time zero"})
}

func write(t *testing.T, to io.Writer) {
	w, err := pcapng.NewWriter(to)
	require.NoError(t, err)
	for _, p := range packets() {
		frame := bytes.Clone(p.frame)
		require.NoError(t, w.Write(p.at, frame, p.comment))
		clear(frame) // it is the caller's again
	}
	require.NoError(t, w.Flush())
}

// TestReadBack: what was written is read as it was.
func TestReadBack(t *testing.T) {
	var file bytes.Buffer
	write(t, &file)
	r, err := pcapgo.NewNgReader(&file, pcapgo.DefaultNgReaderOptions)
	require.NoError(t, err)
	require.Equal(t, layers.LinkTypeEthernet, r.LinkType())
	for _, want := range packets() {
		frame, info, options, err := r.ReadPacketDataWithOptions()
		require.NoError(t, err)
		require.Equal(t, want.frame, frame)
		require.Equal(t, int64(want.at), info.Timestamp.UnixNano())
		if want.comment == "" {
			require.Empty(t, options.Comments)
		} else {
			require.Equal(t, []string{want.comment}, options.Comments)
		}
	}
	_, _, err = r.ReadPacketData()
	require.ErrorIs(t, err, io.EOF)
}

// full takes no more than so many bytes.
type full int

func (f *full) Write(b []byte) (int, error) {
	if len(b) > int(*f) {
		return 0, errors.New("no space left")
	}
	*f -= full(len(b))
	return len(b), nil
}

// TestFull: an error of the file is not lost in the buffer.
func TestFull(t *testing.T) {
	room := full(1000)
	w, err := pcapng.NewWriter(&room)
	require.NoError(t, err)
	require.NoError(t, w.Write(1, make([]byte, 2000), ""))
	require.ErrorContains(t, w.Flush(), "no space left")
}

// TestTshark has another reader look at it, where it is installed.
func TestTshark(t *testing.T) {
	tshark, err := exec.LookPath("tshark")
	if err != nil {
		if os.Getenv("CI") == "true" {
			t.Fatal("this test must run tshark in CI, and cannot: ", err)
		}
		t.Log("not compared: ", err)
		return
	}
	name := filepath.Join(t.TempDir(), "a.pcapng")
	file, err := os.Create(name)
	require.NoError(t, err)
	write(t, file)
	require.NoError(t, file.Close())
	output, err := exec.Command(tshark, "-r", name, "-Y", `frame.comment == "Länge" && frame.len == 4192`,
		"-T", "fields", "-e", "frame.time_epoch", "-e", "frame.comment").Output()
	require.NoError(t, err)
	require.Equal(t, "10800.000024007\tLänge\n", string(output))
}
