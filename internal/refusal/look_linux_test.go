package refusal

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestLook: what the test can know of itself; the rest is shown by the tests of cmd/xroce, in processes that are
// refused something.
func TestLook(t *testing.T) {
	f := Look()
	require.NotEmpty(t, f.Release)
	_, ok := version(f.Release)
	require.True(t, ok, f.Release)
	if f.Config != nil {
		require.NotEmpty(t, f.Config["CONFIG_NET"])
	}
	require.Equal(t, map[string]string{"CONFIG_A": "y", "CONFIG_B": `"a=b"`},
		parseConfig(strings.NewReader("# CONFIG_C is not set\nCONFIG_A=y\n\nCONFIG_B=\"a=b\"\nOTHER=1\n")))
}
