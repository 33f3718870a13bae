package driver

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/xroce/xroce/roce"
)

// TestDistanceOfQPNs computes how many QPNs are claimed until one that was released comes back, in the worst case: it was claimed long
// before, and all others in between have come and gone.
func TestDistanceOfQPNs(t *testing.T) {
	const all = 1 << qpnBits
	for _, others := range []int{0, 1, 5000, all - 2, all - 1} {
		for _, before := range []int{0, 1, all - 1, all, 3*all + 7} {
			var n numbers
			n.init(rand.New(rand.NewPCG(uint64(others), uint64(before))))
			for range others {
				_, err := n.claim()
				require.NoError(t, err)
			}
			first, err := n.claim()
			require.NoError(t, err)
			for range before {
				if number, err := n.claim(); err == nil {
					n.release(number)
				}
			}
			n.release(first)
			distance := 0
			for number := roce.QPN(0); number != first; distance++ {
				if number, err = n.claim(); err != nil {
					t.Fatal(err)
				}
				n.release(number)
			}
			require.Equal(t, all-others, distance, "%d others, %d claims before", others, before)
		}
	}
}

// TestEveryQPN: the device has as many as it says, each once, and a number is free again when it was released.
func TestEveryQPN(t *testing.T) {
	var n numbers
	n.init(rand.New(rand.NewPCG(1, 2)))
	seen := make(map[roce.QPN]bool)
	for range 1 << qpnBits {
		number, err := n.claim()
		require.NoError(t, err)
		require.Less(t, number-n.base, roce.QPN(1<<qpnBits))
		seen[number] = true
	}
	require.Len(t, seen, 1<<qpnBits)
	_, err := n.claim()
	require.ErrorIs(t, err, ErrLimit)
	require.ErrorContains(t, err, "QP number 16385, the device has 16384")
	n.release(n.base + 77)
	number, err := n.claim()
	require.NoError(t, err)
	require.Equal(t, n.base+77, number)
}
