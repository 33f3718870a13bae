//go:build linux

package plan

import "fmt"

// Operations, by the names that people read.
const (
	Send        = "SEND"
	SendImm     = "SEND with immediate"
	SendInv     = "SEND with invalidate"
	Write       = "WRITE"
	WriteImm    = "WRITE with immediate"
	Read        = "READ"
	CompareSwap = "compare-and-swap"
	FetchAdd    = "fetch-and-add"
	AtomicWrite = "atomic write"
	Flush       = "FLUSH"
)

// The axes of the matrix.
var (
	Operations = []string{
		Send, SendImm, SendInv, Write, WriteImm, Read, CompareSwap, FetchAdd, AtomicWrite,
	}
	MTUs     = []int{256, 512, 1024, 2048, 4096}
	families = []int{4, 6}
	Losses   = []string{NoLoss, Lost, Reordered, Duplicated}
)

// What the network does to packets.
const (
	NoLoss     = "none"
	Lost       = "1 % lost"
	Reordered  = "reordered"
	Duplicated = "duplicated"
)

// The names of the ends. Two of a kind have different names.
const (
	Rxe       = "rxe"
	Xroce     = "xroce"
	XroceAtV0 = "xroce at v0"
)

// sizes are those of messages with a path MTU.
func sizes(mtu int) []int { return []int{0, 1, 33, mtu - 1, mtu, mtu + 1, 64 << 10, 8 << 20} }

const sizeCount = 8

// word is an operation on one word of 8 bytes.
func word(operation string) bool {
	return operation == CompareSwap || operation == FetchAdd || operation == AtomicWrite
}

// Consumes says whether a message of the operation takes a receive of the peer.
func Consumes(operation string) bool {
	return operation == Send || operation == SendImm || operation == SendInv || operation == WriteImm
}

// Cell is one transfer.
type Cell struct {
	Operation string `json:"operation"`
	Requester string `json:"requester"` // the name of the end that posts it
	MTU       int    `json:"mtu"`
	Family    int    `json:"family"`
	Size      int    `json:"size"` // of a message
	Loss      string `json:"loss"`
}

func (c Cell) String() string {
	return fmt.Sprintf("%s by %s, MTU %d, IPv%d, %d bytes, %s", c.Operation, c.Requester, c.MTU, c.Family, c.Size, c.Loss)
}

// Count is how many messages the cell transfers: with loss so many packets that some are likely to be lost.
func (c Cell) Count() int {
	packets := max(1, (c.Size+c.MTU-1)/c.MTU)
	switch {
	case c.Operation == SendInv:
		return min(8, max(1, 256/packets))
	case c.Loss != NoLoss:
		return min(64, max(1, 256/packets))
	default:
		return min(4, max(1, 4096/packets))
	}
}

// shorten limits messages where rdma_rxe reads over a network with faults: it asks for the whole message at once, and
// after every gap again for all that is missing, which the responder has to send each time, so the time grows with
// the square of the length.
func (c Cell) shorten() Cell {
	if c.Operation == Read && c.Requester == Rxe && c.Loss != NoLoss {
		c.Size = min(c.Size, 1<<20)
	}
	return c
}

// Covering has every value of each axis at least once with each operation and each requester. Cells of the others
// pair the values differently, so that most pairs of values occur somewhere.
func Covering(requesters []string) (cells []Cell) {
	for o, operation := range Operations {
		for r, requester := range requesters {
			shift := 3*o + 5*r
			rounds := sizeCount
			if word(operation) {
				rounds = len(MTUs)
			}
			for i := range rounds {
				c := Cell{
					Operation: operation, Requester: requester, MTU: MTUs[(i+shift)%len(MTUs)],
					// The shorter axes turn over once more with each round of their own, or they would go in step.
					Family: families[(i+i/len(families)+shift)%len(families)], Loss: Losses[(i+i/len(Losses)+shift)%len(Losses)],
				}
				if c.Size = 8; !word(operation) {
					c.Size = sizes(c.MTU)[(i+o)%sizeCount]
				}
				cells = append(cells, c.shorten())
			}
		}
	}
	return cells
}

// everything is the whole matrix.
func everything(requesters []string) (cells []Cell) {
	for _, operation := range Operations {
		for _, requester := range requesters {
			for _, mtu := range MTUs {
				for _, family := range families {
					for _, loss := range Losses {
						c := Cell{Operation: operation, Requester: requester, MTU: mtu, Family: family, Size: 8, Loss: loss}
						if word(operation) {
							cells = append(cells, c)
							continue
						}
						for _, c.Size = range sizes(mtu) {
							cells = append(cells, c.shorten())
						}
					}
				}
			}
		}
	}
	return cells
}
