package roce

import (
	"encoding/binary"
	"hash/crc32"
)

// The invariant CRC protects a packet from the sender's memory to the receiver's: everything from the
// IP header to the last pad byte, with the fields that routers may change taken as ones (IBTA section
// 7.8.1 and annex A17). It is the CRC-32 of Ethernet, stored least significant byte first.
//
// Sender and receiver go the same way. icrcHeaders hashes the part with masked fields, from the IP
// header into the BTH, as 8-byte words that are masked in registers: the frame is never changed and
// nothing is copied. Then icrcUpdate hashes the rest of each segment in one call, because the fastest
// code of hash/crc32 needs at least 1024 bytes at once (hash/crc32/crc32_amd64.s). Short data does
// not go there: below 64 bytes hash/crc32 takes its slow path anyway, and since it calls through a
// function variable, a masked copy would have to live on the heap.

const (
	// icrcSeed is the state of the CRC after the eight bytes of ones that stand for the InfiniBand
	// local route header (drivers/infiniband/sw/rxe/rxe_icrc.c).
	icrcSeed = 0xDEBB20E3
	// icrcResidue is the state of the CRC after any data and the CRC of that data.
	icrcResidue = 0xDEBB20E3

	// What icrcHeaders hashes, bytes from the IP header on: as many whole words as it takes to get
	// past the masked byte of the BTH. Over IPv4 that is the whole BTH, over IPv6 all but the PSN.
	icrcHeaders4 = ipv4Length + udpLength + BTHLength
	icrcHeaders6 = ipv6Length + udpLength + BTHLength - 4
)

// icrcHeaders hashes the start of packet, which begins with the IP header and holds at least the BTH.
// It returns the state of the CRC, not inverted, and how many bytes went into it.
func icrcHeaders(packet []byte, is4 bool) (crc uint32, hashed int) {
	const (
		typeOfService    = 0xFF << 8
		timeToLive       = 0xFF
		headerChecksum   = 0xFFFF << 16
		udpChecksum4     = 0xFFFF << 16
		congestion4      = 0xFF
		classLabelAndHop = 0xFF<<56 | 0xFFFFFF0F
		udpChecksum6     = 0xFFFF << 48
		congestion6      = 0xFF << 32
	)
	crc = icrcSeed
	if is4 {
		packet = packet[:icrcHeaders4]
		crc = crcWord(crc, binary.LittleEndian.Uint64(packet[0:])|typeOfService)
		crc = crcWord(crc, binary.LittleEndian.Uint64(packet[8:])|timeToLive|headerChecksum)
		crc = crcWord(crc, binary.LittleEndian.Uint64(packet[16:]))
		crc = crcWord(crc, binary.LittleEndian.Uint64(packet[24:])|udpChecksum4)
		crc = crcWord(crc, binary.LittleEndian.Uint64(packet[32:])|congestion4)
		return crc, icrcHeaders4
	}
	packet = packet[:icrcHeaders6]
	crc = crcWord(crc, binary.LittleEndian.Uint64(packet[0:])|classLabelAndHop)
	crc = crcWord(crc, binary.LittleEndian.Uint64(packet[8:]))
	crc = crcWord(crc, binary.LittleEndian.Uint64(packet[16:]))
	crc = crcWord(crc, binary.LittleEndian.Uint64(packet[24:]))
	crc = crcWord(crc, binary.LittleEndian.Uint64(packet[32:]))
	crc = crcWord(crc, binary.LittleEndian.Uint64(packet[40:])|udpChecksum6)
	crc = crcWord(crc, binary.LittleEndian.Uint64(packet[48:])|congestion6)
	return crc, icrcHeaders6
}

// icrcSegments goes on with bytes start to end of a frame that lies in segments.
func icrcSegments(crc uint32, segments [][]byte, start, end int) uint32 {
	for _, segment := range segments {
		if stop := min(end, len(segment)); start < stop {
			crc = icrcUpdate(crc, segment[start:stop])
		}
		start, end = max(start-len(segment), 0), end-len(segment)
	}
	return crc
}

// icrcUpdate goes on with b.
func icrcUpdate(crc uint32, b []byte) uint32 {
	if len(b) >= 64 {
		return ^crc32.Update(^crc, crc32.IEEETable, b)
	}
	for ; len(b) >= 8; b = b[8:] {
		crc = crcWord(crc, binary.LittleEndian.Uint64(b))
	}
	for _, v := range b {
		crc = crcTables[0][byte(crc)^v] ^ crc>>8
	}
	return crc
}

// crcTables[j][b] is the CRC of byte b followed by j zero bytes, which lets eight bytes be added with
// independent look-ups ("slicing by 8").
var crcTables = makeCRCTables()

func makeCRCTables() (tables [8]crc32.Table) {
	tables[0] = *crc32.IEEETable
	for j := 1; j < len(tables); j++ {
		for b, crc := range tables[j-1] {
			tables[j][b] = tables[0][byte(crc)] ^ crc>>8
		}
	}
	return tables
}

// crcWord adds eight bytes, the first one in the low bits, to a CRC state that is not inverted.
func crcWord(crc uint32, word uint64) uint32 {
	word ^= uint64(crc)
	return crcTables[7][byte(word)] ^ crcTables[6][byte(word>>8)] ^ crcTables[5][byte(word>>16)] ^ crcTables[4][byte(word>>24)] ^
		crcTables[3][byte(word>>32)] ^ crcTables[2][byte(word>>40)] ^ crcTables[1][byte(word>>48)] ^ crcTables[0][byte(word>>56)]
}
