package verbs_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/xroce/xroce/internal/support"
	"github.com/xroce/xroce/roce/link/mem"
	"github.com/xroce/xroce/verbs"
)

// TestErrorsOfStatuses: each status has an error, no two the same, and success has none.
func TestErrorsOfStatuses(t *testing.T) {
	a, _ := pair(t, mem.Options{})
	statuses := map[verbs.WCStatus]error{
		verbs.WCLocLenErr: verbs.ErrLocalLength, verbs.WCLocQPOpErr: verbs.ErrLocalQPOperation,
		verbs.WCLocProtErr: verbs.ErrLocalProtection, verbs.WCWRFlushErr: verbs.ErrFlushed, verbs.WCMWBindErr: verbs.ErrMWBind,
		verbs.WCBadRespErr: verbs.ErrBadResponse, verbs.WCLocAccessErr: verbs.ErrLocalAccess,
		verbs.WCRemInvReqErr: verbs.ErrRemoteInvalidRequest, verbs.WCRemAccessErr: verbs.ErrRemoteAccess,
		verbs.WCRemOpErr: verbs.ErrRemoteOperation, verbs.WCRetryExcErr: verbs.ErrRetryExceeded,
		verbs.WCRNRRetryExcErr: verbs.ErrRNRRetryExceeded, verbs.WCFatalErr: verbs.ErrFatal, verbs.WCGeneralErr: verbs.ErrGeneral,
	}
	for status, want := range statuses {
		err := a.qp.Err(verbs.WC{Status: status, QPN: a.qp.QPN(), WRID: 5})
		require.ErrorIs(t, err, want)
		for _, other := range statuses {
			require.Equal(t, other == want, errors.Is(err, other), "%v is no %v", err, other)
		}
		var failure *verbs.CompletionError
		require.ErrorAs(t, err, &failure)
		require.EqualValues(t, 5, failure.WC.WRID)
		require.Equal(t, a.qp.Explain(failure.WC), err.Error())
		require.Equal(t, a.qp.Query().AH.DGID.Addr(), failure.Peer)
		require.Equal(t, a.qp.Query().DestQPN, failure.PeerQPN)
	}
	support.Object(t, "QP", "Err of a completion", "an error that matches its status")
	require.NoError(t, a.qp.Err(verbs.WC{QPN: a.qp.QPN()}))
	require.NoError(t, a.qp.Err(a.qp.Failure()))
	require.ErrorIs(t, (*verbs.QP)(nil).Err(verbs.WC{}), verbs.ErrInvalid)
	stranger := a.qp.Err(verbs.WC{Status: verbs.WCRetryExcErr, QPN: a.qp.QPN() + 1})
	require.ErrorIs(t, stranger, verbs.ErrRetryExceeded)
	require.ErrorContains(t, stranger, "is one of QP")
}

// TestErrorOfFlushed: what was flushed matches what broke the queue pair, too, and not if the program did that.
func TestErrorOfFlushed(t *testing.T) {
	a, b := pair(t, mem.Options{})
	wr := write(a, b, verbs.SendSignaled)
	wr.RKey++
	require.NoError(t, a.qp.PostSend(wr, verbs.SendWR{WRID: 78, Opcode: verbs.WRSend}))
	err := a.qp.Err(poll(t, a.sends))
	require.ErrorIs(t, err, verbs.ErrRemoteAccess)
	require.NotErrorIs(t, err, verbs.ErrFlushed)
	err = a.qp.Err(poll(t, a.sends))
	require.ErrorIs(t, err, verbs.ErrFlushed)
	require.ErrorIs(t, err, verbs.ErrRemoteAccess)
	var failure *verbs.CompletionError
	require.ErrorAs(t, err, &failure)
	require.EqualValues(t, 78, failure.WC.WRID)
	require.ErrorAs(t, failure.Cause, &failure)
	require.Equal(t, a.qp.Failure(), failure.WC)

	a, b = pair(t, mem.Options{})
	require.NoError(t, a.qp.Modify(t.Context(), verbs.QPAttr{State: verbs.StateError}, verbs.QPStateMask))
	require.NoError(t, a.qp.PostSend(write(a, b, 0)))
	err = a.qp.Err(poll(t, a.sends))
	require.ErrorIs(t, err, verbs.ErrFlushed)
	require.ErrorAs(t, err, &failure)
	require.NoError(t, failure.Cause)
}

// TestErrorOfPortDown: a peer that cannot answer since this end's port is down matches both.
func TestErrorOfPortDown(t *testing.T) {
	devices, links := memPorts(t)
	a, b := newEnd(t, devices[0], make([]byte, 4096), verbs.QPCap{}), newEnd(t, devices[1], make([]byte, 4096), verbs.QPCap{})
	connect(t, a, b, verbs.ConnectOptions{Timeout: time.Millisecond, RetryCnt: new(uint8(0))})
	links[0].SetDown(true)
	require.NoError(t, a.qp.PostSend(write(a, b, 0)))
	err := a.qp.Err(poll(t, a.sends))
	require.ErrorIs(t, err, verbs.ErrRetryExceeded)
	require.ErrorIs(t, err, verbs.ErrDown)
	links[0].SetDown(false)
}

// TestAll: completions come one by one as they are there, and the loop ends with the error of its context, leaving
// the rest.
func TestAll(t *testing.T) {
	a, b := pair(t, mem.Options{})
	ctx, cancel := context.WithCancel(t.Context())
	for id := range uint64(5) {
		wr := write(a, b, verbs.SendSignaled)
		wr.WRID = id
		require.NoError(t, a.qp.PostSend(wr))
	}
	next := uint64(0)
	for wc, err := range a.sends.All(ctx) {
		require.NoError(t, err)
		require.Equal(t, next, wc.WRID)
		if next++; next == 2 {
			break
		}
	}
	require.NoError(t, a.sends.Wait(ctx))
	var last error
	for wc, err := range a.sends.All(ctx) {
		if last = err; err != nil {
			require.Equal(t, verbs.WC{}, wc)
			continue // the loop is over all the same
		}
		require.Equal(t, next, wc.WRID)
		if next++; next == 4 {
			cancel()
		}
	}
	require.ErrorIs(t, last, context.Canceled)
	require.EqualValues(t, 4, poll(t, a.sends).WRID, "it stays in the queue")

	// It waits, and wakes.
	ctx, cancel = context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	for _, err := range a.sends.All(ctx) {
		last = err
	}
	require.ErrorIs(t, last, context.DeadlineExceeded)
	time.AfterFunc(10*time.Millisecond, func() { _ = a.qp.PostSend(write(a, b, verbs.SendSignaled)) })
	for _, err := range a.sends.All(t.Context()) {
		require.NoError(t, err)
		break
	}
	for _, err := range (*verbs.CQ)(nil).All(t.Context()) {
		require.ErrorIs(t, err, verbs.ErrInvalid)
	}
	var nothing context.Context
	for _, err := range a.sends.All(nothing) {
		require.ErrorIs(t, err, verbs.ErrInvalid)
	}
}
