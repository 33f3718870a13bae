package transport

// Packets as they leave: layOut begins one in a transmit buffer, with all headers but those of its opcode; whoever does
// so fills in these and the payload; seal ends it with the ICRC, while its bytes are still in the cache.

import "github.com/xroce/xroce/roce"

const defaultPKey = 0xFFFF

// packet is a packet that is laid out in a transmit buffer.
type packet struct {
	frame     []byte
	extension []byte // the extension headers
	payload   []byte
}

func (q *QP) layOut(to *path, buffer []byte, fields roce.BTHFields, payload int) packet {
	pad := -payload & 3
	extension := fields.Opcode.Info().HeaderLength
	start := to.template.Length()
	body := start + roce.BTHLength + extension
	frame := buffer[:body+payload+pad+roce.ICRCLength]
	to.template.Put(frame)
	fields.DestinationQPN = to.destination
	fields.PKey = defaultPKey
	// There is no path migration on RoCE, so the state is always "migrated". ConnectX-3 Pro refuses
	// packets that do not say so.
	fields.MigReq = true
	fields.PadCount = uint8(pad)
	fields.Put(frame[start:])
	q.laidOut, q.again = fields.Opcode, false
	clear(frame[body+payload : body+payload+pad])
	return packet{frame: frame, extension: frame[start+roce.BTHLength : body], payload: frame[body : body+payload]}
}

// seal finishes the packet and returns the frame's length.
func (q *QP) seal(to *path, p packet) int {
	to.template.Seal(p.frame)
	q.countMany(sentBytes, uint64(len(p.payload)))
	return len(p.frame)
}
