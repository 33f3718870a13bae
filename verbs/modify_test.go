package verbs_test

import (
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/xroce/xroce/internal/support"
	"github.com/xroce/xroce/roce/link/mem"
	"github.com/xroce/xroce/verbs"
)

// toRTS brings a queue pair from RESET to RTS by the three transitions.
func toRTS(q *verbs.QP, gid verbs.GID, remote verbs.QPN, local, expected verbs.PSN) error {
	attr := verbs.QPAttr{
		PortNum: 1, AccessFlags: verbs.AccessRemoteRead | verbs.AccessRemoteWrite, PathMTU: verbs.MTU1024,
		DestQPN: remote, RQPSN: expected, SQPSN: local, AH: verbs.AHAttr{DGID: gid},
		MaxDestRDAtomic: 4, MaxRDAtomic: 4, MinRNRTimer: 12, Timeout: 14, RetryCnt: 7, RNRRetry: 7,
	}
	return toRTSWith(q, attr)
}

// TestModifyRace: several goroutines change one queue pair, which moves between shards; the race detector looks on.
func TestModifyRace(t *testing.T) {
	da, db := memDevices(t, mem.Options{}, mem.DeviceOptions{Queues: 3})
	a, b := newEnd(t, da, make([]byte, 64), verbs.QPCap{}), newEnd(t, db, make([]byte, 64), verbs.QPCap{})
	gid, err := b.device.QueryGID(0)
	require.NoError(t, err)
	end := time.Now().Add(time.Second)
	var g sync.WaitGroup
	for i := range 3 {
		g.Go(func() {
			r := rand.New(rand.NewPCG(uint64(i), 1))
			for time.Now().Before(end) {
				switch r.IntN(4) {
				case 0:
					_ = a.qp.Modify(t.Context(), verbs.QPAttr{State: verbs.StateError}, verbs.QPStateMask)
				case 1:
					_ = a.qp.Modify(t.Context(), verbs.QPAttr{State: verbs.StateReset}, verbs.QPStateMask)
				default:
					_ = toRTS(a.qp, gid, b.qp.QPN()+verbs.QPN(r.IntN(3)), 0, 0) // another home
				}
			}
		})
	}
	g.Wait()
	require.NoError(t, a.qp.Modify(t.Context(), verbs.QPAttr{State: verbs.StateReset}, verbs.QPStateMask))
	require.NoError(t, toRTS(a.qp, gid, b.qp.QPN(), 0, 0))
	require.Equal(t, verbs.StateRTS, a.qp.State())
	support.Object(t, "QP", "Modify by several goroutines", "it works afterwards")
}

// TestPSNOfEveryLife: a queue pair starts each life with another PSN, also for programs that take it from the
// Endpoint and make the transitions themselves.
func TestPSNOfEveryLife(t *testing.T) {
	a, b := pair(t, mem.Options{})
	gid, err := b.device.QueryGID(0)
	require.NoError(t, err)
	seen := map[verbs.PSN]bool{}
	for range 3 {
		require.NoError(t, a.qp.Modify(t.Context(), verbs.QPAttr{State: verbs.StateReset}, verbs.QPStateMask))
		local, err := a.qp.Endpoint(verbs.ConnectOptions{})
		require.NoError(t, err)
		require.NoError(t, toRTS(a.qp, gid, b.qp.QPN(), local.PSN, 7))
		again, err := a.qp.Endpoint(verbs.ConnectOptions{})
		require.NoError(t, err)
		require.Equal(t, local.PSN, again.PSN)
		seen[local.PSN] = true
	}
	require.Len(t, seen, 3)
	support.Object(t, "QP", "first PSN after RESET, by Endpoint", "another one")
}

