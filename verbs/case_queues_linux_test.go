package verbs_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/xroce/xroce/internal/netlab"
	"github.com/xroce/xroce/internal/opener"
	"github.com/xroce/xroce/internal/support"
	"github.com/xroce/xroce/roce"
	"github.com/xroce/xroce/verbs"
)

func look(t *testing.T, d *verbs.Device) verbs.Snapshot {
	t.Helper()
	s, err := d.Snapshot()
	require.NoError(t, err)
	return s
}

// TestUnboundQueue: frames that come in at a queue of the network device that is not used go to the kernel, counted.
// The queue pairs that they are for get nothing, so that their peers give up; the others notice nothing.
func TestUnboundQueue(t *testing.T) {
	netlab.RequireRoot(t)
	pair, err := netlab.NewPair(netlab.PairOptions{Queues: 4})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, pair.Close()) })
	a := openDevice(t, &pair.A, verbs.Options{})
	b := openDevice(t, &pair.B, verbs.Options{Queues: 2})
	require.Len(t, look(t, a).Shards, 4)
	require.Len(t, look(t, b).Shards, 2)
	for label, want := range map[uint32]verbs.WCStatus{
		4: verbs.WCSuccess, 1: verbs.WCSuccess, 2: verbs.WCRetryExcErr, 3: verbs.WCRetryExcErr,
	} {
		// a sends from the queue of the flow label modulo 4, and there it arrives.
		ea, eb := newEnd(t, a, make([]byte, 64), verbs.QPCap{}), newEnd(t, b, make([]byte, 64), verbs.QPCap{})
		connect(t, ea, eb, verbs.ConnectOptions{FlowLabel: label, Timeout: roce.AckTimeout(10), RetryCnt: new(uint8(3))})
		before := look(t, b).Steering["pass_no_socket"]
		wc := ea.do(t, write(ea, eb, 0))
		require.Equal(t, want, wc.Status, "flow label %d", label)
		passed := look(t, b).Steering["pass_no_socket"] - before
		if want == verbs.WCSuccess {
			require.Zero(t, passed)
		} else {
			require.EqualValues(t, 4, passed, "the packet and its resends")
		}
	}
	require.Zero(t, look(t, a).Steering["pass_no_socket"])
	support.Object(t, "Device", "packets at a queue beyond Options.Queues", "to the kernel, counted: pass_no_socket")
}

// TestGenericMeets: where the kernel brings packets to other queues than those they were sent from, always the same
// ones, queue pairs move after them until they send from where they receive. Generic on veth it is the queue below, so
// that all meet at the first.
func TestGenericMeets(t *testing.T) {
	a, b := vethDevices(t, netlab.PairOptions{Queues: 2}, verbs.Options{Mode: verbs.XDPGeneric})
	ea, eb := newEnd(t, a, make([]byte, 1<<20), verbs.QPCap{}), newEnd(t, b, make([]byte, 1<<20), verbs.QPCap{})
	connect(t, ea, eb, verbs.ConnectOptions{FlowLabel: 1, Timeout: roce.AckTimeout(18)})
	homes := func() [2]int { return [2]int{look(t, a).QPs[0].Shard, look(t, b).QPs[0].Shard} }
	require.Equal(t, [2]int{1, 1}, homes())
	exchange := func() uint64 {
		for _, ends := range [][2]*end{{ea, eb}, {eb, ea}} {
			wr := write(ends[0], ends[1], 0)
			wr.SGList[0].Length = 1 << 20
			require.Equal(t, verbs.WCSuccess, ends[0].do(t, wr).Status)
		}
		return opener.Counters(a).Transport.HandedOver + opener.Counters(b).Transport.HandedOver
	}
	for start := time.Now(); homes() != [2]int{0, 0}; exchange() {
		require.Less(t, time.Since(start), 20*time.Second, "%v", homes())
	}
	require.Equal(t, exchange(), exchange(), "nothing is handed over any more")
	require.LessOrEqual(t, moves(a, b), uint64(2))
}

