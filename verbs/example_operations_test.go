package verbs_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log"
	"time"

	"github.com/xroce/xroce/verbs"
	"github.com/xroce/xroce/verbs/verbstest"
)

// An RDMA WRITE puts bytes into the peer's memory. Its program is not told, unless the operation is WRRDMAWriteWithImm.
func ExampleQP_PostSend_write() {
	alice, bob, _ := twoParties(verbs.ConnectOptions{})
	defer alice.close()
	defer bob.close()
	target := bob.mr.Remote() // what Bob tells Alice, by verbs.Exchange for one

	n := copy(alice.mr.Bytes(), "hello")
	if err := alice.qp.PostSend(verbs.SendWR{
		Opcode: verbs.WRRDMAWrite, Flags: verbs.SendSignaled, SGList: []verbs.SGE{alice.mr.SGE(0, n)},
		RemoteAddr: target.Addr + 100, RKey: target.RKey,
	}); err != nil {
		log.Fatal(err)
	}
	fmt.Println(alice.completion().Status, string(bob.mr.Bytes()[100:100+n]))
	// Output: success hello
}

// An RDMA READ takes bytes from the peer's memory, without its program.
func ExampleQP_PostSend_read() {
	alice, bob, _ := twoParties(verbs.ConnectOptions{})
	defer alice.close()
	defer bob.close()
	n := copy(bob.mr.Bytes(), "what Bob offers")
	source := bob.mr.Remote()

	if err := alice.qp.PostSend(verbs.SendWR{
		Opcode: verbs.WRRDMARead, Flags: verbs.SendSignaled, SGList: []verbs.SGE{alice.mr.SGE(0, n)},
		RemoteAddr: source.Addr, RKey: source.RKey,
	}); err != nil {
		log.Fatal(err)
	}
	wc := alice.completion()
	fmt.Println(wc.Status, wc.ByteLen, string(alice.mr.Bytes()[:n]))
	// Output: success 15 what Bob offers
}

// A SEND takes the oldest receive of the peer. It completes at both ends.
func ExampleQP_PostSend_send() {
	alice, bob, _ := twoParties(verbs.ConnectOptions{})
	defer alice.close()
	defer bob.close()
	if err := bob.qp.PostRecv(verbs.RecvWR{WRID: 7, SGList: []verbs.SGE{bob.mr.SGE(0, 64)}}); err != nil {
		log.Fatal(err)
	}

	n := copy(alice.mr.Bytes(), "a message")
	if err := alice.qp.PostSend(verbs.SendWR{
		Opcode: verbs.WRSend, Flags: verbs.SendSignaled, SGList: []verbs.SGE{alice.mr.SGE(0, n)},
	}); err != nil {
		log.Fatal(err)
	}
	wc := bob.completion()
	fmt.Println(wc.Opcode, wc.WRID, string(bob.mr.Bytes()[:wc.ByteLen]))
	fmt.Println(alice.completion().Status)
	// Output:
	// RECV 7 a message
	// success
}

// Atomics work on an aligned word of 8 bytes in the peer's memory, and bring what it was before. The peer's queue
// pair has to permit them.
func ExampleQP_PostSend_atomic() {
	alice, bob, _ := twoParties(verbs.ConnectOptions{AccessFlags: new(verbs.AccessRemoteAtomic)})
	defer alice.close()
	defer bob.close()
	counter := bob.mr.Remote()
	if err := bob.mr.StoreUint64(0, 41); err != nil {
		log.Fatal(err)
	}

	for _, wr := range []verbs.SendWR{
		{Opcode: verbs.WRAtomicFetchAdd, CompareAdd: 1},
		{Opcode: verbs.WRAtomicCmpAndSwp, CompareAdd: 42, Swap: 100},
	} {
		wr.Flags, wr.SGList = verbs.SendSignaled, []verbs.SGE{alice.mr.SGE(0, 8)}
		wr.RemoteAddr, wr.RKey = counter.Addr, counter.RKey
		if err := alice.qp.PostSend(wr); err != nil {
			log.Fatal(err)
		}
		wc := alice.completion()
		fmt.Println(wc.Opcode, wc.Status, "was", binary.NativeEndian.Uint64(alice.mr.Bytes()))
	}
	fmt.Println(must(bob.mr.LoadUint64(0)))
	// Output:
	// fetch-and-add success was 41
	// compare-and-swap success was 42
	// 100
}

// Queue pairs that share a receive queue take their receives from it, so that a server with many clients needs no
// pool for each.
func ExamplePD_CreateSRQ() {
	network := newNetwork()
	server := newParty(network.Device("server"))
	defer server.close()
	srq := must(server.pd.CreateSRQ(verbs.SRQInitAttr{MaxWR: 16}))
	for i := range 4 {
		if err := srq.PostRecv(verbs.RecvWR{WRID: uint64(i), SGList: []verbs.SGE{server.mr.SGE(64*i, 64)}}); err != nil {
			log.Fatal(err)
		}
	}
	for _, name := range []string{"one", "two"} {
		client := newParty(network.Device(name))
		defer client.close()
		qp := must(server.pd.CreateQP(verbs.QPInitAttr{SendCQ: server.cq, RecvCQ: server.cq, SRQ: srq}))
		network.Connect(client.qp, qp, verbs.ConnectOptions{})
		n := copy(client.mr.Bytes(), "from client "+name)
		if err := client.qp.PostSend(verbs.SendWR{Opcode: verbs.WRSend, SGList: []verbs.SGE{client.mr.SGE(0, n)}}); err != nil {
			log.Fatal(err)
		}
		wc := server.completion()
		at := 64 * int(wc.WRID)
		fmt.Println(string(server.mr.Bytes()[at:at+int(wc.ByteLen)]), wc.QPN == qp.QPN())
	}
	// Output:
	// from client one true
	// from client two true
}

