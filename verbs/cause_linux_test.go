package verbs_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/xroce/xroce/verbs"
)

// TestCauseIsTold: why memory could not be accessed is known at the end where it lies, and told there: by the
// completion or QP.Failure, the event, and Explain. The other end is told that it may be so.
func TestCauseIsTold(t *testing.T) {
	const inaccessible = "is registered, but its memory cannot be accessed"
	remote := func(op verbs.WROpcode) func(a, b *end, mr *verbs.MR, page int) verbs.SendWR {
		return func(a, _ *end, mr *verbs.MR, page int) verbs.SendWR {
			return verbs.SendWR{Opcode: op, SGList: []verbs.SGE{a.mr.SGE(0, 8)}, RemoteAddr: mr.Addr() + uint64(page), RKey: mr.RKey()}
		}
	}
	wrong := func(spoil func(wr *verbs.SendWR, b *end)) func(a, b *end, mr *verbs.MR, page int) verbs.SendWR {
		return func(a, b *end, _ *verbs.MR, _ int) verbs.SendWR {
			wr := write(a, b, 0)
			spoil(&wr, b)
			return wr
		}
	}
	for name, c := range map[string]struct {
		request func(a, b *end, mr *verbs.MR, page int) verbs.SendWR
		fault   verbs.AccessFault
		event   verbs.EventType // 0 if a receive completes with the failure
		text    string
	}{
		"WRITE":         {remote(verbs.WRRDMAWrite), verbs.FaultBuffer, verbs.EventQPAccessErr, inaccessible},
		"WRITE imm":     {remote(verbs.WRRDMAWriteWithImm), verbs.FaultBuffer, 0, inaccessible},
		"READ":          {remote(verbs.WRRDMARead), verbs.FaultBuffer, verbs.EventQPAccessErr, inaccessible},
		"fetch-and-add": {remote(verbs.WRAtomicFetchAdd), verbs.FaultBuffer, verbs.EventQPAccessErr, inaccessible},
		"atomic write":  {remote(verbs.WRAtomicWrite), verbs.FaultBuffer, verbs.EventQPAccessErr, inaccessible},
		"SEND":          {remote(verbs.WRSend), verbs.FaultBuffer, 0, "an SGE named " + inaccessible},
		"key": {wrong(func(wr *verbs.SendWR, _ *end) { wr.RKey ^= 1 }), verbs.FaultKey, verbs.EventQPAccessErr,
			"no region or window here has the key"},
		"bounds": {wrong(func(wr *verbs.SendWR, _ *end) { wr.RemoteAddr += 4096 }), verbs.FaultBounds, verbs.EventQPAccessErr,
			"is not within the region"},
		"right": {wrong(func(wr *verbs.SendWR, b *end) {
			rights := verbs.AccessLocalWrite | verbs.AccessRemoteRead
			if err := b.mr.Rereg(verbs.MRChange{Access: &rights}); err != nil {
				panic(err)
			}
		}), verbs.FaultAccess, verbs.EventQPAccessErr, "does not grant the right"},
		"invalidate": {wrong(func(wr *verbs.SendWR, _ *end) {
			wr.Opcode, wr.InvalidateRKey = verbs.WRSendWithInv, 0x100
		}), verbs.FaultKey, 0, "no region or window here has the key"},
	} {
		t.Run(name, func(t *testing.T) {
			a, b := partners(t)
			buffer, page := truncated(t)
			mr, err := b.pd.RegMR(buffer, everyAccess)
			require.NoError(t, err)
			t.Cleanup(func() { require.NoError(t, mr.Dereg()) })
			require.NoError(t, b.qp.PostRecv(verbs.RecvWR{SGList: []verbs.SGE{mr.SGE(page-4, 8)}}))
			wr := c.request(a, b, mr, page)
			if wr.Opcode == verbs.WRSendWithInv {
				wr.SGList = nil
			}
			wr.Flags = verbs.SendSignaled
			sent := a.do(t, wr)
			failed := b.qp.Failure()
			require.Equal(t, c.fault, verbs.AccessFault(failed.VendorErr))
			require.Contains(t, b.qp.Explain(failed), c.text)
			if c.event == 0 {
				wc := poll(t, b.recvs)
				require.Equal(t, c.fault, verbs.AccessFault(wc.VendorErr))
				require.Contains(t, b.qp.Explain(wc), c.text)
			} else {
				e := nextEvent(t, b.device)
				require.Equal(t, verbs.AsyncEvent{Type: c.event, QP: b.qp, Fault: c.fault}, e)
				require.Contains(t, e.String(), ": "+c.fault.String())
			}
			snapshot, err := b.device.Snapshot()
			require.NoError(t, err)
			require.Contains(t, snapshot.QPs[0].Failure, ": "+c.fault.String())
			require.Zero(t, sent.VendorErr, "only the peer knows")
			if sent.Status == verbs.WCRemAccessErr {
				require.Contains(t, a.qp.Explain(sent), "or its memory cannot be accessed")
			}
		})
	}
}

// TestCauseOfOwnRequests: the same for the memory that an end's own requests name. What was flushed behind them has no
// cause of its own.
func TestCauseOfOwnRequests(t *testing.T) {
	for name, op := range map[string]verbs.WROpcode{
		"SEND": verbs.WRSend, "WRITE": verbs.WRRDMAWrite, "READ": verbs.WRRDMARead, "fetch-and-add": verbs.WRAtomicFetchAdd,
	} {
		t.Run(name, func(t *testing.T) {
			a, b := partners(t)
			buffer, page := truncated(t)
			mr, err := a.pd.RegMR(buffer, everyAccess)
			require.NoError(t, err)
			t.Cleanup(func() { require.NoError(t, mr.Dereg()) })
			require.NoError(t, b.qp.PostRecv(verbs.RecvWR{SGList: []verbs.SGE{b.mr.SGE(0, 8)}}))
			bad := write(a, b, verbs.SendSignaled)
			bad.Opcode, bad.SGList = op, []verbs.SGE{mr.SGE(page, 8)}
			beyond := bad
			beyond.SGList = []verbs.SGE{mr.SGE(2*page, 8)}
			require.NoError(t, a.qp.PostSend(bad, beyond))
			first, second := poll(t, a.sends), poll(t, a.sends)
			require.Equal(t, verbs.WCLocProtErr, first.Status)
			require.Equal(t, verbs.FaultBuffer, verbs.AccessFault(first.VendorErr))
			require.Contains(t, a.qp.Explain(first), "the region that an SGE named is registered, but its memory cannot be accessed")
			require.Equal(t, first.VendorErr, a.qp.Failure().VendorErr)
			require.Equal(t, verbs.WCWRFlushErr, second.Status)
			require.Zero(t, second.VendorErr)
		})
	}
}
