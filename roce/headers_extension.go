package roce

import "encoding/binary"

// AtomicETH is a view of an atomic extended transport header.
type AtomicETH []byte

// VA returns the remote virtual address of the 8-byte word.
func (b AtomicETH) VA() uint64 { return binary.BigEndian.Uint64(b[0:8]) }

// RKey returns the key of the remote memory region.
func (b AtomicETH) RKey() uint32 { return binary.BigEndian.Uint32(b[8:12]) }

// SwapAdd returns the new value of a compare and swap, or the addend of a fetch and add.
func (b AtomicETH) SwapAdd() uint64 { return binary.BigEndian.Uint64(b[12:20]) }

// Compare returns the value expected by a compare and swap, 0 in a fetch and add.
func (b AtomicETH) Compare() uint64 { return binary.BigEndian.Uint64(b[20:28]) }

// Fields returns all fields.
func (b AtomicETH) Fields() AtomicETHFields {
	return AtomicETHFields{VA: b.VA(), RKey: b.RKey(), SwapAdd: b.SwapAdd(), Compare: b.Compare()}
}

// AtomicETHFields are the fields of an AtomicETH. The operands are numbers: they are big endian on
// the wire and in the order of the host in memory.
type AtomicETHFields struct {
	VA      uint64
	RKey    uint32
	SwapAdd uint64
	Compare uint64
}

// Put writes the header into the first 28 bytes of b.
func (f AtomicETHFields) Put(b []byte) {
	_ = b[AtomicETHLength-1]
	binary.BigEndian.PutUint64(b[0:8], f.VA)
	binary.BigEndian.PutUint32(b[8:12], f.RKey)
	binary.BigEndian.PutUint64(b[12:20], f.SwapAdd)
	binary.BigEndian.PutUint64(b[20:28], f.Compare)
}

// AtomicAckETH is a view of an atomic ACK extended transport header.
type AtomicAckETH []byte

// Original returns the value of the word before the operation.
func (b AtomicAckETH) Original() uint64 { return binary.BigEndian.Uint64(b[0:8]) }

// Fields returns all fields.
func (b AtomicAckETH) Fields() AtomicAckETHFields {
	return AtomicAckETHFields{Original: b.Original()}
}

// AtomicAckETHFields are the fields of an AtomicAckETH.
type AtomicAckETHFields struct{ Original uint64 }

// Put writes the header into the first 8 bytes of b.
func (f AtomicAckETHFields) Put(b []byte) { binary.BigEndian.PutUint64(b[0:8], f.Original) }

// ImmDt is a view of the immediate data. The four bytes belong to the application, which is given
// them in their order on the wire.
type ImmDt []byte

// Value returns the immediate data as a number, first byte on the wire most significant.
func (b ImmDt) Value() uint32 { return binary.BigEndian.Uint32(b[0:4]) }

// Fields returns all fields.
func (b ImmDt) Fields() ImmDtFields { return ImmDtFields{Value: b.Value()} }

// ImmDtFields are the fields of an ImmDt.
type ImmDtFields struct{ Value uint32 }

// Put writes the header into the first 4 bytes of b.
func (f ImmDtFields) Put(b []byte) { binary.BigEndian.PutUint32(b[0:4], f.Value) }

// IETH is a view of an invalidate extended transport header.
type IETH []byte

// RKey returns the key that the responder shall invalidate.
func (b IETH) RKey() uint32 { return binary.BigEndian.Uint32(b[0:4]) }

// Fields returns all fields.
func (b IETH) Fields() IETHFields { return IETHFields{RKey: b.RKey()} }

// IETHFields are the fields of an IETH.
type IETHFields struct{ RKey uint32 }

// Put writes the header into the first 4 bytes of b.
func (f IETHFields) Put(b []byte) { binary.BigEndian.PutUint32(b[0:4], f.RKey) }

// DETH is a view of a datagram extended transport header.
type DETH []byte

// QKey returns the key that the receiving queue pair must have.
func (b DETH) QKey() uint32 { return binary.BigEndian.Uint32(b[0:4]) }

// SourceQPN returns the number of the sending queue pair.
func (b DETH) SourceQPN() QPN { return QPN(binary.BigEndian.Uint32(b[4:8]) & QPNMask) }

// Fields returns all fields.
func (b DETH) Fields() DETHFields { return DETHFields{QKey: b.QKey(), SourceQPN: b.SourceQPN()} }

// DETHFields are the fields of a DETH.
type DETHFields struct {
	QKey      uint32
	SourceQPN QPN
}

// Put writes the header into the first 8 bytes of b.
func (f DETHFields) Put(b []byte) {
	_ = b[DETHLength-1]
	binary.BigEndian.PutUint32(b[0:4], f.QKey)
	binary.BigEndian.PutUint32(b[4:8], uint32(f.SourceQPN)&QPNMask)
}

// FETH is a view of a flush extended transport header (IBTA annex A19).
type FETH []byte

// Values of a FETH: what is flushed, and the bits for where the data must have arrived.
const (
	FlushRange      uint8 = 0 // selectivity: the range in the RETH
	FlushRegion     uint8 = 1 // selectivity: the whole memory region
	FlushGlobal     uint8 = 1 // placement bit: visible to the whole remote system
	FlushPersistent uint8 = 2 // placement bit: persistent
)

// Selectivity returns what shall be flushed, 2 bits.
func (b FETH) Selectivity() uint8 { return b[3] >> 4 & 3 }

// Placement returns where the data must have arrived, 4 bits.
func (b FETH) Placement() uint8 { return b[3] & 0x0F }

// Fields returns all fields.
func (b FETH) Fields() FETHFields {
	return FETHFields{Selectivity: b.Selectivity(), Placement: b.Placement()}
}

// FETHFields are the fields of a FETH.
type FETHFields struct{ Selectivity, Placement uint8 }

// Put writes the header into the first 4 bytes of b.
func (f FETHFields) Put(b []byte) {
	binary.BigEndian.PutUint32(b[0:4], uint32(f.Selectivity&3)<<4|uint32(f.Placement&0x0F))
}
