package puppet_test

import (
	"bytes"
	"flag"
	"fmt"
	"math/rand/v2"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/xroce/xroce/internal/opener"
	"github.com/xroce/xroce/internal/puppet"
	"github.com/xroce/xroce/internal/support"
	"github.com/xroce/xroce/roce"
	"github.com/xroce/xroce/roce/link/mem"
	"github.com/xroce/xroce/verbs"
)

// What is left of a connection on a network that loses packets. Time is virtual, so stalls and goodput are exact,
// however busy the machine is.

var fullSize = flag.Bool("full", false, "run the cases whose full size takes long at full size")

// guardBytes are bytes around a target that must stay as they are.
const guardBytes = 64

// flow is a queue pair that keeps some WRITEs under way, each to a place of its own with bytes of its own.
type flow struct {
	qp             *verbs.QP
	source, target []byte // places of slot bytes
	sourceMR       *verbs.MR
	targetMR       *verbs.MR
	random         *rand.Rand
	posted, done   uint64
	lengths        [flowDepth]int
	last           time.Duration // of the last progress
	worst          time.Duration // the longest time without progress
}

const (
	flowDepth = 4
	slot      = 20 << 10
)

func (f *flow) place(b []byte, n uint64) []byte {
	at := int(n%flowDepth) * (slot + guardBytes)
	return b[at : at+slot+guardBytes]
}

// post posts the next message.
func (f *flow) post(t *testing.T) {
	length := f.random.IntN(slot + 1)
	f.lengths[f.posted%flowDepth] = length
	source := f.place(f.source, f.posted)
	for i := range source[:length] {
		source[i] = byte(f.posted)*7 + byte(i*31)
	}
	at := int(f.posted%flowDepth) * (slot + guardBytes)
	require.NoError(t, f.qp.PostSend(verbs.SendWR{
		WRID: f.posted, Opcode: verbs.WRRDMAWrite, Flags: verbs.SendSignaled, SGList: []verbs.SGE{f.sourceMR.SGE(at, length)},
		RemoteAddr: f.targetMR.Addr() + uint64(at), RKey: f.targetMR.RKey(),
	}))
	f.posted++
}

// completed checks the message that is done and posts another one.
func (f *flow) completed(t *testing.T, wc verbs.WC, now time.Duration) {
	require.Equal(t, verbs.WCSuccess, wc.Status, "%s", f.qp.Explain(wc))
	require.Equal(t, f.done, wc.WRID)
	length := f.lengths[f.done%flowDepth]
	target := f.place(f.target, f.done)
	require.True(t, bytes.Equal(f.place(f.source, f.done)[:length], target[:length]), "message %d of %d bytes", f.done, length)
	for _, b := range target[slot:] {
		require.Zero(t, b, "a guard")
	}
	f.done++
	f.worst = max(f.worst, now-f.last)
	f.last = now
	f.post(t)
}

