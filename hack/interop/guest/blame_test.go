//go:build linux

package guest

import (
	"encoding/binary"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/xroce/xroce/hack/interop/plan"
	"github.com/xroce/xroce/hack/interop/wire"
)

// reth is a body that begins with a RETH of 8 bytes' length.
func reth(addr uint64, rkey uint32) []byte {
	body := binary.BigEndian.AppendUint64(nil, addr)
	return binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint32(body, rkey), 8)
}

// TestUnanswered: what counts are requests that the responder has no reason to leave unanswered.
func TestUnanswered(t *testing.T) {
	request := func(psn uint32) wire.Packet {
		return wire.Packet{Sender: wire.MACV1, Opcode: wire.ReadRequest, QPN: 17, PSN: psn, Body: reth(0x1000, 5)}
	}
	response := func(psn uint32) wire.Packet {
		return wire.Packet{Sender: wire.MACV0, Opcode: wire.ReadResponseOnly, PSN: psn}
	}
	otherKey, otherQP, elsewhere := request(1), request(1), request(1)
	otherKey.Body, otherQP.QPN, elsewhere.Body = reth(0x1000, 6), 18, reth(0x1008, 5)
	for name, c := range map[string]struct {
		packets []wire.Packet
		want    int
	}{
		"answered":                         {[]wire.Packet{request(1), response(1), request(2), response(2)}, 0},
		"the last one has no answer yet":   {[]wire.Packet{request(1), response(1), request(2)}, 0},
		"never answered":                   {[]wire.Packet{request(1), request(1), request(1), request(1)}, 3},
		"answered late, and never again":   {[]wire.Packet{request(1), request(1), response(1), request(1), request(1)}, 2},
		"answered again":                   {[]wire.Packet{request(1), response(1), request(1), request(1), response(1)}, 0},
		"one of several, the others since": {[]wire.Packet{request(1), request(2), response(2), request(1), request(2), response(2)}, 1},
		"again with another rkey":          {[]wire.Packet{request(1), otherKey, otherKey, otherKey}, 0},
		"again with another address":       {[]wire.Packet{request(1), elsewhere, elsewhere, elsewhere}, 0},
		"again for another queue pair":     {[]wire.Packet{request(1), request(1), request(1), request(1), otherQP}, 0},
	} {
		require.Equal(t, c.want, unanswered(c.packets), name)
	}
}

// TestNowhere: an address of 0 explains a refusal of the request that has it, and no other failure of xroce.
func TestNowhere(t *testing.T) {
	const first = 0xffffff
	request := func(psn uint32, addr uint64) wire.Packet {
		return wire.Packet{Sender: wire.MACV0, Opcode: wire.AtomicWrite, PSN: psn,
			Body: append(reth(addr, 5), make([]byte, 8)...)}
	}
	answer := func(psn uint32, syndrome byte) wire.Packet {
		return wire.Packet{Sender: wire.MACV1, Opcode: wire.Acknowledge, PSN: psn, Body: []byte{syndrome, 0, 0, 0}}
	}
	for name, c := range map[string]struct {
		packets []wire.Packet
		want    bool
	}{
		"the first one was lost":              {[]wire.Packet{request(first, 0), answer(first, wire.NAKRemoteAccess)}, true},
		"the second one was lost":             {[]wire.Packet{request(first, 8), request(0, 0), answer(first, 0), answer(0, wire.NAKRemoteAccess)}, true},
		"the second one came out of turn":     {[]wire.Packet{request(0, 8), request(first, 8), request(0, 0), answer(0, wire.NAKRemoteAccess)}, true},
		"no NAK":                              {[]wire.Packet{request(first, 0), answer(first, 0)}, false},
		"NAK for another reason":              {[]wire.Packet{request(first, 0), answer(first, 0x61)}, false},
		"NAK of another one":                  {[]wire.Packet{request(first, 0), answer(0, wire.NAKRemoteAccess)}, false},
		"NAK before the request":              {[]wire.Packet{answer(first, wire.NAKRemoteAccess), request(first, 0)}, false},
		"xroce does not execute the original": {[]wire.Packet{request(first, 8), request(first, 0), answer(first, wire.NAKRemoteAccess)}, false},
		"xroce does not answer at all":        {[]wire.Packet{request(first, 8), request(first, 0), request(first, 0)}, false},
		"cut":                                 {[]wire.Packet{{Sender: wire.MACV0, Opcode: wire.AtomicWrite, PSN: first}, {Sender: wire.MACV1, Opcode: wire.Acknowledge}}, false},
	} {
		_, refused := nowhere(c.packets, first)
		require.Equal(t, c.want, refused, name)
	}
}

// TestBlame: only the status of a request, and only in a game with rdma_rxe, makes it look for what rdma_rxe does
// wrong.
func TestBlame(t *testing.T) {
	c := plan.Cell{Operation: plan.AtomicWrite, Requester: "rxe", MTU: 1024, Family: 4, Size: 8, Loss: plan.Lost}
	g := &guest{left: &end{name: "xroce at v0"}}
	status := &statusError{plan.StatusRemAccessErr, "REM_ACCESS_ERR"}
	require.Equal(t, error(status), g.blame(c, status))
	g.left.name = "rxe"
	for _, err := range []error{errDead, errors.Join(status, errDead), &statusError{19, "FATAL_ERR"}, errors.New("byte 3 differs")} {
		require.Equal(t, err, g.blame(c, err))
	}
	c.Loss = plan.NoLoss
	require.Equal(t, error(status), g.blame(c, status))
}
