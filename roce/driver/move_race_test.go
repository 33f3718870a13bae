package driver

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/xroce/xroce/roce/link/mem"
	"github.com/xroce/xroce/roce/queue"
	"github.com/xroce/xroce/roce/transport"
)

// TestMovesBesideEverything makes queue pairs move as fast as they can, wherever, while they send to each other and their completions
// are waited for. There is no timeout that would make up for what a move has left behind.
func TestMovesBesideEverything(t *testing.T) {
	const pairs = 4
	network := mem.NewNetwork(mem.Options{})
	open := func() *station {
		l, err := network.NewDevice(mem.DeviceOptions{Queues: 4})
		require.NoError(t, err)
		d, err := Open(l, Options{})
		require.NoError(t, err)
		return newStationOn(t, d)
	}
	var stations [2]*station
	for i := range stations {
		stations[i] = open()
		defer stations[i].close(t)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	stop := time.Now().Add(1500 * time.Millisecond)
	var posters, others sync.WaitGroup
	var done atomic.Bool
	var moves, posts atomic.Uint64
	for pair := range pairs {
		var qps [2]*QP
		for i, s := range stations {
			cq := newCQ(t, s.device, CQConfig{Capacity: 16})
			own := *s
			own.cq = cq
			qps[i] = own.newQP(t)
			defer func() { require.NoError(t, errors.Join(qps[i].Close(), cq.Close())) }()
		}
		for i, q := range qps {
			stations[i].connect(t, q, stations[1-i], qps[1-i].number)
		}
		for i, q := range qps {
			posters.Go(func() {
				var wcs [2]queue.WC
				for n := 0; time.Now().Before(stop) && !t.Failed(); n++ {
					if _, err := poster(q).PostSend([]queue.SendWR{{
						Opcode: queue.RDMAWrite, Flags: queue.SendSignaled, RemoteAddr: uint64(64 * pair), RKey: stations[1-i].region.Key(),
						SGList: []queue.SGE{{Addr: uint64(64*pair + 32), Length: 8, LKey: stations[i].region.Key()}},
					}}); err != nil {
						t.Error(err)
						return
					}
					posts.Add(1)
					for got, misses := 0, uint32(0); got == 0; misses++ {
						q.config.SendCQ.Pause(misses, poller(q.config.SendCQ))
						if n%2 == 0 {
							if err := q.config.SendCQ.Wait(ctx, poller(q.config.SendCQ)); err != nil {
								t.Errorf("post %d of QP %v, place %+v: %v", n, q.number, q.place.Load(), err)
								return
							}
						} else if ctx.Err() != nil {
							t.Errorf("post %d of QP %v, place %+v: no completion", n, q.number, q.place.Load())
							return
						}
						got, _ = poller(q.config.SendCQ).Poll(wcs[:])
						if got > 1 || got == 1 && wcs[0].Status != queue.WCSuccess {
							t.Errorf("%+v", wcs[:got])
						}
					}
				}
			})
			others.Go(func() {
				for !done.Load() {
					to := q.device.shards[rand.IntN(4)]
					q.moveNow(to)
					moves.Add(1)
					if rand.IntN(8) == 0 {
						time.Sleep(time.Duration(rand.IntN(50)) * time.Microsecond)
					}
				}
			})
		}
	}
	posters.Wait()
	done.Store(true)
	others.Wait()
	var sum transport.Counters
	for _, s := range stations {
		c, _ := s.device.Counters()
		sum.Add(&c)
		for _, q := range s.qps() {
			require.Nil(t, q.place.Load().to)
			require.Same(t, q.lock().engine, q.shard().engine)
			q.shard().unlock()
			require.EqualValues(t, 1<<q.shard().index, q.config.SendCQ.shards.bits.Load())
		}
	}
	require.Zero(t, sum.Timeouts+sum.Retransmitted+sum.OutOfSequence)
	require.Empty(t, sum.Dropped())
	require.EqualValues(t, 2*posts.Load(), sum.SentPackets)
	require.Greater(t, sum.Moves, uint64(1000))
	t.Logf("%d posts, %d moves of %d", posts.Load(), sum.Moves, moves.Load())
}

// qps are the connected queue pairs of a station.
func (s *station) qps() []*QP { return s.device.wired() }
