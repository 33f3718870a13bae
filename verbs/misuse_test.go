package verbs_test

import (
	"context"
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/xroce/xroce/internal/support"
	"github.com/xroce/xroce/roce/link/mem"
	"github.com/xroce/xroce/roce/memory"
	"github.com/xroce/xroce/verbs"
)

// TestMisuse: nil, zero values and things of other devices are refused with an error, by methods that return one, and otherwise with a
// panic that says the same.
func TestMisuse(t *testing.T) {
	a, b := pair(t, mem.Options{})
	ctx := context.Background()
	var nothing context.Context
	window, err := a.pd.AllocMW(verbs.MWType1)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, window.Dealloc()) })
	second := func(_ any, err error) error { return err }
	// Methods without an error have nothing to say it with but a panic.
	panics := make(map[string]func())
	calls := map[string]func() error{
		"Wait without context": func() error { return a.sends.Wait(nothing) },
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
		calls[name+": CreateCQ"] = func() error { return second(d.CreateCQ(verbs.CQInitAttr{CQE: 1})) }
		calls[name+": QueryPort"] = func() error { return second(d.QueryPort()) }
		calls[name+": QueryGID"] = func() error { return second(d.QueryGID(0)) }
		calls[name+": QueryGIDTable"] = func() error { return second(d.QueryGIDTable()) }
		calls[name+": SteeringCounters"] = func() error { return second(d.SteeringCounters()) }
		calls[name+": CheckPathMTU"] = func() error { return d.CheckPathMTU(verbs.MTU256) }
		calls[name+": Close"] = func() error { return d.Close() }
		calls[name+": Snapshot"] = func() error { return second(d.Snapshot()) }
		calls[name+": GetAsyncEvent"] = func() error { return second(d.GetAsyncEvent(ctx)) }
		panics[name+": Name"] = func() { d.Name() }
		panics[name+": Information"] = func() { d.Information() }
		panics[name+": Counters"] = func() { d.Counters() }
		panics[name+": QueryDevice"] = func() { d.QueryDevice() }
		panics[name+": Clock"] = func() { d.Clock() }
		panics[name+": ControlSocket"] = func() { d.ControlSocket() }
		panics[name+": AsyncReady"] = func() { d.AsyncReady() }
		panics[name+": PollAsyncEvent"] = func() { d.PollAsyncEvent() }
	}
	for name, pd := range map[string]*verbs.PD{"nil PD": nil, "zero PD": {}} {
		calls[name+": RegMR"] = func() error { return second(pd.RegMR(make([]byte, 8), 0)) }
		calls[name+": CreateQP"] = func() error {
			return second(pd.CreateQP(verbs.QPInitAttr{SendCQ: a.sends, RecvCQ: a.recvs}))
		}
		calls[name+": Dealloc"] = func() error { return pd.Dealloc() }
		calls[name+": RegMRIOVA"] = func() error { return second(pd.RegMRIOVA(make([]byte, 8), 0, 0)) }
		calls[name+": AllocMR"] = func() error { return second(pd.AllocMR(8)) }
		calls[name+": AllocMW"] = func() error { return second(pd.AllocMW(verbs.MWType1)) }
		calls[name+": Rereg"] = func() error {
			if pd == nil {
				return verbs.ErrInvalid // a change without a PD changes none
			}
			return a.mr.Rereg(verbs.MRChange{PD: pd})
		}
	}
	for name, cq := range map[string]*verbs.CQ{"nil CQ": nil, "zero CQ": {}} {
		calls[name+": Poll"] = func() error { return second(cq.Poll(make([]verbs.WC, 1))) }
		calls[name+": Wait"] = func() error { return cq.Wait(ctx) }
		calls[name+": ReqNotify"] = func() error { return cq.ReqNotify(false) }
		calls[name+": Destroy"] = func() error { return cq.Destroy() }
		panics[name+": CQE"] = func() { cq.CQE() }
		panics[name+": Channel"] = func() { cq.Channel() }
	}
	for name, mr := range map[string]*verbs.MR{"nil MR": nil, "zero MR": {}} {
		calls[name+": Dereg"] = func() error { return mr.Dereg() }
		calls[name+": LoadUint64"] = func() error { return second(mr.LoadUint64(0)) }
		calls[name+": Rereg"] = func() error { return mr.Rereg(verbs.MRChange{}) }
		calls[name+": Map"] = func() error { return mr.Map(make([]byte, 8), 0) }
		calls[name+": UpdateKey"] = func() error { return mr.UpdateKey(1) }
		calls[name+": BindMW"] = func() error { return a.qp.BindMW(window, verbs.MWBind{MR: mr, Length: 1}) }
		panics[name+": RegWR"] = func() { mr.RegWR(allAccess) }
		panics[name+": InvalidateWR"] = func() { mr.InvalidateWR() }
		panics[name+": SGE"] = func() { mr.SGE(0, 8) }
		panics[name+": Remote"] = func() { mr.Remote() }
		panics[name+": Bytes"] = func() { mr.Bytes() }
	}
	for name, mw := range map[string]*verbs.MW{"nil MW": nil, "zero MW": {}} {
		calls[name+": Dealloc"] = func() error { return mw.Dealloc() }
		calls[name+": BindMW"] = func() error { return a.qp.BindMW(mw, verbs.MWBind{MR: a.mr, Length: 1}) }
		panics[name+": RKey"] = func() { mw.RKey() }
		panics[name+": Type"] = func() { mw.Type() }
	}
	for name, qp := range map[string]*verbs.QP{"nil QP": nil, "zero QP": {}} {
		calls[name+": PostSend"] = func() error { return qp.PostSend(verbs.SendWR{}) }
		calls[name+": PostRecv"] = func() error { return qp.PostRecv(verbs.RecvWR{}) }
		calls[name+": Modify"] = func() error { return qp.Modify(t.Context(), verbs.QPAttr{}, verbs.QPStateMask) }
		calls[name+": Endpoint"] = func() error { return second(qp.Endpoint(verbs.ConnectOptions{})) }
		calls[name+": Connect"] = func() error { return qp.Connect(ctx, verbs.Endpoint{}, verbs.ConnectOptions{}) }
		calls[name+": Destroy"] = func() error { return qp.Destroy() }
		calls[name+": BindMW"] = func() error { return qp.BindMW(window, verbs.MWBind{MR: a.mr, Length: 1}) }
		panics[name+": QPN"] = func() { qp.QPN() }
		panics[name+": State"] = func() { qp.State() }
		panics[name+": InitAttr"] = func() { qp.InitAttr() }
		panics[name+": Outstanding"] = func() { qp.Outstanding() }
		panics[name+": Cap"] = func() { qp.Cap() }
		panics[name+": Query"] = func() { qp.Query() }
		panics[name+": Failure"] = func() { qp.Failure() }
		require.Contains(t, qp.Explain(verbs.WC{}), "not made by CreateQP")
	}
	for name, call := range calls {
		require.NotPanics(t, func() { require.ErrorIs(t, call(), verbs.ErrInvalid, name) }, name)
	}
	for name, call := range panics {
		requirePanic(t, name, call)
	}
	// None of it has hurt what is right.
	require.NoError(t, a.qp.PostSend(write(a, b, verbs.SendSignaled)))
	require.Equal(t, verbs.WCSuccess, poll(t, a.sends).Status)
	support.Object(t, "all", "calls on nil, on zero values and with objects of other devices", verbs.ErrInvalid)
}

