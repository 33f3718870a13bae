package loop

import (
	"encoding/binary"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// TestAgainstModel compares a ring with a list.
func TestAgainstModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var r Ring
		var model [][]byte
		starved := false
		serial := uint64(0)
		frame := func(length int) []byte {
			b := make([]byte, length)
			serial++
			binary.NativeEndian.PutUint64(b, serial)
			return b
		}
		t.Repeat(map[string]func(*rapid.T){
			"commit": func(t *rapid.T) {
				buffer := r.Buffer()
				if len(model) == Slots {
					require.Nil(t, buffer)
					starved = true
					return
				}
				require.Len(t, buffer, FrameSize)
				if rapid.Bool().Draw(t, "leave it") {
					return
				}
				f := frame(rapid.IntRange(8, FrameSize).Draw(t, "length"))
				copy(buffer, f)
				r.Commit(len(f))
				model = append(model, f)
			},
			"put": func(t *rapid.T) {
				f := frame(rapid.IntRange(8, FrameSize+10).Draw(t, "length"))
				cut := rapid.IntRange(0, len(f)).Draw(t, "cut")
				fits := len(model) < Slots && len(f) <= FrameSize
				require.Equal(t, fits, r.Put([][]byte{f[:cut], f[cut:]}))
				if fits {
					model = append(model, f)
				}
			},
			"fill": func(t *rapid.T) {
				for len(model) < Slots {
					f := frame(8)
					require.True(t, r.Put([][]byte{f}))
					model = append(model, f)
				}
			},
			"take": func(t *rapid.T) {
				for range rapid.IntRange(0, len(model)).Draw(t, "count") {
					segments := r.Front()
					require.Len(t, segments, 1)
					require.Equal(t, model[0], segments[0])
					r.Release()
					model = model[1:]
				}
			},
			"starved": func(t *rapid.T) {
				require.Equal(t, starved, r.Starved())
				starved = false
			},
			"": func(t *rapid.T) { require.Equal(t, len(model), r.Waiting()) },
		})
	})
}

// TestStarvedProducerIsTold: a producer that waits to be told goes on, at whatever moment slots come free. Both sides
// stop where the driver's shards would sleep.
func TestStarvedProducerIsTold(t *testing.T) {
	const frames = 200_000
	var r Ring
	resume, arrived := make(chan struct{}, 1), make(chan struct{}, 1)
	signal := func(c chan struct{}) {
		select {
		case c <- struct{}{}:
		default:
		}
	}
	go func() {
		for i := uint64(0); i < frames; {
			b := r.Buffer()
			if b == nil {
				<-resume
				continue
			}
			binary.NativeEndian.PutUint64(b, i)
			r.Commit(8)
			signal(arrived)
			i++
		}
	}()
	for i := uint64(0); i < frames; {
		if r.Waiting() == 0 {
			<-arrived
			continue
		}
		for range r.Waiting() {
			require.Equal(t, i, binary.NativeEndian.Uint64(r.Front()[0]))
			r.Release()
			i++
		}
		if i%7 == 0 {
			runtime.Gosched()
		}
		if r.Starved() {
			signal(resume)
		}
	}
	require.Zero(t, r.Waiting())
}
