package driver

import (
	"encoding/binary"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/xroce/xroce/internal/ringclient"
	"github.com/xroce/xroce/roce/memory"
	"github.com/xroce/xroce/roce/queue"
	"github.com/xroce/xroce/roce/transport"
)

// clientOf is the client of a device that tests use.
func clientOf(t testing.TB, d *Device) *Client {
	t.Helper()
	if clients := *d.clients.Load(); len(clients) > 0 {
		return clients[0]
	}
	c, err := d.NewClient(ClientConfig{})
	require.NoError(t, err)
	return c
}

// newCQ makes a CQ; poller is the client's side of it.
func newCQ(t testing.TB, d *Device, c CQConfig) *CQ {
	t.Helper()
	require.NoError(t, c.MakeRing())
	cq, err := clientOf(t, d).CreateCQ(c)
	require.NoError(t, err)
	own, err := ringclient.NewCQ(cq, c.Ring.Memory, c.Capacity)
	require.NoError(t, err)
	cq.SetOwner(own)
	return cq
}

func poller(c *CQ) *ringclient.CQ { return c.Owner().(*ringclient.CQ) }

// resize gives a CQ another ring.
func resize(t testing.TB, c *CQ, capacity int) {
	t.Helper()
	config := CQConfig{Capacity: capacity}
	require.NoError(t, config.MakeRing())
	require.NoError(t, c.Replace(config.Ring, capacity))
	own, err := ringclient.NewCQ(c, config.Ring.Memory, capacity)
	require.NoError(t, err)
	c.SetOwner(own)
}

// newQP makes a QP; poster is the client's side of it.
func newQP(t testing.TB, d *Device, c QPConfig) *QP {
	t.Helper()
	require.NoError(t, c.MakeRings())
	q, err := clientOf(t, d).CreateQP(c)
	require.NoError(t, err)
	own, err := ringclient.NewQP(q, c.Send.Memory, c.Receive.Memory, ringclient.Size{
		MaxSendWR: c.MaxSendWR, MaxRecvWR: c.MaxRecvWR, MaxSendSGE: c.MaxSendSGE, MaxRecvSGE: c.MaxRecvSGE,
		MaxInline: c.MaxInline,
	})
	require.NoError(t, err)
	q.SetOwner(own)
	return q
}

func poster(q *QP) *ringclient.QP { return q.Owner().(*ringclient.QP) }

// released counts the rings that the engine has given back.
type released struct{ count int }

func (r *released) ring(memory []byte) Ring {
	return Ring{Memory: memory, Release: func() { r.count++ }}
}

// TestClientsAreApart: what one client has made, another one cannot use, neither for its QPs nor to end theirs.
func TestClientsAreApart(t *testing.T) {
	d, q := newManual(t, 1)
	own, err := d.NewClient(ClientConfig{})
	require.NoError(t, err)
	domain := q.config.Domain
	cqs := CQConfig{Capacity: 1}
	require.NoError(t, cqs.MakeRing())
	cq, err := own.CreateCQ(cqs)
	require.NoError(t, err)
	srqs := SRQConfig{Domain: domain, MaxWR: 1, MaxSGE: 1}
	require.NoError(t, srqs.MakeRing())
	srq, err := clientOf(t, d).CreateSRQ(srqs)
	require.NoError(t, err)
	config := q.config
	require.NoError(t, config.MakeRings())
	for _, change := range []func(*QPConfig){
		func(c *QPConfig) {},
		func(c *QPConfig) { c.SendCQ = cq },
		func(c *QPConfig) { c.RecvCQ = cq },
		func(c *QPConfig) { c.SendCQ, c.RecvCQ, c.SRQ = cq, cq, srq },
	} {
		c := config
		change(&c)
		_, err := own.CreateQP(c)
		require.ErrorIs(t, err, ErrInvalid)
		require.ErrorContains(t, err, "another client")
	}
	region, err := own.Register(domain, make([]byte, 8), 0, 0)
	require.NoError(t, err)
	require.ErrorIs(t, clientOf(t, d).Deregister(region), ErrInvalid)

	own.events.raise(AsyncEvent{Type: transport.EventCQErr, CQ: cq})
	d.raise(transport.EventPortErr)
	e, found := clientOf(t, d).PollAsyncEvent()
	require.True(t, found)
	require.Equal(t, AsyncEvent{Type: transport.EventPortErr}, e)
	for _, want := range []AsyncEvent{{Type: transport.EventCQErr, CQ: cq}, {Type: transport.EventPortErr}} {
		e, found = own.PollAsyncEvent()
		require.True(t, found)
		require.Equal(t, want, e)
	}
	require.NoError(t, own.Close())
	require.NoError(t, srq.Close())
	require.Len(t, *d.clients.Load(), 1)
}

