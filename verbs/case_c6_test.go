package verbs_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/xroce/xroce/internal/opener"
	"github.com/xroce/xroce/internal/support"
	"github.com/xroce/xroce/roce"
	"github.com/xroce/xroce/roce/link/mem"
	"github.com/xroce/xroce/verbs"
)

// TestCase_C6: inline data are those that were there when the request was posted, whatever the memory holds when the
// packet leaves or is sent again.
func TestCase_C6(t *testing.T) {
	const most = verbs.MaxInlineData
	retransmitted := uint64(0)
	for _, limit := range []int{1, 100, most} {
		da, db := memDevices(t, mem.Options{Seed: uint64(limit), Faults: mem.Faults{Drop: 0.1}}, mem.DeviceOptions{MTU: 352}) // packets of 256 bytes
		capacity := verbs.QPCap{MaxInline: limit, MaxSendSGE: 3}
		a, b := newEnd(t, da, make([]byte, 3*most), capacity), newEnd(t, db, make([]byte, 4*most), capacity)
		connect(t, a, b, verbs.ConnectOptions{Timeout: roce.AckTimeout(13)})
		require.Equal(t, limit, a.qp.Cap().MaxInline)
		round := byte(0)
		for _, length := range []int{0, 1, 2, limit - 1, limit} {
			if length > limit {
				continue
			}
			for _, opcode := range []verbs.WROpcode{verbs.WRSend, verbs.WRSendWithImm, verbs.WRRDMAWrite, verbs.WRRDMAWriteWithImm} {
				t.Run(fmt.Sprintf("limit %d/%d bytes/%v", limit, length, opcode), func(t *testing.T) {
					round++
					clear(b.mr.Bytes())
					require.NoError(t, b.qp.PostRecv(verbs.RecvWR{SGList: []verbs.SGE{b.mr.SGE(0, most)}}))
					// In SQD nothing leaves, so the memory changes before the packet is made.
					require.Eventually(t, func() bool {
						return a.qp.Modify(t.Context(), verbs.QPAttr{State: verbs.StateSQD}, verbs.QPStateMask) == nil
					}, patience, tick)
					want := make([]byte, length)
					for i := range want {
						want[i] = byte(i)*3 + byte(i>>8) + round
					}
					first, second := length/3, length/2
					copy(a.mr.Bytes()[2*most:], want[:first])
					copy(a.mr.Bytes()[5:], want[first:second])
					copy(a.mr.Bytes()[most:], want[second:])
					require.NoError(t, a.qp.PostSend(verbs.SendWR{
						WRID: uint64(round), Opcode: opcode, Flags: verbs.SendInline | verbs.SendSignaled, RemoteAddr: b.mr.Addr(), RKey: b.mr.RKey(),
						SGList: []verbs.SGE{a.mr.SGE(2*most, first), a.mr.SGE(5, second-first), a.mr.SGE(most, length-second)},
					}))
					for i := range a.mr.Bytes() {
						a.mr.Bytes()[i] = 0xEE
					}
					require.Eventually(t, func() bool {
						return a.qp.Modify(t.Context(), verbs.QPAttr{State: verbs.StateRTS}, verbs.QPStateMask) == nil
					}, patience, tick)
					wc := poll(t, a.sends)
					require.Equal(t, verbs.WCSuccess, wc.Status)
					require.EqualValues(t, round, wc.WRID)
					if opcode != verbs.WRRDMAWrite {
						require.EqualValues(t, length, poll(t, b.recvs).ByteLen)
					}
					require.Equal(t, want, b.mr.Bytes()[:length])
					require.Equal(t, make([]byte, most), b.mr.Bytes()[length:length+most])
					support.Object(t, "QP", fmt.Sprintf("inline data of %v, memory changed, packets lost", opcode), "as posted")
				})
			}
		}
		retransmitted += opener.Counters(da).Transport.Retransmitted
	}
	require.NotZero(t, retransmitted)
}

// TestCase_C6_Refused: what cannot be inline is refused by the post, with the values, and takes no place in the queue.
func TestCase_C6_Refused(t *testing.T) {
	a, b := partners(t) // for 100 bytes
	foreign := b.mr.SGE(0, 8)
	for foreign.LKey == a.mr.LKey() { // another device may have the same keys
		mr, err := b.pd.RegMR(b.mr.Bytes(), allAccess)
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, mr.Dereg()) })
		foreign = mr.SGE(0, 8)
	}
	beyond := a.mr.SGE(4090, 8)
	for name, c := range map[string]struct {
		list []verbs.SGE
		want error
		says []string
	}{
		"too long":          {[]verbs.SGE{a.mr.SGE(0, 101)}, verbs.ErrInline, []string{"101", "100"}},
		"too long in sum":   {[]verbs.SGE{a.mr.SGE(0, 60), a.mr.SGE(0, 0), a.mr.SGE(0, 41)}, verbs.ErrInline, []string{"101", "100"}},
		"far too long":      {[]verbs.SGE{a.mr.SGE(0, 1<<31), a.mr.SGE(0, 1<<31)}, verbs.ErrMessageTooLong, []string{"4294967296"}},
		"unregistered":      {[]verbs.SGE{a.mr.SGE(0, 8), {Addr: 0x1234, Length: 9, LKey: 0x777}}, verbs.ErrInvalid, []string{"element 1", "9 bytes", "0x1234", "0x777"}},
		"of another device": {[]verbs.SGE{foreign}, verbs.ErrInvalid, []string{fmt.Sprintf("%#x", foreign.LKey), "no region"}},
		"beyond the end":    {[]verbs.SGE{beyond}, verbs.ErrInvalid, []string{fmt.Sprintf("%#x", beyond.Addr), "not within"}},
	} {
		t.Run(name, func(t *testing.T) {
			for _, opcode := range []verbs.WROpcode{verbs.WRSend, verbs.WRRDMAWrite} {
				err := a.qp.PostSend(verbs.SendWR{Opcode: opcode, Flags: verbs.SendInline | verbs.SendSignaled, SGList: c.list})
				require.ErrorIs(t, err, c.want)
				for _, part := range c.says {
					require.ErrorContains(t, err, part)
				}
				require.Zero(t, a.qp.Outstanding())
			}
			support.Object(t, "QP", "inline data: "+name, c.want)
		})
	}
	require.ErrorIs(t, a.qp.PostSend(verbs.SendWR{Opcode: verbs.WRRDMARead, Flags: verbs.SendInline}), verbs.ErrInline)
	require.Equal(t, verbs.WCSuccess, a.do(t, write(a, b, 0)).Status)

	none, other := newEnd(t, a.device, make([]byte, 8), verbs.QPCap{}), newEnd(t, b.device, make([]byte, 8), verbs.QPCap{})
	connect(t, none, other, verbs.ConnectOptions{})
	require.ErrorIs(t, none.qp.PostSend(write(none, other, verbs.SendInline)), verbs.ErrInline)
	empty := write(none, other, verbs.SendInline)
	empty.SGList = nil
	require.Equal(t, verbs.WCSuccess, none.do(t, empty).Status)
}
