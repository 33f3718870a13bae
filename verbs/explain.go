package verbs

import (
	"errors"
	"fmt"
	"time"

	"github.com/xroce/xroce/roce"
)

// explain is the text of Explain, and what is known of the cause as an error.
func (q *QP) explain(wc WC) (text string, cause error) {
	if wc == (WC{}) {
		return fmt.Sprintf("nothing has failed on QP %v", q.QPN()), nil
	}
	if wc.QPN != q.QPN() {
		return fmt.Sprintf("the completion is one of QP %v, not of QP %v", wc.QPN, q.QPN()), nil
	}
	a, av, failed := q.driver.Query()
	failure := completionOf(failed)
	peer := ""
	if !av.DGID.IsZero() {
		peer = fmt.Sprintf(" to QP %v at %v", a.DestinationQPN, av.DGID)
	}
	switch {
	case wc.Flags&WCPeerRequest != 0:
		return fmt.Sprintf("%v of the peer at QP %v%s: PSN %#x was refused with %v: %s",
			wc.Opcode, wc.QPN, peer, uint32(wc.PSN), wc.Syndrome, causeOfPeer(wc)), nil
	case wc.Status == WCFatalErr:
		text = fmt.Sprintf("%v of QP %v%s", wc.Status, wc.QPN, peer)
	default:
		text = fmt.Sprintf("%v of work request %d on QP %v%s", wc.Status, wc.WRID, wc.QPN, peer)
	}
	if ofPeer(wc.Status) && wc.Opcode < WCRecv {
		answer := fmt.Sprintf("last answer %v", wc.Syndrome)
		switch {
		case wc.Status == WCLocLenErr || wc.Status == WCBadRespErr:
			answer = "the answer does not fit the request"
		case wc.Syndrome == roce.SyndromeNone:
			answer = "no answer so far"
		}
		text += fmt.Sprintf(": PSN %#x, %s, %d resends of %d%s, %d RNR resends of %s",
			uint32(wc.PSN), answer, wc.Retries, a.RetryCount, patienceText(wc, a.Timeout, a.RetryCount), wc.RNRRetries, rnrLimit(a.RNRRetry))
	}
	likely := likelyCause(wc)
	switch wc.Status {
	case WCWRFlushErr:
		likely, cause = q.causeOfFlush(failure, QPState(a.State))
	case WCRetryExcErr:
		likely, cause = q.causeOfLoss(a.PathMTU, AHAttr(av), likely)
	case WCLocQPOpErr:
		if err := q.pd.device.CheckPathMTU(a.PathMTU); a.PathMTU.Valid() && errors.Is(err, ErrPathMTU) {
			likely, cause = err.Error(), err
		}
	}
	if likely != "" {
		text += ": " + likely
	}
	return text, cause
}

// causeOfFlush says why a queue pair was in the error state, by what it knows now.
func (q *QP) causeOfFlush(failure WC, now QPState) (text string, cause error) {
	switch {
	case failure.Status != WCSuccess:
		cause = q.Err(failure)
		return "the QP was in the error state, after: " + cause.Error(), cause
	case now == StateError:
		return "the program brought the QP into the error state", nil
	}
	return fmt.Sprintf("the QP was in the error state, and has been reset since (it is in %v now)", now), nil
}

// causeOfLoss says what this end knows of packets that were not answered: the port is down, packets come in where
// nobody receives, or an MTU on the way is too small. Otherwise it is the usual cause.
func (q *QP) causeOfLoss(m MTU, av AHAttr, usual string) (text string, cause error) {
	d := q.pd.device
	text = usual
	if answered, unanswered := q.driver.Sizes(); answered >= 0 && answered < unanswered && unanswered >= MTU256.Bytes() {
		text = fmt.Sprintf("packets with up to %d bytes of payload passed, those with %d did not: a link on the way, or the peer's end, "+
			"may have an MTU below %d, which path MTU %v needs; or else %s", answered, unanswered, m.Bytes()+roce.MTUOverhead, m, usual)
	}
	if source, err := d.QueryGID(av.SGIDIndex); err == nil {
		if err := d.driver.CheckWay(m, source, av.DGID); err != nil {
			text, cause = err.Error(), err
		}
	}
	if port, err := d.QueryPort(); err == nil && port.State != PortActive {
		text = "the port of " + d.Name() + " is down"
		return text, fmt.Errorf("%w: %s", ErrDown, text)
	}
	if i := d.Information(); i.QueuesAdded > 0 {
		text = fmt.Sprintf("%s got %d receive queues (ethtool -L) after it was opened, and packets that come in there are lost: "+
			"open it anew, or take them away; or else %s", i.Name, i.QueuesAdded, text)
	}
	return text, cause
}

