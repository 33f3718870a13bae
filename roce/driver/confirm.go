package driver

// The network announces a change of the way to a peer, or it does not: an address may move to another machine or card
// without a word. What a queue pair notices is silence. From the second ACK timeout in a row on, and when it ends for
// want of an answer, it tells here where its peer is, and a goroutine, off the data path, has the link ask whether the
// way still holds. If it does not, the link tells of a change as of any other (follow.go): resends take the new way,
// and so do new connections.

import (
	"context"
	"sync"
	"time"

	"github.com/xroce/xroce/internal/lockorder"
	"github.com/xroce/xroce/roce"
	"github.com/xroce/xroce/roce/link"
)

// doubts are the ways to peers that do not answer.
type doubts struct {
	link link.Confirmer // nil if nothing can be asked
	wake chan struct{}

	mu   lockorder.Mutex[lockorder.Doubts]
	ways map[way]struct{}
}

func (d *Device) startConfirming(ctx context.Context) {
	c, ok := d.link.(link.Confirmer)
	if !ok || d.options.Manual {
		return
	}
	d.doubts.wake, d.doubts.ways = make(chan struct{}, 1), make(map[way]struct{})
	d.doubts.link = c
	d.follower.ended.Go(func() { d.confirm(ctx) })
}

// Unanswered implements transport.Events. It runs under the lock of the QP's shard.
func (q *qpEvents) Unanswered(path roce.Path) {
	doubts := &q.device.doubts
	if doubts.link == nil || q.within.Load() {
		return
	}
	doubts.mu.Lock()
	doubts.ways[way{path.Source.Addr(), path.Destination.Addr()}] = struct{}{}
	doubts.mu.Unlock()
	signal(doubts.wake)
}

func (d *Device) confirm(ctx context.Context) {
	places := make(chan struct{}, waySearches)
	var searches sync.WaitGroup
	defer searches.Wait()
	for {
		select {
		case <-ctx.Done():
			return
		case <-d.doubts.wake:
		}
		d.doubts.mu.Lock()
		ways := d.doubts.ways
		d.doubts.ways = make(map[way]struct{})
		d.doubts.mu.Unlock()
		for w := range ways {
			places <- struct{}{}
			searches.Go(func() {
				defer func() { <-places }()
				ctx, cancel := context.WithTimeout(ctx, wayTimeout)
				defer cancel()
				// Whatever stands in the way of asking, the queue pairs are as well off as before.
				_ = d.doubts.link.Confirm(ctx, w.source, w.destination)
			})
		}
		searches.Wait()
		select { // peers that are gone may be many, and asked for all the time
		case <-ctx.Done():
			return
		case <-time.After(wayRest):
		}
	}
}
