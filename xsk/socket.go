//go:build linux

package xsk

import (
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/xroce/xroce/internal/lockorder"
)

// Socket is an AF_XDP socket with its UMEM and four rings.
//
// Receive, Release, Buffer, Commit, Publish, Reap, FreeBuffers and CheckOwners belong
// to one goroutine at a time (the caller's lock, if several share the socket). Kick,
// KickPending, WakeReceive, Statistics, Counters, Info and FD may be called
// concurrently with them and with each other. See Close for the end.
type Socket struct {
	info     Info
	receive  receiver
	transmit transmitter
	owners   *ownerTable // nil unless asked for
	counters dataCounters
	closed   atomic.Bool // here, and not beside life, since every call reads it

	// The lines above belong to the goroutine that receives and sends, those below to
	// whoever kicks. 128 bytes keep them apart on every CPU, also with the prefetcher
	// that fetches pairs of lines.
	_ [128]byte

	life  lockorder.RWMutex[lockorder.Socket] // held for reading by whoever needs fd or the mappings, see Close
	wake  waker
	fd    int
	umem  umem
	rings [][]byte // the mappings of the four rings
}

type counter = atomic.Uint64

// dataCounters change at most once per batch, except when something is wrong.
type dataCounters struct {
	receivedFrames, transmittedFrames                             counter
	chainsDropped, zeroLength, invalidReceive, invalidCompletions counter
}

// Open makes an AF_XDP socket on one queue of an interface and binds it. It sends at
// once; to receive, an XDP program must redirect frames to it: put FD into an XSKMAP
// under the index of the queue.
//
// It needs CAP_NET_RAW, and a locked memory limit (RLIMIT_MEMLOCK) above the size of
// the UMEM or CAP_IPC_LOCK. The socket belongs to the network namespace of the calling
// thread (see runtime.LockOSThread), afterwards any thread may use it. The kernel must
// be 5.4 or newer. Open sleeps only while the queue is busy, up to
// Options.BindTimeout.
//
// Errors are *Error with one of ErrInvalidOptions, ErrNotSupported, ErrPermission,
// ErrMemoryLocked and ErrQueueBusy, and the error number of the kernel.
func Open(options Options) (*Socket, error) {
	info, err := options.complete()
	if err != nil {
		return nil, err
	}
	s := &Socket{info: info, fd: -1, umem: umem{fd: -1}}
	if err := s.open(options); err != nil {
		s.releaseAll()
		return nil, err
	}
	return s, nil
}

// open goes step by step. The fill ring is filled before bind because some drivers
// take their buffers within bind and never recover from finding none (mlx5).
func (s *Socket) open(options Options) error {
	if err := s.checkQueue(); err != nil {
		return err
	}
	var err error
	if s.fd, err = unix.Socket(unix.AF_XDP, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0); err != nil {
		s.fd = -1
		return s.socketError(err)
	}
	if s.umem, err = newUMEM(memorySize(s.info)); err != nil {
		s.umem = umem{fd: -1}
		return s.fail("create UMEM", "", nil, err)
	}
	if err := s.register(options.BindTimeout); err != nil {
		return err
	}
	for _, ring := range []struct {
		name         string
		option, size int
	}{
		{"fill", unix.XDP_UMEM_FILL_RING, s.info.FillRing},
		{"completion", unix.XDP_UMEM_COMPLETION_RING, s.info.CompletionRing},
		{"receive", unix.XDP_RX_RING, s.info.ReceiveRing},
		{"transmit", unix.XDP_TX_RING, s.info.TransmitRing},
	} {
		if err := unix.SetsockoptInt(s.fd, unix.SOL_XDP, ring.option, ring.size); err != nil {
			return s.fail("create "+ring.name+" ring", fmt.Sprintf("%d entries", ring.size), nil, err)
		}
	}
	if err := s.mapRings(); err != nil {
		return err
	}
	s.receive.fillUp()
	if err := s.bind(options); err != nil {
		return err
	}
	s.info.ZeroCopy = zeroCopy(s.fd)
	s.tune(options)
	return nil
}

// ChannelCount returns how many receive and transmit queues the interface has in
// use (ethtool -l); combined channels count as both. A driver that does not tell
// has one of each. ifindex is looked up in the network namespace of the calling
// thread.
//
// bind accepts any queue below the larger of the two, but on a queue beyond the
// transmit queues sendto reports success and sends nothing (net/xdp/xsk.c,
// __xsk_generic_xmit). Open refuses a queue that is not below both.
func ChannelCount(ifindex int) (receive, transmit int, err error) {
	receive, transmit, err = channelCount(ifindex)
	if err != nil {
		return 0, 0, fmt.Errorf("xsk: count channels: %w", err)
	}
	return receive, transmit, nil
}

