package verbs_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/xroce/xroce/roce/link/mem"
	"github.com/xroce/xroce/verbs"
)

type end struct {
	dev *verbs.Device
	pd  *verbs.PD
	cq  *verbs.CQ
	qp  *verbs.QP
	mr  *verbs.MR
}

func makeEnd(t *testing.T, n *mem.Network, size int) *end {
	l, err := n.NewDevice(mem.DeviceOptions{Queues: 2})
	require.NoError(t, err)
	d, err := verbs.NewDevice(l, verbs.EngineOptions{})
	require.NoError(t, err)
	e := &end{dev: d}
	e.pd, err = d.AllocPD()
	require.NoError(t, err)
	e.cq, err = d.CreateCQ(256)
	require.NoError(t, err)
	e.qp, err = e.pd.CreateQP(verbs.QPInitAttr{SendCQ: e.cq, RecvCQ: e.cq})
	require.NoError(t, err)
	e.mr, err = e.pd.RegMR(make([]byte, size), verbs.AccessLocalWrite|verbs.AccessRemoteRead|verbs.AccessRemoteWrite)
	require.NoError(t, err)
	return e
}

func (e *end) close(t *testing.T) {
	require.NoError(t, e.qp.Destroy())
	require.NoError(t, e.cq.Destroy())
	require.NoError(t, e.mr.Dereg())
	require.NoError(t, e.pd.Dealloc())
	require.NoError(t, e.dev.Close())
}

func TestQuick(t *testing.T) {
	n := mem.NewNetwork(mem.Options{Seed: 1, Faults: mem.Faults{Drop: 0.01}})
	a, b := makeEnd(t, n, 1<<20), makeEnd(t, n, 1<<20)
	ea, err := a.qp.Endpoint(verbs.ConnectOptions{})
	require.NoError(t, err)
	eb, err := b.qp.Endpoint(verbs.ConnectOptions{})
	require.NoError(t, err)
	require.NoError(t, a.qp.Connect(context.Background(), eb, verbs.ConnectOptions{}))
	require.NoError(t, b.qp.Connect(context.Background(), ea, verbs.ConnectOptions{}))
	_, _ = rand.Read(a.mr.Bytes())
	start := time.Now()
	require.NoError(t, a.qp.PostSend(verbs.SendWR{
		WRID: 7, Opcode: verbs.WRRDMAWrite, Flags: verbs.SendSignaled,
		SGList: []verbs.SGE{a.mr.SGE(0, 1<<20)}, RemoteAddr: b.mr.Addr(), RKey: b.mr.RKey(),
	}))
	wc := make([]verbs.WC, 4)
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	require.NoError(t, a.cq.Wait(ctx))
	k, err := a.cq.Poll(wc)
	require.NoError(t, err)
	require.Equal(t, 1, k)
	require.Equal(t, verbs.WCSuccess, wc[0].Status, "%+v", wc[0])
	require.True(t, bytes.Equal(a.mr.Bytes(), b.mr.Bytes()))
	t.Log(time.Since(start))
	clear(a.mr.Bytes())
	require.NoError(t, a.qp.PostSend(verbs.SendWR{
		WRID: 8, Opcode: verbs.WRRDMARead, Flags: verbs.SendSignaled,
		SGList: []verbs.SGE{a.mr.SGE(0, 1<<20)}, RemoteAddr: b.mr.Addr(), RKey: b.mr.RKey(),
	}))
	require.NoError(t, a.cq.Wait(ctx))
	k, err = a.cq.Poll(wc)
	require.NoError(t, err)
	require.Equal(t, 1, k)
	require.Equal(t, verbs.WCSuccess, wc[0].Status, "%+v", wc[0])
	require.True(t, bytes.Equal(a.mr.Bytes(), b.mr.Bytes()))
	c := a.dev.Counters()
	t.Logf("%+v %v", c, c.DropReasons())
	a.close(t)
	b.close(t)
}
