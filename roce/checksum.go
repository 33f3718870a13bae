package roce

import (
	"encoding/binary"
	"math/bits"
)

// ipv4Sum returns the sum of the words of an IPv4 header without options, not folded.
func ipv4Sum(ip []byte) uint64 {
	_ = ip[ipv4Length-1]
	return uint64(binary.BigEndian.Uint32(ip[0:])) + uint64(binary.BigEndian.Uint32(ip[4:])) + uint64(binary.BigEndian.Uint32(ip[8:])) +
		uint64(binary.BigEndian.Uint32(ip[12:])) + uint64(binary.BigEndian.Uint32(ip[16:]))
}

// fold adds the four 16-bit words of a sum with end-around carry (RFC 1071).
func fold(sum uint64) uint16 {
	sum = sum>>32 + sum&0xFFFFFFFF
	sum = sum>>32 + sum&0xFFFFFFFF
	sum = sum>>16 + sum&0xFFFF
	sum = sum>>16 + sum&0xFFFF
	return uint16(sum>>16 + sum&0xFFFF)
}

// onesSum returns the ones' complement sum of b as big endian 16-bit words, an odd last byte being
// followed by a zero.
func onesSum(b []byte) uint16 {
	var sum, carry uint64
	for ; len(b) >= 8; b = b[8:] {
		sum, carry = bits.Add64(sum, binary.BigEndian.Uint64(b), carry)
	}
	var tail [8]byte
	copy(tail[:], b)
	sum, carry = bits.Add64(sum, binary.BigEndian.Uint64(tail[:]), carry)
	return fold(uint64(fold(sum)) + carry)
}

// udpChecksumValid reports whether the UDP checksum over the given pieces of the UDP packet (header
// included) and the pseudo header of ip is right (RFC 768, RFC 8200 section 8.1).
func udpChecksumValid(ip []byte, is4 bool, length int, pieces [][]byte) bool {
	addresses := ip[8:] // IPv6
	if is4 {
		addresses = ip[12:]
	}
	sum := uint64(onesSum(addresses)) + protocolUDP + uint64(length)
	odd := false
	for _, piece := range pieces {
		part := onesSum(piece)
		if odd { // The piece starts with the low byte of a word.
			part = bits.ReverseBytes16(part)
		}
		sum += uint64(part)
		odd = odd != (len(piece)&1 == 1)
	}
	return fold(sum) == 0xFFFF
}
