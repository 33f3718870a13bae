package transport

import "container/heap"

// timer is the entry of a QP in its engine's heap, for the first of its deadlines (recovery.deadline).
//
// Every acknowledgement moves the deadline. Moving it later only changes the field; the heap entry stays where
// it is and is moved when its own time comes, so that progress costs a store and not a walk through the heap.
type timer struct {
	deadline Time // when to fire; 0 is never
	at       Time // where the heap has it
	index    int
	queued   bool
}

// schedule sets the timer to the first deadline of the QP. It is called after whatever may have changed one.
func (q *QP) schedule() {
	if deadline := q.recovery.deadline(); deadline != q.timer.deadline {
		q.setTimer(deadline)
	}
}

// setTimer sets the deadline; 0 is none.
func (q *QP) setTimer(deadline Time) {
	q.timer.deadline = deadline
	switch {
	case deadline == 0:
	case !q.timer.queued:
		q.timer.at = deadline
		heap.Push(&q.engine.timers, q)
	case deadline < q.timer.at:
		q.timer.at = deadline
		heap.Fix(&q.engine.timers, q.timer.index)
	}
}

// timerHeap orders QPs by timer.at.
type timerHeap []*QP

func (h timerHeap) Len() int           { return len(h) }
func (h timerHeap) Less(i, j int) bool { return h[i].timer.at < h[j].timer.at }
func (h timerHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].timer.index, h[j].timer.index = i, j
}

// Push is for container/heap.
func (h *timerHeap) Push(x any) {
	q := x.(*QP)
	q.timer.index, q.timer.queued = len(*h), true
	*h = append(*h, q)
}

// Pop is for container/heap.
func (h *timerHeap) Pop() any {
	last := len(*h) - 1
	q := (*h)[last]
	(*h)[last] = nil
	*h = (*h)[:last]
	q.timer.queued = false
	return q
}

func (h *timerHeap) remove(q *QP) { heap.Remove(h, q.timer.index) }

// postpone moves an entry to the deadline that was set meanwhile.
func (h *timerHeap) postpone(q *QP) {
	q.timer.at = q.timer.deadline
	heap.Fix(h, q.timer.index)
}
