package driver

// roster is the queue pairs that use a CQ. Adding and removing one takes the same time however many there are.
type roster struct {
	entries []rosterEntry
	places  map[*QP]int // in entries
	uses    int
}

type rosterEntry struct {
	qp   *QP
	uses int // two if both of its queues complete in the CQ
}

func (r *roster) add(q *QP) {
	at, known := r.places[q]
	if !known {
		if r.places == nil {
			r.places = make(map[*QP]int)
		}
		at = len(r.entries)
		r.places[q] = at
		r.entries = append(r.entries, rosterEntry{qp: q})
	}
	r.entries[at].uses++
	r.uses++
}

// remove takes back one add, if there was one.
func (r *roster) remove(q *QP) {
	at, known := r.places[q]
	if !known {
		return
	}
	r.uses--
	if r.entries[at].uses--; r.entries[at].uses > 0 {
		return
	}
	last := len(r.entries) - 1
	r.entries[at] = r.entries[last]
	r.places[r.entries[at].qp] = at
	r.entries[last] = rosterEntry{}
	r.entries = r.entries[:last]
	delete(r.places, q)
}
