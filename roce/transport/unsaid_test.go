package transport

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/xroce/xroce/roce"
	"github.com/xroce/xroce/roce/queue"
)

// oneReceive is a receive queue with one empty receive, or with none.
type oneReceive struct {
	noReceives
	posted bool
}

func (r *oneReceive) Take(wr *queue.RecvWR) (found, valid bool) {
	found, r.posted = r.posted, false
	*wr = queue.RecvWR{WRID: 1, SGList: wr.SGList[:0]}
	return found, found
}

// TestRNRNAKUnsaid: a message comes twice before the RNR NAK for the first one has left, and meets a receive the second
// time. What leaves acknowledges it: a peer that is told to wait would use up a retry for a message that was executed.
func TestRNRNAKUnsaid(t *testing.T) {
	d := newDrainer(t)
	receives := &oneReceive{}
	d.qp.config.Receive = receives
	message := d.packet(roce.GID{15: 2}, 0, roce.BTHFields{Opcode: roce.RCSendOnly, PSN: valid().RQPSN})
	d.engine.Receive(1, d.qp, message)
	receives.posted = true
	d.engine.Receive(1, d.qp, message)
	d.requireEntries("1 success")
	require.Equal(t, 1, d.engine.Emit(1, 100, &d.sink))
	var answer roce.Packet
	length := d.qp.path.template.Length() + roce.BTHLength + roce.AETHLength + roce.ICRCLength
	require.Equal(t, roce.DropNone, answer.Parse([][]byte{d.sink.buffer[:length]}))
	require.Equal(t, valid().RQPSN, answer.PSN)
	require.Equal(t, roce.SyndromeAckNoCredits, answer.AETH().Syndrome())
}
