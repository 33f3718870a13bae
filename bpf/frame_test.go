package bpf

import (
	"encoding/binary"
	"net/netip"
)

const (
	etherTypeIPv4 = 0x0800
	etherTypeIPv6 = 0x86DD
	roceUDPPort   = 4791
)

// testFrame describes a RoCEv2 frame. The zero value of each field but the
// addresses stands for what a good frame has.
type testFrame struct {
	mac         [6]byte
	etherType   uint16 // 0: by destination
	tags        []uint16
	destination netip.Addr
	version     uint8 // 0: by destination
	options     int   // 32-bit words of IPv4 options
	ihl         uint8 // 0: 5 + options
	fragment    uint16
	protocol    uint8 // 0: UDP
	port        uint16
	udpLength   int // 0: as it is
	qpn         uint32
	payload     int // bytes after the BTH
}

// bytes returns the frame in wire format, without padding to 60 bytes. ICRC and
// checksums are not there: the program does not look at them.
func (f testFrame) bytes() []byte {
	b := append([]byte{}, f.mac[:]...)
	b = append(b, 0x02, 0, 0, 0, 0, 0xAA)
	for _, tag := range f.tags {
		b = append(binary.BigEndian.AppendUint16(b, tag), 0, 7)
	}
	ipv4 := f.destination.Unmap().Is4()
	etherType := f.etherType
	if etherType == 0 && ipv4 {
		etherType = etherTypeIPv4
	} else if etherType == 0 {
		etherType = etherTypeIPv6
	}
	b = binary.BigEndian.AppendUint16(b, etherType)
	udpLength := 8 + 12 + f.payload
	if ipv4 {
		b = f.appendIPv4(b, udpLength)
	} else {
		b = f.appendIPv6(b, udpLength)
	}
	return f.appendUDP(b, udpLength)
}

func (f testFrame) appendIPv4(b []byte, udpLength int) []byte {
	ihl := orDefault(f.ihl, uint8(5+f.options))
	b = append(b, orDefault(f.version, 4)<<4|ihl, 0)
	b = binary.BigEndian.AppendUint16(b, uint16(20+4*f.options+udpLength))
	b = append(b, 0, 0)
	b = binary.BigEndian.AppendUint16(b, f.fragment)
	b = append(b, 64, orDefault(f.protocol, 17), 0, 0, 192, 0, 2, 200)
	destination := f.destination.Unmap().As4()
	b = append(b, destination[:]...)
	return append(b, make([]byte, 4*f.options)...)
}

func (f testFrame) appendIPv6(b []byte, udpLength int) []byte {
	b = append(b, orDefault(f.version, 6)<<4, 0, 0, 0)
	b = binary.BigEndian.AppendUint16(b, uint16(udpLength))
	b = append(b, orDefault(f.protocol, 17), 64)
	source := netip.MustParseAddr("2001:db8::c8").As16()
	b = append(b, source[:]...)
	destination := f.destination.As16()
	return append(b, destination[:]...)
}

func (f testFrame) appendUDP(b []byte, udpLength int) []byte {
	b = append(b, 0xC0, 0x01)
	b = binary.BigEndian.AppendUint16(b, orDefault(f.port, roceUDPPort))
	b = binary.BigEndian.AppendUint16(b, uint16(orDefault(f.udpLength, udpLength)))
	b = append(b, 0, 0)
	b = append(b, 0x04, 0x40, 0xFF, 0xFF, 0) // BTH: RC SEND only, MigReq, default P_Key
	b = append(b, byte(f.qpn>>16), byte(f.qpn>>8), byte(f.qpn))
	b = append(b, 0x80, 0, 0, 1)
	for i := range f.payload {
		b = append(b, byte(i*7+i>>8))
	}
	return b
}

func orDefault[T comparable](value, standard T) T {
	var zero T
	if value == zero {
		return standard
	}
	return value
}
