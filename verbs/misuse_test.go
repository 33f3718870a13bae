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

// TestMisuse: nil, zero values and things of other devices are refused with an error, by methods that return one, and
// otherwise with a panic that says the same.
func TestMisuse(t *testing.T) {
	a, b := pair(t, mem.Options{})
	window, err := a.pd.AllocMW(verbs.MWType1)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, window.Dealloc()) })
	m := misuse{ctx: context.Background(), a: a, window: window, panics: make(map[string]func())}
	var nothing context.Context
	m.calls = map[string]func() error{
		"Wait without context": func() error { return a.sends.Wait(nothing) },
		"Connect without context": func() error {
			return a.qp.Connect(nothing, verbs.Endpoint{}, verbs.ConnectOptions{})
		},
		"Connect to nowhere":   func() error { return a.qp.Connect(m.ctx, verbs.Endpoint{}, verbs.ConnectOptions{}) },
		"QP without CQs":       func() error { return second(a.pd.CreateQP(verbs.QPInitAttr{})) },
		"CQs of other devices": func() error { return second(a.pd.CreateQP(verbs.QPInitAttr{SendCQ: b.sends, RecvCQ: b.recvs})) },
		"CQ with zero value":   func() error { return second(a.pd.CreateQP(verbs.QPInitAttr{SendCQ: new(verbs.CQ), RecvCQ: a.recvs})) },
	}
	m.onDevices()
	m.onPDs()
	m.onCQs()
	m.onRegions()
	m.onQPs(t)
	for name, call := range m.calls {
		require.NotPanics(t, func() { require.ErrorIs(t, call(), verbs.ErrInvalid, name) }, name)
	}
	for name, call := range m.panics {
		requirePanic(t, name, call)
	}
	// None of it has hurt what is right.
	require.NoError(t, a.qp.PostSend(write(a, b, verbs.SendSignaled)))
	require.Equal(t, verbs.WCSuccess, poll(t, a.sends).Status)
	support.Object(t, "all", "calls on nil, on zero values and with objects of other devices", verbs.ErrInvalid)
}

// misuse is calls that are wrong whatever their arguments are, beside an end and a window that are right.
type misuse struct {
	ctx    context.Context
	a      *end
	window *verbs.MW
	calls  map[string]func() error // these return ErrInvalid
	panics map[string]func()       // these have no error to return
}

// second is the error of a call that returns something else, too.
func second(_ any, err error) error { return err }

func (m *misuse) onDevices() {
	for name, d := range map[string]*verbs.Device{"nil device": nil, "zero device": {}} {
		m.calls[name+": AllocPD"] = func() error { return second(d.AllocPD()) }
		m.calls[name+": CreateCQ"] = func() error { return second(d.CreateCQ(verbs.CQInitAttr{CQE: 1})) }
		m.calls[name+": QueryPort"] = func() error { return second(d.QueryPort()) }
		m.calls[name+": QueryGID"] = func() error { return second(d.QueryGID(0)) }
		m.calls[name+": QueryGIDTable"] = func() error { return second(d.QueryGIDTable()) }
		m.calls[name+": SteeringCounters"] = func() error { return second(d.SteeringCounters()) }
		m.calls[name+": CheckPathMTU"] = func() error { return d.CheckPathMTU(verbs.MTU256) }
		m.calls[name+": Close"] = func() error { return d.Close() }
		m.calls[name+": Snapshot"] = func() error { return second(d.Snapshot()) }
		m.calls[name+": GetAsyncEvent"] = func() error { return second(d.GetAsyncEvent(m.ctx)) }
		m.panics[name+": Name"] = func() { d.Name() }
		m.panics[name+": Information"] = func() { d.Information() }
		m.panics[name+": Counters"] = func() { d.Counters() }
		m.panics[name+": QueryDevice"] = func() { d.QueryDevice() }
		m.panics[name+": Clock"] = func() { d.Clock() }
		m.panics[name+": ControlSocket"] = func() { d.ControlSocket() }
		m.panics[name+": AsyncReady"] = func() { d.AsyncReady() }
		m.panics[name+": PollAsyncEvent"] = func() { d.PollAsyncEvent() }
	}
}

