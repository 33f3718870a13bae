package xsk

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/bits"
	"os"
	"time"

	"github.com/xroce/xroce/internal/enum"
)

// CopyMode says how frames get from the driver into the UMEM.
type CopyMode uint8

const (
	// ModeAuto lets the kernel try zero copy first and fall back to copying.
	ModeAuto CopyMode = iota
	// ModeCopy always copies; it works with every driver.
	ModeCopy
	// ModeZeroCopy fails with ErrNotSupported where the driver cannot do it.
	ModeZeroCopy
)

// String returns "auto", "copy" or "zero copy".
func (m CopyMode) String() string {
	switch m {
	case ModeAuto:
		return "auto"
	case ModeCopy:
		return "copy"
	case ModeZeroCopy:
		return "zero copy"
	}
	return fmt.Sprintf("CopyMode(%d)", uint8(m))
}

// MarshalText returns the text of String, for logs and JSON.
func (m CopyMode) MarshalText() ([]byte, error) { return []byte(m.String()), nil }

// UnmarshalText takes what MarshalText returns.
func (m *CopyMode) UnmarshalText(text []byte) error { return enum.Parse(m, text) }

// Defaults of Options.
const (
	DefaultChunkSize      = 4096
	DefaultReceiveFrames  = 1024
	DefaultTransmitFrames = 512
	DefaultBindTimeout    = 2 * time.Second // a busy machine was seen to take more than one to free a queue
)

const (
	// minChunkSize is XDP_UMEM_MIN_CHUNK_SIZE (include/net/xdp_sock.h).
	minChunkSize = 2048
	// maxFrames keeps 2 * 2^20 chunks of the largest page (64 KiB) far from the
	// 2^48 bytes that a UMEM address can name.
	maxFrames = 1 << 20
	// defaultTransmitBudget is TX_BATCH_SIZE (net/xdp/xsk.c): descriptors that one
	// sendto takes in copy mode unless XDP_MAX_TX_SKB_BUDGET raises it.
	defaultTransmitBudget = 32
)

// Options of Open. Interface is required; every other zero value picks a default.
type Options struct {
	// Interface is the index of the interface in the network namespace of the
	// calling thread.
	Interface int
	// Queue is the receive and transmit queue, from 0.
	Queue int

	// ChunkSize is the size of a UMEM chunk in bytes: a power of two from 2048 to
	// the page size. One chunk takes a received frame of at most ChunkSize - 256
	// bytes, because the kernel keeps 256 bytes in front of it. Default 4096.
	ChunkSize int
	// ReceiveFrames is the number of chunks for receiving (a frame of two chunks
	// takes two). In zero copy the driver fills its own hardware ring from them, so
	// they must outnumber its descriptors. Default 1024.
	ReceiveFrames int
	// TransmitFrames is the number of chunks for sending; with MultiBuffer it must
	// be even. Default 512.
	TransmitFrames int

	// Ring sizes in entries, powers of two. The default is the next power of two
	// that holds every chunk which can be in the ring at once, twice for the fill ring;
	// less is refused, so that no ring can overflow.
	FillRing, CompletionRing, ReceiveRing, TransmitRing int

	// Mode asks for copy or zero copy. The default lets the kernel choose.
	Mode CopyMode
	// MultiBuffer allows frames larger than a chunk: received frames come in up to
	// MaxSegments segments, a transmit buffer is two chunks long. It needs Linux 6.6
	// and an XDP program loaded with the frags flag (section "xdp.frags"). Frames that
	// fit into one chunk take as long as without it (0.91 and 0.92 us for 1098 bytes,
	// medians of 40 runs of what TransmitBudget names).
	MultiBuffer bool

	// TransmitBudget is the number of descriptors that one Kick may send in copy
	// mode, from 32 to TransmitRing. A smaller one bounds the time a Kick takes.
	// Default: the whole ring. Kernels without XDP_MAX_TX_SKB_BUDGET stay at 32,
	// see Info.TransmitBudget. On veth, batches of 128 frames then need one kick
	// instead of 4, or of 8 where a frame takes two descriptors, and a frame takes
	// 0.95 us instead of 0.98 (1098 bytes), 1.60 us instead of 1.89 (4170 bytes). (Lower
	// quartiles of 25 runs, two virtual CPUs of a Xeon with other load on them:
	// go test ./xsk -run '^$' -bench TransmitLimits -benchtime 20000x)
	TransmitBudget int
	// SendBuffer is SO_SNDBUF in bytes: it limits the bytes in flight in copy mode.
	// Default: twice the transmit chunks, so that it never limits. Negative: the
	// system's default (net.core.wmem_default) stays, which is about 90 frames of 1 to
	// 2 KiB. A veth frees each frame before it takes the next, so that the same
	// measurement shows no difference there (1.60 and 1.59 us for 4170 bytes); it is for
	// devices that keep frames for a while.
	SendBuffer int
	// BindTimeout is how long Open tries again while the queue is taken, and while
	// what the user has locked leaves too little of RLIMIT_MEMLOCK: after a close the
	// kernel needs a while until both are free. Default 2 s each; negative: one attempt.
	BindTimeout time.Duration

	// CheckOwners keeps track of the owner of each chunk; see Socket.CheckOwners.
	CheckOwners bool

	// noNeedWakeup has the kernel not tell when it has to be woken, as drivers without that feature. It is for tests.
	noNeedWakeup bool
}

