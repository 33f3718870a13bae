package perf

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/xroce/xroce/verbs"
	"github.com/xroce/xroce/verbs/verbstest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// lab is two sessions on a network in memory.
type lab struct {
	network *verbstest.Network
	devices [2]*verbs.Device // client, server
	lines   [2]net.Conn
}

func newLab(t *testing.T) *lab {
	t.Helper()
	l := &lab{network: verbstest.New(t)}
	l.devices = [2]*verbs.Device{l.network.Device("client"), l.network.Device("server")}
	return l
}

// joined makes another TCP connection between the ends.
func (l *lab) joined(t *testing.T) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	l.lines[0], err = net.Dial("tcp", listener.Addr().String())
	require.NoError(t, err)
	l.lines[1], err = listener.Accept()
	require.NoError(t, err)
	require.NoError(t, listener.Close())
}

// play makes the plan of a wish at both ends, after change has had a look at each of the sessions.
func (l *lab) play(t *testing.T, w Wish, change func(client bool, s *Session)) (results [2]*Result, failures [2]error) {
	t.Helper()
	require.NoError(t, w.Check())
	l.joined(t)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var ended [2]chan struct{}
	for i := range ended {
		ended[i] = make(chan struct{})
		plan, err := w.Complete().Plan()
		require.NoError(t, err)
		gids, err := l.devices[i].QueryGIDTable()
		require.NoError(t, err)
		s := &Session{
			Device: l.devices[i], Connection: l.lines[i], Client: i == 0, Plan: plan, Address: gids[0].Addr(),
			Connected: func(*Result) {}, Ran: func(*Result, *Run) {}, Progress: func(string, float64) {},
		}
		if change != nil {
			change(s.Client, s)
		}
		go func() {
			defer close(ended[i])
			results[i], failures[i] = s.Run(ctx)
			failures[i] = errors.Join(failures[i], l.lines[i].Close())
		}()
	}
	for i := range ended {
		<-ended[i]
	}
	return results, failures
}

func wish(operation, test string) Wish {
	return Wish{Operation: operation, Test: test, Iterations: new(100), Verify: new(true)}
}

// TestEveryOperation checks the data of all operations, sizes around what fits a word and a packet.
func TestEveryOperation(t *testing.T) {
	l := newLab(t)
	for _, operation := range Operations() {
		for _, test := range Tests() {
			for _, size := range []int{1, 2, 7, 9, 64, 1025, 20000} {
				w := wish(operation, test)
				if w.Size = &size; operation == "atomic" {
					w.Size = nil
				}
				both, failures := l.play(t, w, nil)
				require.NoError(t, failures[0], "%s %s %d", operation, test, size)
				require.NoError(t, failures[1], "%s %s %d", operation, test, size)
				client, server := both[0].Runs[0], both[1].Runs[0]
				require.Equal(t, client.Local, server.Remote)
				require.Equal(t, client.Remote, server.Local)
				require.Equal(t, client.Latency, server.Latency)
				require.EqualValues(t, 100, client.Messages)
				require.InDelta(t, 100/client.Local.Seconds, client.MessagesPerSecond, 1e-6)
				require.Equal(t, test == latency, client.Latency != nil)
				answers := 0
				if test == latency {
					require.EqualValues(t, 100, client.Latency.Samples)
					if !operations[operation].fetches {
						answers = 100
					}
				}
				require.EqualValues(t, answers, client.Remote.Messages)
			}
		}
	}
}

// TestWrongByte: each way of checking data finds a byte that is wrong, in one message only, and both ends say so.
func TestWrongByte(t *testing.T) {
	l := newLab(t)
	spoil := func(message []byte, qp int, number uint64) {
		fillMessage(message, qp, number)
		if number == 20 { // not in the run that goes before, and overwritten later in the latency test of WRITE
			message[40] ^= 0x10
		}
	}
	for _, c := range []struct {
		operation, test string
		client          bool // which spoils the data
		finds           int  // which end finds it
	}{
		{"send", bandwidth, true, 1}, {"send", latency, true, 1}, {"send", latency, false, 0},
		{"write-imm", bandwidth, true, 1}, {"write-imm", latency, true, 1}, {"write-imm", latency, false, 0},
		{"write", bandwidth, true, 1}, {"write", latency, true, 1}, {"write", latency, false, 0},
		{"read", bandwidth, false, 0}, {"read", latency, false, 0},
	} {
		w := wish(c.operation, c.test)
		w.Size = new(100)
		_, failures := l.play(t, w, func(client bool, s *Session) {
			if client == c.client {
				s.fill = spoil
			}
		})
		require.Regexp(t, `^`+c.operation+` of 100 bytes, message \d+ of queue pair 0: byte 40 is 0x[0-9a-f]{2} instead of 0x[0-9a-f]{2}$`,
			failures[c.finds].Error(), "%+v", c)
		require.EqualError(t, failures[1-c.finds], "the other end: "+failures[c.finds].Error(), "%+v", c)
		require.NotErrorIs(t, failures[0], ErrMisuse)
	}
}

