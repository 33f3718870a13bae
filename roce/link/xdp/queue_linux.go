// Life of a received frame: the program of package bpf redirects it to the socket of its queue, the socket
// gives it out as slices of the UMEM, and Receive here passes these slices on, as they are. Release gives
// them back.
//
// Life of a sent frame: Buffer is a place in the UMEM, Commit and Publish put it into the transmit ring, Kick
// makes the kernel send it.

package xdp

import (
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/xroce/xroce/roce/link"
	"github.com/xroce/xroce/xsk"
)

// receiveBatch is how many frames one call of the socket gives out.
const receiveBatch = 64

// queue is a link.Queue over one socket.
type queue struct {
	socket   *xsk.Socket
	name     string // of the network device
	closing  *atomic.Bool
	zeroCopy bool
	received [receiveBatch]xsk.Frame

	// refilled asks the next Kick to see whether the driver waits for receive buffers, which happens in
	// zero copy only.
	refilled atomic.Bool
	// refused counts commits of lengths that cannot be sent.
	refused atomic.Uint64
	// final are the kernel's counters at the end.
	final atomic.Pointer[xsk.Statistics]
}

func newQueue(socket *xsk.Socket, name string, closing *atomic.Bool) *queue {
	return &queue{socket: socket, name: name, closing: closing, zeroCopy: socket.Info().ZeroCopy}
}

func (q *queue) Receive(frames []link.Frame) int {
	count := 0
	for count < len(frames) {
		want := min(len(frames)-count, receiveBatch)
		got := q.socket.Receive(q.received[:want])
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
	q.socket.Release()
	if q.zeroCopy {
		q.refilled.Store(true)
	}
}

func (q *queue) Buffer() []byte { return q.socket.Buffer() }

func (q *queue) Commit(length int) {
	if err := q.socket.Commit(length); err != nil && !errors.Is(err, xsk.ErrClosed) {
		q.refused.Add(1)
	}
}

// Publish also takes back the buffers of frames that are sent, so that the same few stay in use and in the
// CPU's cache.
func (q *queue) Publish() {
	q.socket.Reap()
	q.socket.Publish()
}

func (q *queue) Pending() bool { return q.socket.KickPending() || q.refilled.Load() }

func (q *queue) Kick() error {
	if q.refilled.Load() && q.refilled.Swap(false) {
		if _, err := q.socket.WakeReceive(); err != nil {
			return q.explain(err)
		}
	}
	result, err := q.socket.Kick()
	switch {
	case err != nil:
		return q.explain(err)
	case result == xsk.KickNoBuffers:
		return fmt.Errorf("%s: %w", q.name, errNoMemory)
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
		return fmt.Errorf("%w: %s: %w", link.ErrDown, q.name, err)
	case errors.Is(err, xsk.ErrClosed):
		return fmt.Errorf("%w: %s was deleted or has left its namespace: %w", link.ErrDown, q.name, err)
	}
	return fmt.Errorf("%s: %w", q.name, err)
}

// Renew does nothing: the socket stays the same.
func (q *queue) Renew() {}

func (q *queue) FD() int {
	if q.closing.Load() {
		return -1
	}
	return q.socket.FD()
}

// statistics are the kernel's counters, after the end the last ones.
func (q *queue) statistics() xsk.Statistics {
	kernel, err := q.socket.Statistics()
	if err != nil {
		kernel = xsk.Statistics{}
		if final := q.final.Load(); final != nil {
			kernel = *final
		}
	}
	return kernel
}

// Details implements link.Detailer: the counters of struct xdp_statistics (include/uapi/linux/if_xdp.h) under the names that
// they have there, and those of the socket's user.
func (q *queue) Details() map[string]uint64 {
	kernel, own := q.statistics(), q.socket.Counters()
	return map[string]uint64{
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
		"tx_refused_lengths":     q.refused.Load(),
		"tx_dropped":             own.TransmitDropped,
		"kicks":                  own.Kicks,
		"kicks_again":            own.KicksAgain,
		"kicks_no_memory":        own.KicksNoBuffers,
		"rx_wakeups":             own.ReceiveWakeups,
		"rx_wakeups_busy":        own.ReceiveWakeupBusy,
	}
}

func (q *queue) Counters() link.Counters {
	kernel, own := q.statistics(), q.socket.Counters()
	return link.Counters{
		Received:           own.ReceivedFrames,
		Transmitted:        own.TransmittedFrames,
		ReceiveDropped:     kernel.ReceiveDropped + kernel.ReceiveRingFull + own.ChainsDropped + own.ZeroLength,
		TransmitDropped:    own.TransmitDropped,
		Kicks:              own.Kicks,
		KickRetries:        own.KicksAgain + own.TransmitDropped + own.KicksNoBuffers,
		InvalidDescriptors: kernel.ReceiveInvalid + kernel.TransmitInvalid + own.InvalidReceive + own.InvalidCompletions + q.refused.Load(),
	}
}

// close keeps the last counters. With Options.CheckOwners it tells of chunks that had not exactly one owner.
func (q *queue) close() error {
	owners := q.socket.CheckOwners()
	if kernel, err := q.socket.Statistics(); err == nil {
		q.final.Store(&kernel)
	}
	return errors.Join(owners, q.socket.Close())
}
