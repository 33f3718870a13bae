package transport

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// TestRoundTripEndsWithAMove: the turn that adopts a queue pair may have begun before the one that sent, so what is
// measured over a move is no round trip; one that is taken back by its own engine is in no such danger.
func TestRoundTripEndsWithAMove(t *testing.T) {
	for _, moves := range []bool{false, true} {
		d := newDrainer(t)
		to := d.engine
		if moves {
			to = NewEngine(d.table.NewUser())
		}
		r := &d.qp.recovery.roundTrip
		r.asked(100, 7)
		d.engine.Release(d.qp)
		to.Adopt(d.qp)
		r.acknowledged(90, 8)
		require.Equal(t, !moves, r.smoothed > 0)
	}
}
