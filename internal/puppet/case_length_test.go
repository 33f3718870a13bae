package puppet_test

import (
	"bytes"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/xroce/xroce/internal/puppet"
	"github.com/xroce/xroce/internal/support"
	"github.com/xroce/xroce/roce"
	"github.com/xroce/xroce/roce/link/mem"
	"github.com/xroce/xroce/verbs"
)

// Packets whose payload does not fit their place in the message. P is the path MTU, 1024 bytes.

// step is a packet of a message, without its PSN.
type step struct {
	opcode roce.Opcode
	length int
}

// TestCase_A6: the last step is the wrong one, which must be refused with nothing of it placed.
func TestCase_A6(t *testing.T) {
	const P = 1024
	first, middle, last, only := roce.RCWriteFirst, roce.RCWriteMiddle, roce.RCWriteLast, roce.RCWriteOnly
	for name, c := range map[string]struct {
		total int // bytes that the RETH announces, or that the receive has room for
		steps []step
		send  bool // the same is wrong in a SEND
	}{
		"first P-4":                   {2 * P, []step{{first, P - 4}}, true},
		"first P+4":                   {2 * P, []step{{first, P + 4}}, true},
		"first 0":                     {2 * P, []step{{first, 0}}, true},
		"first of one packet":         {P, []step{{first, P}}, false},
		"first of nothing":            {0, []step{{first, P}}, false},
		"middle P-4":                  {3 * P, []step{{first, P}, {middle, P - 4}}, true},
		"middle P+4":                  {3 * P, []step{{first, P}, {middle, P + 4}}, true},
		"middle P+1":                  {3 * P, []step{{first, P}, {middle, P + 1}}, true},
		"middle 0":                    {3 * P, []step{{first, P}, {middle, 0}}, true},
		"middle where the last is":    {2*P + 4, []step{{first, P}, {middle, P}, {middle, P}}, false},
		"middle ends it exactly":      {2 * P, []step{{first, P}, {middle, P}}, false},
		"last 0":                      {2 * P, []step{{first, P}, {last, 0}}, true},
		"last P+4":                    {2*P + 4, []step{{first, P}, {last, P + 4}}, true},
		"last P+1":                    {2*P + 1, []step{{first, P}, {last, P + 1}}, true},
		"last 4 short":                {2 * P, []step{{first, P}, {last, P - 4}}, false},
		"last 1 short":                {2*P - 3, []step{{first, P}, {last, P - 4}}, false},
		"last 4 long":                 {2*P - 8, []step{{first, P}, {last, P - 4}}, false},
		"last 1 long":                 {2*P - 5, []step{{first, P}, {last, P - 4}}, false},
		"last instead of middle":      {3 * P, []step{{first, P}, {last, P}}, false},
		"last with immediate, short":  {2 * P, []step{{first, P}, {roce.RCWriteLastImmediate, 8}}, false},
		"only P+4":                    {P + 4, []step{{only, P + 4}}, true},
		"only P+1":                    {P + 1, []step{{only, P + 1}}, true},
		"only 4P":                     {4 * P, []step{{only, 4 * P}}, true},
		"only shorter":                {8, []step{{only, 4}}, false},
		"only longer":                 {8, []step{{only, 12}}, false},
		"only of nothing":             {0, []step{{only, 4}}, false},
		"only with immediate, longer": {8, []step{{roce.RCWriteOnlyImmediate, 12}}, false},
		"only of 4 GiB":               {-4, []step{{only, P}}, false},
		"first of 2^31 + 4":           {1<<31 + 4, []step{{first, P}}, false},
		// Not of this length, but of this place:
		"middle first":            {2 * P, []step{{middle, P}}, true},
		"last first":              {2 * P, []step{{last, 4}}, true},
		"first in the middle":     {3 * P, []step{{first, P}, {first, P}}, true},
		"only in the middle":      {3 * P, []step{{first, P}, {only, 4}}, true},
		"READ in the middle":      {3 * P, []step{{first, P}, {roce.RCReadRequest, 0}}, true},
		"SEND in a WRITE's place": {3 * P, []step{{first, P}, {roce.RCSendMiddle, P}}, false},
	} {
		t.Run("WRITE "+name, func(t *testing.T) { refuse(t, c.total, c.steps, false) })
		if c.send {
			steps := make([]step, len(c.steps))
			for i, s := range c.steps {
				steps[i] = step{asSend(s.opcode), s.length}
			}
			t.Run("SEND "+name, func(t *testing.T) { refuse(t, c.total, steps, true) })
		}
	}
	support.Fault(t, "payload that does not fit its place in the message",
		support.Outcome{Wire: roce.SyndromeNAKInvalidRequest, Responder: verbs.StateError})
}

