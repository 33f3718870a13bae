package xdp

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/xroce/xroce/bpf"
	"github.com/xroce/xroce/xsk"
)

// openPatience is how long Open waits for what a process that was killed has not given up yet: the kernel takes down
// its program and its sockets in the background. attachPause is between two attempts to attach.
const (
	openPatience = xsk.DefaultBindTimeout
	attachPause  = 5 * time.Millisecond
)

// obtained is what kernel and driver gave of what was asked for.
type obtained struct {
	rung bpf.Rung
	// multiBuffer says that frames may take two chunks.
	zeroCopy, multiBuffer bool
	notTaken              []string // what is better, and why it is not so
}

// serve attaches the program to a network device and makes the sockets of its first count queues. What it has made is
// undone if it fails. What a process that was killed has not given up yet is waited for as long as patience lasts, and
// ctx.
func (d *Device) serve(
	ctx context.Context, index, count int, o Options, patience time.Duration,
) (opened []*xsk.Socket, got obtained, err error) {
	defer func() {
		if err != nil {
			for _, s := range opened {
				_ = s.Close()
			}
			d.detach()
		}
	}()
	// The program comes first, since the rung decides on the options of the sockets. And where one is attached already,
	// trying to attach says whose it is, while the sockets would only say, after a while, that a queue is taken.
	attachment, err := d.attach(ctx, index, o.Mode, patience)
	if err != nil {
		return nil, got, err
	}
	got.rung = attachment.Rung()
	for _, skipped := range attachment.Skipped() {
		got.notTaken = append(got.notTaken, skipped.Error())
	}
	choice := sockets[*xsk.Socket]{
		options: o, index: index, patience: within(ctx, patience), obstacle: multiBufferObstacle(got.rung), copied: zeroCopyObstacle(got.rung), open: xsk.Open,
	}
	got.zeroCopy = true
	for number := range count {
		if err := ctx.Err(); err != nil {
			return opened, got, err
		}
		socket, err := choice.next(number)
		if errors.Is(err, xsk.ErrQueueBusy) {
			err = queueTaken(err)
		}
		if errors.Is(err, xsk.ErrMemoryLocked) && count > 1 {
			err = fmt.Errorf("%w; each of the %d queues needs as much, and Options.Queues uses fewer", err, count)
		}
		if err != nil {
			return opened, got, err
		}
		opened = append(opened, socket)
		got.zeroCopy = got.zeroCopy && socket.Info().ZeroCopy
		if err := d.program.RegisterSocket(number, socket.FD()); err != nil {
			return opened, got, err
		}
	}
	got.multiBuffer = choice.multiBuffer
	got.notTaken = append(got.notTaken, choice.notTaken...)
	return opened, got, nil
}

// within is patience, or what ctx leaves of it. It is never 0, which stands for a default.
func within(ctx context.Context, patience time.Duration) time.Duration {
	if deadline, limited := ctx.Deadline(); limited {
		patience = min(patience, time.Until(deadline))
	}
	return max(patience, time.Nanosecond)
}

// attach attaches the program.
func (d *Device) attach(ctx context.Context, index int, mode Mode, patience time.Duration) (*bpf.Attachment, error) {
	for start := time.Now(); ; time.Sleep(attachPause) {
		attachment, err := bpf.Attach(d.program, index, mode)
		if err == nil {
			return attachment, nil
		}
		if err, wait := d.netdev.attachedAlready(d.netdev.name, index, err); !wait || time.Since(start) > patience || ctx.Err() != nil {
			return nil, err
		}
	}
}

// detach takes the program off the network device, in whatever namespace that is.
func (d *Device) detach() {
	if attachment := d.program.Attachment(); attachment != nil {
		_ = attachment.Close()
	}
}

// sockets opens the sockets of a device, whose type is S; the first one decides for all what is obtained. Zero copy is
// asked for expressly and first: left to itself the kernel falls back to copying without a word, and then it is too
// late to choose multi-buffer instead.
type sockets[S any] struct {
	options  Options
	index    int           // of the network device
	patience time.Duration // with a queue that is taken
	obstacle error         // what stands against multi-buffer whatever the copy mode, or nil
	copied   error         // what stands against zero copy whatever the driver, or nil
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
	switch {
	case s.options.Copy == CopyOnly:
	case s.copied != nil && s.options.Copy == ZeroCopy:
		var none S
		return none, fmt.Errorf("%w: zero copy: %w", ErrNotSupported, s.copied)
	case s.copied != nil:
		s.notTaken = append(s.notTaken, fmt.Sprintf("zero copy: %v", s.copied))
	default:
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
		Mode: mode, MultiBuffer: s.multiBuffer, CheckOwners: s.options.CheckOwners, BindTimeout: s.patience,
	})
}

var errZeroCopy = errors.New("the driver gives zero copy, which few combine with it; it has to be asked for, as path MTU 4096 does")

// zeroCopyObstacle says what stands against zero copy on a rung, whatever the driver, or nil. A program in generic mode
// sees frames that the driver has copied into a socket buffer already. Drivers bind zero copy all the same: virtio_net
// of Linux 7.3 then copies once more, igb brings nothing at all (hack/interop, "ladder").
func zeroCopyObstacle(rung bpf.Rung) error {
	if !rung.Native() {
		return fmt.Errorf("it needs an XDP program in native mode, and the rung is %v", rung)
	}
	return nil
}

// multiBufferObstacle says what stands against multi-buffer on a rung, whatever the copy mode, or nil.
func multiBufferObstacle(rung bpf.Rung) error {
	if !rung.Frags() {
		return fmt.Errorf("it needs an XDP program with frags, and the rung is %v", rung)
	}
	if err := xsk.CheckMultiBuffer(); errors.Is(err, xsk.ErrNotSupported) {
		return err
	}
	return nil // or it cannot be known without a capability, which Open needs as well
}
