// Life of a received frame: the program of package bpf redirects it to the socket of its queue, the socket
// gives it out as slices of the UMEM, and Receive here passes these slices on, as they are. Release gives
// them back.
//
// Life of a sent frame: Buffer is a place in the UMEM, Commit and Publish put it into the transmit ring, Kick
// makes the kernel send it.
//
// Life of a socket: it is made with the device, or with one that was made again (remake_linux.go), waits until Renew
// puts it to use, and is closed in the background when the next one has taken its place, or with the device.

package xdp

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/xroce/xroce/internal/lockorder"
	"github.com/xroce/xroce/roce/link"
	"github.com/xroce/xroce/xsk"
)

// receiveBatch is how many frames one call of the socket gives out.
const receiveBatch = 64

// queue is a link.Queue over one socket, and after Renew over another one.
type queue struct {
	socket   atomic.Pointer[xsk.Socket]
	next     atomic.Pointer[xsk.Socket] // what Renew puts to use; nil for nothing
	newest   *xsk.Socket                // either of them; for whoever calls prepare
	name     *atomic.Pointer[string]    // present name of the network device
	closing  *atomic.Bool
	received [receiveBatch]xsk.Frame

	// refilled asks the next Kick to see whether the driver waits for receive buffers, which happens in
	// zero copy only.
	refilled atomic.Bool
	// refused counts commits of lengths that cannot be sent.
	refused atomic.Uint64

	mu      lockorder.Mutex[lockorder.XDPQueue]
	counted []*xsk.Socket // those whose counts are not in past
	past    link.Counters
	details map[string]uint64 // past ones
	owners  error             // of a chunk of a past socket that had none or two

	closers sync.WaitGroup // of sockets that are in use no more
}

func newQueue(socket *xsk.Socket, name *atomic.Pointer[string], closing *atomic.Bool) *queue {
	q := &queue{name: name, closing: closing, newest: socket, counted: []*xsk.Socket{socket}, details: map[string]uint64{}}
	q.socket.Store(socket)
	return q
}

// prepare gives Renew a socket to put to use.
func (q *queue) prepare(socket *xsk.Socket) {
	q.newest = socket
	if unused := q.next.Swap(socket); unused != nil {
		_ = unused.Close()
	}
}

// Renew puts the socket to use that was made for a network device that was made again. The old one is closed in the
// background, since that is a matter of system calls.
func (q *queue) Renew() {
	next := q.next.Swap(nil)
	if next == nil {
		return
	}
	old := q.socket.Load()
	owners := old.CheckOwners()
	q.mu.Lock()
	q.counted = append(q.counted, next)
	q.owners = errors.Join(q.owners, owners)
	q.socket.Store(next)
	q.mu.Unlock()
	q.closers.Go(func() { _ = q.retire(old) })
}

// retire keeps the counts of a socket and closes it.
func (q *queue) retire(socket *xsk.Socket) error {
	q.mu.Lock()
	counters, details := counts(socket)
	q.past.Add(&counters)
	addDetails(q.details, details)
	q.counted = slices.DeleteFunc(q.counted, func(s *xsk.Socket) bool { return s == socket })
	q.mu.Unlock()
	return socket.Close()
}

func (q *queue) Receive(frames []link.Frame) int {
	count := 0
	for count < len(frames) {
		want := min(len(frames)-count, receiveBatch)
		got := q.socket.Load().Receive(q.received[:want])
		for i := range got {
			frames[count+i].Segments = q.received[i].Segments
		}
		count += got
		if got < want {
			break
		}
	}
	return count
}

func (q *queue) Release() {
	socket := q.socket.Load()
	socket.Release()
	if socket.Info().ZeroCopy {
		q.refilled.Store(true)
	}
}

func (q *queue) Buffer() []byte { return q.socket.Load().Buffer() }

func (q *queue) Commit(length int) {
	if err := q.socket.Load().Commit(length); err != nil && !errors.Is(err, xsk.ErrClosed) {
		q.refused.Add(1)
	}
}

// Publish also takes back the buffers of frames that are sent, so that the same few stay in use and in the
// CPU's cache.
func (q *queue) Publish() {
	socket := q.socket.Load()
	socket.Reap()
	socket.Publish()
}

func (q *queue) Pending() bool { return q.socket.Load().KickPending() || q.refilled.Load() }