// TestWrongCounts: atomics are checked by the number that each has found, and by what is left in the end.
func TestWrongCounts(t *testing.T) {
	plan, err := wish("atomic", bandwidth).Complete().Plan()
	require.NoError(t, err)
	s := &station{plan: plan, memory: make([]byte, plan.memory()), size: atomicSize, pairs: []*pair{{}}}
	s.check.open(plan)
	require.NoError(t, s.check.fetched(s, s.pairs[0], 0, 1))
	require.EqualError(t, s.check.fetched(s, s.pairs[0], 0, 2), "atomic 1 of queue pair 0 found 0 instead of 1")
	require.NoError(t, s.check.end(s, []uint64{0}))
	require.EqualError(t, s.check.end(s, []uint64{5}), "the word of queue pair 0 is 0 after 5 atomics that add 1")
	require.EqualError(t, s.check.end(s, nil), "the other end tells of 0 queue pairs instead of 1")
}

// TestWaits: every way to wait at either end, and both directions at once.
func TestWaits(t *testing.T) {
	l := newLab(t)
	for _, operation := range Operations() {
		for _, wait := range []Wait{WaitPoll, WaitBlock, WaitThread} {
			for _, at := range []bool{true, false} {
				w := wish(operation, bandwidth)
				w.QPs, w.Both, w.Depth = new(3), new(at), new(10)
				both, failures := l.play(t, w, func(client bool, s *Session) {
					if client == at {
						s.Wait = wait
					}
				})
				require.NoError(t, errors.Join(failures[:]...), "%s %s", operation, wait)
				run := both[0].Runs[0]
				if at {
					require.Equal(t, wait, run.Local.Wait)
					require.EqualValues(t, 600, run.Messages)
					require.EqualValues(t, 300, run.Remote.Messages)
				} else {
					require.Equal(t, wait, run.Remote.Wait)
					require.EqualValues(t, 300, run.Messages)
				}
			}
		}
	}
	for _, at := range []int{0, 1} {
		_, failures := l.play(t, wish("write", latency), func(client bool, s *Session) {
			if client == (at == 0) {
				s.Wait = WaitBlock
			}
		})
		require.ErrorIs(t, failures[at], ErrMisuse)
		require.ErrorContains(t, failures[at], "--wait=block: a WRITE tells nobody")
		require.ErrorIs(t, failures[1-at], ErrMisuse)
		require.EqualError(t, failures[1-at], "the other end: "+failures[at].Error())
	}
}

// TestLoss: packets that are lost are sent again, counted, and nothing is missing.
func TestLoss(t *testing.T) {
	l := newLab(t)
	l.network.Faults(verbstest.Drop(0.02))
	w := wish("send", bandwidth)
	w.Size, w.Both = new(5000), new(true)
	both, failures := l.play(t, w, nil)
	require.NoError(t, errors.Join(failures[:]...))
	run := both[0].Runs[0]
	require.EqualValues(t, 200, run.Messages)
	require.Positive(t, run.Local.Retransmissions+run.Remote.Retransmissions)
}

// TestSweep: one run for each size, also where the data have to fit the memory.
func TestSweep(t *testing.T) {
	l := newLab(t)
	w := wish("write", bandwidth)
	w.Sweep, w.Iterations = new(true), new(2)
	both, failures := l.play(t, w, nil)
	require.NoError(t, errors.Join(failures[:]...))
	require.Len(t, both[1].Runs, 23)
	for i, run := range both[1].Runs {
		require.Equal(t, 2<<i, run.Bytes)
		require.EqualValues(t, 2, run.Messages)
	}
}

func TestDuration(t *testing.T) {
	l := newLab(t)
	for _, test := range Tests() {
		w := Wish{Operation: "send", Test: test, Duration: new(0.3)}
		both, failures := l.play(t, w, nil)
		require.NoError(t, errors.Join(failures[:]...))
		run := both[0].Runs[0]
		require.GreaterOrEqual(t, run.Local.Seconds, 0.3)
		require.Less(t, run.Local.Seconds, 5.0)
		require.Positive(t, run.Messages)
	}
}

