//go:build linux

package main

import (
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"
)

// The sizes: with up to 2 descriptors per frame, a window of frames always finds fill entries at the other end, which
// is when nothing is lost however long the receiver is away.
const (
	chunkSize      = 4096
	receiveChunks  = 512
	transmitChunks = 512
	ringSize       = 512
	window         = 128 // frames in flight
	batch          = 16  // frames per kick
)

// socket is an AF_XDP socket in copy mode on queue 0 with its memory: chunks to receive into, then chunks to send from.
type socket struct {
	fd         int
	memory     []byte
	fill       ring[uint64]
	completion ring[uint64]
	receive    ring[unix.XDPDesc]
	transmit   ring[unix.XDPDesc]
	free       []uint64 // chunks to send from
	frame      []unix.XDPDesc
	program    link.Link
	header     [14]byte // Ethernet
}

// openSocket makes the socket and has the frames of the probe redirected into it.
func openSocket(o options) (*socket, error) {
	device, err := net.InterfaceByName(o.device)
	if err != nil {
		return nil, err
	}
	if o.payload+frameOverhead-14 > device.MTU {
		return nil, fmt.Errorf("payload of %d bytes needs an MTU of %d, %s has %d",
			o.payload, o.payload+frameOverhead-14, o.device, device.MTU)
	}
	s := &socket{}
	if s.fd, err = unix.Socket(unix.AF_XDP, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0); err != nil {
		return nil, fmt.Errorf("AF_XDP socket: %w", err)
	}
	if err := s.setUp(device.Index); err != nil {
		return nil, err
	}
	if s.program, err = redirect(device.Index, s.fd, o.generic); err != nil {
		return nil, err
	}
	copy(s.header[:], o.peer)
	copy(s.header[6:], device.HardwareAddr)
	s.header[12], s.header[13] = etherType>>8, etherType&0xff
	return s, nil
}

func (s *socket) setUp(device int) (err error) {
	const size = (receiveChunks + transmitChunks) * chunkSize
	s.memory, err = unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE,
		unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_POPULATE)
	if err != nil {
		return fmt.Errorf("map UMEM: %w", err)
	}
	if err := registerMemory(s.fd, s.memory); err != nil {
		return fmt.Errorf("register UMEM: %w", err)
	}
	for _, option := range []int{unix.XDP_UMEM_FILL_RING, unix.XDP_UMEM_COMPLETION_RING, unix.XDP_RX_RING, unix.XDP_TX_RING} {
		if err := unix.SetsockoptInt(s.fd, unix.SOL_XDP, option, ringSize); err != nil {
			return fmt.Errorf("ring of %d entries: %w", ringSize, err)
		}
	}
	// Both only save system calls, and older kernels do not have the first.
	_ = unix.SetsockoptInt(s.fd, unix.SOL_XDP, unix.XDP_MAX_TX_SKB_BUDGET, ringSize)
	_ = unix.SetsockoptInt(s.fd, unix.SOL_SOCKET, unix.SO_SNDBUFFORCE, 8<<20)
	offsets, err := socketOption[unix.XDPMmapOffsets](s.fd, unix.XDP_MMAP_OFFSETS)
	if err != nil {
		return fmt.Errorf("offsets of the rings: %w", err)
	}
	if s.fill, err = mapRing[uint64](s.fd, unix.XDP_UMEM_PGOFF_FILL_RING, ringSize, offsets.Fr); err == nil {
		s.completion, err = mapRing[uint64](s.fd, unix.XDP_UMEM_PGOFF_COMPLETION_RING, ringSize, offsets.Cr)
	}
	if err == nil {
		s.receive, err = mapRing[unix.XDPDesc](s.fd, unix.XDP_PGOFF_RX_RING, ringSize, offsets.Rx)
	}
	if err == nil {
		s.transmit, err = mapRing[unix.XDPDesc](s.fd, unix.XDP_PGOFF_TX_RING, ringSize, offsets.Tx)
	}
	if err != nil {
		return fmt.Errorf("map the rings: %w", err)
	}
	for chunk := range receiveChunks {
		s.fill.put(uint64(chunk * chunkSize))
	}
	s.fill.publish()
	for chunk := range transmitChunks {
		s.free = append(s.free, uint64((receiveChunks+chunk)*chunkSize))
	}
	address := &unix.SockaddrXDP{Flags: unix.XDP_COPY | unix.XDP_USE_NEED_WAKEUP | unix.XDP_USE_SG,
		Ifindex: uint32(device)}
	// The queue of a socket that was just closed takes a while to become free (net/xdp/xdp_umem.c, xdp_umem_release).
	for start := time.Now(); ; time.Sleep(5 * time.Millisecond) {
		err := unix.Bind(s.fd, address)
		if err == nil {
			return nil
		}
		if !errors.Is(err, unix.EBUSY) || time.Since(start) > 2*time.Second {
			return fmt.Errorf("bind to queue 0: %w", err)
		}
	}
}

