package verbs_test

import (
	"context"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/xroce/xroce/internal/netlab"
	"github.com/xroce/xroce/internal/opener"
	"github.com/xroce/xroce/internal/support"
	"github.com/xroce/xroce/roce/driver"
	"github.com/xroce/xroce/roce/link/mem"
	"github.com/xroce/xroce/verbs"
)

// TestActiveMTU: at each boundary the device carries what the rule of rdma_cm says (netdev MTU less 96), on a real
// device, and the refusal of more names both numbers.
func TestActiveMTU(t *testing.T) {
	netlab.RequireRoot(t)
	for _, c := range []struct {
		netdev int
		want   verbs.MTU
	}{
		{352, verbs.MTU256}, {607, verbs.MTU256}, {608, verbs.MTU512}, {1119, verbs.MTU512}, {1120, verbs.MTU1024},
		{2143, verbs.MTU1024}, {2144, verbs.MTU2048}, {4191, verbs.MTU2048}, {4192, verbs.MTU4096}, {9000, verbs.MTU4096},
	} {
		t.Run(fmt.Sprint(c.netdev), func(t *testing.T) {
			a, _ := vethDevices(t, netlab.PairOptions{MTU: c.netdev}, verbs.Options{})
			port, err := a.QueryPort()
			require.NoError(t, err)
			require.Equal(t, c.want, port.ActiveMTU)
			require.Equal(t, c.netdev, port.NetdevMTU)
			require.Equal(t, verbs.MTU4096, port.MaxMTU)
			require.Equal(t, verbs.PortActive, port.State)
			require.NoError(t, a.CheckPathMTU(c.want))
			support.Object(t, "Device", fmt.Sprintf("path MTU of a network device of MTU %d", c.netdev), c.want)
			if c.want == verbs.MTU4096 {
				return
			}
			err = a.CheckPathMTU(c.want + 1)
			require.ErrorIs(t, err, verbs.ErrPathMTU)
			require.ErrorContains(t, err, fmt.Sprint(c.netdev))
			require.ErrorContains(t, err, fmt.Sprint((c.want+1).Bytes()+96))
		})
	}
}

// TestOneBufferBoundsThePathMTU: without frames of several buffers path MTU 4096 is refused however large the network
// device's MTU is, with the lengths that do not fit.
func TestOneBufferBoundsThePathMTU(t *testing.T) {
	a, _ := vethDevices(t, netlab.PairOptions{MTU: 9000}, verbs.Options{MultiBuffer: verbs.MultiBufferOff})
	require.False(t, a.Information().MultiBuffer)
	port, err := a.QueryPort()
	require.NoError(t, err)
	require.Equal(t, []verbs.MTU{verbs.MTU2048, verbs.MTU2048}, []verbs.MTU{port.MaxMTU, port.ActiveMTU})
	err = a.CheckPathMTU(verbs.MTU4096)
	require.ErrorIs(t, err, verbs.ErrPathMTU)
	require.ErrorContains(t, err, "path MTU 4096 needs frames of 4210 bytes, veth0 has buffers for 3840")
}

// TestSGELength: a length that no element can have does not turn into another one.
func TestSGELength(t *testing.T) {
	a, _ := pair(t, mem.Options{})
	for _, length := range []int{-1, math.MaxUint32 + 1, math.MaxUint32 + 6, math.MinInt} {
		require.EqualValues(t, math.MaxUint32, a.mr.SGE(0, length).Length, "%d", length)
		err := a.qp.PostSend(verbs.SendWR{Opcode: verbs.WRSend, SGList: []verbs.SGE{a.mr.SGE(0, length)}})
		require.ErrorIs(t, err, verbs.ErrMessageTooLong)
		support.Limit(t, "bytes of an SGE", verbs.ErrMessageTooLong)
	}
	require.EqualValues(t, 7, a.mr.SGE(0, 7).Length)
}

// TestNewLifeNewPSN: what is left on the network of one life of a queue pair does not fit into the next.
func TestNewLifeNewPSN(t *testing.T) {
	a, b := pair(t, mem.Options{})
	seen := make(map[verbs.PSN]bool)
	for range 4 {
		reset := verbs.QPAttr{State: verbs.StateReset}
		require.NoError(t, a.qp.Modify(t.Context(), reset, verbs.QPStateMask))
		require.NoError(t, b.qp.Modify(t.Context(), reset, verbs.QPStateMask))
		first, err := a.qp.Endpoint(verbs.ConnectOptions{})
		require.NoError(t, err)
		again, err := a.qp.Endpoint(verbs.ConnectOptions{})
		require.NoError(t, err)
		require.Equal(t, first, again, "what the peer was told holds")
		seen[first.PSN] = true
		connect(t, a, b, verbs.ConnectOptions{})
		require.NoError(t, a.qp.PostSend(write(a, b, verbs.SendSignaled)))
		require.Equal(t, verbs.WCSuccess, poll(t, a.sends).Status)
	}
	require.Len(t, seen, 4)
}

