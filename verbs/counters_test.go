package verbs_test

import (
	"runtime"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/xroce/xroce/internal/opener"
	"github.com/xroce/xroce/verbs"
)

// TestCase_G5_CountersAgree: without loss, what one end has sent is what the other one has received, by opcode, and the
// counts of the queue pair, of its shard and of the device are the same.
func TestCase_G5_CountersAgree(t *testing.T) {
	a, b := partnersAt(t, verbs.MTU1024)
	for range 4 {
		require.NoError(t, b.qp.PostRecv(verbs.RecvWR{SGList: []verbs.SGE{b.mr.SGE(0, 4096)}}))
	}
	for _, wr := range []verbs.SendWR{
		{Opcode: verbs.WRRDMAWrite, SGList: []verbs.SGE{a.mr.SGE(0, 4096)}},
		{Opcode: verbs.WRRDMAWrite, SGList: []verbs.SGE{a.mr.SGE(0, 5)}},
		{Opcode: verbs.WRRDMAWriteWithImm, SGList: []verbs.SGE{a.mr.SGE(0, 3000)}},
		{Opcode: verbs.WRRDMARead, SGList: []verbs.SGE{a.mr.SGE(0, 4000)}},
		{Opcode: verbs.WRSend, SGList: []verbs.SGE{a.mr.SGE(0, 4096)}},
		{Opcode: verbs.WRSendWithImm, SGList: []verbs.SGE{a.mr.SGE(0, 8)}},
		{Opcode: verbs.WRAtomicFetchAdd, SGList: []verbs.SGE{a.mr.SGE(8, 8)}},
		{Opcode: verbs.WRFlush, Flush: verbs.FlushRange{Length: 8, Placement: verbs.FlushPlacementGlobal}},
	} {
		wr.RemoteAddr, wr.RKey = b.mr.Addr(), b.mr.RKey()
		wc := a.do(t, wr)
		require.Equal(t, verbs.WCSuccess, wc.Status, "%v: %s", wr.Opcode, a.qp.Explain(wc))
	}
	ca, cb := counters(a), counters(b)
	// An acknowledgement that nobody waits for may still be on its way.
	require.Eventually(t, func() bool { return ca().Transport.ReceivedPackets == cb().Transport.SentPackets }, patience, tick)
	sent := ca().Transport.Sent()
	require.Equal(t, map[string]uint64{
		"RC_RDMA_WRITE_FIRST": 2, "RC_RDMA_WRITE_MIDDLE": 3, "RC_RDMA_WRITE_LAST": 1, "RC_RDMA_WRITE_ONLY": 1,
		"RC_RDMA_WRITE_LAST_WITH_IMMEDIATE": 1, "RC_RDMA_READ_REQUEST": 1,
		"RC_SEND_FIRST": 1, "RC_SEND_MIDDLE": 2, "RC_SEND_LAST": 1, "RC_SEND_ONLY_WITH_IMMEDIATE": 1,
		"RC_FETCH_ADD": 1, "RC_FLUSH": 1,
	}, sent)
	require.Equal(t, sent, cb().Transport.Received())
	answers := cb().Transport.Sent()
	require.Equal(t, answers, ca().Transport.Received())
	require.NotZero(t, answers["RC_ACKNOWLEDGE"])
	require.EqualValues(t, 1, answers["RC_RDMA_READ_RESPONSE_FIRST"])
	require.EqualValues(t, 2, answers["RC_RDMA_READ_RESPONSE_MIDDLE"])
	require.EqualValues(t, 2, answers["RC_RDMA_READ_RESPONSE_ONLY"]+answers["RC_ATOMIC_ACKNOWLEDGE"])
	for _, pair := range [][2]*opener.EngineCounters{{ca(), cb()}, {cb(), ca()}} {
		require.Equal(t, pair[0].Transport.SentPackets, pair[1].Transport.ReceivedPackets)
		require.Equal(t, pair[0].Transport.SentBytes, pair[1].Transport.ReceivedBytes)
		require.Equal(t, pair[0].Link.Transmitted, pair[1].Link.Received)
		require.Equal(t, pair[0].Transport.SentPackets, pair[0].Link.Transmitted)
		require.Equal(t, sum(pair[0].Transport.Sent()), pair[0].Transport.SentPackets)
		require.Empty(t, pair[0].DropReasons())
	}

	for _, e := range []*end{a, b} {
		s, err := e.device.Snapshot()
		require.NoError(t, err)
		require.Len(t, s.QPs, 1)
		require.Equal(t, s.Counters, s.QPs[0].Counters)
		require.Len(t, s.Shards, 1)
		require.Equal(t, s.Counters, s.Shards[0].Counters)
		require.Equal(t, s.Link, s.Shards[0].Link)
	}
}

// counters returns the counters of an end's device, each time as they are then.
func counters(e *end) func() *opener.EngineCounters {
	return func() *opener.EngineCounters { c := opener.Counters(e.device); return &c }
}

func sum(m map[string]uint64) (n uint64) {
	for _, v := range m {
		n += v
	}
	return n
}

