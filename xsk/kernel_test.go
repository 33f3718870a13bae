//go:build linux

package xsk

import (
	"encoding/binary"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// kernel plays the kernel's end of the four rings in memory.
type kernel struct {
	fill       consumer[uint64]
	completion producer[uint64]
	receive    producer[descriptor]
	transmit   consumer[descriptor]
	memory     []byte
	chunkSize  uint64
}

// newMemorySocket makes a socket over ordinary memory, whose ring indices start at
// the given value.
func newMemorySocket(t require.TestingT, options Options, start uint32) (*Socket, *kernel) {
	options.Interface = 1
	info, err := options.complete()
	require.NoError(t, err)
	fill, completion := memoryRing[uint64](info.FillRing, start), memoryRing[uint64](info.CompletionRing, start)
	receive, transmit := memoryRing[descriptor](info.ReceiveRing, start), memoryRing[descriptor](info.TransmitRing, start)
	s := &Socket{info: info, fd: -1, umem: umem{fd: -1, memory: make([]byte, memorySize(info))}}
	s.lay(fill, completion, receive, transmit)
	s.receive.fillUp()
	return s, &kernel{
		fill: newConsumer(fill), completion: newProducer(completion),
		receive: newProducer(receive), transmit: newConsumer(transmit),
		memory: s.umem.memory, chunkSize: uint64(info.ChunkSize),
	}
}

// headroom is where the kernel puts a frame within a chunk, XDP_PACKET_HEADROOM.
const headroom = 256

// take takes an empty chunk from the FILL ring.
func (k *kernel) take(t require.TestingT) uint64 {
	require.EqualValues(t, 1, k.fill.peek(1), "FILL ring is empty")
	chunk := k.fill.read()
	k.fill.release()
	require.Zero(t, chunk%k.chunkSize, "FILL wants chunks, not addresses with an offset")
	return chunk
}

// put puts one segment into the RX ring, not yet visible.
func (k *kernel) put(t require.TestingT, segment []byte, more bool) {
	d := descriptor{Addr: k.take(t) + headroom, Len: uint32(len(segment))}
	if more {
		d.Options = unix.XDP_PKT_CONTD
	}
	copy(k.memory[d.Addr:], segment)
	require.EqualValues(t, 1, k.receive.reserve(1), "RX ring is full")
	k.receive.write(d)
}

// deliver delivers a frame of these segments.
func (k *kernel) deliver(t require.TestingT, segments ...[]byte) {
	for i, segment := range segments {
		k.put(t, segment, i < len(segments)-1)
	}
	k.receive.submit()
}

// send takes all descriptors from the TX ring and returns the frames and their
// addresses.
func (k *kernel) send() (frames [][]byte, addresses [][]uint64) {
	var frame []byte
	var chain []uint64
	for k.transmit.peek(1) == 1 {
		d := k.transmit.read()
		frame = append(frame, k.memory[d.Addr:d.Addr+uint64(d.Len)]...)
		chain = append(chain, d.Addr)
		if d.Options&unix.XDP_PKT_CONTD == 0 {
			frames, addresses = append(frames, frame), append(addresses, chain)
			frame, chain = nil, nil
		}
	}
	k.transmit.release()
	return frames, addresses
}

func (k *kernel) complete(t require.TestingT, addresses ...uint64) {
	for _, address := range addresses {
		require.EqualValues(t, 1, k.completion.reserve(1), "COMPLETION ring is full")
		k.completion.write(address)
	}
	k.completion.submit()
}

// filled counts the chunks that the kernel could take.
func (k *kernel) filled() int { return int(k.fill.peek(uint32(len(k.fill.entries)))) }

// testFrame writes a frame with a sequence number and bytes that follow from it.
func testFrame(frame []byte, sequence uint64) {
	header := [14]byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 2, 0, 0, 0, 0, 1, testEtherType >> 8, testEtherType & 0xff}
	n := copy(frame, header[:])
	state := rand.NewPCG(sequence, uint64(len(frame)))
	var word [8]byte
	binary.BigEndian.PutUint64(word[:], sequence)
	for n < len(frame) {
		n += copy(frame[n:], word[:])
		binary.LittleEndian.PutUint64(word[:], state.Uint64())
	}
}

// requireFrame compares without the cost of require on equality.
func requireFrame(t testing.TB, want []byte, frame Frame, sequence uint64) {
	t.Helper()
	testFrame(want, sequence)
	rest := want
	for _, segment := range frame.Segments {
		if len(segment) > len(rest) || string(segment) != string(rest[:len(segment)]) {
			require.Equal(t, want, joined(frame), "frame %d", sequence)
		}
		rest = rest[len(segment):]
	}
	if len(rest) != 0 {
		require.Len(t, joined(frame), len(want), "frame %d", sequence)
	}
}

func joined(frame Frame) []byte {
	var whole []byte
	for _, segment := range frame.Segments {
		whole = append(whole, segment...)
	}
	return whole
}