// TestConnectFromInit: a program that posts receives first is in INIT; the options count all the same.
func TestConnectFromInit(t *testing.T) {
	da, db := memDevices(t, mem.Options{}, mem.DeviceOptions{})
	a, b := newEnd(t, da, make([]byte, 64), verbs.QPCap{}), newEnd(t, db, make([]byte, 64), verbs.QPCap{})
	require.NoError(t, b.qp.Modify(t.Context(), verbs.QPAttr{State: verbs.StateInit, PortNum: 1},
		verbs.QPStateMask|verbs.QPPKeyIndex|verbs.QPPort|verbs.QPAccessFlags))
	require.NoError(t, b.qp.PostRecv(verbs.RecvWR{WRID: 5}))
	connect(t, a, b, verbs.ConnectOptions{AccessFlags: new(verbs.AccessRemoteWrite)})
	require.Equal(t, verbs.AccessRemoteWrite, b.qp.Query().AccessFlags)
	require.NoError(t, a.qp.PostSend(verbs.SendWR{Opcode: verbs.WRSend}))
	require.EqualValues(t, 5, poll(t, b.recvs).WRID)
}

// TestConnectGivesUp: nobody at the address.
func TestConnectGivesUp(t *testing.T) {
	a, b := vethDevices(t, netlab.PairOptions{}, verbs.Options{})
	e := newEnd(t, a, make([]byte, 64), verbs.QPCap{})
	peer := newEnd(t, b, make([]byte, 64), verbs.QPCap{})
	remote, err := peer.qp.Endpoint(verbs.ConnectOptions{})
	require.NoError(t, err)
	remote.Address = remote.Address.Next().Next().Next() // nobody has it
	start := time.Now()
	err = e.qp.Connect(context.Background(), remote, verbs.ConnectOptions{})
	require.ErrorIs(t, err, verbs.ErrNoNeighbour)
	require.ErrorContains(t, err, remote.Address.String())
	require.Less(t, time.Since(start), 5*time.Second)
	// Meanwhile nothing else is held up.
	require.Equal(t, verbs.StateInit, e.qp.Query().State)
}

func TestExplain(t *testing.T) {
	a, b := pair(t, mem.Options{})
	wr := write(a, b, verbs.SendSignaled)
	wr.WRID, wr.RKey = 77, wr.RKey+1
	require.NoError(t, a.qp.PostSend(wr))
	wc := poll(t, a.sends)
	require.Equal(t, verbs.WCRemAccessErr, wc.Status)
	text := a.qp.Explain(wc)
	for _, part := range []string{
		"remote access error", "work request 77", a.qp.QPN().String(), b.qp.QPN().String(),
		"10.0.0.2", "NAK remote access error", fmt.Sprintf("PSN %#x", uint32(wc.PSN)), " resends of 7", "key",
	} {
		require.Contains(t, text, part)
	}
	require.Equal(t, wc.WRID, a.qp.Failure().WRID)
	require.Equal(t, wc.Status, a.qp.Failure().Status)
	require.NoError(t, a.qp.PostSend(wr))
	require.Contains(t, a.qp.Explain(poll(t, a.sends)), "flushed")
	require.Equal(t, verbs.WCRemAccessErr, b.qp.Failure().Status)
}

// TestExplainFlushed: what was flushed names the cause itself, whichever end or program that is, and as long as it is
// known.
func TestExplainFlushed(t *testing.T) {
	a, b := pair(t, mem.Options{})
	require.NoError(t, b.qp.PostRecv(verbs.RecvWR{WRID: 5}))
	wr := write(a, b, verbs.SendSignaled)
	wr.WRID, wr.RKey = 77, wr.RKey+1
	require.NoError(t, a.qp.PostSend(wr, verbs.SendWR{WRID: 78, Opcode: verbs.WRSend}))
	require.Equal(t, verbs.WCRemAccessErr, poll(t, a.sends).Status)
	flushed := poll(t, a.sends)
	require.Equal(t, verbs.WCWRFlushErr, flushed.Status)
	text := a.qp.Explain(flushed)
	require.True(t, strings.HasPrefix(text, "work request flushed of work request 78 on QP "+a.qp.QPN().String()), text)
	require.True(t, strings.HasSuffix(text, "the QP was in the error state, after: "+a.qp.Explain(a.qp.Failure())), text)
	require.Contains(t, text, "remote access error of work request 77")

	received := poll(t, b.recvs)
	require.Equal(t, verbs.WCWRFlushErr, received.Status)
	require.Contains(t, b.qp.Explain(received), "after: RDMA WRITE of the peer at QP "+b.qp.QPN().String())

	require.NoError(t, a.qp.Modify(t.Context(), verbs.QPAttr{State: verbs.StateReset}, verbs.QPStateMask))
	require.Contains(t, a.qp.Explain(flushed), "the QP was in the error state, and has been reset since (it is in RESET now)")
	require.NoError(t, b.qp.Modify(t.Context(), verbs.QPAttr{State: verbs.StateReset}, verbs.QPStateMask))
	connect(t, a, b, verbs.ConnectOptions{})
	require.NoError(t, a.qp.Modify(t.Context(), verbs.QPAttr{State: verbs.StateError}, verbs.QPStateMask))
	require.NoError(t, a.qp.PostSend(write(a, b, 0)))
	require.Contains(t, a.qp.Explain(poll(t, a.sends)), "the program brought the QP into the error state")
}