// TestQuery: everything that was set can be asked for.
func TestQuery(t *testing.T) {
	a, b := memDevices(t, mem.Options{}, mem.DeviceOptions{})
	ea, eb := newEnd(t, a, make([]byte, 64), verbs.QPCap{}), newEnd(t, b, make([]byte, 64), verbs.QPCap{})
	init := verbs.QPInitAttr{
		SendCQ: ea.sends, RecvCQ: ea.recvs, QPType: verbs.QPTRC, SQSigAll: true,
		Cap: verbs.QPCap{MaxSendWR: 3, MaxRecvWR: 4, MaxSendSGE: 5, MaxRecvSGE: 6, MaxInline: 7},
	}
	q := newQP(t, ea.pd, init)
	require.Equal(t, init, q.InitAttr())
	gid, err := b.QueryGID(0)
	require.NoError(t, err)
	require.Equal(t, verbs.QPAttr{}, q.Query())
	want := verbs.QPAttr{
		State: verbs.StateInit, CurState: verbs.StateInit, PortNum: 1,
		AccessFlags: verbs.AccessRemoteAtomic | verbs.AccessFlushGlobal,
	}
	require.NoError(t, q.Modify(t.Context(), want, verbs.QPStateMask|verbs.QPPKeyIndex|verbs.QPPort|verbs.QPAccessFlags))
	require.Equal(t, want, q.Query())

	want.State, want.CurState = verbs.StateRTR, verbs.StateRTR
	want.AH = verbs.AHAttr{DGID: gid, SGIDIndex: 0, TrafficClass: 0x68, FlowLabel: 0x12345}
	want.PathMTU, want.DestQPN, want.RQPSN, want.MaxDestRDAtomic, want.MinRNRTimer = verbs.MTU512, eb.qp.QPN(), 0xABCDEF, 9, 31
	require.NoError(t, q.Modify(t.Context(), want, verbs.QPStateMask|verbs.QPAV|verbs.QPPathMTU|verbs.QPDestQPN|verbs.QPRQPSN|
		verbs.QPMaxDestRDAtomic|verbs.QPMinRNRTimer))
	require.Equal(t, want, q.Query())

	want.State, want.CurState = verbs.StateRTS, verbs.StateRTS
	want.SQPSN, want.Timeout, want.RetryCnt, want.RNRRetry, want.MaxRDAtomic = 0x123456, 31, 6, 5, 128
	require.NoError(t, q.Modify(t.Context(), want, verbs.QPStateMask|verbs.QPSQPSN|verbs.QPTimeout|verbs.QPRetryCnt|verbs.QPRNRRetry|
		verbs.QPMaxQPRDAtomic))
	require.Equal(t, want, q.Query())

	want.AccessFlags, want.MinRNRTimer = verbs.AccessRemoteRead, 1
	require.NoError(t, q.Modify(t.Context(), want, verbs.QPAccessFlags|verbs.QPMinRNRTimer))
	require.Equal(t, want, q.Query())

	want.State, want.CurState, want.EnSQDAsyncNotify = verbs.StateSQD, verbs.StateSQD, true
	require.NoError(t, q.Modify(t.Context(), want, verbs.QPStateMask|verbs.QPEnSQDNotify))
	require.Equal(t, want, q.Query())
	want.Timeout, want.RetryCnt, want.RNRRetry, want.MaxRDAtomic, want.MaxDestRDAtomic, want.AH.TrafficClass = 1, 2, 3, 4, 5, 6
	require.NoError(t, q.Modify(t.Context(), want, verbs.QPTimeout|verbs.QPRetryCnt|verbs.QPRNRRetry|verbs.QPMaxQPRDAtomic|
		verbs.QPMaxDestRDAtomic|verbs.QPAV))
	require.Equal(t, want, q.Query())
	event, found := a.PollAsyncEvent()
	require.True(t, found)
	require.Equal(t, verbs.EventSQDrained, event.Type)
	require.Same(t, q, event.QP)
	support.Object(t, "Event", event.Type.String(), nil)
	support.Object(t, "QP", "Query in every state up to SQD", "what was set")
}
