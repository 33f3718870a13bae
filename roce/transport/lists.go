package transport

// Scatter/gather lists: the memory that a request names piece by piece, on behalf of a QP.

import (
	"github.com/xroce/xroce/roce"
	"github.com/xroce/xroce/roce/memory"
	"github.com/xroce/xroce/roce/queue"
)

// gather copies the data of a request from offset on into payload. Length 0 elements may name anything.
func (q *QP) gather(w *work, offset uint64, payload []byte) memory.Fault {
	if w.wr.Flags&queue.SendInline != 0 {
		copy(payload, w.wr.Inline[offset:])
		return memory.FaultNone
	}
	for _, s := range w.wr.SGList {
		if len(payload) == 0 {
			break
		}
		length := uint64(s.Length)
		if offset >= length {
			offset -= length
			continue
		}
		n := min(length-offset, uint64(len(payload)))
		from := memory.Range{Key: s.LKey, Address: s.Addr + offset, Length: n}
		if fault := q.engine.memory.Read(q.principal, 0, from, payload[:n]); fault != memory.FaultNone {
			return fault
		}
		payload, offset = payload[n:], 0
	}
	return memory.FaultNone
}

// scatter copies length bytes of data into the bytes of a list from offset on; final says that they end the
// message.
func (q *QP) scatter(list []queue.SGE, offset uint64, data [][]byte, length uint64, final bool) memory.Fault {
	left := length
	pieces := cutter{pieces: data}
	for _, s := range list {
		if left == 0 {
			break
		}
		size := uint64(s.Length)
		if offset >= size {
			offset -= size
			continue
		}
		n := min(size-offset, left)
		left -= n
		into := memory.Range{Key: s.LKey, Address: s.Addr + offset, Length: n}
		piece := pieces.cut(int(n))
		fault := q.engine.memory.Write(q.principal, memory.LocalWrite, into, piece, final && left == 0)
		if fault != memory.FaultNone {
			return fault
		}
		offset = 0
	}
	return memory.FaultNone
}

// cutter hands out the bytes of a list of pieces in portions.
type cutter struct {
	pieces [][]byte
	offset int // into the first piece
	out    [roce.MaxSegments][]byte
}

// cut returns the next n bytes, at most what is left. The result is valid until the next cut.
func (c *cutter) cut(n int) [][]byte {
	count := 0
	for n > 0 && len(c.pieces) > 0 {
		piece := c.pieces[0][c.offset:]
		if len(piece) > n {
			piece = piece[:n]
			c.offset += n
		} else {
			c.pieces, c.offset = c.pieces[1:], 0
		}
		c.out[count] = piece
		count++
		n -= len(piece)
	}
	return c.out[:count]
}
