//go:build linux

package main

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/xroce/xroce/bpf"
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
	require.Empty(t, native.contradicts(rung{"native", "copy", "off"}))
	require.Empty(t, large.contradicts(rung{"generic", "copy", "on"}))
	require.Empty(t, large.contradicts(rung{}))
	require.Len(t, native.contradicts(rung{"generic", "zero", "on"}), 3)
	require.Len(t, large.contradicts(rung{"native", "zero", "off"}), 3)
	require.Len(t, obtained{Mode: "native", MTU: 4096}.contradicts(rung{}), 1)
}

func TestRungs(t *testing.T) {
	require.Len(t, rungs(false), 10)
	require.Equal(t, "default", rung{}.String())
	require.Equal(t, "generic", rung{mode: "generic"}.String())
	require.Equal(t, "native, zero copy, multi-buffer off", rung{"native", "zero", "off"}.String())
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
	check(obtained{Mode: "native+frags", MultiBuffer: true, MTU: 4096}, 0, " (`xroce devices` expects native without multi-buffer)")
	check(obtained{Mode: "native", MultiBuffer: true, MTU: 4096}, 1, "")
	port.MultiBuffer = nil
	port.DriverTells = false
	check(obtained{Mode: "generic", ZeroCopy: true, MultiBuffer: true, MTU: 4096}, 0, "")
}

// TestLadderTable: what was obtained stands in the place of the outcome, and why not below.
func TestLadderTable(t *testing.T) {
	var b strings.Builder
	writeLadder(&b, []report{{Kernel: "6.1.0", Layout: "veth", Left: "rxe", Results: []result{
		{Kind: "feature", Name: "F", Row: "F", Outcome: works, Short: "no"},
		{Kind: "rung", Row: "default", Outcome: works, Short: "native+frags, copy, path MTU 2048"},
		{Kind: "rung", Row: "native, copy, multi-buffer on", Outcome: refused, Detail: "no such kernel"},
	}}})
	require.Contains(t, b.String(), "\n| F | no |\n")
	require.Contains(t, b.String(), "\n| veth: default | native+frags, copy, path MTU 2048 |\n")
	require.Contains(t, b.String(), "\n| veth: native, copy, multi-buffer on | refused |\n")
	require.Contains(t, b.String(), "\n- 6.1.0: no such kernel (veth: native, copy, multi-buffer on)\n")
}
