package verbs

import (
	"net/netip"
)

// The outcomes of work requests as errors, one for each status but WCSuccess. QP.Err makes errors that match them
// with errors.Is.
var (
	ErrLocalLength          error = statusError(WCLocLenErr)
	ErrLocalQPOperation     error = statusError(WCLocQPOpErr)
	ErrLocalProtection      error = statusError(WCLocProtErr)
	ErrFlushed              error = statusError(WCWRFlushErr)
	ErrMWBind               error = statusError(WCMWBindErr)
	ErrBadResponse          error = statusError(WCBadRespErr)
	ErrLocalAccess          error = statusError(WCLocAccessErr)
	ErrRemoteInvalidRequest error = statusError(WCRemInvReqErr)
	ErrRemoteAccess         error = statusError(WCRemAccessErr)
	ErrRemoteOperation      error = statusError(WCRemOpErr)
	ErrRetryExceeded        error = statusError(WCRetryExcErr)
	ErrRNRRetryExceeded     error = statusError(WCRNRRetryExcErr)
	ErrFatal                error = statusError(WCFatalErr)
	ErrGeneral              error = statusError(WCGeneralErr)
)

// statusError is a status as an error.
type statusError WCStatus

func (e statusError) Error() string { return WCStatus(e).String() }

// CompletionError is a work request that failed. It matches the error of its status (ErrRetryExceeded for one), and
// what is known of the cause: for a flushed request the error of the completion that broke the queue pair, and errors
// such as ErrDown or ErrPathMTU.
type CompletionError struct {
	// WC is the completion: status, operation, PSN, what the peer said last (Syndrome), resends, and in VendorErr why
	// this end could not access memory.
	WC WC
	// Peer and PeerQPN are those of the queue pair now; invalid and 0 if it has none.
	Peer    netip.Addr
	PeerQPN QPN
	// Cause is what is known to lie behind it, or nil.
	Cause error

	text string
}

// Error is the text of QP.Explain.
func (e *CompletionError) Error() string { return e.text }

// Unwrap returns the error of the status, and the cause if there is one.
func (e *CompletionError) Unwrap() []error {
	if e.Cause == nil {
		return []error{statusError(e.WC.Status)}
	}
	return []error{statusError(e.WC.Status), e.Cause}
}

// Err returns nil if a work request of the queue pair succeeded, and otherwise a *CompletionError that says why not.
// It is for completions of this queue pair (WC.QPN), and for QP.Failure. What it knows of peer and cause is what the
// queue pair knows now, so ask before it is reset.
func (q *QP) Err(wc WC) error {
	if err := q.check(); err != nil {
		return err
	}
	if wc.Status == WCSuccess {
		return nil
	}
	text, cause := q.explain(wc)
	e := &CompletionError{WC: wc, Cause: cause, text: text}
	if wc.QPN == q.QPN() {
		if a := q.Query(); !a.AH.DGID.IsZero() {
			e.Peer, e.PeerQPN = a.AH.DGID.Addr(), a.DestQPN
		}
	}
	return e
}

// Explain says in one line what became of a work request of the queue pair: status, peer, packet, what the peer said
// last, resends used, and for failures the likely cause. It explains QP.Failure, too.
func (q *QP) Explain(wc WC) string {
	if err := q.check(); err != nil {
		return err.Error()
	}
	text, _ := q.explain(wc)
	return text
}
