package transport

import "github.com/xroce/xroce/roce"

// screen is what a QP tells about its connection without the lock of its shard. It is replaced, never changed.
type screen struct{ own, peer roce.GID }

// Screen says why a packet cannot be for the QP, as far as that shows without the lock of its shard: it may be called
// from any goroutine. Engine.Receive checks everything again. A shard that has a packet for a QP of another one asks
// before it hands the packet over, so that what others forge takes no place there.
func (q *QP) Screen(p *roce.Packet) roce.DropReason {
	switch s := q.screen.Load(); {
	case s == nil: // RESET or INIT
		return roce.DropQPState
	case p.Source != s.peer || p.Destination != s.own:
		return roce.DropAddressMismatch
	}
	return roce.DropNone
}

// Mobile says whether all packets of the QP come from one peer, so that it may move to another engine, where they
// arrive.
func (q *QP) Mobile() bool { return q.service.mobile() }