// close detaches the program before the socket goes, so that no frame is redirected to nowhere.
func (s *socket) close() {
	_ = s.program.Close()
	_ = unix.Close(s.fd)
}

// reap takes back the chunks that were sent.
func (s *socket) reap() {
	n := s.completion.available()
	for range n {
		s.free = append(s.free, s.completion.take())
	}
	if n > 0 {
		s.completion.release()
	}
}

// send queues a frame of a length in as many chunks as it needs, which fill writes; start is where a chunk is in the
// frame. It returns false if there are not enough chunks.
func (s *socket) send(length int, fill func(chunk []byte, start int)) bool {
	if len(s.free)*chunkSize < length+chunkSize {
		return false
	}
	for start := 0; start < length; start += chunkSize {
		address := s.free[len(s.free)-1]
		s.free = s.free[:len(s.free)-1]
		d := unix.XDPDesc{Addr: address, Len: uint32(min(chunkSize, length-start))}
		if start+chunkSize < length {
			d.Options = unix.XDP_PKT_CONTD
		}
		fill(s.memory[address:address+uint64(d.Len)], start)
		s.transmit.put(d)
	}
	return true
}

// kick has the kernel send all that is queued, which on veth runs the receiving end, too.
func (s *socket) kick() error {
	s.transmit.publish()
	for s.transmit.pending() > 0 {
		_, _, errno := unix.Syscall6(unix.SYS_SENDTO, uintptr(s.fd), 0, 0, unix.MSG_DONTWAIT, 0, 0)
		switch errno {
		case 0, unix.EAGAIN, unix.EBUSY, unix.ENOBUFS, unix.EINTR: // EBUSY is one frame lost, which the loss shows
			s.reap()
		default:
			return fmt.Errorf("send: %w", errno)
		}
	}
	s.reap()
	return nil
}

// poll hands the frames that have come, at most limit of them, to handle, as the pieces that they came in, and
// gives the chunks back.
func (s *socket) poll(limit int, handle func(pieces []unix.XDPDesc)) (frames int) {
	n := s.receive.available()
	if n == 0 {
		return 0
	}
	for ; n > 0 && frames < limit; n-- {
		d := s.receive.take()
		s.frame = append(s.frame, d)
		if d.Options&unix.XDP_PKT_CONTD != 0 {
			continue
		}
		handle(s.frame)
		for _, piece := range s.frame {
			s.fill.put(piece.Addr &^ (chunkSize - 1))
		}
		s.frame = s.frame[:0]
		frames++
	}
	s.receive.release()
	s.fill.publish()
	return frames
}

// emptyPolls is how often the ring is looked at before the process sleeps: some 20 us, less than what it takes to
// wake up on another CPU.
const emptyPolls = 2000

// sleep waits for frames in poll(2), for at most 10 ms. On a CPU that others want, a process that sleeps is let in
// sooner than one that has used up its share by spinning.
func (s *socket) sleep() { _, _ = unix.Poll([]unix.PollFd{{Fd: int32(s.fd), Events: unix.POLLIN}}, 10) }

func (s *socket) bytes(d unix.XDPDesc) []byte { return s.memory[d.Addr : d.Addr+uint64(d.Len)] }

// invalid says whether the kernel has refused a descriptor, which would be a mistake of ours.
func (s *socket) invalid() error {
	statistics, err := socketOption[unix.XDPStatistics](s.fd, unix.XDP_STATISTICS)
	if err == nil && statistics.Rx_invalid_descs+statistics.Tx_invalid_descs > 0 {
		err = fmt.Errorf("invalid descriptors: %d in the fill ring, %d in the transmit ring",
			statistics.Rx_invalid_descs, statistics.Tx_invalid_descs)
	}
	return err
}
