package memory

import (
	"bytes"
	"encoding/binary"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// aligned makes n bytes that begin shift bytes behind a multiple of 8.
func aligned(n, shift int) []byte {
	b := make([]byte, n+16)
	at := int(-BufferAddress(b)&7) + shift
	return b[at : at+n : at+n]
}

// TestCopyIn: with and without the final word, at every alignment, length and split into pieces, the same bytes arrive
// as with a plain copy, and none around them.
func TestCopyIn(t *testing.T) {
	const most = 40
	data := make([]byte, most)
	for i := range data {
		data[i] = byte(i + 1)
	}
	for shift := range 8 {
		for length := range most + 1 {
			for first := range length + 1 {
				for second := first; second <= length; second += 3 {
					for _, final := range []bool{false, true} {
						all := bytes.Repeat([]byte{0xEE}, most+32+16)
						at := int(-BufferAddress(all)&7) + 8 + shift
						want := bytes.Clone(all)
						copy(want[at:], data[:length])
						pieces := [][]byte{data[:first], data[first:second], data[second:length]}
						require.True(t, copyIn(all[at:at+length], pieces, final))
						if !bytes.Equal(want, all) {
							require.Equal(t, want, all, "shift %d, %d bytes, pieces end at %d and %d, final %v", shift, length, first, second, final)
						}
					}
				}
			}
		}
	}
}

// TestWriteModel compares any sequence of writes and reads with a plain slice.
func TestWriteModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		table, domain := NewTable(1), new(Domain)
		user := table.NewUser()
		size := rapid.IntRange(1, 300).Draw(t, "size")
		const start = 1<<64 - 1000
		buffer := aligned(size, rapid.IntRange(0, 7).Draw(t, "shift"))
		model := make([]byte, size)
		region, err := table.Register(domain, buffer, start, LocalWrite)
		require.NoError(t, err)
		for range 20 {
			from := rapid.IntRange(0, size).Draw(t, "from")
			data := rapid.SliceOfN(rapid.Byte(), 0, size-from).Draw(t, "data")
			var pieces [][]byte
			for rest := data; len(rest) > 0; {
				n := rapid.IntRange(0, len(rest)).Draw(t, "piece")
				pieces, rest = append(pieces, rest[:n]), rest[n:]
				if len(pieces) == 4 {
					pieces, rest = append(pieces, rest), nil
				}
			}
			r := Range{Key: region.Key(), Address: start + uint64(from), Length: uint64(len(data))}
			require.Equal(t, FaultNone, user.Write(&Principal{Domain: domain}, LocalWrite, r, pieces, rapid.Bool().Draw(t, "final")))
			copy(model[from:], data)
			require.Equal(t, model, buffer)
			into := make([]byte, len(data))
			require.Equal(t, FaultNone, user.Read(&Principal{Domain: domain}, 0, r, into))
			require.True(t, bytes.Equal(data, into))
		}
		require.Nil(t, user.region.Load(), "the region is in use no more")
	})
}

// TestFinalWordIsLast: whoever sees the last word of a message sees everything before it. Run with -race, which knows
// only the atomic word as an order between the two.
func TestFinalWordIsLast(t *testing.T) {
	table, domain := NewTable(1), new(Domain)
	user := table.NewUser()
	const length = 1024
	buffer := aligned(length+8, 0)
	region, err := table.Register(domain, buffer, 0, LocalWrite)
	require.NoError(t, err)
	const rounds = 2000
	turn := make(chan struct{}, 1)
	go func() {
		for i := uint64(1); i <= rounds; i++ {
			data := bytes.Repeat([]byte{byte(i)}, length)
			binary.NativeEndian.PutUint64(data[length-8:], i)
			pieces := [][]byte{data[:length/2+3], data[length/2+3:]}
			if user.Write(&Principal{Domain: domain}, LocalWrite, Range{Key: region.Key(), Length: length}, pieces, true) != FaultNone {
				panic("write")
			}
			<-turn
		}
	}()
	for i := uint64(1); i <= rounds; i++ {
		for {
			word, fault := region.LoadUint64(length - 8)
			require.Equal(t, FaultNone, fault)
			if word == i {
				break
			}
			runtime.Gosched()
		}
		for k, b := range buffer[:length-8] {
			if b != byte(i) {
				require.Equal(t, byte(i), b, "byte %d", k)
			}
		}
		turn <- struct{}{}
	}
}

func TestLastWord(t *testing.T) {
	for shift := range 8 {
		for length := range 40 {
			b := aligned(length, shift)
			at := lastWord(b)
			if first := -shift & 7; length < first+8 {
				require.Equal(t, -1, at, "shift %d, length %d", shift, length)
				continue
			}
			require.Zero(t, (shift+at)%8)
			require.LessOrEqual(t, at+8, length)
			require.Greater(t, at+16, length, "a later word would fit")
		}
	}
}

// TestWords: the program's own accesses are to words in host byte order, within the region and aligned in memory.
func TestWords(t *testing.T) {
	table := NewTable(1)
	buffer := aligned(20, 4)
	copy(buffer[4:], []byte{1, 2, 3, 4, 5, 6, 7, 8})
	region, err := table.Register(new(Domain), buffer, 0, 0)
	require.NoError(t, err)
	first := binary.NativeEndian.Uint64([]byte{1, 2, 3, 4, 5, 6, 7, 8})
	for offset, want := range map[uint64]uint64{4: first, 12: 0} {
		word, fault := region.LoadUint64(offset)
		require.Equal(t, FaultNone, fault)
		require.Equal(t, want, word)
	}
	swapped, fault := region.CompareAndSwapUint64(4, first+1, 7)
	require.Equal(t, []any{FaultNone, false}, []any{fault, swapped})
	swapped, fault = region.CompareAndSwapUint64(4, first, 7)
	require.Equal(t, []any{FaultNone, true}, []any{fault, swapped})
	sum, fault := region.AddUint64(4, 1<<64-8)
	require.Equal(t, []any{FaultNone, uint64(1<<64 - 1)}, []any{fault, sum})
	require.Equal(t, FaultNone, region.StoreUint64(12, first))
	require.Equal(t, []byte{0, 0, 0, 0, 255, 255, 255, 255, 255, 255, 255, 255, 1, 2, 3, 4, 5, 6, 7, 8}, buffer)

	for offset, want := range map[uint64]Fault{
		0: FaultAlignment, 1: FaultAlignment, 5: FaultAlignment,
		13: FaultBounds, 16: FaultBounds, 20: FaultBounds, 21: FaultBounds, 1<<64 - 1: FaultBounds, 1<<64 - 4: FaultBounds,
	} {
		requireWords(t, region, offset, want)
	}
	require.NoError(t, table.Deregister(region))
	requireWords(t, region, 4, FaultKey)
	require.Zero(t, region.pins.Load())
}

// requireWords tries every access to the word at offset.
func requireWords(t *testing.T, r *Region, offset uint64, want Fault) {
	t.Helper()
	_, load := r.LoadUint64(offset)
	_, add := r.AddUint64(offset, 1)
	_, swap := r.CompareAndSwapUint64(offset, 0, 1)
	require.Equal(t, [4]Fault{want, want, want, want}, [4]Fault{load, r.StoreUint64(offset, 1), add, swap}, "at %d", offset)
}
