package roce

// Places of bytes in a frame without a VLAN tag. They stand here once more than in the codec, from the standards: RFC
// 791, RFC 8200, RFC 768, and IBTA sections 9.2 and 9.3.
const (
	etherTypeAt = 12
	ipAt        = 14

	ipv4ClassAt    = ipAt + 1
	ipv4LengthAt   = ipAt + 2
	ipv4FragmentAt = ipAt + 6
	ipv4TTLAt      = ipAt + 8
	ipv4ProtocolAt = ipAt + 9
	ipv4ChecksumAt = ipAt + 10
	ipv4SourceAt   = ipAt + 12 // and the destination behind it

	ipv6LengthAt   = ipAt + 4
	ipv6NextAt     = ipAt + 6
	ipv6HopLimitAt = ipAt + 7
	ipv6SourceAt   = ipAt + 8 // and the destination behind it

	udp4At = ipAt + 20
	udp6At = ipAt + 40
	// Behind one of these.
	udpPortAt     = 2 // destination
	udpLengthAt   = 4
	udpChecksumAt = 6

	bth4At = udp4At + 8
	bth6At = udp6At + 8
	// Behind one of these.
	bthFlagsAt    = 1
	bthReservedAt = 4 // with FECN and BECN
	bthQPNAt      = 5
	bthAckAt      = 8 // the bit AckReq and seven reserved ones
)
