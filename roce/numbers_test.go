package roce

import (
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func TestPSNWrap(t *testing.T) {
	require.Equal(t, PSN(0), PSN(0xFFFFFF).Add(1))
	require.Equal(t, PSN(1), PSN(0xFFFFFE).Add(3))
	require.Equal(t, PSN(0xFFFFFF), PSN(0).Sub(1))
	require.Equal(t, PSN(5), PSN(5).Add(1<<24))
	require.Equal(t, int32(2), PSN(1).Diff(0xFFFFFF))
	require.Equal(t, int32(-2), PSN(0xFFFFFF).Diff(1))
	require.Equal(t, int32(1<<23-1), PSN(1<<23-1).Diff(0))
	require.Equal(t, int32(-1<<23), PSN(1<<23).Diff(0))
	require.Equal(t, int32(-1<<23), PSN(0).Diff(1<<23))
	require.True(t, PSN(0xFFFFFF).Before(0))
	require.True(t, PSN(0).After(0xFFFFFF))
	require.False(t, PSN(7).Before(7))
	require.False(t, PSN(7).After(7))
}

func TestPSNProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := PSN(rapid.Uint32Range(0, PSNMask).Draw(t, "p"))
		if rapid.Bool().Draw(t, "near the wrap") {
			p = PSN(0).Sub(rapid.Uint32Range(0, 64).Draw(t, "before zero")).Add(rapid.Uint32Range(0, 64).Draw(t, "after"))
		}
		n := rapid.Uint32Range(1, 1<<23-1).Draw(t, "n")
		q := p.Add(n)
		require.LessOrEqual(t, uint32(q), uint32(PSNMask))
		require.Equal(t, p, q.Sub(n))
		require.Equal(t, int32(n), q.Diff(p))
		require.Equal(t, -int32(n), p.Diff(q))
		require.True(t, p.Before(q) && q.After(p))
		require.False(t, q.Before(p) || p.After(q))
		require.Equal(t, (uint64(p)+uint64(n))%(1<<24), uint64(q))
	})
}

func TestFlowLabelAndSourcePort(t *testing.T) {
	require.Equal(t, uint32(0x00132), FlowLabel(0x11, 0x12))
	require.Equal(t, uint16(0xC132), UDPSourcePort(FlowLabel(0x11, 0x12)))
	require.Equal(t, uint16(0xFAC9), UDPSourcePort(0x1FACE))
	require.Equal(t, uint16(0xFFC0), UDPSourcePort(0xFFFFF))
	require.Equal(t, uint16(0xC000), UDPSourcePort(0))
	// 0xFFFFFF squared is 0xFFFFFE000001; folded by 20 and then by 40 bits.
	v := uint64(0xFFFFFE000001)
	v ^= v >> 20
	v ^= v >> 40
	require.Equal(t, uint32(v&0xFFFFF), FlowLabel(0xFFFFFF, 0xFFFFFF))

	rapid.Check(t, func(t *rapid.T) {
		a, b := QPN(rapid.Uint32().Draw(t, "a")), QPN(rapid.Uint32().Draw(t, "b"))
		label := FlowLabel(a, b)
		require.Equal(t, label, FlowLabel(b, a))
		require.LessOrEqual(t, label, uint32(0xFFFFF))
		require.GreaterOrEqual(t, UDPSourcePort(rapid.Uint32().Draw(t, "label")), uint16(0xC000))
	})
}

