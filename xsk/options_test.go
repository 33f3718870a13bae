package xsk

import (
	"encoding/json"
	"errors"
	"os"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func TestOptionsDefaults(t *testing.T) {
	options := Options{Interface: 3}
	info, err := options.complete()
	require.NoError(t, err)
	require.Equal(t, Info{
		Interface: 3, ChunkSize: 4096, ReceiveFrames: 1024, TransmitFrames: 512,
		FillRing: 2048, ReceiveRing: 1024, TransmitRing: 512, CompletionRing: 512, TransmitBudget: 32,
	}, info)
	require.Equal(t, 512, options.TransmitBudget)
	require.Equal(t, 4<<20, options.SendBuffer)
	require.Equal(t, DefaultBindTimeout, options.BindTimeout)
	require.Equal(t, 4096, info.TransmitFrameSize())
	require.Equal(t, 512, info.TransmitBuffers())

	options = Options{Interface: 3, MultiBuffer: true, ReceiveFrames: 1025, TransmitFrames: 6}
	info, err = options.complete()
	require.NoError(t, err)
	require.Equal(t, 4096, info.FillRing)
	require.Equal(t, 8, info.TransmitRing)
	require.Equal(t, 32, options.TransmitBudget)
	require.Equal(t, 8192, info.TransmitFrameSize())
	require.Equal(t, 3, info.TransmitBuffers())
	require.Equal(t, 1031*4096, info.umemSize())
}

// Each refusal names the value and what would be right.
func TestOptionsRefused(t *testing.T) {
	page := os.Getpagesize()
	for name, c := range map[string]struct {
		options Options
		text    string
	}{
		"no interface":        {Options{}, "interface index 0: must be positive"},
		"negative queue":      {Options{Interface: 1, Queue: -1}, "queue -1"},
		"small chunk":         {Options{Interface: 1, ChunkSize: 1024}, "chunk size 1024: must be a power of two from 2048"},
		"large chunk":         {Options{Interface: 1, ChunkSize: 2 * page}, "to the page size"},
		"odd chunk":           {Options{Interface: 1, ChunkSize: 3000}, "chunk size 3000"},
		"negative frames":     {Options{Interface: 1, ReceiveFrames: -1}, "-1 receive frames"},
		"many frames":         {Options{Interface: 1, TransmitFrames: 1<<20 + 1}, "1048577 transmit frames: must be from 1 to 1048576"},
		"odd transmit frames": {Options{Interface: 1, MultiBuffer: true, TransmitFrames: 5}, "5 transmit frames: must be even"},
		// Ring sizes of drivers (ethtool -g) are often one below a power of two.
		"ring of 511":       {Options{Interface: 1, TransmitRing: 511}, "transmit ring of 511 entries: must be a power of two"},
		"fill too small":    {Options{Interface: 1, FillRing: 1024}, "fill ring of 1024 entries is too small: it must hold 2048"},
		"receive too small": {Options{Interface: 1, ReceiveRing: 512}, "receive ring of 512 entries is too small: it must hold 1024"},
		"completion below transmit ring": {Options{Interface: 1, TransmitRing: 2048, CompletionRing: 1024},
			"completion ring of 1024 entries is too small: it must hold 2048"},
		"unknown mode": {Options{Interface: 1, Mode: 7}, "mode CopyMode(7)"},
		"small budget": {Options{Interface: 1, TransmitBudget: 16}, "transmit budget 16 is not between 32 and"},
		"large budget": {Options{Interface: 1, TransmitBudget: 513}, "transmit ring's 512 entries"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Open(c.options)
			require.ErrorIs(t, err, ErrInvalidOptions)
			require.ErrorContains(t, err, c.text)
			var detail *Error
			require.True(t, errors.As(err, &detail))
			require.Equal(t, "options", detail.Step)
		})
	}
}

func drawInfo(t *rapid.T) Info {
	options := Options{
		Interface: rapid.IntRange(1, 1<<30).Draw(t, "interface"), Queue: rapid.IntRange(0, 1000).Draw(t, "queue"),
		ChunkSize:      rapid.SampledFrom([]int{2048, 4096}).Draw(t, "chunk"),
		ReceiveFrames:  rapid.IntRange(1, maxFrames).Draw(t, "receive"),
		TransmitFrames: 2 * rapid.IntRange(1, maxFrames/2).Draw(t, "transmit"),
		MultiBuffer:    rapid.Bool().Draw(t, "multi-buffer"), CheckOwners: rapid.Bool().Draw(t, "check"),
	}
	info, err := options.complete()
	require.NoError(t, err)
	info.ZeroCopy = rapid.Bool().Draw(t, "zero copy")
	info.SendBuffer = rapid.IntRange(0, 1<<31-1).Draw(t, "send buffer")
	return info
}

func TestInfoRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		info := drawInfo(t)
		encoded, err := info.MarshalBinary()
		require.NoError(t, err)
		var decoded Info
		require.NoError(t, decoded.UnmarshalBinary(encoded))
		require.Equal(t, info, decoded)

		text, err := json.Marshal(FDs{Socket: 3, UMEM: 4, Info: info})
		require.NoError(t, err)
		var fds FDs
		require.NoError(t, json.Unmarshal(text, &fds))
		require.Equal(t, FDs{Socket: 3, UMEM: 4, Info: info}, fds)
	})
}

// Whatever arrives, an Info that decodes is one that Open could have made.
func FuzzInfoUnmarshal(f *testing.F) {
	options := Options{Interface: 3}
	info, err := options.complete()
	require.NoError(f, err)
	encoded, err := info.MarshalBinary()
	require.NoError(f, err)
	f.Add(encoded)
	f.Add([]byte("XSK1"))
	f.Add(make([]byte, infoSize))
	f.Fuzz(func(t *testing.T, encoded []byte) {
		var info Info
		if info.UnmarshalBinary(encoded) != nil {
			require.Zero(t, info)
			return
		}
		require.Empty(t, info.problem())
		require.Positive(t, info.umemSize())
	})
}

func TestErrorText(t *testing.T) {
	err := &Error{Step: "bind", Interface: 3, Queue: 1, Kind: ErrQueueBusy, Err: os.ErrExist}
	require.EqualError(t, err, "xsk: bind: queue 1 of ifindex 3: file already exists")
	require.ErrorIs(t, err, ErrQueueBusy)
	require.ErrorIs(t, err, os.ErrExist)
	require.EqualError(t, &Error{Step: "kick", Detail: "why", Kind: ErrDown}, "xsk: kick: why: interface is down")
	require.ErrorIs(t, ErrNotSupported, errors.ErrUnsupported)
}