// Info tells what Open really obtained. Together with two file descriptors it
// describes the socket to another process (FDs).
type Info struct {
	Interface int
	Queue     int

	ZeroCopy    bool
	MultiBuffer bool
	CheckOwners bool

	ChunkSize      int // bytes
	ReceiveFrames  int // chunks
	TransmitFrames int // chunks

	FillRing       int // entries
	CompletionRing int // entries
	ReceiveRing    int // entries
	TransmitRing   int // entries

	// TransmitBudget is the number of descriptors per Kick in copy mode.
	TransmitBudget int
	// SendBuffer is SO_SNDBUF as the kernel reports it: twice the value asked for.
	SendBuffer int
}

// TransmitFrameSize returns the length in bytes of a transmit buffer, which is the
// longest frame that can be sent: one chunk, or two with MultiBuffer.
func (i Info) TransmitFrameSize() int {
	if i.MultiBuffer {
		return 2 * i.ChunkSize
	}
	return i.ChunkSize
}

// TransmitBuffers returns the number of transmit buffers.
func (i Info) TransmitBuffers() int {
	return i.TransmitFrames * i.ChunkSize / i.TransmitFrameSize()
}

// umemSize returns the length of the registered memory in bytes.
func (i Info) umemSize() int { return (i.ReceiveFrames + i.TransmitFrames) * i.ChunkSize }

// complete fills the defaults in and checks everything that can be known without
// the kernel.
func (o *Options) complete() (Info, error) {
	setDefault(&o.ChunkSize, DefaultChunkSize)
	setDefault(&o.ReceiveFrames, DefaultReceiveFrames)
	setDefault(&o.TransmitFrames, DefaultTransmitFrames)
	setDefault(&o.FillRing, powerOfTwo(2*o.ReceiveFrames))
	setDefault(&o.ReceiveRing, powerOfTwo(o.ReceiveFrames))
	setDefault(&o.TransmitRing, powerOfTwo(o.TransmitFrames))
	setDefault(&o.CompletionRing, max(powerOfTwo(o.TransmitFrames), o.TransmitRing))
	setDefault(&o.SendBuffer, min(2*o.TransmitFrames*o.ChunkSize, 1<<30)) // the kernel takes half of 2^31
	setDefault(&o.TransmitBudget, max(o.TransmitRing, defaultTransmitBudget))
	if o.BindTimeout == 0 {
		o.BindTimeout = DefaultBindTimeout
	}
	info := Info{
		Interface: o.Interface, Queue: o.Queue,
		MultiBuffer: o.MultiBuffer, CheckOwners: o.CheckOwners,
		ChunkSize: o.ChunkSize, ReceiveFrames: o.ReceiveFrames, TransmitFrames: o.TransmitFrames,
		FillRing: o.FillRing, CompletionRing: o.CompletionRing,
		ReceiveRing: o.ReceiveRing, TransmitRing: o.TransmitRing,
		TransmitBudget: defaultTransmitBudget,
	}
	problem := info.problem()
	switch {
	case problem != "":
	case o.Mode > ModeZeroCopy:
		problem = fmt.Sprintf("mode %v does not exist", o.Mode)
	case o.TransmitBudget < defaultTransmitBudget ||
		o.TransmitBudget > max(o.TransmitRing, defaultTransmitBudget):
		problem = fmt.Sprintf("transmit budget %d is not between %d and the transmit ring's %d entries",
			o.TransmitBudget, defaultTransmitBudget, o.TransmitRing)
	}
	if problem != "" {
		return Info{}, &Error{
			Step: "options", Interface: o.Interface, Queue: o.Queue,
			Detail: problem, Kind: ErrInvalidOptions,
		}
	}
	return info, nil
}

