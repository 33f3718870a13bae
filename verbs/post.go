package verbs

// Life of a post: the program's end of a ring takes the requests, one slot each, and publishes them; the doorbell tells
// the engine, and the poster drives it. The engine's ends are in package driver.

import (
	"fmt"

	"github.com/xroce/xroce/internal/lockorder"
	"github.com/xroce/xroce/roce/queue"
)

// sender is the program's end of a send queue.
type sender struct {
	mu     lockorder.Mutex[lockorder.Sender]
	ring   *queue.Producer
	limits queue.SendLimits
}

// receiver is the program's end of a receive queue.
type receiver struct {
	mu   lockorder.Mutex[lockorder.Receiver]
	ring *queue.Producer
}

// PostSend posts requests in order. It stops at the first one that is refused and returns a *PostError with its index;
// the ones before it stay posted. The requests are copied, the memory they name is the engine's until they complete.
func (q *QP) PostSend(wrs ...SendWR) error {
	if err := q.check(); err != nil {
		return postError(0, err)
	}
	posted, err := q.postSend(ringSends(wrs))
	if posted > 0 {
		q.driver.Ring()
	}
	return postError(posted, err)
}

func (q *QP) postSend(wrs []queue.SendWR) (posted int, err error) {
	q.send.mu.Lock()
	defer q.send.mu.Unlock()
	if err := q.driver.Over(); err != nil {
		return 0, err
	}
	if state := QPState(q.driver.State()); state < StateRTS {
		return 0, fmt.Errorf("%w: posting a send needs RTS, QP %v is in %v", ErrState, q.driver.Number(), state)
	}
	for ; posted < len(wrs); posted++ {
		if err := q.send.ring.PostSend(&wrs[posted], q.send.limits, q.driver); err != nil {
			return posted, err
		}
	}
	return posted, nil
}

// PostRecv posts receives in order; see PostSend.
func (q *QP) PostRecv(wrs ...RecvWR) error {
	if err := q.check(); err != nil {
		return postError(0, err)
	}
	posted, err := q.postRecv(ringRecvs(wrs))
	// In the error state somebody has to flush it. Either the engine saw the request when it entered the state, or this
	// sees the state.
	if posted > 0 && q.State() == StateError {
		q.driver.Ring()
	}
	return postError(posted, err)
}

func (q *QP) postRecv(wrs []queue.RecvWR) (posted int, err error) {
	q.receive.mu.Lock()
	defer q.receive.mu.Unlock()
	if err := q.driver.Over(); err != nil {
		return 0, err
	}
	if q.receive.ring == nil {
		return 0, fmt.Errorf("%w: QP %v takes its receives from an SRQ: post them there", ErrInvalid, q.driver.Number())
	}
	if state := QPState(q.driver.State()); state < StateInit {
		return 0, fmt.Errorf("%w: posting a receive needs INIT or later, QP %v is in %v",
			ErrState, q.driver.Number(), state)
	}
	return q.receive.post(wrs)
}

// post posts receives until one is refused. The caller holds the lock.
func (r *receiver) post(wrs []queue.RecvWR) (posted int, err error) {
	for ; posted < len(wrs); posted++ {
		if err := r.ring.PostRecv(&wrs[posted]); err != nil {
			return posted, err
		}
	}
	return posted, nil
}

// lockPosts keeps everybody from posting until the result is called: a reset drops what is in the rings, and what is
// posted meanwhile might stay for the next life.
func (q *QP) lockPosts() (unlock func()) {
	q.send.mu.Lock()
	q.receive.mu.Lock()
	return func() {
		q.receive.mu.Unlock()
		q.send.mu.Unlock()
	}
}

// Outstanding is how many posted send requests are not complete: 0 means that the engine needs none of their buffers
// any more, those of requests that asked for no completion included.
func (q *QP) Outstanding() int {
	must(q.check())
	q.send.mu.Lock()
	defer q.send.mu.Unlock()
	return q.send.ring.Used()
}

// PostError says which request of a list was refused.
type PostError struct {
	Bad int // its index; all before it were posted
	Err error
}

func (e *PostError) Error() string { return fmt.Sprintf("work request %d: %v", e.Bad, e.Err) }

// Unwrap returns the reason.
func (e *PostError) Unwrap() error { return e.Err }

func postError(posted int, err error) error {
	if err == nil {
		return nil
	}
	return &PostError{Bad: posted, Err: err}
}

// PostRecv posts receives in order. It stops at the first one that is refused and returns a *PostError with its index;
// the ones before it stay posted. The requests are copied, the memory they name is the engine's until they complete.
func (s *SRQ) PostRecv(wrs ...RecvWR) error {
	if err := s.check(); err != nil {
		return postError(0, err)
	}
	s.posts.mu.Lock()
	defer s.posts.mu.Unlock()
	if err := s.driver.Over(); err != nil {
		return postError(0, err)
	}
	posted, err := s.posts.post(ringRecvs(wrs))
	return postError(posted, err)
}
