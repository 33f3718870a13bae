package verbs_test

import (
	"encoding/binary"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/xroce/xroce/internal/support"
	"github.com/xroce/xroce/roce/link/mem"
	"github.com/xroce/xroce/verbs"
)

const everyAccess = allAccess | verbs.AccessRemoteAtomic | verbs.AccessMWBind | verbs.AccessFlushGlobal

// partners are two ends whose peers may do everything, with inline data and some SGEs.
func partners(t *testing.T) (a, b *end) { return partnersAt(t, 0) }

func partnersAt(t *testing.T, mtu verbs.MTU) (a, b *end) {
	da, db := memDevices(t, mem.Options{}, mem.DeviceOptions{})
	capacity := verbs.QPCap{MaxInline: 100, MaxSendSGE: 4, MaxRecvSGE: 4}
	a, b = newEnd(t, da, make([]byte, 4096), capacity), newEnd(t, db, make([]byte, 4096), capacity)
	for _, e := range []*end{a, b} {
		access := everyAccess
		require.NoError(t, e.mr.Rereg(verbs.MRChange{Access: &access}))
	}
	connect(t, a, b, verbs.ConnectOptions{
		Timeout: noTimeout, PathMTU: mtu,
		AccessFlags: new(verbs.AccessRemoteRead | verbs.AccessRemoteWrite | verbs.AccessRemoteAtomic | verbs.AccessFlushGlobal),
	})
	return a, b
}

// do posts a signaled request and waits for its completion.
func (e *end) do(t *testing.T, wr verbs.SendWR) verbs.WC {
	t.Helper()
	wr.Flags |= verbs.SendSignaled
	require.NoError(t, e.qp.PostSend(wr))
	return poll(t, e.sends)
}

func word(b []byte, offset int) uint64 { return binary.NativeEndian.Uint64(b[offset:]) }

func TestAtomics(t *testing.T) {
	a, b := partners(t)
	binary.NativeEndian.PutUint64(b.mr.Bytes()[64:], 41)
	atomic := func(o verbs.WROpcode, compareAdd, swap uint64) uint64 {
		wc := a.do(t, verbs.SendWR{
			Opcode: o, SGList: []verbs.SGE{a.mr.SGE(8, 8)}, RemoteAddr: b.mr.Addr() + 64, RKey: b.mr.RKey(),
			CompareAdd: compareAdd, Swap: swap,
		})
		require.Equal(t, verbs.WCSuccess, wc.Status)
		require.EqualValues(t, 8, wc.ByteLen)
		require.Equal(t, o.Completed(), wc.Opcode)
		support.Object(t, "QP", "PostSend of "+o.String(), wc.Status)
		return word(a.mr.Bytes(), 8)
	}
	require.EqualValues(t, 41, atomic(verbs.WRAtomicFetchAdd, 1, 0))
	require.EqualValues(t, 42, word(b.mr.Bytes(), 64))
	require.EqualValues(t, 42, atomic(verbs.WRAtomicCmpAndSwp, 41, 7))
	require.EqualValues(t, 42, word(b.mr.Bytes(), 64))
	require.EqualValues(t, 42, atomic(verbs.WRAtomicCmpAndSwp, 42, 1<<63))
	require.EqualValues(t, uint64(1<<63), word(b.mr.Bytes(), 64))
	require.EqualValues(t, uint64(1<<63), atomic(verbs.WRAtomicFetchAdd, 1<<63, 0)) // wraps
	require.Zero(t, word(b.mr.Bytes(), 64))
}

func TestAtomicWriteAndFlush(t *testing.T) {
	a, b := partners(t)
	copy(a.mr.Bytes(), "\x01\x02\x03\x04\x05\x06\x07\x08")
	for i, flags := range []verbs.SendFlags{0, verbs.SendInline} {
		wc := a.do(t, verbs.SendWR{
			Opcode: verbs.WRAtomicWrite, Flags: flags, SGList: []verbs.SGE{a.mr.SGE(0, 8)},
			RemoteAddr: b.mr.Addr() + uint64(8*i), RKey: b.mr.RKey(),
		})
		require.Equal(t, verbs.WCSuccess, wc.Status)
		require.Equal(t, verbs.WCAtomicWrite, wc.Opcode)
		require.Equal(t, a.mr.Bytes()[:8], b.mr.Bytes()[8*i:8*i+8])
		support.Object(t, "QP", "PostSend of "+verbs.WRAtomicWrite.String(), wc.Status)
	}
	for _, selectivity := range []uint8{verbs.FlushSelectRange, verbs.FlushSelectMR} {
		wc := a.do(t, verbs.SendWR{
			Opcode: verbs.WRFlush, RemoteAddr: b.mr.Addr(), RKey: b.mr.RKey(),
			Flush: verbs.FlushRange{Length: 16, Placement: verbs.FlushPlacementGlobal, Selectivity: selectivity},
		})
		require.Equal(t, verbs.WCSuccess, wc.Status)
		require.Equal(t, verbs.WCFlush, wc.Opcode)
		support.Object(t, "QP", "PostSend of "+verbs.WRFlush.String(), wc.Status)
	}
}

