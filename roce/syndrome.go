package roce

import (
	"fmt"
	"time"

	"github.com/xroce/xroce/internal/enum"
)

// Syndrome is the first byte of an AETH: its upper three bits tell ACK, RNR NAK and NAK apart, its
// lower five hold a credit code, a timer code or an error (IBTA chapter 9).
type Syndrome uint8

// Syndromes without a parameter. The sequence NAK asks for retransmission; the other three end the
// connection.
const (
	SyndromeAckNoCredits         Syndrome = 0x1F // ACK of a responder that reports no credits
	SyndromeNAKSequence          Syndrome = 0x60 // a PSN was skipped
	SyndromeNAKInvalidRequest    Syndrome = 0x61 // opcode, length or resources not as agreed
	SyndromeNAKRemoteAccess      Syndrome = 0x62 // key, bounds or rights of the remote memory
	SyndromeNAKRemoteOperational Syndrome = 0x63 // the responder could not do its part

	// SyndromeNone is no syndrome: a reserved value for "no answer has come yet", never on the wire.
	SyndromeNone Syndrome = 0xFF
)

const (
	syndromeClassAck = 0
	syndromeClassRNR = 1
	syndromeClassNAK = 3
)

// AckSyndrome returns an ACK with an end-to-end credit code of 5 bits.
func AckSyndrome(credit uint8) Syndrome { return Syndrome(credit & 0x1F) }

// RNRNAK returns a receiver-not-ready NAK with a timer code of 5 bits, see [RNRTimer].
func RNRNAK(timer uint8) Syndrome { return syndromeClassRNR<<5 | Syndrome(timer&0x1F) }

// IsAck reports whether the syndrome is a positive acknowledgement.
func (s Syndrome) IsAck() bool { return s>>5 == syndromeClassAck }

// IsRNR reports whether the syndrome is a receiver-not-ready NAK.
func (s Syndrome) IsRNR() bool { return s>>5 == syndromeClassRNR }

// IsNAK reports whether the syndrome is a NAK other than receiver-not-ready. Only the values 0x60
// to 0x63 have a meaning for RC. What is neither ACK, RNR nor NAK is reserved.
func (s Syndrome) IsNAK() bool { return s>>5 == syndromeClassNAK }

// Value returns the lower five bits: credit code of an ACK, timer code of an RNR NAK, error of a NAK.
func (s Syndrome) Value() uint8 { return uint8(s & 0x1F) }

// String describes the syndrome, such as "NAK remote access error" or "RNR NAK 640µs".
func (s Syndrome) String() string {
	switch {
	case s == SyndromeNone:
		return "none"
	case s == SyndromeAckNoCredits:
		return "ACK"
	case s.IsAck():
		return fmt.Sprintf("ACK credit code %d", s.Value())
	case s.IsRNR():
		return fmt.Sprintf("RNR NAK %v", RNRTimer(s.Value()))
	case s == SyndromeNAKSequence:
		return "NAK PSN sequence error"
	case s == SyndromeNAKInvalidRequest:
		return "NAK invalid request"
	case s == SyndromeNAKRemoteAccess:
		return "NAK remote access error"
	case s == SyndromeNAKRemoteOperational:
		return "NAK remote operational error"
	}
	return fmt.Sprintf("reserved syndrome %#02x", uint8(s))
}

// MarshalText returns the text of String, for logs and JSON.
func (s Syndrome) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// UnmarshalText takes what MarshalText returns.
func (s *Syndrome) UnmarshalText(text []byte) error { return enum.Parse(s, text) }

// Units of 10 microseconds by timer code (ib_rvt_rnr_table in drivers/infiniband/sw/rdmavt/qp.c). The
// value for code 0 is the longest, not zero.
var rnrTimers = [32]uint32{
	65536, 1, 2, 3, 4, 6, 8, 12,
	16, 24, 32, 48, 64, 96, 128, 192,
	256, 384, 512, 768, 1024, 1536, 2048, 3072,
	4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152,
}

// RNRTimer returns the least time that a requester waits after an RNR NAK with this timer code
// (5 bits): 0.01 ms for code 1, 491.52 ms for code 31 and 655.36 ms for code 0.
func RNRTimer(code uint8) time.Duration {
	return time.Duration(rnrTimers[code&0x1F]) * 10 * time.Microsecond
}

// AckTimeout returns the local ACK timeout of a code of 5 bits: 4.096 µs * 2^code. Code 0 means that
// the requester waits for ever, and gives 0. Codes above 31 count as 31, about 2.4 hours.
func AckTimeout(code uint8) time.Duration {
	if code == 0 {
		return 0
	}
	return 4096 * time.Nanosecond << min(code, 31)
}

// GiveUpTime returns how long after its last progress a requester gives up a peer that does not answer: the time of the
// ACK timeout for the first packet and for each of the resends. 0 is never.
func GiveUpTime(code, retries uint8) time.Duration {
	return AckTimeout(code) * time.Duration(1+int(retries))
}

// The credits of the 31 codes (credit_table in drivers/infiniband/sw/rdmavt/rc.c); the last code means "no credits".
var creditCounts = [31]uint32{
	0, 1, 2, 3, 4, 6, 8, 12,
	16, 24, 32, 48, 64, 96, 128, 192,
	256, 384, 512, 768, 1024, 1536, 2048, 3072,
	4096, 6144, 8192, 12288, 16384, 24576, 32768,
}

// Credits returns how many receives a responder has posted, by the code of 5 bits in an ACK. For code 31, which means
// that it does not say, it is 0.
func Credits(code uint8) uint32 {
	if int(code) < len(creditCounts) {
		return creditCounts[code]
	}
	return 0
}