// TestClientLimits: a client gets as many objects of a kind as it may have, and again when one is gone.
func TestClientLimits(t *testing.T) {
	d, _ := newManual(t, 1)
	c, err := d.NewClient(ClientConfig{Limits: Limits{QPs: 1, CQs: 2, SRQs: 1, Regions: 1}})
	require.NoError(t, err)
	domain := new(memory.Domain)
	cq := func() (*CQ, error) {
		config := CQConfig{Capacity: 1}
		require.NoError(t, config.MakeRing())
		return c.CreateCQ(config)
	}
	one, err := cq()
	require.NoError(t, err)
	_, err = cq()
	require.NoError(t, err)
	for name, more := range map[string]func() (interface{ Close() error }, error){
		"SRQ": func() (interface{ Close() error }, error) {
			config := SRQConfig{Domain: domain, MaxWR: 1, MaxSGE: 1}
			require.NoError(t, config.MakeRing())
			return c.CreateSRQ(config)
		},
		"QP": func() (interface{ Close() error }, error) {
			config := QPConfig{
				Type: transport.RC, Domain: domain, SendCQ: one, RecvCQ: one,
				MaxSendWR: 1, MaxRecvWR: 1, MaxSendSGE: 1, MaxRecvSGE: 1,
			}
			require.NoError(t, config.MakeRings())
			return c.CreateQP(config)
		},
		"memory region": func() (interface{ Close() error }, error) {
			r, err := c.Register(domain, make([]byte, 8), 0, 0)
			return closer(func() error { return c.Deregister(r) }), err
		},
	} {
		for range 2 {
			object, err := more()
			require.NoError(t, err)
			_, err = more()
			require.ErrorIs(t, err, ErrLimit)
			require.ErrorContains(t, err, name+" number 2, the client may have 1")
			require.NoError(t, object.Close())
		}
	}
	_, err = cq()
	require.ErrorIs(t, err, ErrLimit)
	require.NoError(t, one.Close())
	_, err = cq()
	require.NoError(t, err)
	require.NoError(t, c.Close())
	_, err = cq()
	require.ErrorIs(t, err, ErrClosed)
	require.ErrorIs(t, c.Close(), ErrClosed)
	_, err = c.GetAsyncEvent(t.Context())
	require.ErrorIs(t, err, ErrClosed)
}

type closer func() error

func (c closer) Close() error { return c() }

// TestRelease: the engine gives each ring back once, when its object ends or has got another one, and says in the ring
// how it stands.
func TestRelease(t *testing.T) {
	d, _ := newManual(t, 1)
	c, err := d.NewClient(ClientConfig{})
	require.NoError(t, err)
	var r released
	state := func(memory []byte) uint32 { return binary.NativeEndian.Uint32(memory[204:]) }
	cqs := CQConfig{Capacity: 4}
	require.NoError(t, cqs.MakeRing())
	cqs.Ring = r.ring(cqs.Ring.Memory)
	cq, err := c.CreateCQ(cqs)
	require.NoError(t, err)
	domain := new(memory.Domain)
	srqs := SRQConfig{Domain: domain, MaxWR: 4, MaxSGE: 1}
	require.NoError(t, srqs.MakeRing())
	srqs.Ring = r.ring(srqs.Ring.Memory)
	srq, err := c.CreateSRQ(srqs)
	require.NoError(t, err)
	qps := QPConfig{
		Type: transport.RC, Domain: domain, SendCQ: cq, RecvCQ: cq,
		MaxSendWR: 1, MaxRecvWR: 1, MaxSendSGE: 1, MaxRecvSGE: 1,
	}
	require.NoError(t, qps.MakeRings())
	qps.Send, qps.Receive = r.ring(qps.Send.Memory), r.ring(qps.Receive.Memory)
	q, err := c.CreateQP(qps)
	require.NoError(t, err)
	require.Zero(t, state(qps.Send.Memory))
	a := transport.Attributes{State: transport.StateInit, Port: 1}
	const toInit = transport.MaskState | transport.MaskPKeyIndex | transport.MaskPort | transport.MaskAccess
	require.NoError(t, q.Modify(t.Context(), &a, nil, toInit))
	require.EqualValues(t, transport.StateInit, state(qps.Send.Memory))

	next := CQConfig{Capacity: 8}
	require.NoError(t, next.MakeRing())
	require.True(t, (&completions{cq, q}).Complete(&queue.WC{WRID: 5}, false))
	require.NoError(t, cq.Replace(r.ring(next.Ring.Memory), 8))
	require.Equal(t, 1, r.count)
	require.Equal(t, 1, cq.status().Waiting)
	require.Equal(t, 8, cq.Capacity())
	require.Error(t, cq.Replace(Ring{Memory: make([]byte, 4096)}, 8), "no ring")

	ahead := SRQReplacement{Ring: srqs.Ring, MaxWR: 4, First: 1}
	require.ErrorIs(t, srq.Modify(&ahead, nil), ErrInvalid, "more taken than posted")
	bigger := SRQConfig{MaxWR: 8, MaxSGE: 1}
	require.NoError(t, bigger.MakeRing())
	require.NoError(t, srq.Modify(&SRQReplacement{Ring: r.ring(bigger.Ring.Memory), MaxWR: 8}, nil))
	require.Equal(t, 2, r.count)

	overrun := CQConfig{Capacity: 1}
	require.NoError(t, overrun.MakeRing())
	full, err := c.CreateCQ(overrun)
	require.NoError(t, err)
	for range 2 {
		full.add(&queue.WC{}, false)
	}
	require.EqualValues(t, CQOverrun, state(overrun.Ring.Memory))

	require.NoError(t, c.Close())
	require.Equal(t, 6, r.count)
	require.Zero(t, state(qps.Send.Memory))
	require.EqualValues(t, CQClosed, state(next.Ring.Memory))
	require.Equal(t, 8, cq.status().Capacity)
	require.Equal(t, 8, srq.status(0).MaxWR)
	q.Ring()
	d.Drive()
	require.ErrorIs(t, cq.Replace(cqs.Ring, 4), ErrClosed)
	require.Equal(t, 6, r.count)
}