// TestContent: messages differ in every word that they have, and so do their parts.
func TestContent(t *testing.T) {
	seen := make(map[string]bool)
	for number := range uint64(50) {
		for qp := range 4 {
			message := make([]byte, 804)
			fillMessage(message, qp, number)
			for at := 0; at+8 <= len(message); at += 8 {
				word := string(message[at : at+8])
				require.False(t, seen[word])
				seen[word] = true
			}
			short := make([]byte, 5)
			fillMessage(short, qp, number)
			require.Equal(t, message[:5], short)
		}
	}
	for n := range uint64(1000) {
		require.NotZero(t, mark(n))
		require.NotEqual(t, mark(n), mark(n+1))
	}
}

func TestLatencyText(t *testing.T) {
	h := hdrhistogram.New(1, int64(longestTrip), 3)
	for i := range 1000 {
		require.NoError(t, h.RecordValue(int64(i+1)*1000))
	}
	whole, half := newLatency(h, true), newLatency(h, false)
	require.Equal(t, "round trip", whole.Of)
	require.InEpsilon(t, 500, whole.P50, 0.002)
	require.InEpsilon(t, 990, whole.P99, 0.002)
	require.InEpsilon(t, 999, whole.P999, 0.002)
	require.InEpsilon(t, 1000, whole.Max, 0.002)
	require.InEpsilon(t, 1, whole.Min, 0.002)
	require.Equal(t, "half of the round trip", half.Of)
	require.InEpsilon(t, 250, half.P50, 0.002)
	require.EqualValues(t, 1000, half.Samples)
}

func TestRates(t *testing.T) {
	both := sides{{Messages: 10, Seconds: 2, UserSeconds: 1, SystemSeconds: 2}, {Messages: 30, Seconds: 3, SystemSeconds: 6}}
	p := &Plan{Operation: "write", Test: bandwidth}
	run := newRun(p, true, 1<<20, nil, both)
	require.EqualValues(t, 10, run.Messages)
	require.InDelta(t, 5, run.MiBPerSecond, 1e-9)
	require.InDelta(t, 5*(1<<20)*8/1e9, run.GbitPerSecond, 1e-9)
	require.InDelta(t, 3*1024/10.0, run.Local.CPUPerGiB, 1e-9)
	require.InDelta(t, 6*1024/10.0, run.Remote.CPUPerGiB, 1e-9)
	require.EqualValues(t, 30, newRun(p, false, 1, nil, both).Messages)
	p.Both = true
	run = newRun(p, true, 1<<20, nil, both)
	require.EqualValues(t, 40, run.Messages)
	require.InDelta(t, 15, run.MessagesPerSecond, 1e-9)
	p = &Plan{Operation: "send", Test: latency}
	require.InDelta(t, 3*1024/20.0, newRun(p, true, 1<<20, &Latency{}, both).Local.CPUPerGiB, 1e-9, "there and back")
}

func TestSoftirq(t *testing.T) {
	file := filepath.Join(t.TempDir(), "stat")
	write := func(text string) map[int]float64 {
		require.NoError(t, os.WriteFile(file, []byte(text), 0o600))
		return readSoftirq(file)
	}
	before := write("cpu  1 2 3 4 5 6 70 8 0 0\ncpu0 1 2 3 4 5 6 30 8 0 0\ncpu11 1 2 3 4 5 6 40 8 0 0\nintr 7 7 7 7 7 7 7 7\n")
	require.Equal(t, map[int]float64{0: 0.30, 11: 0.40}, before)
	after := write("cpu0 1 2 3 4 5 6 30 8 0 0\ncpu11 1 2 3 4 5 6 45 8 0 0\n")
	spent := softirqSince(before, after)
	require.InDelta(t, 0.05, spent.Seconds, 1e-9)
	require.Len(t, spent.CPUSeconds, 1)
	require.Equal(t, 11, spent.CPUSeconds[0].CPU)
	require.Nil(t, readSoftirq(file+".absent"))
	require.Nil(t, write("intr 1\n"))
	require.Nil(t, softirqSince(nil, after))
	text, err := json.Marshal(Side{})
	require.NoError(t, err)
	require.Contains(t, string(text), `"softirq":null`)
}

