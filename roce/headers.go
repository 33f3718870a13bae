package roce

import "encoding/binary"

// Layouts are those of IBTA chapter 9. Each header exists twice: as a view, a slice of the frame whose
// methods read one field where it lies, and as a plain struct of all its fields, whose Put writes it
// and zeroes the reserved bits. Views keep the frame's memory and must hold at least the header's
// length, which [Packet.Parse] guarantees; a shorter slice makes the methods panic. Put panics if its
// slice is too short, and writes exactly the header's bytes.

// Lengths of the headers on the wire, in bytes.
const (
	BTHLength          = 12
	RETHLength         = 16
	AETHLength         = 4
	AtomicETHLength    = 28
	AtomicAckETHLength = 8
	ImmDtLength        = 4
	IETHLength         = 4
	DETHLength         = 8
	FETHLength         = 4
	ICRCLength         = 4
)

// BTH is a view of a base transport header (IBTA volume 1, chapter 9).
type BTH []byte

// Opcode returns what kind of packet it is.
func (b BTH) Opcode() Opcode { return Opcode(b[0]) }

// Solicited returns the SE bit: the receiver's completion shall raise a solicited event.
func (b BTH) Solicited() bool { return b[1]&0x80 != 0 }

// MigReq returns the M bit: the sender's path migration state is "migrated".
func (b BTH) MigReq() bool { return b[1]&0x40 != 0 }

// PadCount returns how many pad bytes follow the payload, 0 to 3.
func (b BTH) PadCount() uint8 { return b[1] >> 4 & 3 }

// TransportVersion returns the header version, 0 in every packet there is.
func (b BTH) TransportVersion() uint8 { return b[1] & 0x0F }

// PKey returns the partition key.
func (b BTH) PKey() uint16 { return binary.BigEndian.Uint16(b[2:4]) }

// FECN returns the forward congestion bit. It is not covered by the ICRC.
func (b BTH) FECN() bool { return b[4]&0x80 != 0 }

// BECN returns the backward congestion bit. It is not covered by the ICRC.
func (b BTH) BECN() bool { return b[4]&0x40 != 0 }

// DestinationQPN returns the number of the receiving queue pair.
func (b BTH) DestinationQPN() QPN { return QPN(binary.BigEndian.Uint32(b[4:8]) & QPNMask) }

// AckRequest returns the A bit: the responder shall acknowledge this request.
func (b BTH) AckRequest() bool { return b[8]&0x80 != 0 }

// PSN returns the packet sequence number.
func (b BTH) PSN() PSN { return PSN(binary.BigEndian.Uint32(b[8:12]) & PSNMask) }

// Fields returns all fields but the transport version.
func (b BTH) Fields() BTHFields {
	return BTHFields{
		Opcode: b.Opcode(), Solicited: b.Solicited(), MigReq: b.MigReq(), PadCount: b.PadCount(), PKey: b.PKey(),
		FECN: b.FECN(), BECN: b.BECN(), DestinationQPN: b.DestinationQPN(), AckRequest: b.AckRequest(), PSN: b.PSN(),
	}
}

// BTHFields are the fields of a base transport header of version 0.
type BTHFields struct {
	Opcode         Opcode
	Solicited      bool
	MigReq         bool // senders without path migration set it: some hardware refuses packets without
	PadCount       uint8
	PKey           uint16
	FECN, BECN     bool
	DestinationQPN QPN
	AckRequest     bool
	PSN            PSN
}

// Put writes the header into the first 12 bytes of b. Bits beyond the width of a field are dropped.
func (f BTHFields) Put(b []byte) {
	_ = b[BTHLength-1]
	b[0] = byte(f.Opcode)
	b[1] = bit(f.Solicited, 7) | bit(f.MigReq, 6) | f.PadCount&3<<4
	binary.BigEndian.PutUint16(b[2:4], f.PKey)
	binary.BigEndian.PutUint32(b[4:8], uint32(f.DestinationQPN)&QPNMask)
	b[4] = bit(f.FECN, 7) | bit(f.BECN, 6)
	binary.BigEndian.PutUint32(b[8:12], uint32(f.PSN)&PSNMask)
	b[8] = bit(f.AckRequest, 7)
}

// bit returns a byte with bit n set if v is true.
func bit(v bool, n uint) byte {
	if v {
		return 1 << n
	}
	return 0
}

// RETH is a view of an RDMA extended transport header.
type RETH []byte

// VA returns the remote virtual address at which the message starts.
func (b RETH) VA() uint64 { return binary.BigEndian.Uint64(b[0:8]) }

// RKey returns the key of the remote memory region.
func (b RETH) RKey() uint32 { return binary.BigEndian.Uint32(b[8:12]) }

// Length returns the bytes of the whole message, not of this packet.
func (b RETH) Length() uint32 { return binary.BigEndian.Uint32(b[12:16]) }

// Fields returns all fields.
func (b RETH) Fields() RETHFields {
	return RETHFields{VA: b.VA(), RKey: b.RKey(), Length: b.Length()}
}

// RETHFields are the fields of a RETH; Length is the bytes of the whole message.
type RETHFields struct {
	VA     uint64
	RKey   uint32
	Length uint32
}

// Put writes the header into the first 16 bytes of b.
func (f RETHFields) Put(b []byte) {
	_ = b[RETHLength-1]
	binary.BigEndian.PutUint64(b[0:8], f.VA)
	binary.BigEndian.PutUint32(b[8:12], f.RKey)
	binary.BigEndian.PutUint32(b[12:16], f.Length)
}

// AETH is a view of an ACK extended transport header.
type AETH []byte

// Syndrome returns the kind of acknowledgement.
func (b AETH) Syndrome() Syndrome { return Syndrome(b[0]) }

// MSN returns how many messages the responder has completed, modulo 2^24.
func (b AETH) MSN() uint32 { return binary.BigEndian.Uint32(b[0:4]) & 0xFFFFFF }

// Fields returns all fields.
func (b AETH) Fields() AETHFields { return AETHFields{Syndrome: b.Syndrome(), MSN: b.MSN()} }

// AETHFields are the fields of an AETH; MSN has 24 bits.
type AETHFields struct {
	Syndrome Syndrome
	MSN      uint32
}

// Put writes the header into the first 4 bytes of b.
func (f AETHFields) Put(b []byte) {
	binary.BigEndian.PutUint32(b[0:4], uint32(f.Syndrome)<<24|f.MSN&0xFFFFFF)
}
