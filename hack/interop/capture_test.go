//go:build linux

package main

import (
	"encoding/binary"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// reth is a body that begins with a RETH of 8 bytes' length.
func reth(addr uint64, rkey uint32) []byte {
	body := binary.BigEndian.AppendUint64(nil, addr)
	return binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint32(body, rkey), 8)
}

// TestUnanswered: what counts are requests that the responder has no reason to leave unanswered.
func TestUnanswered(t *testing.T) {
	request := func(psn uint32) dissected {
		return dissected{sender: macV1, opcode: 0x0c, qpn: 17, psn: psn, body: reth(0x1000, 5)}
	}
	response := func(psn uint32) dissected { return dissected{sender: macV0, opcode: 0x10, psn: psn} }
	otherKey, otherQP, elsewhere := request(1), request(1), request(1)
	otherKey.body, otherQP.qpn, elsewhere.body = reth(0x1000, 6), 18, reth(0x1008, 5)
	for name, c := range map[string]struct {
		packets []dissected
		want    int
	}{
		"answered":                         {[]dissected{request(1), response(1), request(2), response(2)}, 0},
		"the last one has no answer yet":   {[]dissected{request(1), response(1), request(2)}, 0},
		"never answered":                   {[]dissected{request(1), request(1), request(1), request(1)}, 3},
		"answered late, and never again":   {[]dissected{request(1), request(1), response(1), request(1), request(1)}, 2},
		"answered again":                   {[]dissected{request(1), response(1), request(1), request(1), response(1)}, 0},
		"one of several, the others since": {[]dissected{request(1), request(2), response(2), request(1), request(2), response(2)}, 1},
		"again with another rkey":          {[]dissected{request(1), otherKey, otherKey, otherKey}, 0},
		"again with another address":       {[]dissected{request(1), elsewhere, elsewhere, elsewhere}, 0},
		"again for another queue pair":     {[]dissected{request(1), request(1), request(1), request(1), otherQP}, 0},
	} {
		require.Equal(t, c.want, unanswered(c.packets), name)
	}
}

// TestNowhere: an address of 0 explains a refusal of the request that has it, and no other failure of xroce.
func TestNowhere(t *testing.T) {
	const first = 0xffffff
	request := func(psn uint32, addr uint64) dissected {
		return dissected{sender: macV0, opcode: 0x1d, psn: psn, body: append(reth(addr, 5), make([]byte, 8)...)}
	}
	answer := func(psn uint32, syndrome byte) dissected {
		return dissected{sender: macV1, opcode: acknowledge, psn: psn, body: []byte{syndrome, 0, 0, 0}}
	}
	for name, c := range map[string]struct {
		packets []dissected
		want    bool
	}{
		"the first one was lost":              {[]dissected{request(first, 0), answer(first, nakRemoteAccess)}, true},
		"the second one was lost":             {[]dissected{request(first, 8), request(0, 0), answer(first, 0), answer(0, nakRemoteAccess)}, true},
		"the second one came out of turn":     {[]dissected{request(0, 8), request(first, 8), request(0, 0), answer(0, nakRemoteAccess)}, true},
		"no NAK":                              {[]dissected{request(first, 0), answer(first, 0)}, false},
		"NAK for another reason":              {[]dissected{request(first, 0), answer(first, 0x61)}, false},
		"NAK of another one":                  {[]dissected{request(first, 0), answer(0, nakRemoteAccess)}, false},
		"NAK before the request":              {[]dissected{answer(first, nakRemoteAccess), request(first, 0)}, false},
		"xroce does not execute the original": {[]dissected{request(first, 8), request(first, 0), answer(first, nakRemoteAccess)}, false},
		"xroce does not answer at all":        {[]dissected{request(first, 8), request(first, 0), request(first, 0)}, false},
		"cut":                                 {[]dissected{{sender: macV0, opcode: 0x1d, psn: first}, {sender: macV1, opcode: acknowledge}}, false},
	} {
		_, refused := nowhere(c.packets, first)
		require.Equal(t, c.want, refused, name)
	}
}

// TestBlame: only the status of a request, and only in a game with rdma_rxe, makes it look for what rdma_rxe does wrong.
func TestBlame(t *testing.T) {
	c := cell{Operation: opAtomicWrite, Requester: "rxe", MTU: 1024, Family: 4, Size: 8, Loss: losses[1]}
	g := &guest{left: &end{name: "xroce at v0"}}
	status := &statusError{remoteAccessError, "REM_ACCESS_ERR"}
	require.Equal(t, error(status), g.blame(c, status))
	g.left.name = "rxe"
	for _, err := range []error{errDead, errors.Join(status, errDead), &statusError{19, "FATAL_ERR"}, errors.New("byte 3 differs")} {
		require.Equal(t, err, g.blame(c, err))
	}
	c.Loss = losses[0]
	require.Equal(t, error(status), g.blame(c, status))
}

// TestLacks: the words of tcpdump.
func TestLacks(t *testing.T) {
	require.NoError(t, lacks("12 packets captured\n12 packets received by filter\n0 packets dropped by kernel\n"))
	require.ErrorContains(t, lacks("12 packets captured\n19 packets received by filter\n7 packets dropped by kernel\n"), "lacks 7 packets")
	require.ErrorContains(t, lacks("1 packet captured\n1 packet received by filter\n1 packet dropped by kernel\n"), "lacks 1 packets")
	require.ErrorContains(t, lacks("tcpdump: so and so\n"), "does not say")
}

// TestCutCapture: a capture that ends in the middle of a packet is an error.
func TestCutCapture(t *testing.T) {
	path := filepath.Join(t.TempDir(), "capture.pcap")
	whole := pcap(forged{family: 4, opcode: 4, psn: 7, payload: []byte("x")}.frame())
	require.NoError(t, os.WriteFile(path, whole[:len(whole)-3], 0o600))
	require.Error(t, eachFrame(path, func([]byte) error { return nil }))
}
