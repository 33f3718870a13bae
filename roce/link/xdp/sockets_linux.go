package xdp

import (
	"errors"
	"fmt"

	"github.com/xroce/xroce/bpf"
	"github.com/xroce/xroce/xsk"
)

// openSockets opens the sockets of the first count queues. The first one decides for all what is obtained.
func (d *Device) openSockets(count int) error {
	choice := sockets[*xsk.Socket]{
		options: d.options, index: d.netdev.index, obstacle: multiBufferObstacle(d.rung), open: xsk.Open,
	}
	for number := range count {
		socket, err := choice.next(number)
		if err != nil {
			return err
		}
		q := newQueue(socket, d.netdev.name, &d.closing)
		d.sockets = append(d.sockets, q)
		d.queues = append(d.queues, q)
	}
	d.multiBuffer = choice.multiBuffer
	d.notTaken = append(d.notTaken, choice.notTaken...)
	return nil
}

// sockets opens the sockets of a device, whose type is S. Zero copy is asked for expressly and first: left to itself the
// kernel falls back to copying without a word, and then it is too late to choose multi-buffer instead.
type sockets[S any] struct {
	options  Options
	index    int   // of the network device
	obstacle error // what stands against multi-buffer whatever the copy mode, or nil
	open     func(xsk.Options) (S, error)

	// What the first socket obtained.
	copyMode    CopyMode
	multiBuffer bool
	notTaken    []string
}

// next opens the socket of a queue; the first call is for queue 0.
func (s *sockets[S]) next(queue int) (S, error) {
	if queue > 0 {
		return s.try(queue, s.copyMode)
	}
	wanted := s.options.MultiBuffer
	if wanted == MultiBufferOn && s.obstacle != nil {
		var none S
		return none, fmt.Errorf("%w: multi-buffer: %w", ErrNotSupported, s.obstacle)
	}
	if s.options.Copy != CopyOnly {
		s.multiBuffer = wanted == MultiBufferOn
		s.copyMode = s.options.Copy // the later ones may copy where the driver has zero copy for some queues only
		socket, err := s.try(queue, ZeroCopy)
		if err == nil || s.options.Copy == ZeroCopy || errors.Is(err, xsk.ErrQueueBusy) || errors.Is(err, xsk.ErrMemoryLocked) {
			s.explainMultiBuffer(errZeroCopy)
			return socket, err
		}
		s.notTaken = append(s.notTaken, fmt.Sprintf("zero copy: %v", err))
	}
	s.copyMode = CopyOnly
	s.multiBuffer = wanted == MultiBufferOn || wanted == MultiBufferAuto && s.obstacle == nil
	s.explainMultiBuffer(s.obstacle)
	return s.try(queue, CopyOnly)
}

// explainMultiBuffer notes why there is no multi-buffer, if there is none.
func (s *sockets[S]) explainMultiBuffer(reason error) {
	switch {
	case s.multiBuffer:
		return
	case s.options.MultiBuffer == MultiBufferOff:
		reason = errors.New("not wanted")
	case s.obstacle != nil:
		reason = s.obstacle
	}
	s.notTaken = append(s.notTaken, fmt.Sprintf("multi-buffer: %v", reason))
}

func (s *sockets[S]) try(queue int, mode CopyMode) (S, error) {
	return s.open(xsk.Options{
		Interface: s.index, Queue: queue, ChunkSize: chunkSize,
		ReceiveFrames: s.options.ReceiveFrames, TransmitFrames: s.options.TransmitFrames,
		Mode: mode, MultiBuffer: s.multiBuffer, CheckOwners: s.options.CheckOwners,
	})
}

var errZeroCopy = errors.New("the driver gives zero copy, which few combine with it; it has to be asked for, as path MTU 4096 does")

// multiBufferObstacle says what stands against multi-buffer on a rung, whatever the copy mode, or nil.
func multiBufferObstacle(rung bpf.Rung) error {
	if !rung.Frags() {
		return fmt.Errorf("it needs an XDP program with frags, and the rung is %v", rung)
	}
	if err := xsk.CheckMultiBuffer(); errors.Is(err, xsk.ErrNotSupported) {
		return err
	}
	return nil // or it is not known, for want of a capability that Open needs as well
}
