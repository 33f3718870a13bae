package driver

import (
	"context"
	"errors"
	"fmt"
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

// TestMovesBesideEverything makes queue pairs move as fast as they can, wherever, while they send to each other and
// their completions are waited for. There is no timeout that would make up for what a move has left behind.
func TestMovesBesideEverything(t *testing.T) {
	const pairs = 4
	network := mem.NewNetwork(mem.Options{})
	r := &moveRace{stop: time.Now().Add(1500 * time.Millisecond)}
	for i := range r.stations {
		l, err := network.NewDevice(mem.DeviceOptions{Queues: 4})
		require.NoError(t, err)
		d, err := Open(l, Options{})
		require.NoError(t, err)
		r.stations[i] = newStationOn(t, d)
		defer r.stations[i].close(t)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	var posters, movers sync.WaitGroup
	for pair := range pairs {
		var qps [2]*QP
		for i, s := range r.stations {
			cq := newCQ(t, s.device, CQConfig{Capacity: 16})
			own := *s
			own.cq = cq
			qps[i] = own.newQP(t)
			defer func() { require.NoError(t, errors.Join(qps[i].Close(), cq.Close())) }()
		}
		for i, q := range qps {
			r.stations[i].connect(t, q, r.stations[1-i], qps[1-i].number)
		}
		for i, q := range qps {
			posters.Go(func() { r.post(ctx, t, q, i, uint64(64*pair)) })
			movers.Go(func() { r.move(q) })
		}
	}
	posters.Wait()
	r.done.Store(true)
	movers.Wait()
	sum := r.atHome(t)
	require.Zero(t, sum.Timeouts+sum.Retransmitted+sum.OutOfSequence)
	require.Empty(t, sum.Dropped())
	require.EqualValues(t, 2*r.posts.Load(), sum.SentPackets)
	require.Greater(t, sum.Moves, uint64(1000))
	t.Logf("%d posts, %d moves of %d", r.posts.Load(), sum.Moves, r.moves.Load())
}

// moveRace is two stations whose queue pairs move while they are in use.
type moveRace struct {
	stations     [2]*station
	stop         time.Time // of the posters
	done         atomic.Bool
	moves, posts atomic.Uint64
}

// post writes 8 bytes to an address of the other station over and over, and waits for each completion.
func (r *moveRace) post(ctx context.Context, t *testing.T, q *QP, from int, address uint64) {
	wr := queue.SendWR{
		Opcode: queue.RDMAWrite, Flags: queue.SendSignaled, RemoteAddr: address, RKey: r.stations[1-from].region.Key(),
		SGList: []queue.SGE{{Addr: address + 32, Length: 8, LKey: r.stations[from].region.Key()}},
	}
	for n := 0; time.Now().Before(r.stop) && !t.Failed(); n++ {
		if _, err := poster(q).PostSend([]queue.SendWR{wr}); err != nil {
			t.Error(err)
			return
		}
		r.posts.Add(1)
		if err := takeOne(ctx, q.config.SendCQ, n%2 == 0); err != nil {
			t.Errorf("post %d of QP %v, place %+v: %v", n, q.number, q.place.Load(), err)
			return
		}
	}
}

// takeOne takes the next completion, which is the only one and a success, blocked or by polling.
func takeOne(ctx context.Context, cq *CQ, blocked bool) error {
	var wcs [2]queue.WC
	for misses := uint32(0); ; misses++ {
		cq.Pause(misses, poller(cq))
		if blocked {
			if err := cq.Wait(ctx, poller(cq)); err != nil {
				return err
			}
		} else if ctx.Err() != nil {
			return errors.New("no completion")
		}
		got, err := poller(cq).Poll(wcs[:])
		switch {
		case got > 1 || got == 1 && wcs[0].Status != queue.WCSuccess:
			return fmt.Errorf("%+v", wcs[:got])
		case got == 1 || err != nil:
			return err
		}
	}
}

// move moves a queue pair from shard to shard.
func (r *moveRace) move(q *QP) {
	for !r.done.Load() {
		q.moveNow(q.device.shards[rand.IntN(4)])
		r.moves.Add(1)
		if rand.IntN(8) == 0 {
			time.Sleep(time.Duration(rand.IntN(50)) * time.Microsecond)
		}
	}
}

// atHome checks that all queue pairs are at home somewhere, and returns the sum of all counters.
func (r *moveRace) atHome(t *testing.T) (sum transport.Counters) {
	for _, s := range r.stations {
		c, _ := s.device.Counters()
		sum.Add(&c)
		for _, q := range s.qps() {
			require.Nil(t, q.place.Load().to)
			require.Same(t, q.lock().engine, q.shard().engine)
			q.shard().unlock()
			require.EqualValues(t, 1<<q.shard().index, q.config.SendCQ.shards.bits.Load())
		}
	}
	return sum
}

// qps are the connected queue pairs of a station.
func (s *station) qps() []*QP { return s.device.wired() }