func (q *queue) Kick() error {
	socket := q.socket.Load()
	if q.refilled.Load() && q.refilled.Swap(false) {
		if _, err := socket.WakeReceive(); err != nil {
			return q.explain(err)
		}
	}
	result, err := socket.Kick()
	switch {
	case err != nil:
		return q.explain(err)
	case result == xsk.KickNoBuffers:
		return fmt.Errorf("%s: %w", *q.name.Load(), errNoMemory)
	}
	return nil
}

var errNoMemory = errors.New("the kernel has no memory for packets")

// explain says what an error of the socket means for the device.
func (q *queue) explain(err error) error {
	switch {
	case q.closing.Load():
		return link.ErrClosed
	case errors.Is(err, xsk.ErrDown):
		return fmt.Errorf("%w: %s: %w", link.ErrDown, *q.name.Load(), err)
	case errors.Is(err, xsk.ErrClosed):
		return fmt.Errorf("%w: %s was deleted or has left its namespace: %w", link.ErrDown, *q.name.Load(), err)
	}
	return fmt.Errorf("%s: %w", *q.name.Load(), err)
}

func (q *queue) FD() int {
	if q.closing.Load() {
		return -1
	}
	return q.socket.Load().FD()
}

// counts are those of one socket. The details are the counters of struct xdp_statistics (include/uapi/linux/if_xdp.h)
// under the names that they have there, and those of the socket's user.
func counts(socket *xsk.Socket) (link.Counters, map[string]uint64) {
	kernel, _ := socket.Statistics()
	own := socket.Counters()
	return link.Counters{
			Received:           own.ReceivedFrames,
			Transmitted:        own.TransmittedFrames,
			ReceiveDropped:     kernel.ReceiveDropped + kernel.ReceiveRingFull + own.ChainsDropped + own.ZeroLength,
			TransmitDropped:    own.TransmitDropped,
			Kicks:              own.Kicks,
			KickRetries:        own.KicksAgain + own.TransmitDropped + own.KicksNoBuffers,
			InvalidDescriptors: kernel.ReceiveInvalid + kernel.TransmitInvalid + own.InvalidReceive + own.InvalidCompletions,
		}, map[string]uint64{
			"rx_dropped":               kernel.ReceiveDropped,
			"rx_invalid_descs":         kernel.ReceiveInvalid,
			"tx_invalid_descs":         kernel.TransmitInvalid,
			"rx_ring_full":             kernel.ReceiveRingFull,
			"rx_fill_ring_empty_descs": kernel.FillRingEmpty,
			"tx_ring_empty_descs":      kernel.TransmitRingEmpty,

			"rx_chains_too_long":     own.ChainsDropped,
			"rx_length_zero":         own.ZeroLength,
			"rx_invalid_addresses":   own.InvalidReceive,
			"tx_invalid_completions": own.InvalidCompletions,
			"tx_dropped":             own.TransmitDropped,
			"kicks":                  own.Kicks,
			"kicks_again":            own.KicksAgain,
			"kicks_no_memory":        own.KicksNoBuffers,
			"rx_wakeups":             own.ReceiveWakeups,
			"rx_wakeups_busy":        own.ReceiveWakeupBusy,
		}
}

func addDetails(sum, details map[string]uint64) {
	for name, count := range details {
		sum[name] += count
	}
}

// sums are the counts of all sockets that there were.
func (q *queue) sums() (link.Counters, map[string]uint64) {
	q.mu.Lock()
	defer q.mu.Unlock()
	sum, details := q.past, maps.Clone(q.details)
	for _, s := range q.counted {
		c, d := counts(s)
		sum.Add(&c)
		addDetails(details, d)
	}
	refused := q.refused.Load()
	sum.InvalidDescriptors += refused
	details["tx_refused_lengths"] = refused
	return sum, details
}

// Counters goes on over Renew.
func (q *queue) Counters() link.Counters {
	sum, _ := q.sums()
	return sum
}

// Details implements link.Detailer.
func (q *queue) Details() map[string]uint64 {
	_, details := q.sums()
	return details
}

// close keeps the last counters. With Options.CheckOwners it tells of chunks that had not exactly one owner.
func (q *queue) close() error {
	q.prepare(nil)
	q.closers.Wait()
	socket := q.socket.Load()
	return errors.Join(q.owners, socket.CheckOwners(), q.retire(socket))
}
