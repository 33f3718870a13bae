package verbs_test

import (
	"context"
	"fmt"
	"log"
	"net"
	"time"

	"github.com/xroce/xroce/verbs"
)

// probe asks whether the peer is there: a WRITE of no bytes needs neither memory nor a key, and only a peer that lives
// acknowledges it. Its completion is the next one of the CQ.
func probe(qp *verbs.QP) error {
	return qp.PostSend(verbs.SendWR{Opcode: verbs.WRRDMAWrite, Flags: verbs.SendSignaled})
}

// A program that only waits is not told when its peer dies: who sends nothing misses no answer. It sends a WRITE of 0
// bytes now and then.
func Example_probe() {
	network := newNetwork()
	alice, bob := newParty(network.Device("alice")), newParty(network.Device("bob"))
	defer alice.close()
	a, b := net.Pipe()
	connected := make(chan struct{})
	go func() {
		alice.connect(a)
		close(connected)
	}()
	bob.connect(b)
	<-connected
	if err := alice.qp.PostRecv(verbs.RecvWR{}); err != nil { // for what never comes
		log.Fatal(err)
	}
	if err := probe(alice.qp); err != nil {
		log.Fatal(err)
	}
	fmt.Println("alive:", alice.completion().Status)

	bob.close()
	waiting, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	fmt.Println("after a second of waiting:", alice.cq.Wait(waiting), alice.qp.State())
	if err := probe(alice.qp); err != nil {
		log.Fatal(err)
	}
	fmt.Println("dead:", alice.completion().Status)
	// Output:
	// alive: success
	// after a second of waiting: context deadline exceeded RTS
	// dead: transport retry counter exceeded
}