// requirePanic checks that a method of nil or of a zero value panics with an error that says so.
func requirePanic(t *testing.T, name string, call func()) {
	t.Helper()
	defer func() {
		err, _ := recover().(error)
		require.ErrorIs(t, err, verbs.ErrInvalid, name)
		require.ErrorContains(t, err, "nil, or not made by", name)
	}()
	call()
}

// TestMisuseOfKeys: what cannot be right with regions and windows is refused by the call, with the values that clash.
func TestMisuseOfKeys(t *testing.T) {
	a, b := partners(t)
	other, err := a.device.AllocPD()
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, other.Dealloc()) })
	fast, err := a.pd.AllocMR(100)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, fast.Dereg()) })
	closedMR, err := a.pd.RegMR(make([]byte, 8), everyAccess)
	require.NoError(t, err)
	require.NoError(t, closedMR.Dereg())
	closedFast, err := a.pd.AllocMR(8)
	require.NoError(t, err)
	require.NoError(t, closedFast.Dereg())
	closedMW, err := a.pd.AllocMW(verbs.MWType2)
	require.NoError(t, err)
	require.NoError(t, closedMW.Dealloc())
	closedPD, err := a.device.AllocPD()
	require.NoError(t, err)
	require.NoError(t, closedPD.Dealloc())
	window := func(pd *verbs.PD, kind verbs.MWType) *verbs.MW {
		w, err := pd.AllocMW(kind)
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, w.Dealloc()) })
		return w
	}
	w1, w2, foreign, sibling := window(a.pd, verbs.MWType1), window(a.pd, verbs.MWType2), window(b.pd, verbs.MWType1), window(other, verbs.MWType1)
	siblingMR, err := other.RegMR(make([]byte, 8), everyAccess)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, siblingMR.Dereg()) })
	second := func(_ any, err error) error { return err }
	bind := func(w *verbs.MW, mr *verbs.MR) func() error {
		return func() error {
			return a.qp.BindMW(w, verbs.MWBind{MR: mr, Addr: mr.Addr(), Length: 8, Access: verbs.AccessRemoteRead})
		}
	}
	access := func(bits verbs.AccessFlags) verbs.MRChange { return verbs.MRChange{Access: &bits} }
	top := uint64(math.MaxUint64 - 2)
	post := func(wr verbs.SendWR) func() error { return func() error { return a.qp.PostSend(wr) } }
	word := []verbs.SGE{a.mr.SGE(0, 8)}
	modify := func(attr verbs.QPAttr, mask verbs.QPAttrMask) func() error {
		return func() error { return a.qp.Modify(t.Context(), attr, mask) }
	}
	for name, c := range map[string]struct {
		call func() error
		want error
		says string
	}{
		"AllocMR of 0 bytes":       {func() error { return second(a.pd.AllocMR(0)) }, verbs.ErrInvalid, "0 bytes"},
		"AllocMR of -7 bytes":      {func() error { return second(a.pd.AllocMR(-7)) }, verbs.ErrInvalid, "-7 bytes"},
		"AllocMR, closed PD":       {func() error { return second(closedPD.AllocMR(8)) }, verbs.ErrClosed, "PD"},
		"AllocMW of no type":       {func() error { return second(a.pd.AllocMW(3)) }, verbs.ErrInvalid, "type 3"},
		"AllocMW, closed PD":       {func() error { return second(closedPD.AllocMW(verbs.MWType1)) }, verbs.ErrClosed, "PD"},
		"Map of nothing":           {func() error { return fast.Map(nil, 0) }, verbs.ErrEmptyBuffer, ""},
		"Map of too much":          {func() error { return fast.Map(make([]byte, 101), 0) }, memory.ErrLength, "101 bytes, at most 100"},
		"Map beyond the top":       {func() error { return fast.Map(make([]byte, 8), top) }, verbs.ErrAddress, "0xfffffffffffffffd"},
		"Map of a region":          {func() error { return a.mr.Map(make([]byte, 8), 0) }, verbs.ErrInvalid, "AllocMR"},
		"Map, closed":              {func() error { return closedFast.Map(make([]byte, 8), 0) }, verbs.ErrClosed, "MR"},
		"UpdateKey of a region":    {func() error { return a.mr.UpdateKey(1) }, verbs.ErrInvalid, "AllocMR"},
		"UpdateKey, closed":        {func() error { return closedFast.UpdateKey(1) }, verbs.ErrClosed, "MR"},
		"LoadUint64, never open":   {func() error { return second(fast.LoadUint64(0)) }, verbs.ErrInvalid, "not registered"},
		"LoadUint64, offset":       {func() error { return second(a.mr.LoadUint64(-8)) }, verbs.ErrInvalid, "-8"},
		"Rereg of a fast region":   {func() error { return fast.Rereg(access(allAccess)) }, verbs.ErrInvalid, "work requests"},
		"Rereg, closed":            {func() error { return closedMR.Rereg(verbs.MRChange{}) }, verbs.ErrClosed, "MR"},
		"Rereg, closed PD":         {func() error { return a.mr.Rereg(verbs.MRChange{PD: closedPD}) }, verbs.ErrClosed, "PD"},
		"Rereg, other device":      {func() error { return a.mr.Rereg(verbs.MRChange{PD: b.pd}) }, verbs.ErrInvalid, "another device"},
		"Rereg, unknown right":     {func() error { return a.mr.Rereg(access(0x400)) }, verbs.ErrAccessFlags, "0x400"},
		"Rereg, no local write":    {func() error { return a.mr.Rereg(access(verbs.AccessRemoteWrite)) }, verbs.ErrAccessFlags, "local write"},
		"Rereg, persistent":        {func() error { return a.mr.Rereg(access(verbs.AccessFlushPersistent)) }, verbs.ErrNotSupported, "persist"},
		"Rereg, address alone":     {func() error { return a.mr.Rereg(verbs.MRChange{IOVA: &top}) }, verbs.ErrInvalid, "buffer"},
		"Rereg, empty buffer":      {func() error { return a.mr.Rereg(verbs.MRChange{Buffer: []byte{}}) }, verbs.ErrEmptyBuffer, ""},
		"Rereg beyond the top":     {func() error { return a.mr.Rereg(verbs.MRChange{Buffer: make([]byte, 8), IOVA: &top}) }, verbs.ErrAddress, "0xfffffffffffffffd"},
		"BindMW, closed window":    {bind(closedMW, a.mr), verbs.ErrClosed, "MW"},
		"BindMW, closed region":    {bind(w1, closedMR), verbs.ErrClosed, "MR"},
		"BindMW, foreign window":   {bind(foreign, a.mr), verbs.ErrInvalid, "another device"},
		"BindMW, foreign region":   {bind(w1, b.mr), verbs.ErrInvalid, "another device"},
		"BindMW, other PD, window": {bind(sibling, a.mr), verbs.ErrInvalid, "another PD"},
		"BindMW, other PD, region": {bind(w2, siblingMR), verbs.ErrInvalid, "another PD"},
		"BindMW, flags":            {func() error { return a.qp.BindMW(w1, verbs.MWBind{Flags: 0x40}) }, verbs.ErrSendFlags, "0x40"},
		"BindMW, inline":           {func() error { return a.qp.BindMW(w1, verbs.MWBind{Flags: verbs.SendInline}) }, verbs.ErrInline, "inline"},
		"opcode":                   {post(verbs.SendWR{Opcode: 33}), verbs.ErrOpcode, "33"},
		"flags":                    {post(verbs.SendWR{Flags: 0x30}), verbs.ErrSendFlags, "0x30"},
		"atomic with 7 bytes":      {post(verbs.SendWR{Opcode: verbs.WRAtomicFetchAdd, SGList: []verbs.SGE{a.mr.SGE(0, 7)}}), verbs.ErrAtomic, "7 bytes"},
		"atomic at an odd address": {post(verbs.SendWR{Opcode: verbs.WRAtomicCmpAndSwp, SGList: word, RemoteAddr: 0x1234567}), verbs.ErrAtomic, "0x1234567"},
		"FLUSH of nothing":         {post(verbs.SendWR{Opcode: verbs.WRFlush, Flush: verbs.FlushRange{Placement: 9}}), verbs.ErrSendFlags, "placement 9"},
		"FLUSH too long": {
			post(verbs.SendWR{Opcode: verbs.WRFlush, Flush: verbs.FlushRange{Placement: 1, Length: 1<<31 + 1}}), verbs.ErrMessageTooLong, "2147483649",
		},
		"READ inline":        {post(verbs.SendWR{Opcode: verbs.WRRDMARead, Flags: verbs.SendInline}), verbs.ErrInline, "inline"},
		"too many elements":  {post(verbs.SendWR{SGList: make([]verbs.SGE, 5)}), verbs.ErrTooManySGEs, "5"},
		"bind with elements": {post(verbs.SendWR{Opcode: verbs.WRBindMW, SGList: word}), verbs.ErrTooManySGEs, "bind"},
		"SQD with a timeout": {modify(verbs.QPAttr{State: verbs.StateSQD, Timeout: 3}, verbs.QPStateMask|verbs.QPTimeout), verbs.ErrTransition, "TIMEOUT"},
		"timeout in RTS":     {modify(verbs.QPAttr{Timeout: 3}, verbs.QPTimeout), verbs.ErrTransition, "TIMEOUT"},
		"RTS to RTR":         {modify(verbs.QPAttr{State: verbs.StateRTR}, verbs.QPStateMask), verbs.ErrTransition, "RTS to RTR"},
		"unknown mask bit":   {modify(verbs.QPAttr{}, 1<<30), verbs.ErrTransition, "0x40000000"},
		"wrong CUR_STATE": {
			modify(verbs.QPAttr{State: verbs.StateRTS, CurState: verbs.StateSQD}, verbs.QPStateMask|verbs.QPCurState), verbs.ErrTransition, "SQD",
		},
		"access flags": {modify(verbs.QPAttr{AccessFlags: 1 << 19}, verbs.QPAccessFlags), verbs.ErrAttribute, "0x80000"},
		"RNR timer":    {modify(verbs.QPAttr{MinRNRTimer: 32}, verbs.QPMinRNRTimer), verbs.ErrAttribute, "32"},
	} {
		t.Run(name, func(t *testing.T) {
			key1, key2 := w1.RKey(), w2.RKey()
			require.NotPanics(t, func() {
				err := c.call()
				require.ErrorIs(t, err, c.want)
				require.ErrorContains(t, err, c.says)
			})
			support.Object(t, "misuse", name, c.want)
			require.Equal(t, key1, w1.RKey())
			require.Equal(t, key2, w2.RKey())
			require.Equal(t, verbs.StateRTS, a.qp.State())
		})
	}
	// SQD takes attributes only once it is there, and RTS from it.
	require.NoError(t, a.qp.Modify(t.Context(), verbs.QPAttr{State: verbs.StateSQD}, verbs.QPStateMask))
	require.ErrorContains(t, a.qp.Modify(t.Context(), verbs.QPAttr{MaxRDAtomic: 129}, verbs.QPMaxQPRDAtomic), "129")
	require.ErrorContains(t, a.qp.Modify(t.Context(), verbs.QPAttr{Timeout: 32}, verbs.QPTimeout), "32")
	require.ErrorIs(t, a.qp.Modify(t.Context(), verbs.QPAttr{PathMTU: verbs.MTU256}, verbs.QPPathMTU), verbs.ErrTransition)
	require.ErrorIs(t, a.qp.Modify(t.Context(), verbs.QPAttr{AH: verbs.AHAttr{SGIDIndex: 99}}, verbs.QPAV), verbs.ErrNoGID)
	require.NoError(t, a.qp.Modify(t.Context(), verbs.QPAttr{State: verbs.StateRTS}, verbs.QPStateMask))
	// None of it has hurt what is right.
	require.Equal(t, verbs.WCSuccess, a.do(t, write(a, b, 0)).Status)
	require.NoError(t, bind(w1, a.mr)())
	require.NoError(t, a.qp.BindMW(w1, verbs.MWBind{Flags: verbs.SendSignaled})) // type 1 is unbound without a region
	require.Equal(t, verbs.WCSuccess, poll(t, a.sends).Status)
}
