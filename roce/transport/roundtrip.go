package transport

// roundTrip measures how long the peer takes to acknowledge: from a turn that sent a packet which asks for an
// acknowledgement to the turn that processed the answer. It uses the time of the turn, so that it costs no reading of
// the clock; times below that of a turn (some 10 us) say little. One packet is timed at a time, and one that was sent
// again never: nobody knows which of the two was answered (Karn's algorithm, RFC 6298 section 3).
type roundTrip struct {
	timing   bool
	sequence uint64 // of the packet that is timed
	sent     Time
	smoothed Time // as SRTT of RFC 6298, gain 1/8; 0 before the first measurement
}

// asked is called when a packet was written for the first time that asks for an acknowledgement.
func (t *roundTrip) asked(now Time, sequence uint64) {
	if !t.timing {
		t.timing, t.sequence, t.sent = true, sequence, now
	}
}

// acknowledged is called when everything before una was acknowledged.
func (t *roundTrip) acknowledged(now Time, una uint64) {
	if !t.timing || una <= t.sequence {
		return
	}
	t.timing = false
	measured := max(now-t.sent, 1)
	if t.smoothed == 0 {
		t.smoothed = measured
	} else {
		t.smoothed += (measured - t.smoothed) / 8
	}
}

// abandon ends the measurement, because packets are sent again.
func (t *roundTrip) abandon() { t.timing = false }
