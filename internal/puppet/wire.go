package puppet

import (
	"time"

	"github.com/xroce/xroce/internal/opener"
	"github.com/xroce/xroce/roce"
	"github.com/xroce/xroce/roce/link/mem"
)

// Sent is a packet that went onto the wire.
type Sent struct {
	At     time.Duration // of departure
	From   roce.MAC
	Opcode roce.Opcode
	PSN    roce.PSN
	Ack    bool // bit A
	Length int  // of the payload
	AETH   roce.AETHFields
	RETH   roce.RETHFields
	Lost   bool // dropped by Wire.Drop
}

// Wire keeps a list of what is sent between two devices of a stage, and loses what it is told to.
type Wire struct {
	Packets []Sent
	// Drop, if not nil, says which packets get lost.
	Drop func(s *Sent) bool
	// Change, if not nil, may change the bytes of a packet on its way, its ICRC included. The list has it as it was
	// sent.
	Change func(frame []byte, p *roce.Packet)
}

// Watch makes a Wire of the stage's network.
func (s *Stage) Watch() *Wire {
	w := &Wire{}
	s.World.Network.SetIntercept(func(frame []byte, p *roce.Packet) mem.Verdict {
		if p == nil {
			return mem.Verdict{}
		}
		sent := Sent{
			At: s.Now(), From: p.SourceMAC, Opcode: p.Opcode, PSN: p.PSN, Ack: p.BTH.AckRequest(), Length: p.PayloadLength,
		}
		if h := p.AETH(); h != nil {
			sent.AETH = h.Fields()
		}
		if h := p.RETH(); h != nil {
			sent.RETH = h.Fields()
		}
		sent.Lost = w.Drop != nil && w.Drop(&sent)
		w.Packets = append(w.Packets, sent)
		if w.Change != nil {
			w.Change(frame, p)
		}
		return mem.Verdict{Drop: sent.Lost}
	})
	return w
}

// From returns what an end has sent since the last Clear.
func (w *Wire) From(e *End) []Sent {
	var list []Sent
	for _, s := range w.Packets {
		if s.From == opener.Driver(e.Device).Link().HardwareAddr() {
			list = append(list, s)
		}
	}
	return list
}

// Clear forgets the list.
func (w *Wire) Clear() { w.Packets = nil }

// Once returns a Drop function that loses the first packet which each of the conditions fits.
func Once(conditions ...func(*Sent) bool) func(*Sent) bool {
	done := make([]bool, len(conditions))
	return func(s *Sent) bool {
		for i, fits := range conditions {
			if !done[i] && fits(s) {
				done[i] = true
				return true
			}
		}
		return false
	}
}

// Is returns the condition that opcode and PSN are these.
func Is(opcode roce.Opcode, psn roce.PSN) func(*Sent) bool {
	return func(s *Sent) bool { return s.Opcode == opcode && s.PSN == psn }
}