// checkQueue refuses a queue that bind would accept although it cannot work.
func (s *Socket) checkQueue() error {
	receive, transmit, err := channelCount(s.info.Interface)
	if err != nil {
		return s.fail("count channels", "", nil, err)
	}
	if s.info.Queue >= min(receive, transmit) {
		return s.fail("check queue", fmt.Sprintf(
			"queue %d of ifindex %d: the interface has %d receive and %d transmit queues in use (numbered from 0; change with ethtool -L)",
			s.info.Queue, s.info.Interface, receive, transmit), ErrInvalidOptions, nil)
	}
	return nil
}

// mapRings maps the rings and lays the receive and transmit side over them.
func (s *Socket) mapRings() error {
	offsets, err := ringOffsets(s.fd)
	if errors.Is(err, unix.EOPNOTSUPP) {
		return s.fail("ask for ring offsets", "the kernel is older than 5.4", ErrNotSupported, err)
	} else if err != nil {
		return s.fail("ask for ring offsets", "", nil, err)
	}
	mapRing := func(offset int64, size int) []byte {
		if err != nil {
			return nil
		}
		var memory []byte
		memory, err = unix.Mmap(s.fd, offset, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_POPULATE)
		if err == nil {
			s.rings = append(s.rings, memory)
		}
		return memory
	}
	i := &s.info
	fill := mapRing(unix.XDP_UMEM_PGOFF_FILL_RING, ringMemory[uint64](offsets.Fr, i.FillRing))
	completion := mapRing(unix.XDP_UMEM_PGOFF_COMPLETION_RING, ringMemory[uint64](offsets.Cr, i.CompletionRing))
	receive := mapRing(unix.XDP_PGOFF_RX_RING, ringMemory[descriptor](offsets.Rx, i.ReceiveRing))
	transmit := mapRing(unix.XDP_PGOFF_TX_RING, ringMemory[descriptor](offsets.Tx, i.TransmitRing))
	if err != nil {
		return s.fail("map rings", "", nil, err)
	}
	s.lay(ringAt[uint64](fill, offsets.Fr, i.FillRing), ringAt[uint64](completion, offsets.Cr, i.CompletionRing),
		ringAt[descriptor](receive, offsets.Rx, i.ReceiveRing), ringAt[descriptor](transmit, offsets.Tx, i.TransmitRing))
	return nil
}

// lay builds both sides over the UMEM and the rings.
func (s *Socket) lay(fill, completion ring[uint64], receive, transmit ring[descriptor]) {
	s.receive = newReceiver(s.info, s.umem.memory, receive, fill)
	s.transmit = newTransmitter(s.info, s.umem.memory, transmit, completion)
	s.wake.init(s.fd, transmit, fill)
	if s.info.CheckOwners {
		s.owners = newOwnerTable(s.info)
		// The receive chunks start with the kernel, where fillUp puts them.
	}
}

// register tries again while the UMEM is too much beside what the user has locked already, if it would fit alone:
// after a close the kernel takes back the memory of the old socket in the background (net/xdp/xdp_umem.c,
// xdp_put_umem), so that who opens another one at once finds the old one counted.
func (s *Socket) register(timeout time.Duration) error {
	var limit unix.Rlimit
	fits := unix.Getrlimit(unix.RLIMIT_MEMLOCK, &limit) == nil && uint64(s.info.umemSize()) <= limit.Cur
	return retry(timeout, func(waited time.Duration) (again bool, err error) {
		if err = registerUMEM(s.fd, s.umem.memory, s.info); err == nil {
			return false, nil
		}
		return fits && errors.Is(err, unix.ENOBUFS), s.registerError(err)
	})
}

// retry calls try until it does not ask for it again, or for as long as timeout. It is told how long that has taken.
func retry(timeout time.Duration, try func(waited time.Duration) (again bool, err error)) error {
	start := time.Now()
	for pause := time.Millisecond; ; pause = min(2*pause, 50*time.Millisecond) {
		waited := time.Since(start)
		again, err := try(waited)
		if !again || waited >= timeout {
			return err
		}
		time.Sleep(min(pause, timeout-waited))
	}
}

// bind tries again while the queue is busy: after a close the kernel takes the old
// socket down in the background, so that a quick restart finds its own old queue
// taken.
func (s *Socket) bind(options Options) error {
	var flags uint16
	if !options.noNeedWakeup {
		flags = unix.XDP_USE_NEED_WAKEUP
	}
	switch options.Mode {
	case ModeCopy:
		flags |= unix.XDP_COPY
	case ModeZeroCopy:
		flags |= unix.XDP_ZEROCOPY
	}
	if s.info.MultiBuffer {
		flags |= unix.XDP_USE_SG
	}
	address := &unix.SockaddrXDP{Flags: flags, Ifindex: uint32(s.info.Interface), QueueID: uint32(s.info.Queue)}
	return retry(options.BindTimeout, func(waited time.Duration) (again bool, err error) {
		if err = unix.Bind(s.fd, address); err == nil {
			return false, nil
		}
		return errors.Is(err, unix.EBUSY), s.bindError(err, options.Mode, waited)
	})
}

