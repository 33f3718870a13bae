package puppet

import (
	"bytes"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/xroce/xroce/roce"
)

// Answer is a packet that a puppet got.
type Answer struct {
	*roce.Packet
	Frame []byte
	At    time.Duration // of arrival

	t testing.TB
}

// read takes a frame apart. What must be right in every packet of a queue pair is checked here.
func (p *Puppet) read(frame []byte) Answer {
	p.t.Helper()
	a := Answer{Packet: new(roce.Packet), Frame: frame, At: p.clock.Now(), t: p.t}
	require.Equal(p.t, roce.DropNone, a.Parse([][]byte{frame}), "frame %x", frame)
	require.Equal(p.t, QPN, a.DestinationQPN, "destination QPN of %v", a)
	require.Equal(p.t, uint16(0xFFFF), a.BTH.PKey(), "partition key of %v", a)
	// ConnectX-3 Pro refuses packets without it.
	require.True(p.t, a.BTH.MigReq(), "bit M of %v", a)
	require.Equal(p.t, p.path.Destination, a.Source, "source of %v", a)
	require.Equal(p.t, p.path.Source, a.Destination, "destination of %v", a)
	if !a.Info.Request {
		require.False(p.t, a.BTH.AckRequest(), "bit A of %v", a)
	}
	return a
}

// Is checks opcode and PSN.
func (a Answer) Is(opcode roce.Opcode, psn roce.PSN) Answer {
	a.t.Helper()
	if a.Opcode != opcode || a.PSN != psn {
		a.t.Fatalf("got %v, expected %v PSN %d", a, opcode, psn)
	}
	return a
}

// Says checks the AETH.
func (a Answer) Says(syndrome roce.Syndrome, msn uint32) Answer {
	a.t.Helper()
	require.Equal(a.t, roce.AETHFields{Syndrome: syndrome, MSN: msn}, a.AETH().Fields(), "%v", a)
	return a
}

// Asks checks the RETH.
func (a Answer) Asks(want roce.RETHFields) Answer {
	a.t.Helper()
	require.Equal(a.t, want, a.RETH().Fields(), "%v", a)
	return a
}

// Carries checks the payload.
func (a Answer) Carries(payload []byte) Answer {
	a.t.Helper()
	require.True(a.t, bytes.Equal(payload, a.Bytes()), "payload of %v: %d bytes", a, a.PayloadLength)
	return a
}

// Bytes is the payload in one piece.
func (a Answer) Bytes() []byte { return bytes.Join(a.Payload(), nil) }

func (a Answer) String() string {
	s := fmt.Sprintf("%v PSN %d", a.Opcode, a.PSN)
	if h := a.AETH(); h != nil {
		s += fmt.Sprintf(" (%v, MSN %d)", h.Syndrome(), h.MSN())
	}
	if h := a.RETH(); h != nil {
		s += fmt.Sprintf(" (VA %#x, rkey %#x, %d bytes)", h.VA(), h.RKey(), h.Length())
	}
	return fmt.Sprintf("%s with %d bytes at %v", s, a.PayloadLength, a.At)
}
