package verbs_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/xroce/xroce/roce/link/mem"
	"github.com/xroce/xroce/verbs"
)

// TestAllocBuffer: memory outside the Go heap works like a slice.
func TestAllocBuffer(t *testing.T) {
	for _, size := range []int{1, 4096, 2<<20 + 5, 4 << 20} {
		buffer, err := verbs.AllocBuffer(size)
		require.NoError(t, err)
		require.Len(t, buffer, size)
		require.Equal(t, make([]byte, size), buffer)
		t.Run("", func(t *testing.T) {
			da, db := memDevices(t, mem.Options{}, mem.DeviceOptions{})
			a, b := newEnd(t, da, make([]byte, size), verbs.QPCap{}), newEnd(t, db, buffer, verbs.QPCap{})
			connect(t, a, b, verbs.ConnectOptions{})
			a.mr.Bytes()[size-1] = 7
			require.NoError(t, a.qp.PostSend(verbs.SendWR{
				Opcode: verbs.WRRDMAWrite, Flags: verbs.SendSignaled, SGList: []verbs.SGE{a.mr.SGE(0, size)},
				RemoteAddr: b.mr.Addr(), RKey: b.mr.RKey(),
			}))
			require.Equal(t, verbs.WCSuccess, poll(t, a.sends).Status)
			require.Equal(t, a.mr.Bytes(), buffer)
		})
		require.NoError(t, verbs.FreeBuffer(buffer))
	}
	for _, size := range []int{0, -1} {
		_, err := verbs.AllocBuffer(size)
		require.ErrorIs(t, err, verbs.ErrInvalid)
	}
	require.Error(t, verbs.FreeBuffer(make([]byte, 10)))
}
