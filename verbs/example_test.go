package verbs_test

import (
	"context"
	"fmt"
	"log"
	"net"

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

func newParty(device *verbs.Device) *party {
	pd := must(device.AllocPD())
	p := &party{device: device, pd: pd, cq: must(device.CreateCQ(verbs.CQInitAttr{CQE: 16}))}
	p.mr = must(pd.RegMR(make([]byte, 4096),
		verbs.AccessLocalWrite|verbs.AccessRemoteWrite|verbs.AccessRemoteRead|verbs.AccessRemoteAtomic))
	p.qp = must(pd.CreateQP(verbs.QPInitAttr{SendCQ: p.cq, RecvCQ: p.cq}))
	return p
}

// close closes the device, and with it all that belongs to it.
func (p *party) close() {
	if err := p.device.Close(); err != nil {
		log.Fatal(err)
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
	for wc, err := range p.cq.All(context.Background()) {
		if err != nil {
			log.Fatal(err)
		}
		return wc
	}
	return verbs.WC{}
}

// Two programs, here in one process, connect a pair of queue pairs; one writes into the memory of the other.
func Example() {
	// On a real network each opens a network device: verbs.OpenDevice(ctx, "eth1", verbs.Options{}).
	network := newNetwork()
	alice, bob := newParty(network.Device("alice")), newParty(network.Device("bob"))
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
