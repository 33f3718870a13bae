package verbs_test

import (
	"context"
	"fmt"
	"log"
	"net"

	"github.com/xroce/xroce/internal/opener"
	"github.com/xroce/xroce/roce/driver"
	"github.com/xroce/xroce/roce/link/mem"
	"github.com/xroce/xroce/verbs"
)

// party is one of the two programs of the example.
type party struct {
	device *verbs.Device
	pd     *verbs.PD
	cq     *verbs.CQ
	qp     *verbs.QP
	mr     *verbs.MR
}

func newParty(network *mem.Network) *party {
	// On a real network this is verbs.OpenDevice(t.Context(), "eth1", verbs.Options{}).
	link := must(network.NewDevice(mem.DeviceOptions{}))
	device := must(opener.Open[verbs.Device](link, driver.Options{}))
	pd := must(device.AllocPD())
	p := &party{device: device, pd: pd, cq: must(device.CreateCQ(verbs.CQInitAttr{CQE: 16}))}
	p.mr = must(pd.RegMR(make([]byte, 4096), verbs.AccessLocalWrite|verbs.AccessRemoteWrite))
	p.qp = must(pd.CreateQP(verbs.QPInitAttr{SendCQ: p.cq, RecvCQ: p.cq}))
	return p
}

// close destroys everything, what depends on something before that.
func (p *party) close() {
	for _, destroy := range []func() error{p.qp.Destroy, p.cq.Destroy, p.mr.Dereg, p.pd.Dealloc, p.device.Close} {
		if err := destroy(); err != nil {
			log.Fatal(err)
		}
	}
}

// connect tells the peer where to find us, over any connection there is, and connects the queue pairs.
func (p *party) connect(channel net.Conn) {
	local := must(p.qp.Endpoint(verbs.ConnectOptions{}))
	remote := must(verbs.Exchange(channel, local))
	if err := p.qp.Connect(context.Background(), remote, verbs.ConnectOptions{}); err != nil {
		log.Fatal(err)
	}
}

// completion waits for one completion.
func (p *party) completion() verbs.WC {
	var wcs [1]verbs.WC
	for must(p.cq.Poll(wcs[:])) == 0 {
		if err := p.cq.Wait(context.Background()); err != nil {
			log.Fatal(err)
		}
	}
	return wcs[0]
}

// Two programs, here in one process, connect a pair of queue pairs; one writes into the memory of the other.
func Example() {
	network := mem.NewNetwork(mem.Options{})
	alice, bob := newParty(network), newParty(network)
	defer alice.close()
	defer bob.close()
	a, b := net.Pipe()
	connected := make(chan struct{})
	go func() {
		alice.connect(a)
		close(connected)
	}()
	bob.connect(b)
	<-connected

	// Bob expects a message with immediate data and tells Alice where to write.
	if err := bob.qp.PostRecv(verbs.RecvWR{WRID: 1}); err != nil {
		log.Fatal(err)
	}
	target := bob.mr.Remote()

	n := copy(alice.mr.Bytes(), "written by the peer")
	if err := alice.qp.PostSend(verbs.SendWR{
		WRID: 2, Opcode: verbs.WRRDMAWriteWithImm, Flags: verbs.SendSignaled, ImmData: 42,
		SGList: []verbs.SGE{alice.mr.SGE(0, n)}, RemoteAddr: target.Addr, RKey: target.RKey,
	}); err != nil {
		log.Fatal(err)
	}
	wc := bob.completion()
	fmt.Println(wc.Status, wc.Opcode, wc.ImmData, string(bob.mr.Bytes()[:wc.ByteLen]))
	wc = alice.completion()
	fmt.Println(wc.Status, wc.Opcode, wc.WRID)
	// Output:
	// success RECV of RDMA WRITE with immediate 42 written by the peer
	// success RDMA WRITE 2
}

func must[T any](value T, err error) T {
	if err != nil {
		log.Fatal(err)
	}
	return value
}