func TestGID(t *testing.T) {
	v4 := GIDFromAddr(netip.MustParseAddr("10.9.0.1"))
	require.Equal(t, GID{10: 0xFF, 11: 0xFF, 12: 10, 13: 9, 14: 0, 15: 1}, v4)
	require.Equal(t, netip.MustParseAddr("10.9.0.1"), v4.Addr())
	require.Equal(t, "10.9.0.1", v4.String())
	require.Equal(t, v4, GIDFromAddr(netip.MustParseAddr("::ffff:10.9.0.1")))

	v6 := GIDFromAddr(netip.MustParseAddr("fe80::1%eth7"))
	require.Equal(t, "fe80::1", v6.String())
	require.Equal(t, GID{}, GIDFromAddr(netip.Addr{}))

	for _, c := range []struct {
		address         string
		is4, multi, nil bool
	}{
		{"10.9.0.1", true, false, false},
		{"223.255.255.255", true, false, false},
		{"224.0.0.1", true, true, false},
		{"239.255.1.2", true, true, false},
		{"240.0.0.1", true, false, false},
		{"::", false, false, true},
		{"0.0.0.0", true, false, false},
		{"::10.9.0.1", false, false, false},
		{"fd00:9::1", false, false, false},
		{"ff0e::1", false, true, false},
		{"fe80::1", false, false, false},
	} {
		g := GIDFromAddr(netip.MustParseAddr(c.address))
		require.Equal(t, c.is4, g.Is4(), c.address)
		require.Equal(t, c.multi, g.IsMulticast(), c.address)
		require.Equal(t, c.multi, g.Addr().IsMulticast(), c.address)
		require.Equal(t, c.nil, g.IsZero(), c.address)
	}
}

func TestMulticastMAC(t *testing.T) {
	for address, mac := range map[string]string{
		"224.1.2.3":          "01:00:5e:01:02:03",
		"239.129.2.3":        "01:00:5e:01:02:03", // bit 23 of the group is dropped
		"ff0e::1234:5678":    "33:33:12:34:56:78",
		"ff02::1:ff00:12:ab": "33:33:00:12:00:ab",
	} {
		require.Equal(t, mac, MulticastMAC(GIDFromAddr(netip.MustParseAddr(address))).String(), address)
	}
}

func TestMTU(t *testing.T) {
	for m, bytes := range map[MTU]int{1: 256, 2: 512, 3: 1024, 4: 2048, 5: 4096, 0: 0, 6: 0, 255: 0} {
		require.Equal(t, bytes, m.Bytes())
		require.Equal(t, bytes != 0, m.Valid())
		if bytes != 0 {
			found, ok := MTUFromBytes(bytes)
			require.True(t, ok)
			require.Equal(t, m, found)
		}
	}
	for _, bytes := range []int{-1, 0, 1, 128, 255, 257, 1000, 1500, 4095, 4097, 8192, 1 << 40} {
		_, ok := MTUFromBytes(bytes)
		require.False(t, ok, "%d", bytes)
	}
	require.Equal(t, "1024", MTU1024.String())
	require.Equal(t, "MTU(9)", MTU(9).String())

	for device, want := range map[int]MTU{
		-1 << 62: 0, 0: 0, 351: 0, 352: MTU256, 607: MTU256, 608: MTU512, 1119: MTU512, 1120: MTU1024, 1280: MTU1024, 1500: MTU1024,
		2143: MTU1024, 2144: MTU2048, 4191: MTU2048, 4192: MTU4096, 9000: MTU4096, 65535: MTU4096, 1 << 62: MTU4096,
	} {
		active, ok := ActiveMTU(device)
		require.Equal(t, want != 0, ok, "%d", device)
		if ok {
			require.Equal(t, want, active, "%d", device)
		}
	}
}

func TestSyndrome(t *testing.T) {
	for s := 0; s < 256; s++ {
		syndrome := Syndrome(s)
		require.Equal(t, s < 0x20, syndrome.IsAck())
		require.Equal(t, s >= 0x20 && s < 0x40, syndrome.IsRNR())
		require.Equal(t, s >= 0x60 && s < 0x80, syndrome.IsNAK())
		require.Equal(t, uint8(s%32), syndrome.Value())
		require.NotEmpty(t, syndrome.String())
	}
	require.Equal(t, Syndrome(0x2C), RNRNAK(12))
	require.Equal(t, Syndrome(0x3F), RNRNAK(0xFF))
	require.Equal(t, Syndrome(0x05), AckSyndrome(5))
	require.Equal(t, SyndromeAckNoCredits, AckSyndrome(0x1F))
	require.Equal(t, Syndrome(0x1F), AckSyndrome(0xFF))
	for syndrome, text := range map[Syndrome]string{
		0x1F: "ACK", 0x03: "ACK credit code 3", 0x2C: "RNR NAK 640µs", 0x60: "NAK PSN sequence error", 0x61: "NAK invalid request",
		0x62: "NAK remote access error", 0x63: "NAK remote operational error", 0x64: "reserved syndrome 0x64", 0x45: "reserved syndrome 0x45",
	} {
		require.Equal(t, text, syndrome.String())
	}
}