// A completion channel tells which of many completion queues have got something: ask for an event, poll until the
// queue is empty, wait.
func ExampleCompChannel() {
	alice, bob, network := twoParties(verbs.ConnectOptions{})
	defer alice.close()
	defer bob.close()
	channel := must(bob.device.CreateCompChannel())
	cq := must(bob.device.CreateCQ(verbs.CQInitAttr{CQE: 16, Channel: channel}))
	qp := must(bob.pd.CreateQP(verbs.QPInitAttr{SendCQ: cq, RecvCQ: cq}))
	other := must(alice.pd.CreateQP(verbs.QPInitAttr{SendCQ: alice.cq, RecvCQ: alice.cq}))
	network.Connect(other, qp, verbs.ConnectOptions{})
	if err := errors.Join(qp.PostRecv(verbs.RecvWR{WRID: 1}), cq.ReqNotify(false)); err != nil {
		log.Fatal(err)
	}
	if err := other.PostSend(verbs.SendWR{Opcode: verbs.WRSend}); err != nil {
		log.Fatal(err)
	}

	ready := must(channel.Get(context.Background())) // or select on channel.Ready()
	if err := ready.ReqNotify(false); err != nil {
		log.Fatal(err)
	}
	var wcs [16]verbs.WC
	for n := must(ready.Poll(wcs[:])); n > 0; n = must(ready.Poll(wcs[:])) {
		for _, wc := range wcs[:n] {
			fmt.Println(wc.Opcode, wc.WRID, wc.Status)
		}
	}
	// Output: RECV 1 success
}

// A request that fails is an error that matches its status, and the requests behind it are flushed by the same cause.
func ExampleQP_Err() {
	alice, bob, _ := twoParties(verbs.ConnectOptions{})
	defer alice.close()
	defer bob.close()
	target := bob.mr.Remote()
	wr := verbs.SendWR{
		Opcode: verbs.WRRDMAWrite, Flags: verbs.SendSignaled, SGList: []verbs.SGE{alice.mr.SGE(0, 8)},
		RemoteAddr: target.Addr + target.Length, RKey: target.RKey, // beyond the end
	}
	if err := alice.qp.PostSend(wr, wr); err != nil {
		log.Fatal(err)
	}
	for range 2 {
		err := alice.qp.Err(alice.completion())
		fmt.Println(errors.Is(err, verbs.ErrFlushed), errors.Is(err, verbs.ErrRemoteAccess))
	}
	err := bob.qp.Err(bob.qp.Failure()) // the other end knows why
	var failure *verbs.CompletionError
	if errors.As(err, &failure) {
		fmt.Println(failure.WC.Opcode, "of", failure.Peer, verbs.AccessFault(failure.WC.VendorErr))
	}
	// Output:
	// false true
	// true true
	// RDMA WRITE of 10.0.0.1 range is not within the region
}

// After a failure a queue pair is reset, and connected anew with new Endpoints: nothing of its last life fits into
// the next.
func ExampleQP_Connect_again() {
	alice, bob, network := twoParties(verbs.ConnectOptions{Timeout: time.Millisecond, RetryCnt: new(uint8(1))})
	defer alice.close()
	defer bob.close()
	network.SetDown(bob.device, true)
	if err := alice.qp.PostSend(verbs.SendWR{Opcode: verbs.WRRDMAWrite, Flags: verbs.SendSignaled}); err != nil {
		log.Fatal(err)
	}
	fmt.Println(errors.Is(alice.qp.Err(alice.completion()), verbs.ErrRetryExceeded), alice.qp.State())

	network.SetDown(bob.device, false)
	for _, qp := range []*verbs.QP{alice.qp, bob.qp} {
		if err := qp.Modify(context.Background(), verbs.QPAttr{State: verbs.StateReset}, verbs.QPStateMask); err != nil {
			log.Fatal(err)
		}
	}
	network.Connect(alice.qp, bob.qp, verbs.ConnectOptions{})
	if err := alice.qp.PostSend(verbs.SendWR{Opcode: verbs.WRRDMAWrite, Flags: verbs.SendSignaled}); err != nil {
		log.Fatal(err)
	}
	fmt.Println(alice.completion().Status, alice.qp.State())
	// Output:
	// true ERR
	// success RTS
}

// The network of a test loses what the test wants it to lose.
func Example_faults() {
	alice, bob, network := twoParties(verbs.ConnectOptions{})
	defer alice.close()
	defer bob.close()
	network.Faults(verbstest.DropNth(1, "RC_RDMA_READ_RESPONSE*"), verbstest.Duplicate(0.5))
	source := bob.mr.Remote()
	copy(bob.mr.Bytes(), "all the same")
	if err := alice.qp.PostSend(verbs.SendWR{
		Opcode: verbs.WRRDMARead, Flags: verbs.SendSignaled, SGList: []verbs.SGE{alice.mr.SGE(0, 12)},
		RemoteAddr: source.Addr, RKey: source.RKey,
	}); err != nil {
		log.Fatal(err)
	}
	fmt.Println(alice.completion().Status, string(alice.mr.Bytes()[:12]))
	fmt.Println(alice.device.Counters().Counts["retransmitted_pkts"] > 0)
	// Output:
	// success all the same
	// true
}