func (m *misuse) onPDs() {
	for name, pd := range map[string]*verbs.PD{"nil PD": nil, "zero PD": {}} {
		m.calls[name+": RegMR"] = func() error { return second(pd.RegMR(make([]byte, 8), 0)) }
		m.calls[name+": CreateQP"] = func() error {
			return second(pd.CreateQP(verbs.QPInitAttr{SendCQ: m.a.sends, RecvCQ: m.a.recvs}))
		}
		m.calls[name+": Dealloc"] = func() error { return pd.Dealloc() }
		m.calls[name+": RegMRIOVA"] = func() error { return second(pd.RegMRIOVA(make([]byte, 8), 0, 0)) }
		m.calls[name+": AllocMR"] = func() error { return second(pd.AllocMR(8)) }
		m.calls[name+": AllocMW"] = func() error { return second(pd.AllocMW(verbs.MWType1)) }
		m.calls[name+": Rereg"] = func() error {
			if pd == nil {
				return verbs.ErrInvalid // a change without a PD changes none
			}
			return m.a.mr.Rereg(verbs.MRChange{PD: pd})
		}
	}
}

func (m *misuse) onCQs() {
	for name, cq := range map[string]*verbs.CQ{"nil CQ": nil, "zero CQ": {}} {
		m.calls[name+": Poll"] = func() error { return second(cq.Poll(make([]verbs.WC, 1))) }
		m.calls[name+": Wait"] = func() error { return cq.Wait(m.ctx) }
		m.calls[name+": ReqNotify"] = func() error { return cq.ReqNotify(false) }
		m.calls[name+": Destroy"] = func() error { return cq.Destroy() }
		m.panics[name+": CQE"] = func() { cq.CQE() }
		m.panics[name+": Channel"] = func() { cq.Channel() }
	}
}

func (m *misuse) onRegions() {
	for name, mr := range map[string]*verbs.MR{"nil MR": nil, "zero MR": {}} {
		m.calls[name+": Dereg"] = func() error { return mr.Dereg() }
		m.calls[name+": LoadUint64"] = func() error { return second(mr.LoadUint64(0)) }
		m.calls[name+": Rereg"] = func() error { return mr.Rereg(verbs.MRChange{}) }
		m.calls[name+": Map"] = func() error { return mr.Map(make([]byte, 8), 0) }
		m.calls[name+": UpdateKey"] = func() error { return mr.UpdateKey(1) }
		m.calls[name+": BindMW"] = func() error { return m.a.qp.BindMW(m.window, verbs.MWBind{MR: mr, Length: 1}) }
		m.panics[name+": RegWR"] = func() { mr.RegWR(allAccess) }
		m.panics[name+": InvalidateWR"] = func() { mr.InvalidateWR() }
		m.panics[name+": SGE"] = func() { mr.SGE(0, 8) }
		m.panics[name+": Remote"] = func() { mr.Remote() }
		m.panics[name+": Bytes"] = func() { mr.Bytes() }
	}
	for name, mw := range map[string]*verbs.MW{"nil MW": nil, "zero MW": {}} {
		m.calls[name+": Dealloc"] = func() error { return mw.Dealloc() }
		m.calls[name+": BindMW"] = func() error { return m.a.qp.BindMW(mw, verbs.MWBind{MR: m.a.mr, Length: 1}) }
		m.panics[name+": RKey"] = func() { mw.RKey() }
		m.panics[name+": Type"] = func() { mw.Type() }
	}
}

