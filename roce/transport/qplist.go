package transport

// qpList is a list of queue pairs, first in, first out. It is linked through them, so a QP is in one at most.
type qpList struct{ head, tail *QP }

// push adds a QP that is in no list.
func (l *qpList) push(q *QP) {
	q.list, q.previous, q.next = l, l.tail, nil
	if l.tail == nil {
		l.head = q
	} else {
		l.tail.next = q
	}
	l.tail = q
}

// unlist takes a QP out of the list that it is in, if any.
func (q *QP) unlist() {
	l := q.list
	if l == nil {
		return
	}
	if q.previous == nil {
		l.head = q.next
	} else {
		q.previous.next = q.next
	}
	if q.next == nil {
		l.tail = q.previous
	} else {
		q.next.previous = q.previous
	}
	q.list, q.next, q.previous = nil, nil, nil
}