func TestSnapshot(t *testing.T) {
	a, b := partnersAt(t, verbs.MTU1024)
	srq, err := a.pd.CreateSRQ(verbs.SRQInitAttr{MaxWR: 10, SRQLimit: 3})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, srq.Destroy()) })
	require.NoError(t, srq.PostRecv(verbs.RecvWR{WRID: 1}, verbs.RecvWR{WRID: 2}, verbs.RecvWR{WRID: 3}, verbs.RecvWR{WRID: 4}))
	wr := verbs.SendWR{
		Opcode: verbs.WRRDMAWrite, SGList: []verbs.SGE{a.mr.SGE(0, 3000)}, RemoteAddr: b.mr.Addr(), RKey: b.mr.RKey(),
	}
	require.Equal(t, verbs.WCSuccess, a.do(t, wr).Status)

	attr := a.qp.Query()
	s, err := a.device.Snapshot()
	require.NoError(t, err)
	require.Equal(t, verbs.SnapshotFormat, s.Format)
	require.Equal(t, a.device.Name(), s.Device.Name)
	require.Equal(t, "memory", s.Device.Rung)
	require.Equal(t, "active", s.Device.State)
	gids, err := a.device.QueryGIDTable()
	require.NoError(t, err)
	require.Len(t, s.Device.GIDs, len(gids))
	require.Equal(t, gids[0].String(), s.Device.GIDs[0])
	require.Empty(t, s.Steering)
	require.Equal(t, [4]int{1, 2, 1, 1}, [4]int{s.Device.QPs, s.Device.CQs, s.Device.SRQs, s.Device.Keys})
	q := s.QPs[0]
	require.Equal(t, a.qp.QPN(), q.QPN)
	require.Equal(t, "RTS", q.State)
	require.Equal(t, b.qp.QPN(), q.PeerQPN)
	require.Equal(t, attr.AH.DGID.String(), q.PeerGID)
	require.Equal(t, 1024, q.PathMTU)
	require.Equal(t, attr.SQPSN.Add(3), q.NextPSN)
	require.Equal(t, q.NextPSN, q.UnacknowledgedPSN)
	require.Equal(t, q.NextPSN, q.SendPSN)
	require.Equal(t, attr.RQPSN, q.ExpectedPSN)
	require.Zero(t, q.InFlight)
	require.EqualValues(t, 35, q.Window, "three packets more than the initial window")
	require.Equal(t, "ACK", q.LastSyndrome)
	require.Empty(t, q.Failure)
	require.Greater(t, q.RoundTrip, 0.0)
	require.Less(t, q.RoundTrip, patience.Seconds())
	require.Len(t, s.CQs, 2)
	require.Equal(t, s.CQs[0].ID, q.SendCQ)
	require.Equal(t, 1024, s.CQs[0].Capacity)
	require.Equal(t, 1, s.CQs[0].QPs)
	require.Zero(t, s.CQs[0].Waiting)
	require.Len(t, s.SRQs, 1)
	require.Equal(t, 4, s.SRQs[0].Posted)
	require.Equal(t, 3, s.SRQs[0].Limit)
	require.Zero(t, q.SRQ)
	require.Len(t, s.MRs, 1)
	require.Equal(t, a.mr.RKey(), s.MRs[0].Key)
	require.Equal(t, a.mr.Addr(), s.MRs[0].Address)
	require.EqualValues(t, 4096, s.MRs[0].Length)

	peer, err := b.device.Snapshot()
	require.NoError(t, err)
	require.Equal(t, q.NextPSN, peer.QPs[0].ExpectedPSN)
	require.EqualValues(t, 1, peer.QPs[0].MSN)
	require.Empty(t, peer.QPs[0].LastSyndrome, "it has sent nothing")

	wr.RKey ^= 0x5500
	require.Equal(t, verbs.WCRemAccessErr, a.do(t, wr).Status)
	s, err = a.device.Snapshot()
	require.NoError(t, err)
	require.Equal(t, "ERR", s.QPs[0].State)
	require.Equal(t, "NAK remote access error", s.QPs[0].LastSyndrome)
	require.Equal(t, verbs.WCRemAccessErr.String(), s.QPs[0].Failure)
}

// TestSnapshotUnderLoad reads snapshots all the time while data move, queue pairs come and go, and the device is closed
// in the end: for the race detector, and to see that nothing stalls.
func TestSnapshotUnderLoad(t *testing.T) {
	a, b := connected(t, verbs.ConnectOptions{})
	var stop atomic.Bool
	var readers sync.WaitGroup
	var snapshots atomic.Uint64
	for _, e := range []*end{a, b} {
		readers.Go(func() {
			for last := uint64(0); !stop.Load(); runtime.Gosched() {
				s, err := e.device.Snapshot()
				if err != nil || s.Counters.Counts["sent_pkts"] < last {
					t.Errorf("%v; sent_pkts %d after %d", err, s.Counters.Counts["sent_pkts"], last)
					return
				}
				last = s.Counters.Counts["sent_pkts"]
				snapshots.Add(1)
			}
		})
	}
	for i := range 100 {
		require.Equal(t, verbs.WCSuccess, writeAll(t, a, b, 100_000))
		if i%10 == 0 {
			qp, err := a.pd.CreateQP(verbs.QPInitAttr{SendCQ: a.sends, RecvCQ: a.recvs})
			require.NoError(t, err)
			require.NoError(t, qp.Destroy())
		}
	}
	stop.Store(true)
	readers.Wait()
	require.NotZero(t, snapshots.Load())
	require.EqualValues(t, 100*25, opener.Counters(a.device).Transport.SentPackets-opener.Counters(a.device).Transport.Retransmitted)
}
