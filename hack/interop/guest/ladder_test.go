//go:build linux

package guest

import (
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/xroce/xroce/bpf"
	"github.com/xroce/xroce/hack/interop/plan"
	"github.com/xroce/xroce/roce"
	"github.com/xroce/xroce/roce/link/xdp"
)

// TestCheckFeature: a kernel that has what it should not have, or lacks what it should have, fails.
func TestCheckFeature(t *testing.T) {
	const since = "Linux 6.6"
	missing := fmt.Errorf("%w: so and so", xdp.ErrNotSupported)
	for _, c := range []struct {
		kernel string
		err    error
		want   string // "" is an error
	}{
		{"6.12.117+deb13-amd64", nil, "yes"},
		{"6.6.0", nil, "yes"},
		{"6.1.0-50-amd64", missing, "no"},
		{"6.1.0-50-amd64", nil, ""},
		{"6.12.117+deb13-amd64", missing, ""},
		{"7.3.4+deb13-amd64", errors.New("no capability"), ""},
	} {
		short, err := checkFeature(c.kernel, xdp.Feature{Since: since, Err: c.err})
		require.Equal(t, c.want, short, c.kernel)
		require.Equal(t, c.want == "", err != nil, c.kernel)
	}
}

// TestContradicts: what differs from what was asked for is named.
func TestContradicts(t *testing.T) {
	native := obtained{Mode: "native+frags", MTU: 2048}
	large := obtained{Mode: "generic+frags", MultiBuffer: true, MTU: 4096}
	require.Empty(t, native.contradicts(plan.Rung{Mode: "native", Copy: "copy", MultiBuffer: "off"}))
	require.Empty(t, large.contradicts(plan.Rung{Mode: "generic", Copy: "copy", MultiBuffer: "on"}))
	require.Empty(t, large.contradicts(plan.Rung{}))
	require.Len(t, native.contradicts(plan.Rung{Mode: "generic", Copy: "zero", MultiBuffer: "on"}), 3)
	require.Len(t, large.contradicts(plan.Rung{Mode: "native", Copy: "zero", MultiBuffer: "off"}), 3)
	require.Len(t, obtained{Mode: "native", MTU: 4096}.contradicts(plan.Rung{}), 1)
}

// TestDiffersFrom: the same for what the probe expects.
func TestDiffersFrom(t *testing.T) {
	port := xdp.Port{Rungs: []xdp.Rung{bpf.RungNative, bpf.RungGeneric}, DriverTells: true, ActiveMTU: roce.MTU4096}
	check := func(o obtained, wrong int, note string) {
		t.Helper()
		all, said := o.differsFrom(port)
		require.Len(t, all, wrong)
		require.Equal(t, note, said)
	}
	check(obtained{Mode: "native", MultiBuffer: true, MTU: 4096}, 0, "")
	check(obtained{Mode: "native+frags", MultiBuffer: true, MTU: 4096}, 0, " (`xroce devices` expects native)")
	check(obtained{Mode: "generic", ZeroCopy: true, MTU: 2048}, 4, "")
	check(obtained{Mode: "native+frags", MTU: 4096}, 1, " (`xroce devices` expects native)")
	port.MultiBuffer = xdp.ErrNotSupported
	check(obtained{Mode: "native+frags", MultiBuffer: true, MTU: 4096}, 0,
		" (`xroce devices` expects native without multi-buffer)")
	check(obtained{Mode: "native", MultiBuffer: true, MTU: 4096}, 1, "")
	port.MultiBuffer = nil
	port.DriverTells = false
	check(obtained{Mode: "generic", ZeroCopy: true, MultiBuffer: true, MTU: 4096}, 0, "")
}