func (m *misuse) onQPs(t *testing.T) {
	for name, qp := range map[string]*verbs.QP{"nil QP": nil, "zero QP": {}} {
		m.calls[name+": PostSend"] = func() error { return qp.PostSend(verbs.SendWR{}) }
		m.calls[name+": PostRecv"] = func() error { return qp.PostRecv(verbs.RecvWR{}) }
		m.calls[name+": Modify"] = func() error { return qp.Modify(t.Context(), verbs.QPAttr{}, verbs.QPStateMask) }
		m.calls[name+": Endpoint"] = func() error { return second(qp.Endpoint(verbs.ConnectOptions{})) }
		m.calls[name+": Connect"] = func() error { return qp.Connect(m.ctx, verbs.Endpoint{}, verbs.ConnectOptions{}) }
		m.calls[name+": Destroy"] = func() error { return qp.Destroy() }
		m.calls[name+": BindMW"] = func() error { return qp.BindMW(m.window, verbs.MWBind{MR: m.a.mr, Length: 1}) }
		m.panics[name+": QPN"] = func() { qp.QPN() }
		m.panics[name+": State"] = func() { qp.State() }
		m.panics[name+": InitAttr"] = func() { qp.InitAttr() }
		m.panics[name+": Outstanding"] = func() { qp.Outstanding() }
		m.panics[name+": Cap"] = func() { qp.Cap() }
		m.panics[name+": Query"] = func() { qp.Query() }
		m.panics[name+": Failure"] = func() { qp.Failure() }
		require.Contains(t, qp.Explain(verbs.WC{}), "not made by CreateQP")
	}
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
	k := newKeyWorld(t)
	for name, c := range k.wrongKeys() {
		t.Run(name, func(t *testing.T) { k.requireRefused(t, name, c) })
	}
	for name, c := range k.wrongPosts(t) {
		t.Run(name, func(t *testing.T) { k.requireRefused(t, name, c) })
	}
	// SQD takes attributes only once it is there, and RTS from it.
	require.NoError(t, k.a.qp.Modify(t.Context(), verbs.QPAttr{State: verbs.StateSQD}, verbs.QPStateMask))
	require.ErrorContains(t, k.a.qp.Modify(t.Context(), verbs.QPAttr{MaxRDAtomic: 129}, verbs.QPMaxQPRDAtomic), "129")
	require.ErrorContains(t, k.a.qp.Modify(t.Context(), verbs.QPAttr{Timeout: 32}, verbs.QPTimeout), "32")
	require.ErrorIs(t, k.a.qp.Modify(t.Context(), verbs.QPAttr{PathMTU: verbs.MTU256}, verbs.QPPathMTU), verbs.ErrTransition)
	require.ErrorIs(t, k.a.qp.Modify(t.Context(), verbs.QPAttr{AH: verbs.AHAttr{SGIDIndex: 99}}, verbs.QPAV), verbs.ErrNoGID)
	require.NoError(t, k.a.qp.Modify(t.Context(), verbs.QPAttr{State: verbs.StateRTS}, verbs.QPStateMask))
	// None of it has hurt what is right.
	require.Equal(t, verbs.WCSuccess, k.a.do(t, write(k.a, k.b, 0)).Status)
	require.NoError(t, k.bind(k.w1, k.a.mr)())
	require.NoError(t, k.a.qp.BindMW(k.w1, verbs.MWBind{Flags: verbs.SendSignaled})) // type 1 is unbound without a region
	require.Equal(t, verbs.WCSuccess, poll(t, k.a.sends).Status)
}

// keyWorld is an end with keys of all kinds, of which some are closed, and some belong to others.
type keyWorld struct {
	a, b     *end
	other    *verbs.PD // of a's device
	closedPD *verbs.PD

	fast, closedFast, closedMR *verbs.MR
	siblingMR                  *verbs.MR // of the other PD

	w1, w2, closedMW *verbs.MW
	foreign, sibling *verbs.MW // of the other device, of the other PD
}

// wrongCall is a call that is refused, and why.
type wrongCall struct {
	call func() error
	want error
	says string
}

