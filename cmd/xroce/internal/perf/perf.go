// Package perf measures bandwidth and latency between two processes, in the manner of perftest. Both ends run the same
// code over a TCP connection, by which they agree: the client says what is measured, and the server has a say only
// where it was given flags of its own.
//
// plan.go is what is measured, line.go the TCP connection, station.go the objects of RDMA at one end, bandwidth.go and
// latency.go the loops, measure.go what the kernel and the engine count, report.go the result.
package perf

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/xroce/xroce/verbs"
)

// Program is how the ends recognise each other, and Version the format of what they tell each other.
const (
	Program = "xroce perf"
	Version = 1
)

// ErrMisuse: what was asked for makes no sense, at this end or between both.
var ErrMisuse = errors.New("wrong use")

// misuse is an error whose text is all that the user needs.
type misuse struct{ text string }

func (m *misuse) Error() string        { return m.text }
func (m *misuse) Is(target error) bool { return target == ErrMisuse }

func misused(format string, values ...any) error { return &misuse{fmt.Sprintf(format, values...)} }

// operation is how one of the operations is done.
type operation struct {
	opcode  verbs.WROpcode
	inline  bool // it can carry its data in the request
	arrives bool // it completes a receive of the peer
	fetches bool // the peer's source comes to this end's sink, instead of this end's source to the peer's sink
}

var operations = map[string]operation{
	"send":      {opcode: verbs.WRSend, inline: true, arrives: true},
	"write":     {opcode: verbs.WRRDMAWrite, inline: true},
	"write-imm": {opcode: verbs.WRRDMAWriteWithImm, inline: true, arrives: true},
	"read":      {opcode: verbs.WRRDMARead, fetches: true},
	"atomic":    {opcode: verbs.WRAtomicFetchAdd, fetches: true},
}

// Tests.
const (
	bandwidth = "bw"
	latency   = "lat"
)

// Operations returns the names of the operations.
func Operations() []string { return slices.Sorted(maps.Keys(operations)) }

// Tests returns the names of the tests.
func Tests() []string { return []string{bandwidth, latency} }