// tune sets what makes copy mode faster and reports what was obtained. Nothing here
// is worth a failure: old kernels and missing privileges only cost speed.
func (s *Socket) tune(options Options) {
	if unix.SetsockoptInt(s.fd, unix.SOL_XDP, unix.XDP_MAX_TX_SKB_BUDGET, options.TransmitBudget) == nil {
		s.info.TransmitBudget = options.TransmitBudget
	}
	if options.SendBuffer > 0 &&
		unix.SetsockoptInt(s.fd, unix.SOL_SOCKET, unix.SO_SNDBUFFORCE, options.SendBuffer) != nil {
		// Without CAP_NET_ADMIN: up to net.core.wmem_max.
		_ = unix.SetsockoptInt(s.fd, unix.SOL_SOCKET, unix.SO_SNDBUF, options.SendBuffer)
	}
	s.info.SendBuffer, _ = unix.GetsockoptInt(s.fd, unix.SOL_SOCKET, unix.SO_SNDBUF)
}

// Info returns what Open obtained. It stays the same until the end, also after Close.
func (s *Socket) Info() Info { return s.info }

// FD returns the file descriptor, for an XSKMAP and for poll(2): POLLIN says that
// Receive has something. In copy mode poll also sends what is published. poll stays
// silent when the interface goes away: Kick tells. The number is invalid after Close,
// so whoever polls has to stop before.
func (s *Socket) FD() int { return s.fd }

// Waiting returns how many descriptors are in the RX ring: what the kernel has delivered and Receive has not taken.
// It may be called at any time from any goroutine.
func (s *Socket) Waiting() uint64 {
	s.life.RLock()
	defer s.life.RUnlock()
	if s.closed.Load() {
		return 0
	}
	consumer := s.receive.ring.consumer.Load() // first: the producer is never behind it
	return uint64(s.receive.ring.producer.Load() - consumer)
}

// Statistics asks the kernel for its counters.
func (s *Socket) Statistics() (Statistics, error) {
	s.life.RLock()
	defer s.life.RUnlock()
	if s.closed.Load() {
		return Statistics{}, s.closedError("statistics")
	}
	var raw unix.XDPStatistics // an older kernel writes the first three fields only
	if _, err := getOption(s.fd, unix.XDP_STATISTICS, &raw); err != nil {
		return Statistics{}, s.fail("statistics", "", nil, err)
	}
	return Statistics{
		ReceiveDropped:    raw.Rx_dropped,
		ReceiveInvalid:    raw.Rx_invalid_descs,
		TransmitInvalid:   raw.Tx_invalid_descs,
		ReceiveRingFull:   raw.Rx_ring_full,
		FillRingEmpty:     raw.Rx_fill_ring_empty_descs,
		TransmitRingEmpty: raw.Tx_ring_empty_descs,
	}, nil
}

// Counters returns this package's own counters, also after Close. Each is exact, but
// they are not taken at the same instant.
func (s *Socket) Counters() Counters {
	c, w := &s.counters, &s.wake
	return Counters{
		ReceivedFrames: c.receivedFrames.Load(), TransmittedFrames: c.transmittedFrames.Load(),
		ChainsDropped: c.chainsDropped.Load(), ZeroLength: c.zeroLength.Load(),
		InvalidReceive: c.invalidReceive.Load(), InvalidCompletions: c.invalidCompletions.Load(),
		Kicks: w.kicks.Load(), KicksAgain: w.again.Load(), TransmitDropped: w.dropped.Load(),
		KicksNoBuffers: w.noBuffers.Load(),
		ReceiveWakeups: w.receiveWakeups.Load(), ReceiveWakeupBusy: w.receiveBusy.Load(),
	}
}

// Close unbinds the queue and releases the memory. It may be called more than once
// and concurrently with Kick, KickPending, WakeReceive, Statistics and Counters: it
// waits for those that are running, later ones return ErrClosed.
//
// The goroutine that receives and sends, and whoever polls FD, must have stopped
// before: frames and buffers are slices of memory that Close unmaps, and touching them
// afterwards is a segmentation fault. Data calls of the same goroutine after its Close
// are harmless: they find nothing.
//
// Frames that were published but not kicked are lost. The XSKMAP entry vanishes with
// the last file descriptor of the socket.
func (s *Socket) Close() error {
	if s.closed.Swap(true) {
		return nil
	}
	s.life.Lock()
	defer s.life.Unlock()
	s.releaseAll()
	return nil
}

// releaseAll undoes open. The ring mappings hold a reference to the socket, so they
// go before its file descriptor: then close(2) unbinds, and waits until the driver has
// let go of the UMEM, which is unmapped last.
func (s *Socket) releaseAll() {
	for _, memory := range s.rings {
		_ = unix.Munmap(memory)
	}
	s.rings = nil
	if s.fd >= 0 {
		_ = unix.Close(s.fd)
	}
	if s.umem.fd >= 0 {
		s.umem.close()
	}
}
