package verbs_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/xroce/xroce/internal/opener"
	"github.com/xroce/xroce/roce/driver"
	"github.com/xroce/xroce/roce/link/mem"
	"github.com/xroce/xroce/verbs"
)

// populace is a device with so many of each object, and a peer for connections.
type populace struct {
	t      testing.TB
	device *verbs.Device
	pd     *verbs.PD
	cq     *verbs.CQ
	mr     *verbs.MR
	near   *verbs.QP
	far    verbs.Endpoint
	buffer []byte
	undo   []func() error
}

func (p *populace) must(err error) {
	if err != nil {
		p.t.Fatal(err)
	}
}

func (p *populace) newQP() *verbs.QP {
	qp, err := p.pd.CreateQP(verbs.QPInitAttr{SendCQ: p.cq, RecvCQ: p.cq, Cap: verbs.QPCap{MaxSendWR: 2, MaxRecvWR: 2, MaxInline: 16}})
	p.must(err)
	return qp
}

// connect connects a queue pair to one that never answers. Without a timeout none of them fails while the others are made, and
// the CQ does not overrun.
func (p *populace) connect(qp *verbs.QP) {
	p.must(qp.Connect(context.Background(), p.far, verbs.ConnectOptions{MaxRDAtomic: new(uint8(1)), Timeout: verbs.NoTimeout}))
}

func newPopulace(t testing.TB, count int) *populace {
	network := mem.NewNetwork(mem.Options{})
	open := func() *verbs.Device {
		l, err := network.NewDevice(mem.DeviceOptions{})
		require.NoError(t, err)
		d, err := opener.Open[verbs.Device](l, driver.Options{})
		require.NoError(t, err)
		t.Cleanup(func() { requireClose(t, d) })
		return d
	}
	a, b := open(), open()
	p := &populace{t: t, device: a, buffer: make([]byte, 64)}
	t.Cleanup(func() {
		for i := range p.undo {
			p.must(p.undo[len(p.undo)-1-i]())
		}
	})
	later := func(undo func() error) { p.undo = append(p.undo, undo) }
	var err error
	p.pd, err = a.AllocPD()
	p.must(err)
	later(p.pd.Dealloc)
	p.cq, err = a.CreateCQ(verbs.CQInitAttr{CQE: 16})
	p.must(err)
	later(p.cq.Destroy)
	pd, err := b.AllocPD()
	p.must(err)
	later(pd.Dealloc)
	cq, err := b.CreateCQ(verbs.CQInitAttr{CQE: 16})
	p.must(err)
	later(cq.Destroy)
	far, err := pd.CreateQP(verbs.QPInitAttr{SendCQ: cq, RecvCQ: cq})
	p.must(err)
	later(far.Destroy)
	p.far, err = far.Endpoint(verbs.ConnectOptions{MaxRDAtomic: new(uint8(1))})
	p.must(err)
	p.mr, err = p.pd.RegMR(p.buffer, allAccess)
	p.must(err)
	later(p.mr.Dereg)
	for range count {
		qp := p.newQP()
		later(qp.Destroy)
		p.connect(qp)
		// Inline data is fetched when it is posted.
		p.must(qp.PostSend(verbs.SendWR{Opcode: verbs.WRRDMAWrite, Flags: verbs.SendInline, SGList: []verbs.SGE{p.mr.SGE(0, 8)}}))
		mr, err := p.pd.RegMR(p.buffer, allAccess)
		p.must(err)
		later(mr.Dereg)
		mw, err := p.pd.AllocMW(verbs.MWType2)
		p.must(err)
		later(mw.Dealloc)
		other, err := a.CreateCQ(verbs.CQInitAttr{CQE: 1})
		p.must(err)
		later(other.Destroy)
		domain, err := a.AllocPD()
		p.must(err)
		later(domain.Dealloc)
	}
	return p
}

// controlCalls are calls that make an object, or change one, and undo it.
var controlCalls = []struct {
	name string
	call func(p *populace)
}{
	{"RegMR and Dereg", func(p *populace) {
		mr, err := p.pd.RegMR(p.buffer, allAccess)
		p.must(err)
		p.must(mr.Dereg())
	}},
	{"AllocMW and Dealloc", func(p *populace) {
		mw, err := p.pd.AllocMW(verbs.MWType1)
		p.must(err)
		p.must(mw.Dealloc())
	}},
	{"AllocPD and Dealloc", func(p *populace) {
		pd, err := p.device.AllocPD()
		p.must(err)
		p.must(pd.Dealloc())
	}},
	{"CreateCQ and Destroy", func(p *populace) {
		cq, err := p.device.CreateCQ(verbs.CQInitAttr{CQE: 1})
		p.must(err)
		p.must(cq.Destroy())
	}},
	{"CreateQP, Connect and Destroy", func(p *populace) {
		qp := p.newQP()
		p.connect(qp)
		p.must(qp.Destroy())
	}},
	{"RESET and Connect", func(p *populace) {
		if p.near == nil {
			p.near = p.newQP()
			p.undo = append(p.undo, p.near.Destroy)
		}
		p.must(p.near.Modify(context.Background(), verbs.QPAttr{State: verbs.StateReset}, verbs.QPStateMask))
		p.connect(p.near)
	}},
}

// fastest is the least time that a call takes.
func fastest(p *populace, call func(*populace)) time.Duration {
	least := time.Hour
	for range 300 {
		start := time.Now()
		call(p)
		least = min(least, time.Since(start))
	}
	return least
}

// TestControlCallsScale: no control call takes longer because there are many other objects.
func TestControlCallsScale(t *testing.T) {
	few, many := newPopulace(t, 10), newPopulace(t, size(1500, 10_000))
	for _, c := range controlCalls {
		var before, after time.Duration
		for range 5 { // other work on the machine may disturb any of them
			before, after = fastest(few, c.call), fastest(many, c.call)
			if after < 2*before+time.Microsecond {
				break
			}
		}
		t.Logf("%s: %v beside 10 of each object, %v beside many", c.name, before, after)
		require.Less(t, after, 2*before+time.Microsecond, c.name)
	}
}

// BenchmarkControlCalls beside 10, 1,000 and 10,000 of each object.
func BenchmarkControlCalls(b *testing.B) {
	for _, count := range []int{10, 1000, 10_000} {
		p := newPopulace(b, count)
		for _, c := range controlCalls {
			b.Run(fmt.Sprintf("%s/%d", c.name, count), func(b *testing.B) {
				for b.Loop() {
					c.call(p)
				}
			})
		}
	}
}
