package driver

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/xroce/xroce/roce"
)

// TestNumbersComeBackLate: a QPN that was given up is used again when all others have been: 2^14 QPNs later, less those that are in
// use.
func TestNumbersComeBackLate(t *testing.T) {
	var n numbers
	n.init(rand.New(rand.NewPCG(1, 1)))
	const staying = 100
	for range staying {
		_, err := n.claim()
		require.NoError(t, err)
	}
	last := map[roce.QPN]int{}
	for i := range 4 << qpnBits {
		number, err := n.claim()
		require.NoError(t, err)
		if before, used := last[number]; used {
			require.Equal(t, 1<<qpnBits-staying, i-before, "QPN %v", number)
		}
		last[number] = i
		n.release(number)
	}
	require.Len(t, last, 1<<qpnBits-staying)
}
