package xdp

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/xroce/xroce/roce"
)

// TestRecognises: kind and permanent address decide, and the present address where there is no permanent one.
func TestRecognises(t *testing.T) {
	one, other, permanent := roce.MAC{2, 1}, roce.MAC{2, 2}, roce.MAC{4, 1}
	for _, c := range []struct {
		was, is identity
		reason  string // empty: the same
	}{
		{identity{driver: "veth", mac: one}, identity{driver: "veth", mac: one}, ""},
		{identity{driver: "veth", mac: one}, identity{driver: "veth", mac: other}, "its Ethernet address is 02:02:00:00:00:00 and was 02:01:00:00:00:00"},
		{identity{driver: "veth", mac: one}, identity{driver: "macvlan", mac: one}, `its driver is "macvlan" and was "veth"`},
		{identity{driver: "igb", mac: one, permanent: permanent}, identity{driver: "igb", mac: other, permanent: permanent}, ""},
		{identity{driver: "igb", mac: one, permanent: permanent}, identity{driver: "igb", mac: one, permanent: other},
			"its permanent Ethernet address is 02:02:00:00:00:00 and was 04:01:00:00:00:00"},
		{identity{driver: "igb", mac: one, permanent: permanent}, identity{driver: "igb", mac: one},
			"its permanent Ethernet address is 00:00:00:00:00:00 and was 04:01:00:00:00:00"},
	} {
		err := c.was.recognises(c.is)
		if c.reason == "" {
			require.NoError(t, err)
			continue
		}
		require.ErrorIs(t, err, errStranger)
		require.ErrorContains(t, err, c.reason)
	}
}
