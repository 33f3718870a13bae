package main

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	"github.com/xroce/xroce/verbs"
)

// demoActiveCommand is the process of the demo that has the file and does all the work.
type demoActiveCommand struct{}

// Run is for the demo only.
func (demoActiveCommand) Run() error { return runProcess("active", "passive", (*process).playActive) }

func (p *process) playActive() error {
	if err := p.open(); err != nil {
		return err
	}
	var m measurement
	if err := p.loadFile(&m); err != nil {
		return err
	}
	remote, address, err := p.connect()
	if err != nil {
		return err
	}
	m.Device = p.describeDevice(address)
	if err := p.moveFile(&m, remote); err != nil {
		return err
	}
	if err := p.stage(fmt.Sprintf("SEND and RECV, %d round trips of %d bytes", p.Iterations, pingPongSize)); err != nil {
		return err
	}
	if err := p.peer.send(stepPingPong); err != nil {
		return err
	}
	if m.PingPong, err = p.playPing(); err != nil {
		return err
	}
	if m.Side, err = p.side(); err != nil {
		return err
	}
	if err := p.parent.send(childMessage{Measured: &m}); err != nil {
		return err
	}
	if err := p.closeRDMA(); err != nil {
		return err
	}
	if err := p.stage("TCP"); err != nil {
		return err
	}
	tcp, err := sendTCP(p.peer, p.memory)
	if err != nil {
		return err
	}
	tcp.Matches = tcp.SHA256 == m.File.SHA256
	return p.parent.send(childMessage{Finished: &ending{TCP: tcp}})
}

func (p *process) loadFile(m *measurement) error {
	what := "loading the file"
	var opened *os.File
	if p.File.Toolchain != "" {
		what = "making an archive of the Go toolchain in " + p.File.Toolchain
	} else {
		opened = os.NewFile(descriptorFile, "file")
		defer opened.Close()
	}
	if err := p.stage(what); err != nil {
		return err
	}
	if err := p.File.load(p.memory, opened); err != nil {
		return err
	}
	m.File = fileReport{Bytes: len(p.memory), SHA256: hash(p.memory)}
	return nil
}

func hash(memory []byte) string {
	sum := sha256.Sum256(memory)
	return hex.EncodeToString(sum[:])
}

func (p *process) describeDevice(remote verbs.Endpoint) deviceReport {
	i := p.rdma.device.Information()
	return deviceReport{
		Name: i.Name, Driver: i.Driver, XDPMode: i.Mode, ZeroCopy: i.ZeroCopy, MultiBuffer: i.MultiBuffer,
		NotTaken: append([]string{}, i.NotTaken...), PathMTU: p.PathMTU.Bytes(),
		Local: p.Address, Remote: remote.Address,
	}
}

// moveFile writes the file into the memory of the passive process and reads it back, over the same memory: what is
// there afterwards can only have come from the other side, since it was cleared in between.
func (p *process) moveFile(m *measurement, remote verbs.RemoteMemory) (err error) {
	if err := p.stage("RDMA WRITE to the passive process"); err != nil {
		return err
	}
	if m.Write, err = p.transfer(verbs.WRRDMAWrite, remote); err != nil {
		return fmt.Errorf("RDMA WRITE: %w", err)
	}
	if err := p.peer.send(stepWritten); err != nil {
		return err
	}
	if err := p.peer.receive(&m.Write.SHA256); err != nil {
		return err
	}
	m.Write.Matches = m.Write.SHA256 == m.File.SHA256

	if err := p.stage("RDMA READ from the passive process"); err != nil {
		return err
	}
	clear(p.memory)
	if m.Read, err = p.transfer(verbs.WRRDMARead, remote); err != nil {
		return fmt.Errorf("RDMA READ: %w", err)
	}
	m.Read.SHA256 = hash(p.memory)
	m.Read.Matches = m.Read.SHA256 == m.File.SHA256
	return nil
}

// transfer moves the whole memory by requests of a few MiB, of which some are always in flight.
func (p *process) transfer(opcode verbs.WROpcode, remote verbs.RemoteMemory) (transferReport, error) {
	const size, inFlight = 4 << 20, 8
	total := len(p.memory)
	if remote.Length != uint64(total) {
		return transferReport{}, fmt.Errorf("the passive process lends %d bytes instead of %d", remote.Length, total)
	}
	done := completions{rdma: p.rdma}
	start := time.Now()
	for posted, completed := 0, 0; completed*size < total; {
		for ; posted*size < total && posted-completed < inFlight; posted++ {
			offset := posted * size
			if err := p.rdma.qp.PostSend(verbs.SendWR{
				WRID: uint64(posted), Opcode: opcode, Flags: verbs.SendSignaled,
				SGList:     []verbs.SGE{p.rdma.mr.SGE(offset, min(size, total-offset))},
				RemoteAddr: remote.Addr + uint64(offset), RKey: remote.RKey,
			}); err != nil {
				return transferReport{}, err
			}
		}
		if _, err := done.wait(context.Background()); err != nil {
			return transferReport{}, err
		}
		completed++
		if err := p.progress(completed*size, total); err != nil {
			return transferReport{}, err
		}
	}
	return newTransferReport(total, time.Since(start)), nil
}

