//go:build linux

package xsk

import (
	"errors"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// openFiles and umemMappings count what a socket could leave behind.
func openFiles(t testing.TB) int {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	require.NoError(t, err)
	return len(entries)
}

func socketMappings(t testing.TB) int {
	t.Helper()
	maps, err := os.ReadFile("/proc/self/maps")
	require.NoError(t, err)
	return strings.Count(string(maps), "memfd:xsk-umem") + strings.Count(string(maps), "socket:[")
}

func TestInfo(t *testing.T) {
	a, b := newPair(t, 1, 9000)
	s := a.mustOpen(t, Options{MultiBuffer: true})
	require.Equal(t, Info{
		Interface: a.ifindex, MultiBuffer: true, ChunkSize: 4096, ReceiveFrames: 1024, TransmitFrames: 512,
		FillRing: 2048, ReceiveRing: 1024, TransmitRing: 512, CompletionRing: 512,
		TransmitBudget: s.Info().TransmitBudget, SendBuffer: 8 << 20,
	}, s.Info())
	// 512 where the kernel knows XDP_MAX_TX_SKB_BUDGET, and then one kick does it.
	for i := range 40 {
		send(t, s, uint64(i), 100)
	}
	s.Publish()
	result, err := s.Kick()
	require.NoError(t, err)
	require.Equal(t, map[int]KickResult{32: KickAgain, 512: KickDone}[s.Info().TransmitBudget], result)

	s = b.mustOpen(t, Options{SendBuffer: -1})
	text, err := os.ReadFile("/proc/sys/net/core/wmem_default")
	require.NoError(t, err)
	require.Equal(t, strings.TrimSpace(string(text)), strconv.Itoa(s.Info().SendBuffer))
}

// A quick restart finds the queue still taken for a moment; Open waits for it.
func TestReopen(t *testing.T) {
	a, b := newPair(t, 1, 1500)
	to := b.receiver(t, false, Options{})
	files, mappings := openFiles(t), socketMappings(t)
	for round := range 20 {
		from, err := a.open(t, Options{CheckOwners: true})
		require.NoError(t, err)
		send(t, from, uint64(round), 100)
		from.Publish()
		kickAll(t, from)
		requireFrame(t, make([]byte, 100), receive(t, to, 1)[0], uint64(round))
		to.Release()
		require.NoError(t, from.Close())
	}
	require.Equal(t, files, openFiles(t))
	require.Equal(t, mappings, socketMappings(t))
}

func TestQueueBusy(t *testing.T) {
	a, _ := newPair(t, 1, 1500)
	a.mustOpen(t, Options{})
	files, mappings := openFiles(t), socketMappings(t)
	start := time.Now()
	_, err := a.open(t, Options{BindTimeout: 200 * time.Millisecond})
	require.ErrorIs(t, err, ErrQueueBusy)
	require.ErrorIs(t, err, unix.EBUSY)
	require.ErrorContains(t, err,
		"xsk: bind: queue 0 of ifindex "+strconv.Itoa(a.ifindex)+" is taken by another AF_XDP socket (tried for 2")
	require.InDelta(t, 0.2, time.Since(start).Seconds(), 0.15)

	start = time.Now()
	_, err = a.open(t, Options{BindTimeout: -1})
	require.ErrorIs(t, err, ErrQueueBusy)
	require.Less(t, time.Since(start), 100*time.Millisecond)
	require.Equal(t, files, openFiles(t))
	require.Equal(t, mappings, socketMappings(t))
}

// The queue comes free while Open waits for it.
func TestQueueBusyThenFree(t *testing.T) {
	a, _ := newPair(t, 1, 1500)
	first, err := a.open(t, Options{})
	require.NoError(t, err)
	time.AfterFunc(100*time.Millisecond, func() { _ = first.Close() })
	a.mustOpen(t, Options{BindTimeout: 5 * time.Second})
}

func TestQueueOutOfRange(t *testing.T) {
	a, _ := newPair(t, 1, 1500)
	_, err := a.open(t, Options{Queue: 1})
	require.ErrorIs(t, err, ErrInvalidOptions)
	require.ErrorContains(t, err,
		"queue 1 of ifindex "+strconv.Itoa(a.ifindex)+": the interface has 1 receive and 1 transmit queues")

	c, _ := newPair(t, 3, 1500)
	require.NoError(t, c.run(t, func() error {
		receive, transmit, err := ChannelCount(c.ifindex)
		require.Equal(t, [2]int{3, 3}, [2]int{receive, transmit})
		return err
	}))
	c.mustOpen(t, Options{Queue: 2})
	_, err = c.open(t, Options{Queue: 3})
	require.ErrorIs(t, err, ErrInvalidOptions)
}

// A driver that does not tell its channels has one.
func TestChannelCountUnknown(t *testing.T) {
	n := newNamespace(t)
	require.NoError(t, n.run(t, func() error {
		receive, transmit, err := ChannelCount(1) // lo
		require.Equal(t, [2]int{1, 1}, [2]int{receive, transmit})
		return err
	}))
	require.ErrorIs(t, n.run(t, func() error {
		_, _, err := ChannelCount(99)
		return err
	}), unix.ENODEV)
}

func TestOpenRefused(t *testing.T) {
	a, _ := newPair(t, 1, 1500)
	_, err := a.open(t, Options{Mode: ModeZeroCopy})
	require.ErrorIs(t, err, ErrNotSupported)
	require.ErrorIs(t, err, unix.EOPNOTSUPP)
	require.ErrorContains(t, err, "the driver has no zero copy")

	gone := a
	gone.ifindex = 9999
	_, err = gone.open(t, Options{})
	require.ErrorIs(t, err, unix.ENODEV)
	require.ErrorContains(t, err, "ifindex 9999")
}

// The budget of one call: EAGAIN although all goes well, and the rest with the next.
func TestKickBudget(t *testing.T) {
	a, b := newPair(t, 1, 1500)
	from, to := a.mustOpen(t, Options{TransmitBudget: 32}), b.receiver(t, false, Options{})
	require.Equal(t, 32, from.Info().TransmitBudget)
	result, err := from.Kick()
	require.NoError(t, err)
	require.Equal(t, KickNotNeeded, result)
	for i := range 40 {
		send(t, from, uint64(i), 100)
	}
	from.Publish()
	result, err = from.Kick()
	require.NoError(t, err)
	require.Equal(t, KickAgain, result)
	require.True(t, from.KickPending())
	receive(t, to, 32)
	result, err = from.Kick()
	require.NoError(t, err)
	require.Equal(t, KickDone, result)
	require.False(t, from.KickPending())
	receive(t, to, 8)
	require.Equal(t, Counters{TransmittedFrames: 40, Kicks: 2, KicksAgain: 1}, from.Counters())
	result, err = to.WakeReceive()
	require.NoError(t, err)
	require.Equal(t, KickNotNeeded, result, "in copy mode the fill ring needs no wake-up")
	requireIdle(t, from)
}

// A frame that the driver drops (here: longer than the other end takes) costs itself
// only: the frames behind it go out with the next kick, and its buffer comes back.
func TestKickDropped(t *testing.T) {
	a, b := newPair(t, 1, 3000)
	b.withLink(t, func(handle *netlink.Handle, l netlink.Link) error { return handle.LinkSetMTU(l, 1500) })
	for _, length := range []int{100, 4170} {
		t.Run(strconv.Itoa(length), func(t *testing.T) {
			from, to := a.mustOpen(t, Options{MultiBuffer: true, CheckOwners: true}), b.receiver(t, false,
				Options{MultiBuffer: true})
			long := max(length, 2100)
			send(t, from, 0, long)
			send(t, from, 1, 100)
			send(t, from, 2, long)
			from.Publish()
			var results []KickResult
			for from.KickPending() {
				result, err := from.Kick()
				require.NoError(t, err)
				results = append(results, result)
				require.Less(t, len(results), 5)
			}
			// The last drop shows in the consumer index only after one more call.
			require.Equal(t, []KickResult{KickDropped, KickDropped}, results[:2])
			require.EqualValues(t, 2, from.Counters().TransmitDropped)
			requireFrame(t, make([]byte, 100), receive(t, to, 1)[0], 1)
			require.Zero(t, to.Receive(make([]Frame, 1)))
			to.Release()
			requireIdle(t, from)

			send(t, from, 3, long) // alone
			from.Publish()
			result, err := from.Kick()
			require.NoError(t, err)
			require.Equal(t, KickDropped, result)
			kickAll(t, from)
			requireIdle(t, from)
			require.NoError(t, from.Close())
			require.NoError(t, to.Close())
		})
	}
}

func TestInterfaceDownAndGone(t *testing.T) {
	a, b := newPair(t, 1, 1500)
	from, to := a.mustOpen(t, Options{}), b.receiver(t, false, Options{})
	a.withLink(t, func(handle *netlink.Handle, l netlink.Link) error { return handle.LinkSetDown(l) })
	send(t, from, 1, 100)
	from.Publish()
	_, err := from.Kick()
	require.ErrorIs(t, err, ErrDown)
	require.ErrorIs(t, err, unix.ENETDOWN)
	a.up(t)
	kickAll(t, from)
	requireFrame(t, make([]byte, 100), receive(t, to, 1)[0], 1)

	send(t, from, 2, 100)
	from.Publish()
	a.withLink(t, func(handle *netlink.Handle, l netlink.Link) error { return handle.LinkDel(l) })
	_, err = from.Kick()
	require.ErrorIs(t, err, ErrClosed)
	require.ErrorIs(t, err, unix.ENXIO)
	require.ErrorContains(t, err, "the interface was deleted")
	_, err = from.Statistics()
	require.NoError(t, err)
}

// Close twice, calls after it, and Close while others kick and read counters.
func TestClose(t *testing.T) {
	a, _ := newPair(t, 1, 1500)
	files, mappings := openFiles(t), socketMappings(t)
	for range 5 {
		s, err := a.open(t, Options{})
		require.NoError(t, err)
		send(t, s, 1, 100)
		s.Publish()
		started := make(chan struct{}, 3)
		var group sync.WaitGroup
		for range 3 {
			group.Go(func() {
				for i := 0; ; i++ {
					_, err := s.Kick()
					s.KickPending()
					if _, statisticsErr := s.Statistics(); err == nil && statisticsErr != nil {
						err = statisticsErr
					}
					if i == 0 {
						started <- struct{}{}
					}
					if err != nil {
						if !errors.Is(err, ErrClosed) {
							t.Error(err)
						}
						return
					}
				}
			})
		}
		for range 3 {
			<-started
		}
		require.NoError(t, s.Close())
		group.Wait()
		// The second Close must not close what has got the numbers since.
		pipe := make([]int, 2)
		require.NoError(t, unix.Pipe2(pipe, unix.O_CLOEXEC))
		require.NoError(t, s.Close())
		require.NoError(t, unix.Close(pipe[0]))
		require.NoError(t, unix.Close(pipe[1]))

		require.Zero(t, s.Receive(make([]Frame, 4)))
		s.Release()
		require.Nil(t, s.Buffer())
		require.ErrorIs(t, s.Commit(64), ErrClosed)
		s.Publish()
		require.Zero(t, s.Reap())
		require.False(t, s.KickPending())
		_, err = s.WakeReceive()
		require.ErrorIs(t, err, ErrClosed)
		require.NoError(t, s.CheckOwners())
		require.EqualValues(t, 1, s.Counters().TransmittedFrames)
		require.Equal(t, a.ifindex, s.Info().Interface)
	}
	require.Equal(t, files, openFiles(t))
	require.Equal(t, mappings, socketMappings(t))
}

// Whoever needs the mappings or the descriptor keeps Close from taking them away.
func TestCloseWaits(t *testing.T) {
	for name, call := range map[string]func(*Socket){
		"Kick":        func(s *Socket) { _, _ = s.Kick() },
		"KickPending": func(s *Socket) { s.KickPending() },
		"WakeReceive": func(s *Socket) { _, _ = s.WakeReceive() },
		"Statistics":  func(s *Socket) { _, _ = s.Statistics() },
		"Close":       func(s *Socket) { _ = s.Close() },
	} {
		t.Run(name, func(t *testing.T) {
			s, _ := newMemorySocket(t, Options{}, 0)
			s.life.Lock() // as Close does
			done := make(chan struct{})
			go func() {
				defer close(done)
				call(s)
			}()
			select {
			case <-done:
				require.Fail(t, "did not wait")
			case <-time.After(20 * time.Millisecond):
			}
			s.life.Unlock()
			<-done
		})
	}
}