// asSend is the SEND opcode at a WRITE opcode's place in the message.
func asSend(o roce.Opcode) roce.Opcode {
	switch o {
	case roce.RCWriteFirst:
		return roce.RCSendFirst
	case roce.RCWriteMiddle:
		return roce.RCSendMiddle
	case roce.RCWriteLast:
		return roce.RCSendLast
	case roce.RCWriteOnly:
		return roce.RCSendOnly
	}
	return o
}

// refuse sends the packets of a message, all but the last of which are right.
func refuse(t *testing.T, total int, steps []step, send bool) {
	stage := puppet.NewStage(t, mem.Options{})
	end := stage.NewEnd(puppet.EndOptions{})
	p := stage.NewPuppet()
	p.Connect(end)
	const offset = 333
	end.PostRecv(1, offset, min(max(total, 16), 8192))
	end.PostRecv(2, 0, 16)
	want := bytes.Clone(end.MR.Bytes())
	written := 0
	for i, s := range steps {
		payload := bytes.Repeat([]byte{byte('a' + i)}, s.length)
		p.Send(puppet.Packet{
			Opcode: s.opcode, PSN: roce.PSN(100 + i), AckRequest: true, Payload: payload, RETH: end.RETH(offset, total),
		})
		if i < len(steps)-1 {
			p.ExpectAck(roce.PSN(100+i), 0)
			written += copy(want[offset+written:], payload)
		}
	}
	p.ExpectNAK(roce.PSN(100+len(steps)-1), roce.SyndromeNAKInvalidRequest)
	require.Equal(t, verbs.StateError, end.QP.State())
	require.True(t, bytes.Equal(want, end.MR.Bytes()), "something behind the bad point was written")

	// The receive of a SEND that had begun, or just did, tells what was wrong; all others are flushed.
	wcs := end.Recvs(2)
	require.Equal(t, []uint64{1, 2}, []uint64{wcs[0].WRID, wcs[1].WRID})
	claimed := send && (len(steps) > 1 || steps[0].opcode == roce.RCSendOnly || steps[0].opcode == roce.RCSendFirst) ||
		steps[len(steps)-1].opcode.Info().Has(roce.HeaderImmDt)
	if claimed {
		require.Contains(t, []verbs.WCStatus{verbs.WCLocLenErr, verbs.WCRemInvReqErr}, wcs[0].Status)
		require.Equal(t, roce.SyndromeNAKInvalidRequest, wcs[0].Syndrome)
	} else {
		require.Equal(t, verbs.WCWRFlushErr, wcs[0].Status)
	}
	require.Equal(t, verbs.WCWRFlushErr, wcs[1].Status)

	// It is over: nothing is answered any more.
	p.Send(write(end, 100+roce.PSN(len(steps)-1)))
	p.ExpectNothing(time.Second)
	end.ExpectNoCompletion()
}

// TestSendTooLong: a SEND must fit into the receive that it finds.
func TestSendTooLong(t *testing.T) {
	for name, c := range map[string]struct {
		room  int
		steps []step
	}{
		"only":                {7, []step{{roce.RCSendOnly, 8}}},
		"only into nothing":   {0, []step{{roce.RCSendOnly, 1}}},
		"first":               {1000, []step{{roce.RCSendFirst, 1024}}},
		"last":                {1027, []step{{roce.RCSendFirst, 1024}, {roce.RCSendLast, 4}}},
		"last with immediate": {1027, []step{{roce.RCSendFirst, 1024}, {roce.RCSendLastImmediate, 4}}},
	} {
		t.Run(name, func(t *testing.T) {
			stage := puppet.NewStage(t, mem.Options{})
			end := stage.NewEnd(puppet.EndOptions{})
			p := stage.NewPuppet()
			p.Connect(end)
			end.PostRecv(1, 64, c.room)
			end.PostRecv(2, 64, 4096)
			behind := bytes.Clone(end.MR.Bytes()[64+c.room:])
			for i, s := range c.steps {
				p.Send(puppet.Packet{Opcode: s.opcode, PSN: roce.PSN(100 + i), Payload: make([]byte, s.length)})
			}
			p.ExpectNAK(roce.PSN(100+len(c.steps)-1), roce.SyndromeNAKInvalidRequest).Says(roce.SyndromeNAKInvalidRequest, 0)
			end.ExpectRecv(1, verbs.WCLocLenErr)
			end.ExpectRecv(2, verbs.WCWRFlushErr)
			require.Equal(t, verbs.StateError, end.QP.State())
			require.Empty(t, events(end))
			require.True(t, bytes.Equal(behind, end.MR.Bytes()[64+c.room:]), "bytes behind the receive were written")
		})
	}
	support.Fault(t, "SEND longer than the receive", support.Outcome{
		Wire: roce.SyndromeNAKInvalidRequest, Responder: verbs.StateError, Receive: verbs.WCLocLenErr, Event: "none",
	})
}
