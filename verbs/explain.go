package verbs

import (
	"fmt"

	"github.com/xroce/xroce/roce"
)

// Explain says in one line what became of a work request of the queue pair: status, peer, packet, what the peer said last,
// resends used, and for failures the likely cause.
func (q *QP) Explain(wc WC) string {
	if err := q.check(); err != nil {
		return err.Error()
	}
	text := fmt.Sprintf("%v of work request %d on QP %v", wc.Status, wc.WRID, wc.QPN)
	a, av, _ := q.driver.Query()
	if !av.DGID.IsZero() {
		text += fmt.Sprintf(" to QP %v at %v", a.DestinationQPN, av.DGID)
	}
	if wc.Status == WCSuccess {
		return text
	}
	if wc.Status != WCWRFlushErr {
		text += fmt.Sprintf(": PSN %#x, last answer %v, %d resends of %d, %d RNR resends of %s",
			uint32(wc.PSN), wc.Syndrome, wc.Retries, a.RetryCount, wc.RNRRetries, rnrLimit(a.RNRRetry))
	}
	if cause := likelyCause(wc); cause != "" {
		text += ": " + cause
	}
	return text
}

func rnrLimit(retries uint8) string {
	if retries == 7 {
		return "any number"
	}
	return fmt.Sprint(retries)
}

// Failure is the completion that brought the queue pair into StateError; its Status is WCSuccess if nothing did, or if
// the program did so itself.
func (q *QP) Failure() WC {
	if q.check() != nil {
		return WC{}
	}
	_, _, wc := q.driver.Query()
	return wc
}

// likelyCause is what usually lies behind a status, in the experience of users of RDMA.
func likelyCause(wc WC) string {
	switch wc.Status {
	case WCRetryExcErr:
		if wc.Syndrome == roce.SyndromeNAKSequence {
			return "packets are lost again and again between the two"
		}
		return "the peer does not answer: it is gone, in the error state, or QPN, PSN, address or path MTU of the two ends do not match"
	case WCRNRRetryExcErr:
		return "the peer has not posted a receive"
	case WCMWBindErr:
		return "the region is not of the QP's protection domain or does not permit the binding, or the window is bound already"
	case WCRemAccessErr:
		if wc.Opcode == WCRecv {
			return "the peer wrote to memory that no key of this end opens to it"
		}
		return "the peer's region does not have this key, range or right, or is not of its QP's protection domain"
	case WCRemInvReqErr:
		if wc.Opcode == WCRecv {
			return "the peer's message was malformed, or named a key that it cannot invalidate"
		}
		return "the message is longer than the peer's receive, or its QP does not permit the operation"
	case WCRemOpErr:
		return "the peer's receive request names memory that it cannot use"
	case WCLocProtErr:
		return "an SGE names memory that is not registered here, not in this protection domain, or without local write"
	case WCLocLenErr:
		return "the message does not fit the receive"
	case WCWRFlushErr:
		return "the QP was in the error state, see QP.Failure for why"
	case WCLocQPOpErr:
		return "a READ or atomic on a QP with MaxRDAtomic 0, a key that cannot be registered or invalidated now, or a malformed request"
	case WCFatalErr:
		return "the completion queue was full"
	}
	return ""
}