// TestExplainOperations: the cause is that of the operation, and of the end whose completion it is.
func TestExplainOperations(t *testing.T) {
	a, b := partners(t)
	require.NoError(t, b.qp.PostRecv(verbs.RecvWR{}))
	require.NoError(t, a.qp.PostSend(verbs.SendWR{Opcode: verbs.WRSendWithInv, InvalidateRKey: b.mr.RKey()}))
	wc := poll(t, b.recvs)
	require.Equal(t, verbs.WCRemInvReqErr, wc.Status)
	require.Contains(t, b.qp.Explain(wc), "named a key that it cannot invalidate")
	wc.Opcode, wc.VendorErr = verbs.WCSend, 0 // as the completion of who asked for it
	require.Contains(t, b.qp.Explain(wc), "longer than the peer's receive")

	a, b = partners(t)
	require.NoError(t, b.qp.PostRecv(verbs.RecvWR{}))
	require.NoError(t, a.qp.PostSend(verbs.SendWR{
		Opcode: verbs.WRRDMAWriteWithImm, SGList: []verbs.SGE{a.mr.SGE(0, 8)}, RemoteAddr: b.mr.Addr(), RKey: b.mr.RKey() ^ 1,
	}))
	wc = poll(t, b.recvs)
	require.Equal(t, verbs.WCRemAccessErr, wc.Status)
	require.Contains(t, b.qp.Explain(wc), "no region or window here has the key that the peer's request named")
	require.Contains(t, a.qp.Explain(poll(t, a.sends)), "the peer's region")

	for want, wr := range map[string]verbs.SendWR{
		"memory window bind error of":             {Opcode: verbs.WRBindMW, RKey: 0x100},
		"here has the key that an SGE named":      {Opcode: verbs.WRRDMAWrite, SGList: []verbs.SGE{{Addr: 1, Length: 2, LKey: 3}}},
		"here has the key that the request named": {Opcode: verbs.WRLocalInv, InvalidateRKey: 0x100},
	} {
		a, _ := partners(t)
		require.Contains(t, a.qp.Explain(a.do(t, wr)), want)
	}
}

// TestExplainFailure: what a request of the peer broke is explained from this end; what nobody answered is not said to
// have been answered; what is not of this queue pair is not explained as if it were.
func TestExplainFailure(t *testing.T) {
	a, b := partners(t)
	require.Equal(t, "nothing has failed on QP "+b.qp.QPN().String(), b.qp.Explain(b.qp.Failure()))
	wc := a.do(t, verbs.SendWR{
		Opcode: verbs.WRRDMARead, SGList: []verbs.SGE{a.mr.SGE(0, 8)}, RemoteAddr: b.mr.Addr() + 4090, RKey: b.mr.RKey(),
	})
	require.Contains(t, a.qp.Explain(wc), "last answer NAK remote access error")
	text := b.qp.Explain(b.qp.Failure())
	require.True(t, strings.HasPrefix(text, "RDMA READ of the peer at QP "+b.qp.QPN().String()), text)
	require.Contains(t, text, "refused with NAK remote access error: the range that the peer's request named is not within the region")
	require.Contains(t, b.qp.Explain(wc), "is one of QP "+a.qp.QPN().String())

	a, b = pair(t, mem.Options{}) // remote reads and writes only
	wc = a.do(t, verbs.SendWR{
		Opcode: verbs.WRAtomicFetchAdd, SGList: []verbs.SGE{a.mr.SGE(0, 8)}, RemoteAddr: b.mr.Addr(), RKey: b.mr.RKey(),
	})
	require.Contains(t, a.qp.Explain(wc), "AccessFlags")
	text = b.qp.Explain(b.qp.Failure())
	require.True(t, strings.HasPrefix(text, "fetch-and-add of the peer"), text)
	require.Contains(t, text, "AccessFlags or MaxDestRDAtomic of this QP")

	a, b = pair(t, mem.Options{Faults: mem.Faults{Drop: 1}})
	require.NoError(t, a.qp.Modify(t.Context(), verbs.QPAttr{State: verbs.StateSQD}, verbs.QPStateMask))
	require.NoError(t, a.qp.Modify(t.Context(), verbs.QPAttr{Timeout: 8, RetryCnt: 1}, verbs.QPTimeout|verbs.QPRetryCnt))
	require.NoError(t, a.qp.Modify(t.Context(), verbs.QPAttr{State: verbs.StateRTS}, verbs.QPStateMask))
	text = a.qp.Explain(a.do(t, verbs.SendWR{Opcode: verbs.WRSend}))
	require.Contains(t, text, "no answer so far, 1 resends of 1")
	require.Equal(t, verbs.StateRTS, b.qp.State())
}