// TestFastRegistration goes the way of a storage protocol: register by a work request, tell the peer, who writes, then
// answers with a SEND that invalidates.
func TestFastRegistration(t *testing.T) {
	a, b := partners(t)
	fast, err := a.pd.AllocMR(1024)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, fast.Dereg()) })
	buffer := make([]byte, 1024)
	for round := range 3 {
		require.NoError(t, fast.Map(buffer, 0x1000))
		require.NoError(t, fast.UpdateKey(uint8(round)))
		require.Equal(t, verbs.WCSuccess, a.do(t, fast.RegWR(verbs.AccessLocalWrite|verbs.AccessRemoteWrite)).Status)
		require.NoError(t, a.qp.PostRecv(verbs.RecvWR{WRID: 5}))
		b.mr.Bytes()[0] = byte(round + 1)
		require.Equal(t, verbs.WCSuccess, b.do(t, verbs.SendWR{
			Opcode: verbs.WRRDMAWrite, SGList: []verbs.SGE{b.mr.SGE(0, 4)}, RemoteAddr: fast.Addr() + 3, RKey: fast.RKey(),
		}).Status)
		require.Equal(t, verbs.WCSuccess, b.do(t, verbs.SendWR{Opcode: verbs.WRSendWithInv, InvalidateRKey: fast.RKey()}).Status)
		wc := poll(t, a.recvs)
		require.Equal(t, verbs.WCSuccess, wc.Status)
		require.Equal(t, verbs.WCWithInv, wc.Flags)
		require.Equal(t, fast.RKey(), wc.InvalidatedRKey)
		require.EqualValues(t, round+1, buffer[3])
	}
	require.Equal(t, verbs.WCRemAccessErr, b.do(t, verbs.SendWR{
		Opcode: verbs.WRRDMAWrite, SGList: []verbs.SGE{b.mr.SGE(0, 4)}, RemoteAddr: fast.Addr(), RKey: fast.RKey(),
	}).Status)
	support.Object(t, "MR", "fast registration, WRITE by the peer, invalidation by its SEND", verbs.WCSuccess)
	support.Object(t, "MR", "WRITE with the key of a fast registration that was invalidated", verbs.WCRemAccessErr)
}

func TestMemoryWindow(t *testing.T) {
	for _, kind := range []verbs.MWType{verbs.MWType1, verbs.MWType2} {
		a, b := partners(t)
		window, err := a.pd.AllocMW(kind)
		require.NoError(t, err)
		bind := verbs.MWBind{MR: a.mr, Addr: a.mr.Addr() + 100, Length: 10, Access: verbs.AccessRemoteWrite, Flags: verbs.SendSignaled}
		require.NoError(t, a.qp.BindMW(window, bind))
		require.Equal(t, verbs.WCSuccess, poll(t, a.sends).Status)
		write := func(offset uint64) verbs.WCStatus {
			return b.do(t, verbs.SendWR{
				Opcode: verbs.WRRDMAWrite, SGList: []verbs.SGE{b.mr.SGE(0, 4)},
				RemoteAddr: a.mr.Addr() + offset, RKey: window.RKey(),
			}).Status
		}
		b.mr.Bytes()[0] = 0x77
		require.Equal(t, verbs.WCSuccess, write(106))
		require.EqualValues(t, 0x77, a.mr.Bytes()[106])
		require.ErrorIs(t, a.mr.Dereg(), verbs.ErrInUse)
		require.Equal(t, verbs.WCRemAccessErr, write(107))
		require.NoError(t, window.Dealloc())
		object := fmt.Sprintf("MW type %d", kind)
		support.Object(t, object, "WRITE within, for the requester", verbs.WCSuccess)
		support.Object(t, object, "WRITE beyond, for the requester", verbs.WCRemAccessErr)
		support.Object(t, object, "Dereg of its region while it is bound", verbs.ErrInUse)
	}
}

