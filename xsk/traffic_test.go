//go:build linux

package xsk

import (
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// kickAll kicks until nothing is pending. The bound is far beyond what any test needs.
func kickAll(t testing.TB, s *Socket) {
	t.Helper()
	for range 1000 {
		if !s.KickPending() {
			return
		}
		_, err := s.Kick()
		require.NoError(t, err)
		s.Reap()
	}
	require.Fail(t, "still pending after 1000 kicks")
}

// receive waits for n frames, which the caller releases. On an idle machine they have
// arrived when the kick returns; on a busy one ksoftirqd brings them a little later.
func receive(t testing.TB, s *Socket, n int) []Frame {
	t.Helper()
	frames := make([]Frame, n)
	got := 0
	for deadline := time.Now().Add(5 * time.Second); got < n; yield() {
		require.True(t, time.Now().Before(deadline), "%d of %d frames arrived", got, n)
		got += s.Receive(frames[got:])
	}
	return frames
}

// requireIdle checks that a socket is as it was when it was opened.
func requireIdle(t testing.TB, s *Socket) {
	t.Helper()
	require.Eventually(t, func() bool {
		s.Reap()
		return s.FreeBuffers() == s.Info().TransmitBuffers()
	}, time.Second, time.Millisecond, "transmit buffers are missing")
	require.NoError(t, s.CheckOwners())
	statistics, err := s.Statistics()
	require.NoError(t, err)
	require.Zero(t, statistics.ReceiveInvalid)
	require.Zero(t, statistics.TransmitInvalid)
	c := s.Counters()
	require.Zero(t, c.ZeroLength+c.ChainsDropped+c.InvalidReceive+c.InvalidCompletions, "%+v", c)
}

// requireNoLoss checks that the kernel dropped nothing on the way in.
func requireNoLoss(t testing.TB, s *Socket) {
	t.Helper()
	statistics, err := s.Statistics()
	require.NoError(t, err)
	require.Zero(t, statistics.ReceiveDropped+statistics.ReceiveRingFull+statistics.FillRingEmpty, "%+v", statistics)
}

type traffic struct {
	name    string
	mtu     int
	options Options
	lengths []int // at random, or up to the only one
}

var trafficKinds = []traffic{
	{"2 KiB chunks", 1500, Options{ChunkSize: 2048}, []int{1514}},
	{"4 KiB chunks", 3400, Options{}, []int{2100}},
	{"multi-buffer", 9000, Options{MultiBuffer: true}, []int{64, 1100, 2100, 3840, 3841, 4096, 4097, 4170, 4170, 4170, 8192}},
	{"few frames", 9000, Options{MultiBuffer: true, ReceiveFrames: 100, TransmitFrames: 14}, []int{64, 4170}},
}

func (k traffic) length(random *rand.Rand) int {
	if len(k.lengths) == 1 {
		return 64 + random.IntN(k.lengths[0]-64+1)
	}
	return k.lengths[random.IntN(len(k.lengths))]
}

// Every frame arrives once, in order and intact, whatever the batches on either side,
// with idle gaps, with kicks left out and releases put off.
func TestTraffic(t *testing.T) {
	const total = 4000
	for _, generic := range []bool{false, true} {
		for _, kind := range trafficKinds {
			t.Run(modeName(generic)+"/"+kind.name, func(t *testing.T) {
				options := kind.options
				options.CheckOwners = true
				a, b := newPair(t, 1, kind.mtu)
				from, to := a.mustOpen(t, options), b.receiver(t, generic, options)
				random := rand.New(rand.NewPCG(1, uint64(len(kind.lengths))))
				// The kernel needs up to three chunks for a frame of 8 KiB, and the ring
				// between the two ends of a veth has 256 places.
				window := min(to.Info().ReceiveFrames/3, 128)
				deadline := time.Now().Add(30 * time.Second)
				lengths := make([]int, 0, total)
				frames, want := make([]Frame, 40), make([]byte, from.Info().TransmitFrameSize())
				sent, received, released := 0, 0, 0
				for round := 0; received < total; round++ {
					require.True(t, time.Now().Before(deadline), "%d of %d frames arrived", received, total)
					for range random.IntN(41) {
						if sent == total || sent-released == window {
							break
						}
						if from.Buffer() == nil {
							break
						}
						lengths = append(lengths, kind.length(random))
						send(t, from, uint64(sent), lengths[sent])
						sent++
					}
					from.Publish()
					if random.IntN(4) > 0 {
						kickAll(t, from)
					}
					if round%100 == 99 {
						time.Sleep(time.Millisecond)
					}
					for _, frame := range frames[:to.Receive(frames[:random.IntN(len(frames)+1)])] {
						requireFrame(t, want[:lengths[received]], frame, uint64(received))
						received++
					}
					if random.IntN(3) > 0 {
						to.Release()
						released = received
					}
					if round%50 == 0 {
						require.NoError(t, from.CheckOwners())
						require.NoError(t, to.CheckOwners())
					}
				}
				to.Release()
				require.Zero(t, to.Receive(frames))
				require.EqualValues(t, total, from.Counters().TransmittedFrames)
				require.EqualValues(t, total, to.Counters().ReceivedFrames)
				require.Zero(t, from.Counters().TransmitDropped)
				requireNoLoss(t, to)
				requireIdle(t, from)
				requireIdle(t, to)
			})
		}
	}
}

// Sender, kicker, poller and a reader of the counters on goroutines of their own.
func TestTrafficConcurrent(t *testing.T) {
	const total, window = 10_000, 128
	a, b := newPair(t, 1, 9000)
	options := Options{MultiBuffer: true, CheckOwners: true}
	from, to := a.mustOpen(t, options), b.receiver(t, false, options)
	kind := trafficKinds[2]
	var (
		received atomic.Int64
		stop     atomic.Bool
		group    sync.WaitGroup
		kick     sync.Mutex
	)
	tryKick := func() {
		for range 1000 {
			if !from.KickPending() || !kick.TryLock() {
				return // whoever holds the lock looks again after it
			}
			_, err := from.Kick()
			kick.Unlock()
			if err != nil {
				t.Error(err)
			}
		}
	}
	group.Go(func() { // a second kicker and reader of everything that may be read
		for !stop.Load() {
			tryKick()
			for _, s := range []*Socket{from, to} {
				if _, err := s.Statistics(); err != nil {
					t.Error(err)
				}
				s.Counters()
			}
			yield()
		}
	})
	group.Go(func() {
		sendAll(t, from, total, kind, func(sent int64) bool { return sent-received.Load() < window }, tryKick)
	})
	random := rand.New(rand.NewPCG(7, 7))
	frames, want := make([]Frame, 64), make([]byte, 8192)
	deadline := time.Now().Add(30 * time.Second)
	for count := int64(0); count < total; count = received.Load() {
		require.True(t, time.Now().Before(deadline), "%d of %d frames arrived", count, total)
		ready := []unix.PollFd{{Fd: int32(to.FD()), Events: unix.POLLIN}}
		if _, err := unix.Poll(ready, 100); err != unix.EINTR {
			require.NoError(t, err)
		}
		n := to.Receive(frames)
		for i, frame := range frames[:n] {
			requireFrame(t, want[:kind.length(random)], frame, uint64(count)+uint64(i))
		}
		to.Release()
		received.Add(int64(n))
	}
	stop.Store(true)
	group.Wait()
	requireNoLoss(t, to)
	requireIdle(t, from)
	requireIdle(t, to)
}

// sendAll sends frames of the kind for as long as may says that one more may be in flight.
func sendAll(t *testing.T, from *Socket, total int64, kind traffic, may func(sent int64) bool, kick func()) {
	random := rand.New(rand.NewPCG(7, 7))
	for sent := int64(0); sent < total; {
		for range 16 {
			if sent == total || !may(sent) {
				break
			}
			buffer := from.Buffer()
			if buffer == nil {
				break
			}
			length := kind.length(random)
			testFrame(buffer[:length], uint64(sent))
			if err := from.Commit(length); err != nil {
				t.Error(err)
			}
			sent++
		}
		from.Publish()
		kick()
		from.Reap()
	}
}

// Queue 1 of a pair with two queues: frames sent on it arrive on it.
func TestTrafficSecondQueue(t *testing.T) {
	a, b := newPair(t, 2, 1500)
	from, to := a.mustOpen(t, Options{Queue: 1}), b.receiver(t, false, Options{Queue: 1})
	send(t, from, 5, 100)
	from.Publish()
	kickAll(t, from)
	requireFrame(t, make([]byte, 100), receive(t, to, 1)[0], 5)
}

// Without a Release the kernel runs out of chunks, and says so in a counter.
func TestTrafficFillRingEmpty(t *testing.T) {
	a, b := newPair(t, 1, 1500)
	from := a.mustOpen(t, Options{})
	to := b.receiver(t, false, Options{ReceiveFrames: 16, CheckOwners: true})
	for i := range 20 {
		send(t, from, uint64(i), 100)
	}
	from.Publish()
	kickAll(t, from)
	receive(t, to, 16)
	requireIdle(t, from) // so the kernel is through with all 20
	statistics, err := to.Statistics()
	require.NoError(t, err)
	require.EqualValues(t, 4, statistics.FillRingEmpty)
	require.EqualValues(t, 4, statistics.ReceiveDropped)
	to.Release()
	send(t, from, 20, 100)
	from.Publish()
	kickAll(t, from)
	requireFrame(t, make([]byte, 100), receive(t, to, 1)[0], 20)
	requireIdle(t, from)
}

// No data call allocates.
func TestNoAllocation(t *testing.T) {
	a, b := newPair(t, 1, 9000)
	options := Options{MultiBuffer: true}
	from, to := a.mustOpen(t, options), b.receiver(t, false, options)
	frames := make([]Frame, 64)
	sent, received := 0, 0
	allocations := testing.AllocsPerRun(500, func() {
		for range 8 {
			buffer := from.Buffer()
			buffer[12], buffer[13] = testEtherType>>8, testEtherType&0xff
			_ = from.Commit(4170)
			sent++
		}
		from.Publish()
		for from.KickPending() {
			_, _ = from.Kick()
		}
		for range 1_000_000 {
			_, _ = to.WakeReceive()
			received += to.Receive(frames)
			to.Release()
			from.Reap()
			if received == sent && from.FreeBuffers() == 256 {
				break
			}
			yield()
		}
	})
	require.Zero(t, allocations)
	require.Equal(t, 501*8, received)
}
