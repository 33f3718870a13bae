//go:build linux

package xsk

import "fmt"

// owner says who may touch a chunk.
type owner uint8

const (
	ownerKernelReceive  owner = iota // FILL ring, kernel or RX ring
	ownerReceived                    // handed out by Receive, or waiting to be
	ownerFree                        // in the list of free transmit buffers
	ownerWritten                     // handed out by Buffer
	ownerKernelTransmit              // TX ring, kernel or COMPLETION ring
	ownerKinds
)

func (o owner) String() string {
	return [ownerKinds]string{
		"kernel for receiving", "application, received", "free", "application, to be sent", "kernel for sending",
	}[o]
}

// ownerTable keeps the owner of each chunk of the UMEM. It costs a few nanoseconds
// per chunk and finds chunks that the kernel hands out twice, and bugs in here.
type ownerTable struct {
	owners    []owner
	chunkSize uint64
	violation error // the first one
}

func newOwnerTable(info Info) *ownerTable {
	t := &ownerTable{
		owners:    make([]owner, info.ReceiveFrames+info.TransmitFrames),
		chunkSize: uint64(info.ChunkSize),
	}
	for chunk := info.ReceiveFrames; chunk < len(t.owners); chunk++ {
		t.owners[chunk] = ownerFree
	}
	return t
}

// move passes the chunk at an address on, and reports whether it was from's.
func (t *ownerTable) move(address uint64, from, to owner) bool {
	chunk := address / t.chunkSize
	if !t.is(address, from) {
		if t.violation == nil {
			t.violation = fmt.Errorf("xsk: chunk %d goes from %q to %q, but its owner is %q", chunk, from, to, t.owners[chunk])
		}
		return false
	}
	t.owners[chunk] = to
	return true
}

func (t *ownerTable) is(address uint64, who owner) bool {
	return t.owners[address/t.chunkSize] == who
}

// CheckOwners returns the first violation of the rule that each chunk of the UMEM
// has exactly one owner at a time, or a disagreement between the owners and the
// ring indices; nil if there was none, or without Options.CheckOwners. It belongs to
// the goroutine that receives and sends.
func (s *Socket) CheckOwners() error {
	if s.owners == nil || s.closed.Load() {
		return nil
	}
	if s.owners.violation != nil {
		return s.owners.violation
	}
	var counts [ownerKinds]int
	for _, who := range s.owners.owners {
		counts[who]++
	}
	r, t := &s.receive, &s.transmit
	perBuffer := int(t.bufferSize / t.chunkSize)
	inUse := 0
	if t.current != noBuffer {
		inUse = 1
	}
	for _, check := range []struct {
		who  owner
		want int
	}{
		{ownerKernelReceive, int(r.fill.published - r.ring.next)},
		{ownerReceived, int(r.fill.next-r.fill.published) + r.chain},
		{ownerFree, len(t.free) * perBuffer},
		{ownerWritten, inUse * perBuffer},
		{ownerKernelTransmit, t.inFlight * perBuffer},
	} {
		if counts[check.who] != check.want {
			return fmt.Errorf("xsk: %d chunks have the owner %q, the rings say %d", counts[check.who], check.who, check.want)
		}
	}
	return nil
}