func TestInlineData(t *testing.T) {
	a, b := partners(t)
	copy(a.mr.Bytes(), "0123456789")
	require.NoError(t, b.qp.PostRecv(verbs.RecvWR{SGList: []verbs.SGE{b.mr.SGE(0, 100)}}))
	require.NoError(t, a.qp.PostSend(verbs.SendWR{
		Opcode: verbs.WRSend, Flags: verbs.SendInline, SGList: []verbs.SGE{a.mr.SGE(5, 5), a.mr.SGE(0, 0), a.mr.SGE(0, 5)},
	}))
	copy(a.mr.Bytes(), "xxxxxxxxxx")
	require.EqualValues(t, 10, poll(t, b.recvs).ByteLen)
	require.Equal(t, "5678901234", string(b.mr.Bytes()[:10]))
	support.Object(t, "QP", "inline data, when the memory changes after the post", "as posted")
}

// TestDrain: in SQD what was started is finished, nothing new is started until RTS.
func TestDrain(t *testing.T) {
	a, b := partners(t)
	require.NoError(t, a.qp.Modify(t.Context(), verbs.QPAttr{State: verbs.StateSQD}, verbs.QPStateMask))
	require.False(t, a.qp.Query().SQDraining)
	require.NoError(t, a.qp.PostSend(verbs.SendWR{
		Opcode: verbs.WRRDMAWrite, Flags: verbs.SendSignaled | verbs.SendInline, SGList: []verbs.SGE{a.mr.SGE(0, 8)},
		RemoteAddr: b.mr.Addr(), RKey: b.mr.RKey(),
	}))
	require.Equal(t, verbs.WCSuccess, b.do(t, verbs.SendWR{
		Opcode: verbs.WRRDMARead, SGList: []verbs.SGE{b.mr.SGE(64, 8)}, RemoteAddr: a.mr.Addr(), RKey: a.mr.RKey(),
	}).Status)
	var wc [1]verbs.WC
	n, err := a.sends.Poll(wc[:])
	require.NoError(t, err)
	require.Zero(t, n)
	require.NoError(t, a.qp.Modify(t.Context(), verbs.QPAttr{MaxRDAtomic: 2, Timeout: 20}, verbs.QPMaxQPRDAtomic|verbs.QPTimeout))
	require.NoError(t, a.qp.Modify(t.Context(), verbs.QPAttr{State: verbs.StateRTS}, verbs.QPStateMask))
	require.Equal(t, verbs.WCSuccess, poll(t, a.sends).Status)
	require.EqualValues(t, 2, a.qp.Query().MaxRDAtomic)
	support.Object(t, "QP", "request posted in SQD: "+verbs.WRRDMAWrite.String(), fmt.Sprintf("begins in RTS: %v", verbs.WCSuccess))
}

// TestInlineOfAnyMemory: inline data that the request itself holds need no registration.
func TestInlineOfAnyMemory(t *testing.T) {
	a, b := partners(t)
	data := []byte("any memory of the program")
	wr := verbs.SendWR{
		Opcode: verbs.WRRDMAWrite, Flags: verbs.SendInline | verbs.SendSignaled, Inline: data,
		RemoteAddr: b.mr.Addr(), RKey: b.mr.RKey(),
	}
	require.NoError(t, a.qp.PostSend(wr))
	want := string(data)
	clear(data)
	require.Equal(t, verbs.WCSuccess, poll(t, a.sends).Status)
	require.Equal(t, want, string(b.mr.Bytes()[:len(want)]))

	wr.Inline = make([]byte, 101)
	require.ErrorIs(t, a.qp.PostSend(wr), verbs.ErrInline)
	wr.Opcode, wr.Inline = verbs.WRAtomicWrite, make([]byte, 7)
	require.ErrorIs(t, a.qp.PostSend(wr), verbs.ErrAtomic)
}

func TestPKey(t *testing.T) {
	d, _ := memDevices(t, mem.Options{}, mem.DeviceOptions{})
	key, err := d.QueryPKey(0)
	require.NoError(t, err)
	require.EqualValues(t, 0xFFFF, key)
	for _, index := range []int{1, -1} {
		_, err = d.QueryPKey(index)
		require.ErrorIs(t, err, verbs.ErrInvalid)
	}
}