// TestCase_Queues: 64 queue pairs over four queues of each device work in all ways at once, and every byte is looked
// at, while queues of the network devices come and go. Some queue pairs are connected so that each end is at home where
// the other one's packets do not come in, and move.
func TestCase_Queues(t *testing.T) {
	netlab.RequireRoot(t)
	pair, err := netlab.NewPair(netlab.PairOptions{Queues: 6, MTU: 4200})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, pair.Close()) })
	require.NoError(t, setChannels(pair, 6, 4))
	require.NoError(t, setChannels(pair, 4, 4))
	a, b := openDevice(t, &pair.A, verbs.Options{}), openDevice(t, &pair.B, verbs.Options{})
	require.Len(t, look(t, a).Shards, 4)

	const pairs = 64
	length := time.Duration(size(4, 60)) * time.Second
	ctx, cancel := context.WithTimeout(t.Context(), length+time.Minute)
	defer cancel()
	var works [pairs]*mixedLoad
	for i := range works {
		from, to := a, b
		if i%2 == 1 {
			from, to = b, a
		}
		works[i] = newMixedLoad(t, from, to, i)
	}
	stop := time.Now().Add(length)
	var working sync.WaitGroup
	var failed atomic.Bool
	for _, w := range works {
		working.Go(func() {
			for time.Now().Before(stop) && !failed.Load() {
				if err := w.round(ctx); err != nil {
					failed.Store(true)
					t.Errorf("queue pair %d, round %d: %v", w.number, w.rounds, err)
				}
			}
		})
	}
	for _, receive := range []int{5, 6} {
		time.Sleep(length / 3)
		require.ErrorIs(t, pair.B.SetChannels(3, 3), unix.EINVAL, "they are used")
		require.NoError(t, setChannels(pair, receive, receive))
	}
	working.Wait()

	var rounds, data uint64
	for _, w := range works {
		w.b.qp.Query() // the race detector does not see that the kernel has carried the news: the lock of the shard shows it
		require.Equal(t, w.rounds*w.step, binary.NativeEndian.Uint64(w.word), "the sum of all additions")
		rounds += w.rounds
		data += w.bytes
	}
	sum := map[string]uint64{}
	for _, d := range []*verbs.Device{a, b} {
		addCounts(sum, queuesUsed(t, d, pairs))
	}
	// A move takes 256 to 511 packets in a row. Under the race detector there may be too few of them.
	if sum["handed_over"] > 8000 {
		require.NotZero(t, sum["moves"])
	}
	require.Greater(t, rounds, uint64(pairs))
	t.Logf("%d rounds, %.1f MB checked, %d packets sent again", rounds, float64(data)/1e6, sum["retransmitted_pkts"])
	support.Object(t, "Device", "queues added (ethtool -L) under load", "every request completes, every byte is right")
}

// setChannels sets the queues of both ends, in the order that the kernel asks for.
func setChannels(pair *netlab.Pair, receive, transmit int) error {
	for _, number := range []int{4, transmit} {
		for _, e := range []*netlab.End{&pair.A, &pair.B} {
			if err := e.SetChannels(receive, number); err != nil {
				return err
			}
		}
	}
	return nil
}

func addCounts(sum, counts map[string]uint64) {
	for name, n := range counts {
		sum[name] += n
	}
}

// queuesUsed checks that all queues of a device were used and that the counts of the device are the sums over its
// queues and over its queue pairs, and returns them.
func queuesUsed(t *testing.T, d *verbs.Device, pairs int) map[string]uint64 {
	s := look(t, d)
	require.Len(t, s.QPs, pairs)
	at := map[int]int{}
	ofQPs := map[string]uint64{}
	for _, q := range s.QPs {
		at[q.Shard]++
		addCounts(ofQPs, q.Counters.Counts)
	}
	text := ""
	ofQueues := map[string]uint64{}
	for _, shard := range s.Shards {
		require.NotZero(t, shard.Link.Received, "queue %d", shard.Index)
		require.NotZero(t, shard.Link.Transmitted, "queue %d", shard.Index)
		addCounts(ofQueues, shard.Counters.Counts)
		text += fmt.Sprintf(" queue %d: %d queue pairs, %d received, %d sent, %d handed over, %d moves;", shard.Index, at[shard.Index],
			shard.Link.Received, shard.Link.Transmitted, shard.Counters.Counts["handed_over"], shard.Counters.Counts["moves"])
	}
	for name, n := range ofQueues {
		require.Equal(t, s.Counters.Counts[name], n, name)
	}
	for _, name := range []string{"moves", "sent_pkts", "rcvd_pkts", "sent_bytes", "retransmitted_pkts"} {
		require.Equal(t, s.Counters.Counts[name], ofQPs[name], "%s: the sum over the queue pairs", name)
	}
	require.Zero(t, s.Steering["pass_no_socket"])
	require.Zero(t, s.Counters.Counts["retry_exceeded_err"])
	t.Logf("%s, MAC %s:%s drops %v", s.Device.Name, s.Device.MAC, text, s.Counters.Drops)
	return s.Counters.Counts
}

// mixedLoad is a connection whose one end writes, reads, sends and adds, a round after the other.
type mixedLoad struct {
	a, b   *end
	number int
	random *rand.ChaCha8
	sizes  *rand.Rand
	word   []byte // of b, that is added to
	step   uint64
	rounds uint64
	bytes  uint64 // written and read back, and sent
}

