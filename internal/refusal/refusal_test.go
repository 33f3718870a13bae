package refusal

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// TestCauses: what is known decides what is named, and what is not known is said to be so.
func TestCauses(t *testing.T) {
	with, without := map[string]string{"CONFIG_X": "y"}, map[string]string{"CONFIG_Y": "y"}
	for _, c := range []struct {
		name                     string
		facts                    Facts
		initial, network, absent string
	}{
		{"nothing known", Facts{},
			"the capabilities are there and no seccomp filter is; a security module may refuse it (which ones are active cannot be read)",
			"the capabilities are there and no seccomp filter is; a security module may refuse it (which ones are active cannot be read)",
			"this kernel may be built without CONFIG_X (its configuration cannot be read)"},
		{"security modules", Facts{Release: "6.18.5", Modules: "capability,selinux", Config: with},
			"the capabilities are there and no seccomp filter is; a security module may refuse it (active are capability,selinux)",
			"the capabilities are there and no seccomp filter is; a security module may refuse it (active are capability,selinux)",
			"this kernel (6.18.5) is built with CONFIG_X=y and no seccomp filter is on this process, so the cause is not known"},
		{"filter", Facts{Release: "6.18.5", Seccomp: true, Config: with},
			"the capabilities are there; the seccomp filter of this process may refuse it (a container's profile has to allow it)",
			"the capabilities are there; the seccomp filter of this process may refuse it (a container's profile has to allow it)",
			"this kernel (6.18.5) is built with CONFIG_X=y; the seccomp filter of this process may refuse it (a container's profile has to allow it)"},
		{"filter, no configuration", Facts{Release: "6.18.5", Seccomp: true, Nested: true},
			"the capabilities are there, but only in the user namespace of this process, and it wants them in the initial one",
			"the capabilities are there; the seccomp filter of this process may refuse it (a container's profile has to allow it)",
			"the seccomp filter of this process may refuse it, or this kernel (6.18.5) is built without CONFIG_X (its configuration cannot be read)"},
		{"kernel without it", Facts{Release: "6.18.5", Seccomp: true, Nested: true, Foreign: true, Config: without},
			"the capabilities are there, but only in the user namespace of this process, and it wants them in the initial one",
			"the capabilities are there, but not in the user namespace that owns the network namespace, where it wants them",
			"this kernel (6.18.5) is built without CONFIG_X"},
	} {
		t.Run(c.name, func(t *testing.T) {
			require.Equal(t, c.initial, c.facts.Initial("it"))
			require.Equal(t, c.network, c.facts.Network("it"))
			require.Equal(t, c.absent, c.facts.Absent("it", "CONFIG_X"))
		})
	}
}

func TestOlder(t *testing.T) {
	for _, c := range []struct {
		release string
		older   bool
	}{
		{"5.17.9", true}, {"5.18.0", false}, {"5.9.0-1-amd64", true}, {"4.19", true}, {"6.1.0", false}, {"5.18-rc1", false}, {"10.0.0", false},
		{"unknown", true}, {"", true}, {"5", true}, {"5.x", true},
	} {
		require.Equal(t, c.older, Older(c.release, "Linux 5.18"), c.release)
	}
	require.True(t, Older("6.1.0", ""))
}