// The ping-pong: small messages in slots of the file's memory, which is not needed any more.
const (
	pingPongSize  = 8    // bytes
	pingPongSlots = 64   // receives posted, and sends that may be incomplete
	pingPongFirst = 1000 // round trips before those that count
	pingPongLast  = 0    // content of the last message

	// pingPongLimit ends it where round trips take long, on a machine that has other things to do.
	pingPongLimit = 10 * time.Second
)

// sendSlot and receiveSlot return where the message of a round trip is.
func (p *process) sendSlot(trip int) verbs.SGE {
	return p.rdma.mr.SGE(trip%pingPongSlots*pingPongSize, pingPongSize)
}

func (p *process) receiveSlot(trip int) verbs.SGE {
	return p.rdma.mr.SGE((pingPongSlots+trip%pingPongSlots)*pingPongSize, pingPongSize)
}

// postReceive posts the receive of a round trip.
func (p *process) postReceive(trip int) error {
	return p.rdma.qp.PostRecv(verbs.RecvWR{WRID: uint64(trip), SGList: []verbs.SGE{p.receiveSlot(trip)}})
}

// playPing sends numbers, which come back, and measures how long that takes.
func (p *process) playPing() (pingPongReport, error) {
	saved := append([]byte{}, p.memory[:2*pingPongSlots*pingPongSize]...)
	defer copy(p.memory, saved) // the file is sent again, by TCP
	for trip := range pingPongSlots {
		if err := p.postReceive(trip); err != nil {
			return pingPongReport{}, err
		}
	}
	if err := p.peer.expect(stepPingPong); err != nil {
		return pingPongReport{}, err
	}
	histogram := hdrhistogram.New(1, int64(pingPongLimit), 3)
	done := completions{rdma: p.rdma}
	sent := 0 // complete sends
	trip := 0
	cut := false
	for begin := time.Now(); trip < pingPongFirst+p.Iterations; trip++ {
		start := time.Now()
		since := start.Sub(begin)
		if cut = since > pingPongLimit; cut {
			break
		}
		if err := p.ping(trip, uint64(trip)+1, &sent, &done); err != nil {
			return pingPongReport{}, err
		}
		if trip >= pingPongFirst || since > pingPongLimit/10 {
			if err := histogram.RecordValue(min(int64(time.Since(start)), int64(pingPongLimit))); err != nil {
				return pingPongReport{}, err
			}
		}
	}
	if err := p.ping(trip, pingPongLast, &sent, &done); err != nil {
		return pingPongReport{}, err
	}
	// The file comes back into the slots, which the engine may need for a send that the peer has not acknowledged.
	for ; sent <= trip; sent++ {
		if _, err := done.wait(context.Background()); err != nil {
			return pingPongReport{}, err
		}
	}
	report := newPingPongReport(histogram, pingPongSize)
	report.CutShort = cut
	return report, nil
}

var errPayload = errors.New("another message came back than was sent")

// ping makes one round trip with a number, and posts the receive that takes the place of the one it has used.
func (p *process) ping(trip int, number uint64, sent *int, done *completions) error {
	binary.LittleEndian.PutUint64(p.memory[trip%pingPongSlots*pingPongSize:], number)
	err := p.rdma.qp.PostSend(verbs.SendWR{
		WRID: uint64(trip), Opcode: verbs.WRSend, Flags: verbs.SendSignaled, SGList: []verbs.SGE{p.sendSlot(trip)},
	})
	if err != nil {
		return err
	}
	received := false
	for !received || trip-*sent >= pingPongSlots-1 {
		wc, err := done.wait(context.Background())
		if err != nil {
			return fmt.Errorf("round trip %d: %w", trip, err)
		}
		if wc.Opcode == verbs.WCSend {
			*sent++
			continue
		}
		received = true
		answer := p.memory[(pingPongSlots+trip%pingPongSlots)*pingPongSize:]
		if wc.WRID != uint64(trip) || wc.ByteLen != pingPongSize || binary.LittleEndian.Uint64(answer) != number {
			return fmt.Errorf("round trip %d: %w: %d bytes, %#x instead of %#x",
				trip, errPayload, wc.ByteLen, answer[:pingPongSize], number)
		}
	}
	return p.postReceive(trip + pingPongSlots)
}
