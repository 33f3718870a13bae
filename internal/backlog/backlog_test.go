package backlog

import (
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// TestBacklog compares the list with a slice; the channel is readable exactly while something is in it, or was received
// by somebody who has not come to take yet.
func TestBacklog(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var b List[int]
		b.Init()
		var model []int
		next, received := 0, false
		t.Repeat(map[string]func(*rapid.T){
			"put": func(*rapid.T) { b.Put(next); model = append(model, next); next++; received = false },
			"take": func(t *rapid.T) {
				item, found := b.Take()
				require.Equal(t, len(model) > 0, found)
				if found {
					require.Equal(t, model[0], item)
					model = model[1:]
				}
				received = false
			},
			"remove": func(t *rapid.T) {
				n := rapid.IntRange(1, 4).Draw(t, "n")
				b.Remove(func(i int) bool { return i%n == 0 })
				kept := model[:0:0]
				for _, i := range model {
					if i%n != 0 {
						kept = append(kept, i)
					}
				}
				model, received = kept, false
			},
			"receive": func(*rapid.T) {
				select {
				case <-b.ready:
					received = true
				default:
				}
			},
			"": func(t *rapid.T) {
				require.Equal(t, len(model) == 0, b.Empty())
				require.Equal(t, len(model) > 0 && !received, len(b.ready) == 1)
			},
		})
	})
}
