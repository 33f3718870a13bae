package transport

import "github.com/xroce/xroce/roce"

// credits are the peer's end-to-end credits (IBTA volume 1, chapter 9; rvt_get_credit in
// drivers/infiniband/sw/rdmavt/rc.c): how many more receives it has posted. A message that takes a
// receive waits while its number is beyond the limit, but for one, which finds out whether there is a receive by now.
//
// A QP starts without a limit, since most peers never set one (rdma_rxe and QPs on an SRQ report "no credits"), and the
// first message would have to wait for the first acknowledgement; if a limit was there, the worst is an RNR NAK. This
// end itself reports "no credits": what a sender gains by them it also gets from the RNR NAK, and they would have to be
// reported anew with every posted receive.
type credits struct {
	limited  bool
	released bool   // the peer has said that it does not limit; that is for good
	limit    uint64 // number of the last message that may start (IBTA: limit sequence number), not wrapped to 24 bits
}

// permit says whether the message of this number may start.
func (c *credits) permit(ssn uint64) bool { return !c.limited || ssn <= c.limit+1 }

// sentFreely notes a message that takes no receive: it moves the limit along.
func (c *credits) sentFreely() {
	if c.limited {
		c.limit++
	}
}

// update takes what an acknowledgement says, and reports whether more may be sent than before. The limit only rises, so
// that a late packet does no harm.
func (c *credits) update(syndrome roce.Syndrome, msn uint32) bool {
	if c.released {
		return false
	}
	if syndrome == roce.SyndromeAckNoCredits {
		was := c.limited
		c.limited, c.released = false, true
		return was
	}
	next := roce.PSN(msn+roce.Credits(syndrome.Value())) & roce.PSNMask
	distance := next.Diff(roce.PSN(c.limit) & roce.PSNMask)
	c.limited = true
	if distance <= 0 {
		return false
	}
	c.limit += uint64(distance)
	return true
}

// executed notes that the peer has executed the message of this number: it had a receive for it, whatever its MSN says.
// A peer that counts wrong would stop the sender for good otherwise.
func (c *credits) executed(ssn uint64) { c.limit = max(c.limit, ssn) }
