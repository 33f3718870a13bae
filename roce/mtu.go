package roce

import (
	"fmt"
	"log/slog"
	"math/bits"
	"strconv"
)

// MTU is a path MTU in the encoding of the IBTA: the largest payload of one packet.
type MTU uint8

// The path MTUs there are, named by their bytes.
const (
	MTU256  MTU = 1
	MTU512  MTU = 2
	MTU1024 MTU = 3
	MTU2048 MTU = 4
	MTU4096 MTU = 5
)

// MTUOverhead is what a device must be able to carry beside the payload: 40 bytes of IPv6, 8 of UDP,
// 12 of BTH, 4 of XRC header, 28 of AtomicETH and 4 of ICRC. No packet has them all; it is the rule of
// rdma_cm (iboe_get_mtu in include/rdma/ib_addr.h), kept so that both ends of a connection agree.
const MTUOverhead = 40 + 8 + 12 + 4 + 28 + 4

// Bytes returns the payload bytes of a full packet, 0 if the MTU is not valid.
func (m MTU) Bytes() int {
	if !m.Valid() {
		return 0
	}
	return 128 << m
}

// Valid reports whether m is one of the five path MTUs.
func (m MTU) Valid() bool { return m >= MTU256 && m <= MTU4096 }

// String returns the number of payload bytes, such as "1024".
func (m MTU) String() string {
	if !m.Valid() {
		return fmt.Sprintf("MTU(%d)", uint8(m))
	}
	return strconv.Itoa(m.Bytes())
}

// LogValue shows the payload bytes in logs. In JSON an MTU is its code, as programs tell it each other.
func (m MTU) LogValue() slog.Value { return slog.StringValue(m.String()) }

// MTUFromBytes returns the MTU whose payload is exactly n bytes.
func MTUFromBytes(n int) (MTU, bool) {
	m := largestMTU(n)
	return m, m.Valid() && m.Bytes() == n
}

// ActiveMTU returns the largest path MTU that a device of the given IP MTU (bytes) carries: 1500
// gives [MTU1024], 4192 [MTU4096]. It returns false below 352, where not even 256 bytes fit.
func ActiveMTU(deviceMTU int) (MTU, bool) {
	m := largestMTU(deviceMTU - MTUOverhead)
	return m, m.Valid()
}

// largestMTU returns the largest MTU of at most n payload bytes, 0 if there is none.
func largestMTU(n int) MTU {
	if n < 256 {
		return 0
	}
	return MTU(min(bits.Len(uint(n))-8, int(MTU4096)))
}
