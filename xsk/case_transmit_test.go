//go:build linux

package xsk

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// TestCase_F2: every frame completes without a further kick once nothing is pending, whether the kernel tells when it
// has to be woken or not, in both modes of the receiver, after idle times of any length; and none takes 10 ms.
func TestCase_F2(t *testing.T) {
	gaps := []time.Duration{0, time.Millisecond, 100 * time.Millisecond}
	for _, generic := range []bool{false, true} {
		for _, noNeedWakeup := range []bool{false, true} {
			for _, gap := range gaps {
				t.Run(fmt.Sprintf("%s/need_wakeup=%t/gap=%v", modeName(generic), !noNeedWakeup, gap), func(t *testing.T) {
					a, b := newPair(t, 1, 1500)
					from := a.mustOpen(t, Options{CheckOwners: true, noNeedWakeup: noNeedWakeup})
					to := b.receiver(t, generic, Options{CheckOwners: true, noNeedWakeup: noNeedWakeup})
					// A busy machine may let the kernel's thread wait for its CPU: a stall of ours would be there
					// each time.
					for attempt := 1; ; attempt++ {
						longest := bursts(t, from, to, size(10_000, 1_000_000), gap)
						if longest < 10*time.Millisecond {
							break
						}
						require.Less(t, attempt, 5, "a burst took %v", longest)
					}
				})
			}
		}
	}
}

// bursts sends frames with idle times between the bursts, and returns the longest CPU time for which this thread has
// looked in vain for the end of one.
func bursts(t *testing.T, from, to *Socket, total int, gap time.Duration) (longest time.Duration) {
	runtime.LockOSThread() // for threadTime
	defer runtime.UnlockOSThread()
	random := rand.New(rand.NewPCG(2, uint64(gap)))
	gaps := size(3, 100)
	frames, want := make([]Frame, 64), make([]byte, 1514)
	before := from.Counters()
	for sent, received := 0, 0; sent < total; {
		burst := min(1+random.IntN(64), total-sent)
		for range burst {
			send(t, from, uint64(sent), 64+sent%1000)
			sent++
		}
		from.Publish()
		kickAll(t, from)
		kicks := from.Counters().Kicks
		start, begin := threadTime(), time.Now()
		for from.FreeBuffers() < from.Info().TransmitBuffers() || received < sent {
			from.Reap()
			for _, frame := range frames[:to.Receive(frames)] {
				requireFrame(t, want[:64+received%1000], frame, uint64(received))
				received++
			}
			to.Release()
			require.Less(t, time.Since(begin), 5*time.Second, "%d of %d frames arrived, %d buffers are free", received, sent,
				from.FreeBuffers())
			yield()
		}
		longest = max(longest, threadTime()-start)
		require.Equal(t, kicks, from.Counters().Kicks)
		if gap > 0 && random.IntN(total) < burst*gaps {
			time.Sleep(gap)
		}
	}
	after := from.Counters()
	require.EqualValues(t, total, after.TransmittedFrames-before.TransmittedFrames)
	require.Zero(t, after.TransmitDropped)
	require.Zero(t, after.InvalidCompletions)
	require.NoError(t, from.CheckOwners())
	requireNoLoss(t, to)
	return longest
}

// threadTime is the CPU time of the calling thread.
func threadTime() time.Duration {
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &now); err != nil {
		panic(err)
	}
	return time.Duration(now.Nano())
}

// TestCase_F3: batches of any size, submitted in parts of which the kernel takes a part at a time, for as long as it
// takes to use every buffer many times. After each look every chunk has one owner, and the rings agree; what is free
// is scribbled on at once, and the wire never shows it.
func TestCase_F3(t *testing.T) {
	for _, generic := range []bool{false, true} {
		for _, multiBuffer := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/multi-buffer=%t", modeName(generic), multiBuffer), func(t *testing.T) {
				o := Options{
					MultiBuffer: multiBuffer, CheckOwners: true, ReceiveFrames: 160, TransmitFrames: 128,
					TransmitBudget: 32, SendBuffer: 4096, // the least that the system takes: a few frames per kick
				}
				a, b := newPair(t, 1, 9000)
				from := a.mustOpen(t, o)
				partialSubmits(t, from, b.receiver(t, generic, o), size(25_000, 2_500_000))
			})
		}
	}
}

