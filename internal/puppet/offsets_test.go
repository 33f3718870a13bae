package puppet_test

import "github.com/xroce/xroce/roce"

// Lengths of the headers in front of the BTH, over IPv4.
const (
	ethernetLength = 14
	ipv4Length     = 20
	udpLength      = 8
	bthAt          = ethernetLength + ipv4Length + udpLength
)

// Places of bytes from the BTH on (IBTA sections 9.2 and 9.3, annex A19), for tests that change a packet on its way.
const (
	opcodeByte   = 0
	flagsByte    = 1 // with the pad count
	pkeyLowByte  = 3
	qpnMidByte   = 6
	extension    = roce.BTHLength // the first extension header
	addressLow   = extension + 7  // the last byte of the address in a RETH or an AtomicETH
	dmaLenHigh   = extension + 12 // the first byte of the DMALen in a RETH
	dmaLenLow    = extension + 15 // the last one
	flushWhat    = extension + 3  // placement and selectivity in a FETH
	padCountOne  = 1 << 4         // in flagsByte
	selectUnused = 2 << 4         // a selectivity in flushWhat that nobody has
)
