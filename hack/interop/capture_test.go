//go:build linux

package main

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/xroce/xroce/roce"
)

// TestUnanswered: what counts are requests that the responder has no reason to leave unanswered.
func TestUnanswered(t *testing.T) {
	request := func(psn uint32) packet { return packet{source: 2, opcode: roce.RCReadRequest, psn: psn} }
	response := func(psn uint32) packet { return packet{source: 1, opcode: roce.RCReadResponseOnly, psn: psn} }
	for name, c := range map[string]struct {
		packets []packet
		want    int
	}{
		"answered":                         {[]packet{request(1), response(1), request(2), response(2)}, 0},
		"the last one has no answer yet":   {[]packet{request(1), response(1), request(2)}, 0},
		"never answered":                   {[]packet{request(1), request(1), request(1), request(1)}, 3},
		"answered late, and never again":   {[]packet{request(1), request(1), response(1), request(1), request(1)}, 2},
		"answered again":                   {[]packet{request(1), response(1), request(1), request(1), response(1)}, 0},
		"one of several, the others since": {[]packet{request(1), request(2), response(2), request(1), request(2), response(2)}, 1},
	} {
		require.Equal(t, c.want, unanswered(c.packets), name)
	}
}
