package roce

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"net/netip"
)

// GID is a global identifier: in RoCEv2 an IPv6 address in network order. An IPv4 address a.b.c.d
// is ::ffff:a.b.c.d, and packets between such GIDs travel over IPv4 (IBTA annex A17).
type GID [16]byte

var mappedPrefix = [12]byte{10: 0xFF, 11: 0xFF}

// GIDFromAddr returns the GID of an address. A zone is dropped, because the GID table, not the GID,
// binds an address to an interface. The zero Addr gives the zero GID.
func GIDFromAddr(address netip.Addr) GID { return GID(address.As16()) }

// Addr returns the IP address of the GID; an IPv4-mapped GID gives the IPv4 address.
func (g GID) Addr() netip.Addr { return netip.AddrFrom16(g).Unmap() }

// Is4 reports whether packets to this GID are IPv4 packets.
func (g GID) Is4() bool { return [12]byte(g[:12]) == mappedPrefix }

// IsMulticast reports whether the GID names an IPv4 or IPv6 multicast group.
func (g GID) IsMulticast() bool { return g[0] == 0xFF || g.Is4() && g[12]>>4 == 0xE }

// IsZero reports whether the GID is all zero, the mark of an unused entry in a GID table.
func (g GID) IsZero() bool { return g == GID{} }

// String returns the IP address in its usual form, IPv4 where the GID is IPv4-mapped.
func (g GID) String() string { return g.Addr().String() }

// MarshalText returns the text of String, for logs and JSON.
func (g GID) MarshalText() ([]byte, error) { return []byte(g.String()), nil }

// UnmarshalText takes what MarshalText returns, and any other form of an IP address.
func (g *GID) UnmarshalText(text []byte) error {
	var address netip.Addr
	if err := address.UnmarshalText(text); err != nil {
		return err
	}
	*g = GIDFromAddr(address)
	return nil
}

// MAC is an Ethernet address.
type MAC [6]byte

// String returns the address in the form 02:00:5e:10:00:00.
func (m MAC) String() string {
	return fmt.Sprintf("%02x:%02x:%02x:%02x:%02x:%02x", m[0], m[1], m[2], m[3], m[4], m[5])
}

// MarshalText returns the text of String, for logs and JSON.
func (m MAC) MarshalText() ([]byte, error) { return []byte(m.String()), nil }

// UnmarshalText takes what MarshalText returns.
func (m *MAC) UnmarshalText(text []byte) error {
	var parsed MAC
	digits := bytes.ReplaceAll(text, []byte(":"), nil)
	if _, err := hex.Decode(parsed[:], digits[:min(len(digits), 2*len(parsed))]); err != nil || parsed.String() != string(text) {
		return fmt.Errorf("%q is no Ethernet address", text)
	}
	*m = parsed
	return nil
}

// MulticastMAC returns the Ethernet address of a multicast group: 01:00:5e and the low 23 bits of an
// IPv4 group (RFC 1112), 33:33 and the low 32 bits of an IPv6 group (RFC 2464).
func MulticastMAC(group GID) MAC {
	if group.Is4() {
		return MAC{0x01, 0x00, 0x5E, group[13] & 0x7F, group[14], group[15]}
	}
	return MAC{0x33, 0x33, group[12], group[13], group[14], group[15]}
}
