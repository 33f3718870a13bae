package main

import (
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/xroce/xroce/internal/netlab"
)

func TestSniffer(t *testing.T) {
	p := newPair(t, netlab.PairOptions{})
	var at [2]*sniffer
	for i, n := range []*netlab.Namespace{p.A.Namespace, p.B.Namespace} {
		s, err := newSniffer(n)
		require.NoError(t, err)
		defer func() { require.NoError(t, s.close()) }()
		at[i] = s
	}
	require.NoError(t, proveSniffers(p, at))
	requireCounts := func(want uint64) {
		t.Helper()
		time.Sleep(20 * time.Millisecond)
		for _, s := range at {
			n, err := s.count()
			require.NoError(t, err)
			require.Equal(t, want, n)
		}
	}
	requireCounts(0)
	for range 300 { // more than the socket's buffer holds
		require.NoError(t, sendDatagram(p.A.Namespace, netip.AddrPortFrom(p.B.IPv4(), rocePort)))
		require.NoError(t, sendDatagram(p.B.Namespace, netip.AddrPortFrom(p.A.IPv6(), rocePort)))
	}
	requireCounts(600)
	for _, other := range []netip.AddrPort{netip.AddrPortFrom(p.B.IPv4(), 4790), netip.AddrPortFrom(p.B.IPv6(), 4790)} {
		require.NoError(t, sendDatagram(p.A.Namespace, other))
	}
	requireCounts(0)

	// A namespace into which nothing comes does not prove anything.
	idle, err := netlab.NewNamespace()
	require.NoError(t, err)
	defer idle.Close()
	deaf, err := newSniffer(idle)
	require.NoError(t, err)
	defer func() { require.NoError(t, deaf.close()) }()
	require.ErrorContains(t, proveSniffers(p, [2]*sniffer{at[0], deaf}), "did not")
}