// problem returns what is wrong with the geometry, or "".
func (i Info) problem() string {
	page := os.Getpagesize()
	switch {
	case i.Interface <= 0:
		return fmt.Sprintf("interface index %d: must be positive", i.Interface)
	case i.Queue < 0:
		return fmt.Sprintf("queue %d: must not be negative", i.Queue)
	case i.ChunkSize < minChunkSize || i.ChunkSize > page || !isPowerOfTwo(i.ChunkSize):
		return fmt.Sprintf("chunk size %d: must be a power of two from %d to the page size %d",
			i.ChunkSize, minChunkSize, page)
	case i.ReceiveFrames < 1 || i.ReceiveFrames > maxFrames:
		return fmt.Sprintf("%d receive frames: must be from 1 to %d", i.ReceiveFrames, maxFrames)
	case i.TransmitFrames < 1 || i.TransmitFrames > maxFrames:
		return fmt.Sprintf("%d transmit frames: must be from 1 to %d", i.TransmitFrames, maxFrames)
	case i.ReceiveFrames+i.TransmitFrames > math.MaxInt/2/i.ChunkSize: // 32-bit systems
		return fmt.Sprintf("%d frames of %d bytes do not fit into the address space",
			i.ReceiveFrames+i.TransmitFrames, i.ChunkSize)
	case i.MultiBuffer && i.TransmitFrames%2 != 0:
		return fmt.Sprintf("%d transmit frames: must be even with multi-buffer, where a buffer is two chunks",
			i.TransmitFrames)
	}
	for _, ring := range []struct {
		name       string
		size, need int
	}{
		// The kernel shows received frames before it shows that it has taken their chunks from the FILL ring
		// (net/xdp/xsk.c, xsk_flush): for a moment a chunk has a place there twice.
		{"fill", i.FillRing, 2 * i.ReceiveFrames},
		{"receive", i.ReceiveRing, i.ReceiveFrames},
		{"transmit", i.TransmitRing, i.TransmitFrames},
		{"completion", i.CompletionRing, max(i.TransmitFrames, i.TransmitRing)},
	} {
		switch {
		case !isPowerOfTwo(ring.size) || ring.size > 2*maxFrames:
			return fmt.Sprintf("%s ring of %d entries: must be a power of two up to %d",
				ring.name, ring.size, 2*maxFrames)
		case ring.size < ring.need:
			return fmt.Sprintf("%s ring of %d entries is too small: it must hold %d",
				ring.name, ring.size, ring.need)
		}
	}
	return ""
}

const (
	infoMagic = 0x58534b31 // "XSK1": the layout of the encoded Info
	infoWords = 14
	infoSize  = 4 * infoWords
)

const (
	infoZeroCopy = 1 << iota
	infoMultiBuffer
	infoCheckOwners
)

// MarshalBinary encodes the Info as 56 bytes, big endian, for the process that
// gets the file descriptors.
func (i Info) MarshalBinary() ([]byte, error) {
	var flags int
	if i.ZeroCopy {
		flags |= infoZeroCopy
	}
	if i.MultiBuffer {
		flags |= infoMultiBuffer
	}
	if i.CheckOwners {
		flags |= infoCheckOwners
	}
	encoded := make([]byte, 0, infoSize)
	for _, word := range [infoWords]int{
		infoMagic, flags, i.Interface, i.Queue, i.ChunkSize, i.ReceiveFrames, i.TransmitFrames,
		i.FillRing, i.CompletionRing, i.ReceiveRing, i.TransmitRing, i.TransmitBudget, i.SendBuffer, 0,
	} {
		encoded = binary.BigEndian.AppendUint32(encoded, uint32(word))
	}
	return encoded, nil
}

// UnmarshalBinary decodes what MarshalBinary made and checks it like Open checks
// its options.
func (i *Info) UnmarshalBinary(encoded []byte) error {
	if len(encoded) != infoSize || binary.BigEndian.Uint32(encoded) != infoMagic {
		return fmt.Errorf("xsk: decode info: %d bytes are not the %d bytes that describe a socket", len(encoded), infoSize)
	}
	word := func(n int) int { return int(int32(binary.BigEndian.Uint32(encoded[4*n:]))) }
	decoded := Info{
		ZeroCopy: word(1)&infoZeroCopy != 0, MultiBuffer: word(1)&infoMultiBuffer != 0,
		CheckOwners: word(1)&infoCheckOwners != 0,
		Interface:   word(2), Queue: word(3),
		ChunkSize: word(4), ReceiveFrames: word(5), TransmitFrames: word(6),
		FillRing: word(7), CompletionRing: word(8), ReceiveRing: word(9), TransmitRing: word(10),
		TransmitBudget: word(11), SendBuffer: word(12),
	}
	if problem := decoded.problem(); problem != "" {
		return fmt.Errorf("xsk: decode info: %s", problem)
	}
	*i = decoded
	return nil
}

func setDefault(value *int, standard int) {
	if *value == 0 {
		*value = standard
	}
}

func isPowerOfTwo(n int) bool { return n > 0 && n&(n-1) == 0 }

// powerOfTwo returns the next power of two that is not below n.
func powerOfTwo(n int) int {
	if n <= 1 || n > 2*maxFrames {
		return 1
	}
	return 1 << bits.Len(uint(n-1))
}
