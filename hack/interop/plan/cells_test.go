//go:build linux

package plan

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestCovering: every value of each axis occurs with each operation and requester, and most pairs of values occur.
func TestCovering(t *testing.T) {
	requesters := []string{"xroce", "rxe"}
	seen, pairs := map[string]bool{}, map[string]bool{}
	for _, c := range Covering(requesters) {
		size := -1
		for i, n := range sizes(c.MTU) {
			if n == c.Size || c.Size == 1<<20 && n == 8<<20 { // shortened
				size = i
			}
		}
		values := []string{fmt.Sprint("MTU ", c.MTU), fmt.Sprint("IPv", c.Family), fmt.Sprint("size ", size), c.Loss}
		for i, v := range values {
			seen[c.Operation+" "+c.Requester+" "+v] = true
			for _, w := range values[:i] {
				pairs[w+" "+v] = true
			}
		}
	}
	for _, operation := range Operations {
		for _, requester := range requesters {
			require := func(value any) {
				t.Helper()
				require.True(t, seen[operation+" "+requester+" "+fmt.Sprint(value)], "%s by %s never with %v", operation, requester,
					value)
			}
			for _, m := range MTUs {
				require(fmt.Sprint("MTU ", m))
			}
			for _, f := range families {
				require(fmt.Sprint("IPv", f))
			}
			for _, l := range Losses {
				require(l)
			}
			for i := range sizeCount {
				if !word(operation) {
					require(fmt.Sprint("size ", i))
				}
			}
		}
	}
	// 10 pairs of MTU and family, 40 of MTU and size, 20 of MTU and loss, 16 of family and size, 8 of family and
	// loss, 32 of size and loss.
	require.Greater(t, len(pairs), 115)
}

func TestEverything(t *testing.T) {
	// 6 operations with 8 sizes and 3 with one, 2 requesters, 5 MTUs, 2 families, 4 kinds of loss
	require.Len(t, everything([]string{"xroce", "rxe"}), (6*8+3)*2*5*2*4)
}
