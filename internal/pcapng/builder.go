package pcapng

import (
	"encoding/binary"
	"time"
)

// Options of blocks. Those with a number of their own mean something in one kind of block only.
const (
	optionEnd     = 0
	optionComment = 1

	sectionApplication = 4

	interfaceName        = 2
	interfaceDescription = 3
	interfaceResolution  = 9

	packetFlags   = 2
	packetLeftOut = 4

	statisticsStart     = 2
	statisticsEnd       = 3
	statisticsReceived  = 4
	statisticsDropped   = 5
	statisticsDelivered = 8
)

const (
	byteOrderMagic   = 0x1A2B3C4D
	linkTypeEthernet = 1
	nanoseconds      = 9 // as a power of 10
)

// Section is the block that a capture begins with.
func Section() Block { return new(builder).section() }

// Block is the statistics as a block.
func (s *Statistics) Block() Block { return new(builder).statistics(s) }

// builder makes blocks, each of which is valid until the next one is made.
type builder struct{ block []byte }

func (b *builder) section() Block {
	b.begin(SectionHeader)
	b.put32(byteOrderMagic)
	b.put32(1)          // version 1.0
	b.put64(^uint64(0)) // the length of the section is not known
	b.text(sectionApplication, "xroce")
	return b.end()
}

func (b *builder) description(i *Interface) Block {
	b.begin(InterfaceDescription)
	b.put32(linkTypeEthernet)
	b.put32(uint32(i.SnapLength))
	b.text(interfaceName, i.Name)
	b.text(interfaceDescription, i.Description)
	b.text(interfaceResolution, string(rune(nanoseconds)))
	return b.end()
}

func (b *builder) packet(p *Packet) Block {
	kept := len(p.Data[0]) + len(p.Data[1])
	b.begin(EnhancedPacket)
	b.put32(uint32(p.Interface))
	b.time(p.At)
	b.put32(uint32(kept))
	b.put32(uint32(max(p.Length, kept)))
	b.block = append(append(b.block, p.Data[0]...), p.Data[1]...)
	b.pad()
	if p.Direction != Unknown {
		b.option(packetFlags, 4)
		b.put32(uint32(p.Direction))
	}
	if p.LeftOut > 0 {
		b.option(packetLeftOut, 8)
		b.put64(p.LeftOut)
	}
	b.text(optionComment, p.Comment)
	return b.end()
}

func (b *builder) statistics(s *Statistics) Block {
	b.begin(InterfaceStatistics)
	b.put32(uint32(s.Interface))
	b.time(s.End)
	b.text(optionComment, s.Comment)
	b.option(statisticsStart, 8)
	b.time(s.Start)
	b.option(statisticsEnd, 8)
	b.time(s.End)
	b.option(statisticsReceived, 8)
	b.put64(s.Received)
	b.option(statisticsDropped, 8)
	b.put64(s.Dropped)
	b.option(statisticsDelivered, 8)
	b.put64(s.Delivered)
	return b.end()
}

func (b *builder) begin(kind uint32) {
	b.block = b.block[:0]
	b.put32(kind)
	b.put32(0) // the length, which end puts in
}

func (b *builder) end() Block {
	b.option(optionEnd, 0)
	length := uint32(len(b.block) + 4)
	b.put32(length)
	binary.LittleEndian.PutUint32(b.block[4:], length)
	return b.block
}

func (b *builder) put32(v uint32) { b.block = binary.LittleEndian.AppendUint32(b.block, v) }
func (b *builder) put64(v uint64) { b.block = binary.LittleEndian.AppendUint64(b.block, v) }

// time appends a time as the format has it: the more significant half first.
func (b *builder) time(t time.Duration) {
	b.put32(uint32(uint64(t) >> 32))
	b.put32(uint32(t))
}

func (b *builder) pad() { b.block = append(b.block, make([]byte, -len(b.block)&3)...) }

// option appends the header of an option whose value has so many bytes.
func (b *builder) option(code uint16, length int) {
	b.block = binary.LittleEndian.AppendUint16(b.block, code)
	b.block = binary.LittleEndian.AppendUint16(b.block, uint16(length))
}

// text appends an option that is a text, unless it is empty.
func (b *builder) text(code uint16, value string) {
	if value == "" {
		return
	}
	b.option(code, len(value))
	b.block = append(b.block, value...)
	b.pad()
}
