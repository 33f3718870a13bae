package bpf

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// RegisterSocket puts an AF_XDP socket into the slot of a receive queue: from now
// on frames of the process that come in on this queue go to it. The socket must
// be bound to this queue of the device to which the program is attached, or the
// kernel drops them (net/xdp/xsk.c: xsk_rcv_check). That it is bound, and has an
// RX ring, is checked; the queue and the device cannot be read from a socket.
//
// The map keeps no reference: when the socket is closed, also by the death of its
// process, the slot is empty and the frames go to the kernel. The descriptor stays
// the caller's.
//
// Errors match [ErrInvalid] for a queue outside of [0, Queues) and for a
// descriptor that is no bound AF_XDP socket with an RX ring.
func (p *Program) RegisterSocket(queue int, fd int) error {
	if err := p.lock(); err != nil {
		return err
	}
	defer p.mu.Unlock()
	if err := p.validateQueue(queue); err != nil {
		return fmt.Errorf("register socket: %w", err)
	}
	if err := validateSocket(fd); err != nil {
		return fmt.Errorf("register socket at queue %d: %w", queue, err)
	}
	if err := p.maps.Sockets.Put(uint32(queue), uint32(fd)); err != nil {
		return fmt.Errorf("register socket at queue %d: %w", queue, err)
	}
	return nil
}

// UnregisterSocket empties the slot of a receive queue, so that its frames go to
// the kernel. An empty slot stays empty.
func (p *Program) UnregisterSocket(queue int) error {
	if err := p.lock(); err != nil {
		return err
	}
	defer p.mu.Unlock()
	if err := p.validateQueue(queue); err != nil {
		return fmt.Errorf("unregister socket: %w", err)
	}
	if err := p.maps.Sockets.Delete(uint32(queue)); err != nil {
		return fmt.Errorf("unregister socket at queue %d: %w", queue, err)
	}
	return nil
}

func (p *Program) validateQueue(queue int) error {
	if queue < 0 || queue >= p.Queues() {
		return fmt.Errorf("%w: queue %d, the program was loaded for %d queues (Options.Queues)",
			ErrInvalid, queue, p.Queues())
	}
	return nil
}

// validateSocket keeps sockets out of the map that would swallow frames. The
// kernel lets an unbound socket in and then drops what is redirected to it. A
// receive call of length 0 tells: AF_XDP answers ENXIO when not bound, ENOBUFS
// without RX ring (net/xdp/xsk.c: __xsk_recvmsg), and has no other effect than to
// wake the driver for receiving.
func validateSocket(fd int) error {
	domain, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_DOMAIN)
	if err != nil {
		return fmt.Errorf("%w: descriptor %d: %w", ErrInvalid, fd, err)
	}
	if domain != unix.AF_XDP {
		return fmt.Errorf("%w: descriptor %d is a socket of family %d, want AF_XDP (%d)",
			ErrInvalid, fd, domain, unix.AF_XDP)
	}
	_, _, err = unix.Recvfrom(fd, nil, unix.MSG_DONTWAIT)
	switch {
	case errors.Is(err, unix.ENXIO):
		return fmt.Errorf("%w: AF_XDP socket %d is not bound: bind it first", ErrInvalid, fd)
	case errors.Is(err, unix.ENOBUFS):
		return fmt.Errorf("%w: AF_XDP socket %d has no RX ring", ErrInvalid, fd)
	}
	return nil // also when the interface is down: the socket is bound
}
