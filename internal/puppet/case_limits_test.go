package puppet_test

import (
	"bytes"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/xroce/xroce/internal/puppet"
	"github.com/xroce/xroce/internal/support"
	"github.com/xroce/xroce/roce"
	"github.com/xroce/xroce/roce/link/mem"
	"github.com/xroce/xroce/verbs"
)

// Requests that meet a responder without a place for them: too many in flight, a full CQ, a queue pair that is not
// ready.

// TestTooManyInFlight: one request more than was granted, behind a READ that still gets its responses.
func TestTooManyInFlight(t *testing.T) {
	for _, operation := range withResponse {
		t.Run(operation.String(), func(t *testing.T) {
			stage := puppet.NewStage(t, mem.Options{})
			c := &couple{stage: stage, a: stage.NewEnd(puppet.EndOptions{}), b: stage.NewEnd(puppet.EndOptions{})}
			grants := []uint8{4, 1}
			stage.Connect(c.a, c.b, func(a *verbs.QPAttr) { a.MaxDestRDAtomic, grants = grants[0], grants[1:] })
			c.wire = stage.Watch()
			c.b.PostRecv(1, 4096, 64)
			image := bytes.Clone(c.b.MR.Bytes())
			c.a.Post(c.request(1, verbs.WRRDMARead, 8192, 4000), c.request(2, operation, word, 8), c.request(3, verbs.WRRDMAWrite, 0, 8))
			c.a.ExpectSend(1, success)
			c.a.ExpectSend(2, verbs.WCRemInvReqErr)
			c.a.ExpectSend(3, flushed)
			packets := c.wire.From(c.b)
			require.Equal(t, roce.PSN(44), packets[len(packets)-1].PSN)
			require.Equal(t, invalid, packets[len(packets)-1].AETH.Syndrome)
			c.b.ExpectRecv(1, flushed)
			require.Equal(t, verbs.StateError, c.b.QP.State())
			require.True(t, bytes.Equal(image, c.b.MR.Bytes()))
			require.Equal(t, []verbs.AsyncEvent{{Type: verbs.EventQPReqErr, QP: c.b.QP}}, events(c.b))
			support.Fault(t, operation.String()+", one in flight more than granted", support.Outcome{
				Wire: invalid, Responder: verbs.StateError, Receive: flushed, Event: verbs.EventQPReqErr, Requester: verbs.WCRemInvReqErr,
			})
		})
	}
}

// TestNotReady: a queue pair that is not yet, or not any more, ready to receive gives no sign of life.
func TestNotReady(t *testing.T) {
	for _, state := range []verbs.QPState{verbs.StateReset, verbs.StateInit, verbs.StateError} {
		for operation := range rightOf {
			t.Run(state.String()+" "+operation.String(), func(t *testing.T) {
				c := newCouple(t)
				attr := c.b.QP.Query()
				steps := []verbs.QPState{verbs.StateReset, verbs.StateInit}
				if state != verbs.StateInit {
					steps = []verbs.QPState{state}
				}
				for _, attr.State = range steps {
					mask := verbs.QPStateMask
					if attr.State == verbs.StateInit {
						mask |= verbs.QPPKeyIndex | verbs.QPPort | verbs.QPAccessFlags
					}
					require.NoError(t, c.b.QP.Modify(t.Context(), attr, mask))
				}
				image := bytes.Clone(c.b.MR.Bytes())
				c.a.Post(c.request(1, operation, word, 8))
				require.EqualValues(t, 7, c.a.ExpectSend(1, verbs.WCRetryExcErr).Retries)
				require.Empty(t, c.wire.From(c.b))
				require.Equal(t, state, c.b.QP.State())
				require.True(t, bytes.Equal(image, c.b.MR.Bytes()))
				require.Empty(t, events(c.b))
				support.Fault(t, fmt.Sprintf("any request to a queue pair in %v", state), support.Outcome{
					Wire: "nothing", Responder: state, Event: "none", Requester: verbs.WCRetryExcErr,
				})
			})
		}
	}
}

// TestReceiveCQFull: a completion without a place ends the queue pair, silently for the peer.
func TestReceiveCQFull(t *testing.T) {
	for _, operation := range []verbs.WROpcode{verbs.WRSend, verbs.WRRDMAWriteWithImm} {
		t.Run(operation.String(), func(t *testing.T) {
			stage := puppet.NewStage(t, mem.Options{})
			c := &couple{stage: stage, a: stage.NewEnd(puppet.EndOptions{}), b: stage.NewEnd(puppet.EndOptions{CQE: 2})}
			stage.Connect(c.a, c.b)
			c.wire = stage.Watch()
			for id := range uint64(4) {
				c.b.PostRecv(id, 4096, 64)
			}
			for id, status := range []verbs.WCStatus{success, success, verbs.WCRetryExcErr} {
				c.a.Post(c.request(uint64(id), operation, word, 8))
				c.a.ExpectSend(uint64(id), status)
			}
			for _, s := range c.wire.From(c.b) {
				require.True(t, s.AETH.Syndrome.IsAck() && s.PSN < 42, "%+v", s)
			}
			require.Equal(t, verbs.StateError, c.b.QP.State())
			for i, wc := range c.b.Recvs(2) {
				require.Equal(t, uint64(i), wc.WRID)
				require.Equal(t, success, wc.Status)
			}
			told := events(c.b)
			require.ElementsMatch(t, []verbs.AsyncEvent{
				{Type: verbs.EventCQErr, CQ: c.b.RecvCQ}, {Type: verbs.EventQPFatal, QP: c.b.QP},
			}, told)
			for _, e := range told {
				support.Object(t, "Event", e.Type.String(), nil)
			}
			support.Fault(t, "receive CQ full", support.Outcome{
				Wire: "nothing", Responder: verbs.StateError, Event: fmt.Sprintf("%v, %v", verbs.EventCQErr, verbs.EventQPFatal),
				Requester: verbs.WCRetryExcErr,
			})
		})
	}
}