// TestCase_B1: eight queue pairs WRITE for a long time while one packet of a hundred is lost both ways: none stalls,
// all data are right, and memory does not grow. The ACK timeout is 16.8 ms: six losses in a row stay below 100 ms.
func TestCase_B1(t *testing.T) {
	const queuePairs = 8
	duration, warmUp := 8*time.Second, time.Second
	if *fullSize {
		duration = 300 * time.Second
	}
	stage := puppet.NewStage(t, mem.Options{Seed: 1, Latency: 5 * time.Millisecond, Faults: mem.Faults{Drop: 0.01}})
	a, b := stage.NewEnd(puppet.EndOptions{}), stage.NewEnd(puppet.EndOptions{})
	flows := map[verbs.QPN]*flow{}
	for i := range queuePairs {
		near, far := a.NewQP(verbs.QPCap{}), b.NewQP(verbs.QPCap{})
		const all = flowDepth * (slot + guardBytes)
		f := &flow{qp: near, source: make([]byte, all), target: make([]byte, all), random: rand.New(rand.NewPCG(uint64(i), 1))}
		var err error
		f.sourceMR, err = a.PD.RegMR(f.source, puppet.AllAccess)
		require.NoError(t, err)
		a.Cleanup(f.sourceMR.Dereg)
		f.targetMR, err = b.PD.RegMR(f.target, puppet.AllAccess)
		require.NoError(t, err)
		b.Cleanup(f.targetMR.Dereg)
		for _, side := range []struct {
			own, peer *verbs.QP
			at        *verbs.Device
		}{{near, far, b.Device}, {far, near, a.Device}} {
			attr := puppet.Attributes()
			attr.DestQPN, attr.SQPSN, attr.RQPSN, attr.Timeout = side.peer.QPN(), 0xFFFF00, 0xFFFF00, 12
			attr.AH.DGID, err = side.at.QueryGID(0)
			require.NoError(t, err)
			puppet.Establish(t, side.own, attr)
		}
		flows[near.QPN()] = f
	}
	for _, f := range flows {
		f.last = stage.Now()
		for range flowDepth {
			f.post(t)
		}
	}
	run := func(d time.Duration) (heap uint64) {
		var wcs [32]verbs.WC
		stage.Run(d, func() bool {
			n, err := a.SendCQ.Poll(wcs[:])
			require.NoError(t, err)
			for _, wc := range wcs[:n] {
				flows[wc.QPN].completed(t, wc, stage.Now())
			}
			return false
		})
		var m runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	before := run(warmUp)
	after := run(duration)
	worst, total := time.Duration(0), uint64(0)
	for _, f := range flows {
		worst, total = max(worst, f.worst, stage.Now()-f.last), total+f.done
		require.Greater(t, f.done, uint64(100))
	}
	c := opener.Counters(a.Device).Transport
	t.Logf("%d messages in %v, longest time without progress %v, %d of %d packets sent again, %d timeouts; heap %d KiB, then %d KiB",
		total, duration, worst, c.Retransmitted, c.SentPackets, c.Timeouts, before>>10, after>>10)
	require.NotZero(t, c.Timeouts)
	require.Less(t, worst, 100*time.Millisecond)
	require.Less(t, after, before+1<<20, "bytes on the heap")
	support.Fault(t, "1 % of all packets lost, all the time", support.Outcome{Requester: "never 100 ms without progress"})
}

// TestCase_B19: messages of 1 MiB get through whatever is lost at random, up to one packet of a hundred, and also
// when ten packets in a row are; the goodput is told. At one packet of twenty nothing is promised but that the data
// are right or the failure is told.
func TestCase_B19(t *testing.T) {
	const message = 1 << 20
	type loss struct {
		name     string
		odds     float64
		burst    int
		promised bool
	}
	for _, l := range []loss{
		{"no loss", 0, 1, true}, {"0.01 %", 0.0001, 1, true}, {"0.1 %", 0.001, 1, true}, {"1 %", 0.01, 1, true},
		{"5 %", 0.05, 1, false}, {"bursts of 10, 0.1 %", 0.0001, 10, true}, {"bursts of 10, 1 %", 0.001, 10, true},
	} {
		for _, opcode := range []verbs.WROpcode{verbs.WRRDMAWrite, verbs.WRRDMARead} {
			t.Run(fmt.Sprintf("%s/%v", l.name, opcode), func(t *testing.T) {
				messages := 40
				if *fullSize {
					messages = 1000
				}
				random := rand.New(rand.NewPCG(19, 19))
				type burst struct {
					left int
					end  time.Duration
				}
				bursts := map[roce.QPN]*burst{} // by the QPN that the packets are for
				var stage *puppet.Stage
				stage = puppet.NewStage(t, mem.Options{Latency: 10 * time.Microsecond, Intercept: func(_ []byte, p *roce.Packet) mem.Verdict {
					if p == nil {
						return mem.Verdict{}
					}
					b := bursts[p.DestinationQPN]
					if b == nil {
						b = new(burst)
						bursts[p.DestinationQPN] = b
					}
					now := stage.Now()
					if (b.left == 0 || now > b.end) && random.Float64() < l.odds {
						*b = burst{l.burst, now + 100*time.Microsecond}
					}
					if b.left > 0 && now <= b.end {
						b.left--
						return mem.Verdict{Drop: true}
					}
					return mem.Verdict{}
				}})
				a := stage.NewEnd(puppet.EndOptions{Memory: message + 2*guardBytes})
				b := stage.NewEnd(puppet.EndOptions{Memory: message + 2*guardBytes})
				stage.Connect(a, b, func(attr *verbs.QPAttr) { attr.Timeout = 10 })
				start := stage.Now()
				for n := range messages {
					from, to := a, b
					if opcode == verbs.WRRDMARead {
						from, to = b, a
					}
					want := from.Bytes(guardBytes, message)
					want[n], want[message-1-n] = byte(n), byte(n+1)
					edges := append(bytes.Clone(to.Bytes(0, guardBytes)), to.Bytes(guardBytes+message, guardBytes)...)
					wr := a.Request(uint64(n), opcode, guardBytes, message)
					wr.RemoteAddr, wr.RKey = b.MR.Addr()+guardBytes, b.MR.RKey()
					a.Post(wr)
					wc := a.Sends(1)[0]
					if !l.promised && wc.Status == verbs.WCRetryExcErr {
						t.Logf("failed after %d messages: %s", n, a.QP.Explain(wc))
						return
					}
					require.Equal(t, verbs.WCSuccess, wc.Status, "%s", a.QP.Explain(wc))
					require.True(t, bytes.Equal(want, to.Bytes(guardBytes, message)))
					require.Equal(t, edges, append(bytes.Clone(to.Bytes(0, guardBytes)), to.Bytes(guardBytes+message, guardBytes)...))
				}
				seconds := (stage.Now() - start).Seconds()
				if l.promised {
					support.Fault(t, "loss at random: "+l.name, support.Outcome{Requester: verbs.WCSuccess})
				}
				ca, cb := opener.Counters(a.Device).Transport, opener.Counters(b.Device).Transport
				t.Logf("%.2f Gbit/s, %d recoveries, %d timeouts, %d and %d packets sent", float64(messages)*message*8/seconds/1e9,
					ca.Recoveries, ca.Timeouts, ca.SentPackets, cb.SentPackets)
			})
		}
	}
}
