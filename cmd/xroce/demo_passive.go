package main

import (
	"context"
	"encoding/binary"
	"fmt"

	"github.com/xroce/xroce/verbs"
)

// demoPassiveCommand is the process of the demo that lends its memory.
type demoPassiveCommand struct{}

// Run is for the demo only.
func (demoPassiveCommand) Run() error { return runProcess("passive", "active", (*process).playPassive) }

func (p *process) playPassive() error {
	if err := p.open(); err != nil {
		return err
	}
	if _, _, err := p.connect(); err != nil {
		return err
	}
	// Nothing is to be done here for WRITE and READ: the engine works in the background.
	if err := p.peer.expect(stepWritten); err != nil {
		return err
	}
	if err := p.peer.send(hash(p.memory)); err != nil {
		return err
	}
	if err := p.peer.expect(stepPingPong); err != nil {
		return err
	}
	if err := p.playPong(); err != nil {
		return err
	}
	var m measurement
	var err error
	if m.Side, err = p.side(); err != nil {
		return err
	}
	if err := p.parent.send(childMessage{Measured: &m}); err != nil {
		return err
	}
	if err := p.closeRDMA(); err != nil {
		return err
	}
	if err := receiveTCP(p.peer, p.TCPAddress, p.memory); err != nil {
		return err
	}
	return p.parent.send(childMessage{Finished: &ending{}})
}

// playPong sends every message back from where it has arrived.
func (p *process) playPong() error {
	for trip := range pingPongSlots {
		if err := p.postReceive(trip); err != nil {
			return err
		}
	}
	if err := p.peer.send(stepPingPong); err != nil {
		return err
	}
	done := completions{rdma: p.rdma}
	sent := 0
	for last := -1; last < 0 || sent <= last; {
		wc, err := done.wait(context.Background())
		if err != nil {
			return fmt.Errorf("after %d round trips: %w", sent, err)
		}
		trip := int(wc.WRID)
		if wc.Opcode == verbs.WCSend { // only now is the slot free
			sent++
			err = p.postReceive(trip + pingPongSlots)
		} else {
			if binary.LittleEndian.Uint64(p.memory[(pingPongSlots+trip%pingPongSlots)*pingPongSize:]) == pingPongLast {
				last = trip
			}
			err = p.rdma.qp.PostSend(verbs.SendWR{
				WRID: wc.WRID, Opcode: verbs.WRSend, Flags: verbs.SendSignaled, SGList: []verbs.SGE{p.receiveSlot(trip)},
			})
		}
		if err != nil {
			return fmt.Errorf("after %d round trips: %w", sent, err)
		}
	}
	return nil
}