// TestInUse: nothing is destroyed under those who need it, and nothing can be used after that.
func TestInUse(t *testing.T) {
	l, err := mem.NewNetwork(mem.Options{}).NewDevice(mem.DeviceOptions{})
	require.NoError(t, err)
	d, err := opener.Open[verbs.Device](l, driver.Options{})
	require.NoError(t, err)
	pd, err := d.AllocPD()
	require.NoError(t, err)
	mr, err := pd.RegMR(make([]byte, 8), verbs.AccessLocalWrite)
	require.NoError(t, err)
	require.ErrorIs(t, pd.Dealloc(), verbs.ErrInUse)
	cq, err := d.CreateCQ(verbs.CQInitAttr{CQE: 4})
	require.NoError(t, err)
	qp, err := pd.CreateQP(verbs.QPInitAttr{SendCQ: cq, RecvCQ: cq})
	require.NoError(t, err)
	require.ErrorIs(t, cq.Destroy(), verbs.ErrInUse)
	support.Object(t, "CQ", "Destroy while a QP uses it", verbs.ErrInUse)
	require.NoError(t, mr.Dereg())
	require.ErrorIs(t, mr.Dereg(), verbs.ErrClosed)
	support.Object(t, "MR", "Dereg a second time", verbs.ErrClosed)
	require.ErrorIs(t, pd.Dealloc(), verbs.ErrInUse)
	require.NoError(t, qp.Destroy())
	require.ErrorIs(t, qp.Destroy(), verbs.ErrClosed)
	require.ErrorIs(t, qp.PostSend(verbs.SendWR{Opcode: verbs.WRSend}), verbs.ErrClosed)
	require.ErrorIs(t, qp.PostRecv(verbs.RecvWR{}), verbs.ErrClosed)
	require.ErrorIs(t, qp.Modify(t.Context(), verbs.QPAttr{State: verbs.StateInit}, verbs.QPStateMask), verbs.ErrClosed)
	require.NoError(t, cq.Destroy())
	require.NoError(t, pd.Dealloc())
	require.ErrorIs(t, pd.Dealloc(), verbs.ErrClosed)
	_, err = pd.RegMR(make([]byte, 8), 0)
	require.ErrorIs(t, err, verbs.ErrClosed)
	requireClose(t, d)
	_, err = d.AllocPD()
	require.ErrorIs(t, err, verbs.ErrClosed)
	_, err = d.CreateCQ(verbs.CQInitAttr{CQE: 1})
	require.ErrorIs(t, err, verbs.ErrClosed)
	support.Object(t, "PD", "Dealloc while it has an MR or a QP", verbs.ErrInUse)
	support.Object(t, "QP", "PostSend, PostRecv, Modify or Destroy after Destroy", verbs.ErrClosed)
}

// TestNotSupported: what is not there says so at once.
func TestNotSupported(t *testing.T) {
	a, _ := pair(t, mem.Options{})
	_, err := a.pd.RegMR(make([]byte, 8), allAccess|verbs.AccessFlushPersistent)
	require.ErrorIs(t, err, verbs.ErrNotSupported)
	require.ErrorIs(t, a.qp.Modify(t.Context(), verbs.QPAttr{State: 5}, verbs.QPStateMask), verbs.ErrNotSupported)
	_, err = a.pd.CreateQP(verbs.QPInitAttr{SendCQ: a.sends, RecvCQ: a.recvs, QPType: 4})
	require.ErrorIs(t, err, verbs.ErrNotSupported)
	require.ErrorIs(t, a.qp.PostSend(verbs.SendWR{Opcode: 10}), verbs.ErrOpcode)
	support.Object(t, "MR", "RegMR with AccessFlushPersistent", verbs.ErrNotSupported)
	support.Object(t, "QP", "Modify to SQE", verbs.ErrNotSupported)
	support.Object(t, "QP", "CreateQP of type UD", verbs.ErrNotSupported)
	support.Object(t, "QP", "PostSend of TSO", verbs.ErrOpcode)
}