// The buffer of an end: what is sent or written, what comes, what is read back, and a word.
const mixedPart = 24 << 10

func newMixedLoad(t *testing.T, from, to *verbs.Device, number int) *mixedLoad {
	w := &mixedLoad{number: number, step: uint64(number + 1)}
	w.random = rand.NewChaCha8([32]byte{byte(number)})
	w.sizes = rand.New(w.random)
	open := func(d *verbs.Device) *end {
		e := newEnd(t, d, make([]byte, 3*mixedPart+64), verbs.QPCap{})
		access := everyAccess
		require.NoError(t, e.mr.Rereg(verbs.MRChange{Access: &access}))
		return e
	}
	w.a, w.b = open(from), open(to)
	w.word = w.b.mr.Bytes()[3*mixedPart:][:8]
	o := verbs.ConnectOptions{
		Timeout: roce.AckTimeout(16), AccessFlags: new(verbs.AccessRemoteRead | verbs.AccessRemoteWrite | verbs.AccessRemoteAtomic), FlowLabel: uint32(4 + number),
	}
	other := o
	if number%8 >= 6 {
		other.FlowLabel += 2 // at home two queues further
	}
	meet(t, w.a, w.b, o, other)
	return w
}

// wait waits for a completion.
func (w *mixedLoad) wait(ctx context.Context, e *end, cq *verbs.CQ) error {
	var wcs [1]verbs.WC
	for {
		n, err := cq.Poll(wcs[:])
		if n == 1 && wcs[0].Status != verbs.WCSuccess {
			return fmt.Errorf("%v: %s", wcs[0].Status, e.qp.Explain(wcs[0]))
		}
		if n == 1 || err != nil {
			return err
		}
		if err := cq.Wait(ctx); err != nil {
			return err
		}
	}
}

func (w *mixedLoad) round(ctx context.Context) error {
	here, there := w.a.mr.Bytes(), w.b.mr.Bytes()
	n := 1 + w.sizes.IntN(mixedPart)
	_, _ = w.random.Read(here[:n])
	do := func(wr verbs.SendWR) error {
		wr.Flags, wr.RKey = verbs.SendSignaled, w.b.mr.RKey()
		if err := w.a.qp.PostSend(wr); err != nil {
			return err
		}
		return w.wait(ctx, w.a, w.a.sends)
	}
	remote := func(offset int) uint64 { return w.b.mr.Addr() + uint64(offset) }
	if err := do(verbs.SendWR{Opcode: verbs.WRRDMAWrite, SGList: []verbs.SGE{w.a.mr.SGE(0, n)}, RemoteAddr: remote(mixedPart)}); err != nil {
		return fmt.Errorf("WRITE: %w", err)
	}
	if err := do(verbs.SendWR{Opcode: verbs.WRRDMARead, SGList: []verbs.SGE{w.a.mr.SGE(mixedPart, n)}, RemoteAddr: remote(mixedPart)}); err != nil {
		return fmt.Errorf("READ: %w", err)
	}
	// A READ may be answered once more after it is complete, and the receive buffer be written by a resend, but only
	// with the same bytes.
	if !bytes.Equal(here[:n], here[mixedPart:][:n]) {
		return fmt.Errorf("other bytes were read than written, %d of them", n)
	}
	if err := w.b.qp.PostRecv(verbs.RecvWR{SGList: []verbs.SGE{w.b.mr.SGE(2*mixedPart, mixedPart)}}); err != nil {
		return err
	}
	if err := do(verbs.SendWR{Opcode: verbs.WRSend, SGList: []verbs.SGE{w.a.mr.SGE(0, n)}}); err != nil {
		return fmt.Errorf("SEND: %w", err)
	}
	if err := w.wait(ctx, w.b, w.b.recvs); err != nil {
		return fmt.Errorf("receive: %w", err)
	}
	if !bytes.Equal(here[:n], there[2*mixedPart:][:n]) {
		return fmt.Errorf("other bytes came than were sent, %d of them", n)
	}
	before := w.rounds * w.step
	if err := do(verbs.SendWR{
		Opcode: verbs.WRAtomicFetchAdd, CompareAdd: w.step, SGList: []verbs.SGE{w.a.mr.SGE(3*mixedPart, 8)}, RemoteAddr: remote(3 * mixedPart),
	}); err != nil {
		return fmt.Errorf("fetch-and-add: %w", err)
	}
	if got := binary.NativeEndian.Uint64(here[3*mixedPart:]); got != before {
		return fmt.Errorf("fetch-and-add found %d, not %d", got, before)
	}
	w.rounds++
	w.bytes += 2 * uint64(n)
	return nil
}