// patienceText says how long a peer that did not answer was waited for.
func patienceText(wc WC, timeout, retries uint8) string {
	t := roce.GiveUpTime(timeout, retries)
	if wc.Status != WCRetryExcErr || wc.Syndrome == roce.SyndromeNAKSequence || t == 0 {
		return ""
	}
	unit := time.Microsecond
	if t >= 10*time.Millisecond {
		unit = time.Millisecond
	}
	return fmt.Sprintf(" (given up after %v without an answer)", t.Round(unit))
}

// ofPeer says whether a status of a send request comes from what the peer answered, or did not.
func ofPeer(s WCStatus) bool {
	switch s {
	case WCRetryExcErr, WCRNRRetryExcErr, WCRemInvReqErr, WCRemAccessErr, WCRemOpErr, WCBadRespErr, WCLocLenErr:
		return true
	}
	return false
}

// causeOfPeer is what usually lies behind the refusal of a request that took no receive.
func causeOfPeer(wc WC) string {
	if cause := causeOfFault(wc); cause != "" {
		return cause
	}
	return "AccessFlags or MaxDestRDAtomic of this QP do not permit it, the path MTU of the two ends differs, or it was malformed"
}

func rnrLimit(retries uint8) string {
	if retries == 7 {
		return "no limit"
	}
	return fmt.Sprint(retries)
}

// Failure is the completion that brought the queue pair into StateError; its Status is WCSuccess if nothing did, or if
// the program did so itself.
func (q *QP) Failure() WC {
	must(q.check())
	_, _, wc := q.driver.Query()
	return completionOf(wc)
}

// likelyCause is what usually lies behind a status, in the experience of users of RDMA, unless this end knows better.
func likelyCause(wc WC) string {
	if cause := causeOfFault(wc); cause != "" {
		return cause
	}
	switch wc.Status {
	case WCRetryExcErr:
		if wc.Syndrome == roce.SyndromeNAKSequence {
			return "packets are lost again and again between the two"
		}
		if wc.Syndrome.IsAck() {
			return "the peer does not answer any more: it is gone, in the error state, or stood still for longer than that " +
				"(ConnectOptions.Timeout)"
		}
		return "the peer does not answer: it is gone, in the error state, or has not connected yet; QPN, PSN, address or path MTU of " +
			"the two ends do not match; or something on the way drops UDP port 4791"
	case WCRNRRetryExcErr:
		return "the peer has not posted a receive"
	case WCRemAccessErr:
		return "the peer's region does not have this key, range or right, or is not of its QP's protection domain, or its memory cannot " +
			"be accessed: QP.Explain of the peer knows"
	case WCRemInvReqErr:
		if wc.Opcode == WCRecv {
			return "the peer's message was malformed"
		}
		return "the message is longer than the peer's receive, its QP does not permit the operation (AccessFlags, MaxDestRDAtomic), " +
			"or the path MTU of the two ends differs"
	case WCRemOpErr:
		return "the peer's receive request names memory that it cannot use"
	case WCLocLenErr:
		if wc.Opcode != WCRecv {
			return "the answer had another length than was asked for: the path MTU of the two ends differs"
		}
		return "the message does not fit the receive"
	case WCLocQPOpErr:
		return "a READ or atomic on a QP with MaxRDAtomic 0, a malformed request, or the network device's MTU was too small for the path MTU"
	case WCFatalErr:
		return "the completion queue was full"
	}
	return ""
}
