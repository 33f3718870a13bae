package verbs_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/xroce/xroce/internal/support"
	"github.com/xroce/xroce/roce/link/mem"
	"github.com/xroce/xroce/verbs"
)

// TestMisuse: nil, zero values and things of other devices are refused with an error, never with a panic.
func TestMisuse(t *testing.T) {
	a, b := pair(t, mem.Options{})
	ctx := context.Background()
	var nothing context.Context
	second := func(_ any, err error) error { return err }
	calls := map[string]func() error{
		"NewDevice without link": func() error { return second(verbs.NewDevice(nil, verbs.EngineOptions{})) },
		"Wait without context":   func() error { return a.sends.Wait(nothing) },
		"Connect without context": func() error {
			return a.qp.Connect(nothing, verbs.Endpoint{}, verbs.ConnectOptions{})
		},
		"Connect to nowhere":   func() error { return a.qp.Connect(ctx, verbs.Endpoint{}, verbs.ConnectOptions{}) },
		"QP without CQs":       func() error { return second(a.pd.CreateQP(verbs.QPInitAttr{})) },
		"CQs of other devices": func() error { return second(a.pd.CreateQP(verbs.QPInitAttr{SendCQ: b.sends, RecvCQ: b.recvs})) },
		"CQ with zero value":   func() error { return second(a.pd.CreateQP(verbs.QPInitAttr{SendCQ: new(verbs.CQ), RecvCQ: a.recvs})) },
	}
	for name, d := range map[string]*verbs.Device{"nil device": nil, "zero device": {}} {
		calls[name+": AllocPD"] = func() error { return second(d.AllocPD()) }
		calls[name+": CreateCQ"] = func() error { return second(d.CreateCQ(1)) }
		calls[name+": QueryPort"] = func() error { return second(d.QueryPort()) }
		calls[name+": QueryGID"] = func() error { return second(d.QueryGID(0)) }
		calls[name+": QueryGIDTable"] = func() error { return second(d.QueryGIDTable()) }
		calls[name+": CheckPathMTU"] = func() error { return d.CheckPathMTU(verbs.MTU256) }
		calls[name+": Close"] = func() error { return d.Close() }
	}
	for name, pd := range map[string]*verbs.PD{"nil PD": nil, "zero PD": {}} {
		calls[name+": RegMR"] = func() error { return second(pd.RegMR(make([]byte, 8), 0)) }
		calls[name+": CreateQP"] = func() error {
			return second(pd.CreateQP(verbs.QPInitAttr{SendCQ: a.sends, RecvCQ: a.recvs}))
		}
		calls[name+": Dealloc"] = func() error { return pd.Dealloc() }
	}
	for name, cq := range map[string]*verbs.CQ{"nil CQ": nil, "zero CQ": {}} {
		calls[name+": Poll"] = func() error { return second(cq.Poll(make([]verbs.WC, 1))) }
		calls[name+": Wait"] = func() error { return cq.Wait(ctx) }
		calls[name+": Destroy"] = func() error { return cq.Destroy() }
		require.Zero(t, cq.CQE())
	}
	for name, mr := range map[string]*verbs.MR{"nil MR": nil, "zero MR": {}} {
		calls[name+": Dereg"] = func() error { return mr.Dereg() }
		calls[name+": LoadUint64"] = func() error { return second(mr.LoadUint64(0)) }
		require.Equal(t, verbs.SGE{Length: 8}, mr.SGE(0, 8))
		require.Equal(t, verbs.RemoteMemory{}, mr.Remote())
	}
	for name, qp := range map[string]*verbs.QP{"nil QP": nil, "zero QP": {}} {
		calls[name+": PostSend"] = func() error { return qp.PostSend(verbs.SendWR{}) }
		calls[name+": PostRecv"] = func() error { return qp.PostRecv(verbs.RecvWR{}) }
		calls[name+": ModifyQP"] = func() error { return qp.ModifyQP(verbs.QPAttr{}, verbs.QPStateMask) }
		calls[name+": Endpoint"] = func() error { return second(qp.Endpoint(verbs.ConnectOptions{})) }
		calls[name+": Connect"] = func() error { return qp.Connect(ctx, verbs.Endpoint{}, verbs.ConnectOptions{}) }
		calls[name+": Destroy"] = func() error { return qp.Destroy() }
		require.Zero(t, qp.QPN())
		require.Zero(t, qp.Outstanding())
		require.Equal(t, verbs.QPCap{}, qp.Cap())
		require.Equal(t, verbs.QPAttr{}, qp.QueryQP())
		require.Contains(t, qp.Explain(verbs.WC{}), "not made by CreateQP")
		require.Equal(t, verbs.WC{}, qp.Failure())
	}
	for name, call := range calls {
		require.NotPanics(t, func() { require.ErrorIs(t, call(), verbs.ErrInvalid, name) }, name)
	}
	// None of it has hurt what is right.
	require.NoError(t, a.qp.PostSend(write(a, b, verbs.SendSignaled)))
	require.Equal(t, verbs.WCSuccess, poll(t, a.sends).Status)
	support.Object(t, "all", "calls on nil, on zero values and with objects of other devices", verbs.ErrInvalid)
}
