package puppet_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/xroce/xroce/internal/puppet"
	"github.com/xroce/xroce/roce"
	"github.com/xroce/xroce/roce/link/mem"
	"github.com/xroce/xroce/verbs"
)

// TestLowerLimitLostAnswers: the responder lowers its limit in SQD while the answers of executed atomics are lost.
// The peer asks for them again and gets them.
func TestLowerLimitLostAnswers(t *testing.T) {
	stage := puppet.NewStage(t, mem.Options{})
	a, b := stage.NewEnd(puppet.EndOptions{}), stage.NewEnd(puppet.EndOptions{})
	stage.Connect(a, b)
	w := stage.Watch()
	lose := true
	w.Drop = func(s *puppet.Sent) bool { return lose && s.Opcode == roce.RCAtomicAcknowledge }
	storeWord(b, word, 0)
	for i := range 4 {
		wr := a.Request(uint64(i), verbs.WRAtomicFetchAdd, 1024+7, 8)
		wr.RemoteAddr, wr.RKey, wr.CompareAdd = b.MR.Addr()+word, b.MR.RKey(), 1
		a.Post(wr)
	}
	stage.Pass(time.Millisecond)
	require.EqualValues(t, 4, loadWord(b, word))
	require.NoError(t, b.QP.Modify(t.Context(), verbs.QPAttr{State: verbs.StateSQD}, verbs.QPStateMask))
	require.NoError(t, b.QP.Modify(t.Context(), verbs.QPAttr{MaxDestRDAtomic: 1}, verbs.QPMaxDestRDAtomic))
	lose = false
	for i, wc := range a.Sends(4) {
		require.Equal(t, verbs.WCSuccess, wc.Status, "%d %+v", i, wc)
	}
	require.EqualValues(t, 4, loadWord(b, word))
}

// TestForgottenSkip: a packet of an earlier life that lies far ahead costs one NAK, and does not turn a later
// acknowledgement into a NAK of what nobody has sent.
func TestForgottenSkip(t *testing.T) {
	stage := puppet.NewStage(t, mem.Options{})
	end := stage.NewEnd(puppet.EndOptions{})
	p := stage.NewPuppet()
	p.Connect(end)
	p.Send(write(end, 100+1<<22))
	p.ExpectNAK(100, roce.SyndromeNAKSequence)
	for i := range roce.PSN(5) {
		p.Send(write(end, 100+i))
		p.ExpectAck(100+i, uint32(i+1))
		p.ExpectNothing(time.Millisecond)
	}
	// one lost, then both in one batch in the wrong order
	p.Send(write(end, 106), write(end, 105), write(end, 106))
	stage.Pass(time.Millisecond)
	p.ExpectAck(106, 7) // and no NAK of 107, which nobody has sent
	p.Send(write(end, 107))
	p.ExpectAck(107, 8)
	p.ExpectNothing(time.Second)
}