func partialSubmits(t *testing.T, from, to *Socket, total int) {
	random := rand.New(rand.NewPCG(3, uint64(from.Info().TransmitFrameSize())))
	lengths := make([]int, from.Info().TransmitBuffers()*4) // of the frames under way, by sequence number
	length := func(sequence int) *int { return &lengths[sequence%len(lengths)] }
	draw := func() int {
		if from.Info().MultiBuffer && random.IntN(16) == 0 {
			return 4097 + random.IntN(100)
		}
		return 64 + random.IntN(200)
	}
	const window = 64 // of what the receiver has not given back: a frame takes up to two of its chunks
	frames, want := make([]Frame, 64), make([]byte, from.Info().TransmitFrameSize())
	scribble(from, from.transmit.free)
	sent, received, released := 0, 0, 0
	for start := time.Now(); received < total; {
		require.Less(t, time.Since(start), 20*time.Second+time.Duration(total)*50*time.Microsecond, "%d of %d frames arrived",
			received, total)
		for range 1 + random.IntN(64) {
			if sent == total || sent-released == window || from.Buffer() == nil {
				break
			}
			*length(sent) = draw()
			send(t, from, uint64(sent), *length(sent))
			sent++
			if random.IntN(8) == 0 {
				from.Publish() // a part of the batch
			}
		}
		if random.IntN(4) > 0 {
			from.Publish()
		}
		if random.IntN(3) > 0 {
			_, err := from.Kick() // once, and whatever it takes
			require.NoError(t, err)
		}
		free := len(from.transmit.free)
		from.Reap()
		require.NoError(t, from.CheckOwners())
		scribble(from, from.transmit.free[min(free, len(from.transmit.free)):])
		for _, frame := range frames[:to.Receive(frames[:random.IntN(len(frames)+1)])] {
			requireFrame(t, want[:*length(received)], frame, uint64(received))
			received++
			for _, segment := range frame.Segments {
				clear(segment)
			}
		}
		require.NoError(t, to.CheckOwners())
		if random.IntN(3) > 0 {
			to.Release()
			released = received
		}
		if sent == total {
			from.Publish()
			kickAll(t, from)
		}
	}
	to.Release()
	for _, s := range []*Socket{from, to} {
		requireIdle(t, s)
		i := s.Info()
		require.Equal(t, i.TransmitBuffers(), len(s.transmit.free))
		require.EqualValues(t, i.ReceiveFrames, s.receive.fill.producer.Load()-s.receive.fill.consumer.Load(),
			"the FILL ring has all")
		require.Equal(t, s.receive.ring.producer.Load(), s.receive.ring.consumer.Load())
		require.Equal(t, s.transmit.ring.producer.Load(), s.transmit.ring.consumer.Load())
		require.Equal(t, s.transmit.completion.producer.Load(), s.transmit.completion.consumer.Load())
	}
	require.EqualValues(t, total, from.Counters().TransmittedFrames)
	require.EqualValues(t, total, to.Counters().ReceivedFrames)
	require.Zero(t, from.Counters().TransmitDropped)
	requireNoLoss(t, to)
	t.Logf("%d kicks for %d frames, %d of them to be repeated", from.Counters().Kicks, total, from.Counters().KicksAgain)
}

// scribble writes over buffers that are free, as whoever gets them next would.
func scribble(s *Socket, free []uint32) {
	for _, buffer := range free {
		start := int(buffer) << s.transmit.shift
		copy(s.transmit.memory[start:start+int(s.transmit.bufferSize)], scribbles)
	}
}

var scribbles = bytes.Repeat([]byte{0xEE}, 8192)