func newKeyWorld(t *testing.T) *keyWorld {
	k := new(keyWorld)
	k.a, k.b = partners(t)
	var err error
	k.other, err = k.a.device.AllocPD()
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, k.other.Dealloc()) })
	k.fast, err = k.a.pd.AllocMR(100)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, k.fast.Dereg()) })
	k.closedMR, err = k.a.pd.RegMR(make([]byte, 8), everyAccess)
	require.NoError(t, err)
	require.NoError(t, k.closedMR.Dereg())
	k.closedFast, err = k.a.pd.AllocMR(8)
	require.NoError(t, err)
	require.NoError(t, k.closedFast.Dereg())
	k.closedMW, err = k.a.pd.AllocMW(verbs.MWType2)
	require.NoError(t, err)
	require.NoError(t, k.closedMW.Dealloc())
	k.closedPD, err = k.a.device.AllocPD()
	require.NoError(t, err)
	require.NoError(t, k.closedPD.Dealloc())
	window := func(pd *verbs.PD, kind verbs.MWType) *verbs.MW {
		w, err := pd.AllocMW(kind)
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, w.Dealloc()) })
		return w
	}
	k.w1, k.w2 = window(k.a.pd, verbs.MWType1), window(k.a.pd, verbs.MWType2)
	k.foreign, k.sibling = window(k.b.pd, verbs.MWType1), window(k.other, verbs.MWType1)
	k.siblingMR, err = k.other.RegMR(make([]byte, 8), everyAccess)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, k.siblingMR.Dereg()) })
	return k
}

func (k *keyWorld) bind(w *verbs.MW, mr *verbs.MR) func() error {
	return func() error {
		return k.a.qp.BindMW(w, verbs.MWBind{MR: mr, Addr: mr.Addr(), Length: 8, Access: verbs.AccessRemoteRead})
	}
}

// requireRefused makes the call, which changes nothing.
func (k *keyWorld) requireRefused(t *testing.T, name string, c wrongCall) {
	key1, key2 := k.w1.RKey(), k.w2.RKey()
	require.NotPanics(t, func() {
		err := c.call()
		require.ErrorIs(t, err, c.want)
		require.ErrorContains(t, err, c.says)
	})
	support.Object(t, "misuse", name, c.want)
	require.Equal(t, key1, k.w1.RKey())
	require.Equal(t, key2, k.w2.RKey())
	require.Equal(t, verbs.StateRTS, k.a.qp.State())
}