func TestRNRTimer(t *testing.T) {
	milliseconds := []float64{
		655.36, 0.01, 0.02, 0.03, 0.04, 0.06, 0.08, 0.12, 0.16, 0.24, 0.32, 0.48, 0.64, 0.96, 1.28, 1.92,
		2.56, 3.84, 5.12, 7.68, 10.24, 15.36, 20.48, 30.72, 40.96, 61.44, 81.92, 122.88, 163.84, 245.76, 327.68, 491.52,
	}
	for code, ms := range milliseconds {
		require.InDelta(t, ms*1e6, RNRTimer(uint8(code)).Nanoseconds(), 0.5, "code %d", code)
	}
	require.Equal(t, RNRTimer(3), RNRTimer(32+3))
	// From code 3 on the value doubles every two codes.
	for code := uint8(2); code < 30; code++ {
		require.Equal(t, 2*RNRTimer(code), RNRTimer(code+2), "code %d", code)
	}
}

func TestAckTimeout(t *testing.T) {
	require.Equal(t, time.Duration(0), AckTimeout(0))
	require.Equal(t, 8192*time.Nanosecond, AckTimeout(1))
	require.Equal(t, 67108864*time.Nanosecond, AckTimeout(14))
	require.Equal(t, time.Duration(4096)<<31, AckTimeout(31))
	require.InDelta(t, 2.44, AckTimeout(31).Hours(), 0.01)
	require.Equal(t, AckTimeout(31), AckTimeout(255))
	for code := uint8(1); code < 31; code++ {
		require.Equal(t, 2*AckTimeout(code), AckTimeout(code+1))
	}
}

func TestDropReasonNames(t *testing.T) {
	seen := map[string]DropReason{}
	for r := DropNone; r < DropReasons; r++ {
		name := r.String()
		require.Regexp(t, `^[a-z0-9_]+$`, name, "reason %d", uint8(r))
		require.NotContains(t, seen, name)
		seen[name] = r
	}
	require.Equal(t, "icrc_bad", DropICRC.String())
	require.Equal(t, "qpn_unknown", DropUnknownQPN.String())
	require.Equal(t, "DropReason(255)", DropReason(255).String())
}

func TestQPNString(t *testing.T) {
	require.Equal(t, "0x00d802", QPN(0xd802).String())
	require.Equal(t, "0xffffff", QPNMulticast.String())
}

func TestAddressTexts(t *testing.T) {
	for _, text := range []string{"10.0.0.1", "fe80::1", "::"} {
		var g GID
		require.NoError(t, g.UnmarshalText([]byte(text)))
		again, err := g.MarshalText()
		require.NoError(t, err)
		require.Equal(t, text, string(again))
	}
	var g GID
	require.NoError(t, g.UnmarshalText([]byte("::ffff:10.0.0.1")))
	require.Equal(t, GIDFromAddr(netip.MustParseAddr("10.0.0.1")), g)
	require.Error(t, g.UnmarshalText([]byte("10.0.0")))

	m := MAC{2, 0, 0x5E, 0x10, 0, 0xFF}
	text, err := m.MarshalText()
	require.NoError(t, err)
	var back MAC
	require.NoError(t, back.UnmarshalText(text))
	require.Equal(t, m, back)
	for _, wrong := range []string{"", "02:00:5e:10:00", "02:00:5e:10:00:ff:", "02:00:5e:10:00:gg", "02:00:5e:10:00:ff:00", "02005e1000ff"} {
		kept := m
		require.ErrorContains(t, kept.UnmarshalText([]byte(wrong)), "no Ethernet address")
		require.Equal(t, m, kept)
	}
}
