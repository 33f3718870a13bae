package main

import (
	"context"
	"errors"
	"os/signal"
	"time"

	"github.com/xroce/xroce/verbs"
)

// process is a child of the demo, as it sees itself: what the active and the passive one have in common.
type process struct {
	parent, peer *channel
	configuration
	rdma   *rdma
	memory []byte // the file; registered while rdma is open

	reported time.Time // of the last progress
}

// runProcess runs a child. Its errors go to the parent.
func runProcess(name, peer string, play func(*process) error) error {
	nameProcess("xroce-" + name)
	// The parent ends its children as it sees fit; whoever else does, ends them at once.
	signal.Reset()
	p := &process{parent: &channel{peer: "parent"}, peer: &channel{peer: peer}}
	var err error
	if p.parent.connection, err = inheritedSocket(descriptorParent); err != nil {
		return usage("%w", err)
	}
	if p.peer.connection, err = inheritedSocket(descriptorPeer); err != nil {
		return usage("%w", err)
	}
	if err = p.parent.receive(&p.configuration); err == nil {
		err = play(p)
	}
	if err == nil {
		return nil
	}
	if p.rdma != nil {
		err = errors.Join(err, p.rdma.close())
	}
	return errors.Join(errReported, p.parent.send(childMessage{Failure: newFailure(err)}))
}

// open opens the device and makes the memory for the file.
func (p *process) open() (err error) {
	const capacity = 128
	if p.rdma, err = openRDMA(context.Background(), p.Device, "", p.Mode, p.PathMTU, capacity); err != nil {
		return err
	}
	if err := p.rdma.useAddress(p.Address); err != nil {
		return err
	}
	if p.memory, err = verbs.AllocBuffer(p.File.Size); err != nil {
		return err
	}
	return p.rdma.register(p.memory)
}

// connect connects the queue pair to that of the other process, and returns that one's memory.
func (p *process) connect() (remote verbs.RemoteMemory, address verbs.Endpoint, err error) {
	local, err := p.rdma.qp.Endpoint(p.rdma.options)
	if err != nil {
		return remote, address, err
	}
	if err := p.peer.send(local); err != nil {
		return remote, address, err
	}
	if err := p.peer.receive(&address); err != nil {
		return remote, address, err
	}
	if err := p.peer.send(p.rdma.mr.Remote()); err != nil {
		return remote, address, err
	}
	if err := p.peer.receive(&remote); err != nil {
		return remote, address, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	if err := p.rdma.qp.Connect(ctx, address, p.rdma.options); err != nil {
		return remote, address, err
	}
	return remote, address, p.meet(stepConnected)
}

// meet waits until both processes have come to the same step.
func (p *process) meet(s step) error {
	if err := p.peer.send(s); err != nil {
		return err
	}
	return p.peer.expect(s)
}

// closeRDMA closes the device, once nobody needs it any more.
func (p *process) closeRDMA() error {
	if err := p.parent.expect(stepContinue); err != nil {
		return err
	}
	r := p.rdma
	p.rdma = nil
	return r.close()
}

// stage tells the parent what begins.
func (p *process) stage(text string) error { return p.parent.send(childMessage{Stage: text}) }

// progress tells the parent how much is done, now and then.
func (p *process) progress(done, total int) error {
	const interval = 100 * time.Millisecond
	if now := time.Now(); now.Sub(p.reported) > interval {
		p.reported = now
		return p.parent.send(childMessage{Progress: &amount{Done: uint64(done), Total: uint64(total)}})
	}
	return nil
}

// side returns the counts of the device.
func (p *process) side() (sideReport, error) {
	steering, err := p.rdma.device.SteeringCounters()
	if err != nil {
		return sideReport{}, err
	}
	counters := p.rdma.device.Counters()
	drops := counters.Drops
	if n := counters.Link.ReceiveDropped; n > 0 {
		drops["socket_receive"] = n
	}
	if n := counters.Link.TransmitDropped; n > 0 {
		drops["socket_transmit"] = n
	}
	return sideReport{
		XDPPackets: steering.Redirected, XDPPassedPackets: steering.Kernel,
		Retransmissions: counters.Counts["retransmitted_pkts"], Drops: drops,
	}, nil
}