// wrongKeys are calls that make, change and bind keys.
func (k *keyWorld) wrongKeys() map[string]wrongCall {
	access := func(bits verbs.AccessFlags) verbs.MRChange { return verbs.MRChange{Access: &bits} }
	top := uint64(math.MaxUint64 - 2)
	return map[string]wrongCall{
		"AllocMR of 0 bytes":       {func() error { return second(k.a.pd.AllocMR(0)) }, verbs.ErrInvalid, "0 bytes"},
		"AllocMR of -7 bytes":      {func() error { return second(k.a.pd.AllocMR(-7)) }, verbs.ErrInvalid, "-7 bytes"},
		"AllocMR, closed PD":       {func() error { return second(k.closedPD.AllocMR(8)) }, verbs.ErrClosed, "PD"},
		"AllocMW of no type":       {func() error { return second(k.a.pd.AllocMW(3)) }, verbs.ErrInvalid, "type 3"},
		"AllocMW, closed PD":       {func() error { return second(k.closedPD.AllocMW(verbs.MWType1)) }, verbs.ErrClosed, "PD"},
		"Map of nothing":           {func() error { return k.fast.Map(nil, 0) }, verbs.ErrEmptyBuffer, ""},
		"Map of too much":          {func() error { return k.fast.Map(make([]byte, 101), 0) }, memory.ErrLength, "101 bytes, at most 100"},
		"Map beyond the top":       {func() error { return k.fast.Map(make([]byte, 8), top) }, verbs.ErrAddress, "0xfffffffffffffffd"},
		"Map of a region":          {func() error { return k.a.mr.Map(make([]byte, 8), 0) }, verbs.ErrInvalid, "AllocMR"},
		"Map, closed":              {func() error { return k.closedFast.Map(make([]byte, 8), 0) }, verbs.ErrClosed, "MR"},
		"UpdateKey of a region":    {func() error { return k.a.mr.UpdateKey(1) }, verbs.ErrInvalid, "AllocMR"},
		"UpdateKey, closed":        {func() error { return k.closedFast.UpdateKey(1) }, verbs.ErrClosed, "MR"},
		"LoadUint64, never open":   {func() error { return second(k.fast.LoadUint64(0)) }, verbs.ErrInvalid, "not registered"},
		"LoadUint64, offset":       {func() error { return second(k.a.mr.LoadUint64(-8)) }, verbs.ErrInvalid, "-8"},
		"Rereg of a fast region":   {func() error { return k.fast.Rereg(access(allAccess)) }, verbs.ErrInvalid, "work requests"},
		"Rereg, closed":            {func() error { return k.closedMR.Rereg(verbs.MRChange{}) }, verbs.ErrClosed, "MR"},
		"Rereg, closed PD":         {func() error { return k.a.mr.Rereg(verbs.MRChange{PD: k.closedPD}) }, verbs.ErrClosed, "PD"},
		"Rereg, other device":      {func() error { return k.a.mr.Rereg(verbs.MRChange{PD: k.b.pd}) }, verbs.ErrInvalid, "another device"},
		"Rereg, unknown right":     {func() error { return k.a.mr.Rereg(access(0x400)) }, verbs.ErrAccessFlags, "0x400"},
		"Rereg, no local write":    {func() error { return k.a.mr.Rereg(access(verbs.AccessRemoteWrite)) }, verbs.ErrAccessFlags, "local write"},
		"Rereg, persistent":        {func() error { return k.a.mr.Rereg(access(verbs.AccessFlushPersistent)) }, verbs.ErrNotSupported, "persist"},
		"Rereg, address alone":     {func() error { return k.a.mr.Rereg(verbs.MRChange{IOVA: &top}) }, verbs.ErrInvalid, "buffer"},
		"Rereg, empty buffer":      {func() error { return k.a.mr.Rereg(verbs.MRChange{Buffer: []byte{}}) }, verbs.ErrEmptyBuffer, ""},
		"Rereg beyond the top":     {func() error { return k.a.mr.Rereg(verbs.MRChange{Buffer: make([]byte, 8), IOVA: &top}) }, verbs.ErrAddress, "0xfffffffffffffffd"},
		"BindMW, closed window":    {k.bind(k.closedMW, k.a.mr), verbs.ErrClosed, "MW"},
		"BindMW, closed region":    {k.bind(k.w1, k.closedMR), verbs.ErrClosed, "MR"},
		"BindMW, foreign window":   {k.bind(k.foreign, k.a.mr), verbs.ErrInvalid, "another device"},
		"BindMW, foreign region":   {k.bind(k.w1, k.b.mr), verbs.ErrInvalid, "another device"},
		"BindMW, other PD, window": {k.bind(k.sibling, k.a.mr), verbs.ErrInvalid, "another PD"},
		"BindMW, other PD, region": {k.bind(k.w2, k.siblingMR), verbs.ErrInvalid, "another PD"},
		"BindMW, flags":            {func() error { return k.a.qp.BindMW(k.w1, verbs.MWBind{Flags: 0x40}) }, verbs.ErrSendFlags, "0x40"},
		"BindMW, inline":           {func() error { return k.a.qp.BindMW(k.w1, verbs.MWBind{Flags: verbs.SendInline}) }, verbs.ErrInline, "inline"},
	}
}

// wrongPosts are requests and changes of the queue pair.
func (k *keyWorld) wrongPosts(t *testing.T) map[string]wrongCall {
	post := func(wr verbs.SendWR) func() error { return func() error { return k.a.qp.PostSend(wr) } }
	word := []verbs.SGE{k.a.mr.SGE(0, 8)}
	modify := func(attr verbs.QPAttr, mask verbs.QPAttrMask) func() error {
		return func() error { return k.a.qp.Modify(t.Context(), attr, mask) }
	}
	return map[string]wrongCall{
		"opcode":                   {post(verbs.SendWR{Opcode: 33}), verbs.ErrOpcode, "33"},
		"flags":                    {post(verbs.SendWR{Flags: 0x30}), verbs.ErrSendFlags, "0x30"},
		"atomic with 7 bytes":      {post(verbs.SendWR{Opcode: verbs.WRAtomicFetchAdd, SGList: []verbs.SGE{k.a.mr.SGE(0, 7)}}), verbs.ErrAtomic, "7 bytes"},
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
	}
}
