package verbs_test

import (
	"math/rand/v2"
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

// TestFreeBufferInUse: a buffer with a region in it stays, whichever call has put the region there and in whichever
// part of the buffer it lies: its address would soon be that of another buffer.
func TestFreeBufferInUse(t *testing.T) {
	da, db := memDevices(t, mem.Options{}, mem.DeviceOptions{})
	pd := func(d *verbs.Device) *verbs.PD {
		p, err := d.AllocPD()
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, p.Dealloc()) })
		return p
	}
	pa, pb := pd(da), pd(db)
	register := func(p *verbs.PD, b []byte) *verbs.MR {
		mr, err := p.RegMR(b, allAccess)
		require.NoError(t, err)
		return mr
	}
	const size = 16 << 10
	alloc := func() []byte {
		b, err := verbs.AllocBuffer(size)
		require.NoError(t, err)
		return b
	}
	buffer, other := alloc(), alloc()
	requireInUse := func(b []byte, regions string) {
		t.Helper()
		err := verbs.FreeBuffer(b)
		require.ErrorIs(t, err, verbs.ErrInUse)
		require.ErrorContains(t, err, "by "+regions+" memory regions")
		b[0], b[size-1] = 1, 2 // it is there
	}

	whole, part := register(pa, buffer), register(pb, buffer[size-10:])
	requireInUse(buffer, "2")
	require.NoError(t, whole.Dereg())
	requireInUse(buffer, "1")
	require.NoError(t, part.Rereg(verbs.MRChange{Buffer: other[5:]}))
	requireInUse(other, "1")
	require.NoError(t, verbs.FreeBuffer(buffer))
	require.NoError(t, part.Rereg(verbs.MRChange{Buffer: make([]byte, 8)}))

	// What is refused leaves nothing behind.
	_, err := pa.RegMR(other, 0x400)
	require.ErrorIs(t, err, verbs.ErrAccessFlags)
	bad := verbs.AccessFlags(0x400)
	require.ErrorIs(t, part.Rereg(verbs.MRChange{Buffer: other, Access: &bad}), verbs.ErrAccessFlags)
	fast, err := pa.AllocMR(size)
	require.NoError(t, err)
	require.NoError(t, fast.Map(other, 0))
	requireInUse(other, "1")
	require.NoError(t, fast.Map(other[8:], 0))
	requireInUse(other, "1")
	require.Error(t, fast.Map(nil, 0))
	requireInUse(other, "1")
	require.NoError(t, fast.Dereg())
	require.NoError(t, part.Dereg())
	require.NoError(t, verbs.FreeBuffer(other))
}

// TestFreeBufferOfNone: only what AllocBuffer has made is freed, whole and once.
func TestFreeBufferOfNone(t *testing.T) {
	buffers := make([][]byte, 50)
	for i := range buffers {
		var err error
		buffers[i], err = verbs.AllocBuffer(8192)
		require.NoError(t, err)
	}
	for _, i := range rand.Perm(len(buffers)) {
		b := buffers[i]
		for name, wrong := range map[string][]byte{"shorter": b[:8191], "later": b[1:], "slice": make([]byte, 8192), "nothing": nil} {
			require.ErrorIs(t, verbs.FreeBuffer(wrong), verbs.ErrInvalid, name)
		}
		b[0], b[8191] = 1, 1
		require.NoError(t, verbs.FreeBuffer(b))
		require.ErrorIs(t, verbs.FreeBuffer(b), verbs.ErrInvalid, "twice")
	}
}
