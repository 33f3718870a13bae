//go:build linux

package main

import "fmt"

// Operations, by the names that people read.
const (
	opSend        = "SEND"
	opSendImm     = "SEND with immediate"
	opSendInv     = "SEND with invalidate"
	opWrite       = "WRITE"
	opWriteImm    = "WRITE with immediate"
	opRead        = "READ"
	opCompareSwap = "compare-and-swap"
	opFetchAdd    = "fetch-and-add"
	opAtomicWrite = "atomic write"
	opFlush       = "FLUSH"
)

// The axes of the matrix.
var (
	operations = []string{
		opSend, opSendImm, opSendInv, opWrite, opWriteImm, opRead, opCompareSwap, opFetchAdd, opAtomicWrite,
	}
	mtus     = []int{256, 512, 1024, 2048, 4096}
	families = []int{4, 6}
	losses   = []string{"none", "1 % lost", "reordered", "duplicated"}
)

// sizes are those of messages with a path MTU.
func sizes(mtu int) []int { return []int{0, 1, 33, mtu - 1, mtu, mtu + 1, 64 << 10, 8 << 20} }

const sizeCount = 8

// word is an operation on one word of 8 bytes.
func word(operation string) bool {
	return operation == opCompareSwap || operation == opFetchAdd || operation == opAtomicWrite
}

// consumes says whether a message of the operation takes a receive of the peer.
func consumes(operation string) bool {
	return operation == opSend || operation == opSendImm || operation == opSendInv || operation == opWriteImm
}

// cell is one transfer.
type cell struct {
	Operation string `json:"operation"`
	Requester string `json:"requester"` // the name of the end that posts it
	MTU       int    `json:"mtu"`
	Family    int    `json:"family"`
	Size      int    `json:"size"` // of a message
	Loss      string `json:"loss"`
}

func (c cell) String() string {
	return fmt.Sprintf("%s by %s, MTU %d, IPv%d, %d bytes, %s", c.Operation, c.Requester, c.MTU, c.Family, c.Size, c.Loss)
}

// count is how many messages the cell transfers: with loss so many packets that some are likely to be lost.
func (c cell) count() int {
	packets := max(1, (c.Size+c.MTU-1)/c.MTU)
	switch {
	case c.Operation == opSendInv:
		return min(8, max(1, 256/packets))
	case c.Loss != losses[0]:
		return min(64, max(1, 256/packets))
	default:
		return min(4, max(1, 4096/packets))
	}
}

// shorten limits messages where rdma_rxe reads over a network with faults: it asks for the whole message at once, and after every gap
// again for all that is missing, which the responder has to send each time, so the time grows with the square of the length.
func (c cell) shorten() cell {
	if c.Operation == opRead && c.Requester == "rxe" && c.Loss != losses[0] {
		c.Size = min(c.Size, 1<<20)
	}
	return c
}

// covering has every value of each axis at least once with each operation and each requester. Cells of the others pair the values
// differently, so that most pairs of values occur somewhere.
func covering(requesters []string) (cells []cell) {
	for o, operation := range operations {
		for r, requester := range requesters {
			shift := 3*o + 5*r
			rounds := sizeCount
			if word(operation) {
				rounds = len(mtus)
			}
			for i := range rounds {
				c := cell{
					Operation: operation, Requester: requester, MTU: mtus[(i+shift)%len(mtus)],
					// The shorter axes turn over once more with each round of their own, or they would go in step.
					Family: families[(i+i/len(families)+shift)%len(families)], Loss: losses[(i+i/len(losses)+shift)%len(losses)],
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
func everything(requesters []string) (cells []cell) {
	for _, operation := range operations {
		for _, requester := range requesters {
			for _, mtu := range mtus {
				for _, family := range families {
					for _, loss := range losses {
						c := cell{Operation: operation, Requester: requester, MTU: mtu, Family: family, Size: 8, Loss: loss}
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