func TestTable(t *testing.T) {
	plan, err := Wish{Operation: "write", Test: bandwidth, Both: new(true), Inline: new(8), Verify: new(true)}.Complete().Plan()
	require.NoError(t, err)
	r := &Result{Role: "client", Device: "veth0", Driver: "veth", XDPMode: "native", Plan: plan}
	r.Runs = []*Run{{
		Bytes: 8, Messages: 5, GbitPerSecond: 3.25, MiBPerSecond: 77.5,
		Local:  Side{Wait: WaitPoll, UserSeconds: 1, Drops: map[string]uint64{"icrc": 2}, Softirq: &Softirq{Seconds: 0.25}},
		Remote: Side{Wait: WaitThread, SystemSeconds: 2, Drops: map[string]uint64{"icrc": 1}, Retransmissions: 9},
	}}
	for _, gbit := range []bool{true, false} {
		var out bytes.Buffer
		table := Table{&out, gbit}
		table.Begin(r)
		table.Row(r.Runs[0])
		table.End(r)
		text := out.String()
		rate := map[bool]string{true: `Gbit/s .*\n +8 +5 +3\.25 `, false: `MiB/s .*\n +8 +5 +77\.50 `}[gbit]
		require.Regexp(t, rate, text)
		require.Contains(t, text, "1 queue pair, 128 requests in flight each, 16 with one completion, both ways at once, up to 8 bytes inline, data checked\n")
		require.Contains(t, text, "here (wait poll): 1.00 s of CPU in user mode, 0.00 s in the kernel, softirq 0.25 s\n")
		require.Contains(t, text, "there (wait thread): 0.00 s of CPU in user mode, 2.00 s in the kernel\n")
		require.Contains(t, text, "dropped: 3 icrc\n")
		require.Regexp(t, ` 9\n`, text)
	}
}

// asleep is a waiter for which nothing ever completes.
type asleep struct{ waiter }

func (asleep) wait(ctx context.Context) ([]verbs.WC, error) {
	<-ctx.Done()
	return nil, context.Cause(ctx)
}

// TestWordBeforeSleep: the peer's word comes after the loop has looked for it and before it sleeps. It wakes the loop
// once, and after that only completions and the end of the run do.
func TestWordBeforeSleep(t *testing.T) {
	r := &run{station: &station{waiter: asleep{}}}
	r.ctx, r.cancel = context.WithCancelCause(t.Context())
	wake, wakeUp := context.WithCancel(r.ctx)
	r.wake = wake
	r.total = 5
	r.heard.Store(true)
	wakeUp()
	ended := make(chan error)
	go func() { ended <- r.turn() }()
	select {
	case err := <-ended:
		require.NoError(t, err)
	case <-time.After(10 * time.Second):
		require.Fail(t, "the loop sleeps")
	}
	require.True(t, r.known)
	go func() { ended <- r.turn() }()
	select {
	case <-ended:
		require.Fail(t, "the loop was woken twice")
	case <-time.After(50 * time.Millisecond):
	}
	r.cancel(errStalled)
	require.ErrorIs(t, <-ended, errStalled)
}

// TestBegin: what an earlier run has left is not taken for messages of the next one.
func TestBegin(t *testing.T) {
	l := newLab(t)
	for _, operation := range Operations() {
		plan, err := wish(operation, bandwidth).Complete().Plan()
		require.NoError(t, err)
		s, err := openStation(plan, l.devices[0], WaitPoll)
		require.NoError(t, err)
		for i := range s.memory {
			s.memory[i] = 0xff
		}
		s.pairs[0].posted, s.pairs[0].completed, s.pairs[0].arrived = 1, 2, 3
		s.begin(8)
		require.Equal(t, make([]byte, plan.half()), s.memory[plan.half():], operation)
		require.Zero(t, s.pairs[0].posted+s.pairs[0].completed+s.pairs[0].arrived)
		if operation == "atomic" {
			require.Equal(t, make([]byte, plan.half()), s.memory[:plan.half()])
		}
		require.NoError(t, s.close())
	}
}

// TestMeters: what one run has used, without what was used before it.
func TestMeters(t *testing.T) {
	counted := func(sent, received, resent, dropped uint64) verbs.Counters {
		return verbs.Counters{TransportCounters: verbs.TransportCounters{
			Sent: verbs.Counts{"a": sent, "b": 1}, Received: verbs.Counts{"a": received},
			Counts: verbs.Counts{retransmitted: resent}, Drops: verbs.Counts{"icrc": dropped, "old": 5},
		}}
	}
	before := reading{user: time.Second, system: 2 * time.Second, counters: counted(10, 20, 30, 40)}
	after := reading{user: 4 * time.Second, system: 7 * time.Second, counters: counted(11, 22, 33, 44)}
	require.Equal(t, Side{
		UserSeconds: 3, SystemSeconds: 5, PacketsSent: 1, PacketsReceived: 2, Retransmissions: 3, Drops: map[string]uint64{"icrc": 4},
	}, after.since(&before))
	user, system, err := processTimes()
	require.NoError(t, err)
	require.Positive(t, user+system)
}
