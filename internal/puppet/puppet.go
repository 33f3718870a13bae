package puppet

import (
	"bytes"
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/xroce/xroce/roce"
	"github.com/xroce/xroce/roce/link"
	"github.com/xroce/xroce/verbs"
)

const (
	// QPN is the number of the queue pair that every puppet pretends to be.
	QPN = roce.QPN(0x10C000)
	// FirstPSN is the first PSN of a puppet's requests, FirstPSNOfQP that of the queue pair's, by default.
	FirstPSN     = roce.PSN(100)
	FirstPSNOfQP = roce.PSN(40)

	// Patience is how long Expect waits: longer than any sequence of timeouts with the default attributes.
	Patience = 10 * time.Second
)

// Puppet is a peer without a will of its own.
type Puppet struct {
	t     testing.TB
	link  link.Device
	queue link.Queue
	clock Clock

	path    roce.Path // towards the queue pair
	remote  roce.QPN
	waiting []Answer
}

// New makes a puppet on a link, of which it uses the first queue.
func New(t testing.TB, l link.Device, clock Clock) *Puppet {
	_, err := l.Steer(link.Steering{QPNBase: QPN})
	require.NoError(t, err)
	return &Puppet{t: t, link: l, queue: l.Queues()[0], clock: clock}
}

// Connect makes the puppet the peer of end's queue pair, and brings that to RTS with the attributes of Attributes as
// adjust changes them.
func (p *Puppet) Connect(end *End, adjust ...func(*verbs.QPAttr)) {
	p.ConnectQP(end.Device, end.QP, adjust...)
}

// ConnectQP is Connect for any queue pair. The GID of the device that the attributes choose says which IP carries
// the packets.
func (p *Puppet) ConnectQP(device *verbs.Device, qp *verbs.QP, adjust ...func(*verbs.QPAttr)) {
	attr := Attributes()
	for _, change := range adjust {
		change(&attr)
	}
	gid, err := device.QueryGID(attr.AH.SGIDIndex)
	require.NoError(p.t, err)
	own := p.address(gid)
	attr.DestQPN = QPN
	attr.AH.DGID = own
	p.aim(own, gid, qp.QPN())
	Establish(p.t, qp, attr)
}

// address returns the puppet's address of the same family.
func (p *Puppet) address(like roce.GID) roce.GID {
	addresses, err := p.link.Addresses()
	require.NoError(p.t, err)
	for _, a := range addresses {
		if gid := roce.GIDFromAddr(a); gid.Is4() == like.Is4() {
			return gid
		}
	}
	p.t.Fatalf("puppet has no address of the family of %v", like)
	return roce.GID{}
}

func (p *Puppet) aim(own, peer roce.GID, remote roce.QPN) {
	ctx, cancel := context.WithTimeout(context.Background(), Patience)
	defer cancel()
	neighbour, err := p.link.Resolve(ctx, own.Addr(), peer.Addr())
	require.NoError(p.t, err)
	p.remote = remote
	p.path = roce.Path{
		SourceMAC: p.link.HardwareAddr(), DestinationMAC: neighbour.HardwareAddr,
		Source: own, Destination: peer,
		SourcePort: roce.UDPSourcePort(roce.FlowLabel(QPN, remote)),
	}
}

// Send sends packets.
func (p *Puppet) Send(packets ...Packet) {
	for _, packet := range packets {
		p.Raw(p.Frame(packet))
	}
}

// Raw sends a frame as it is.
func (p *Puppet) Raw(frame []byte) {
	buffer := p.queue.Buffer()
	require.NotNil(p.t, buffer, "puppet has no transmit buffer left")
	p.queue.Commit(copy(buffer, frame))
	p.queue.Publish()
	for p.queue.Pending() {
		require.NoError(p.t, p.queue.Kick())
	}
}

// Ack sends an acknowledgement.
func (p *Puppet) Ack(psn roce.PSN, msn uint32) { p.answer(psn, roce.SyndromeAckNoCredits, msn) }

// NAK sends a NAK, an RNR NAK among them. The MSN, which the requester has no use for, is 0.
func (p *Puppet) NAK(psn roce.PSN, syndrome roce.Syndrome) { p.answer(psn, syndrome, 0) }

func (p *Puppet) answer(psn roce.PSN, syndrome roce.Syndrome, msn uint32) {
	p.Send(Packet{Opcode: roce.RCAcknowledge, PSN: psn, AETH: roce.AETHFields{Syndrome: syndrome, MSN: msn}})
}

// Respond sends a READ response, with the syndrome of an acknowledgement if it has one.
func (p *Puppet) Respond(opcode roce.Opcode, psn roce.PSN, payload []byte) {
	p.Send(Packet{Opcode: opcode, PSN: psn, Payload: payload, AETH: roce.AETHFields{Syndrome: roce.SyndromeAckNoCredits}})
}

// RespondAtomic sends the answer to an atomic.
func (p *Puppet) RespondAtomic(psn roce.PSN, original uint64) {
	p.Send(Packet{
		Opcode: roce.RCAtomicAcknowledge, PSN: psn, Original: original, AETH: roce.AETHFields{Syndrome: roce.SyndromeAckNoCredits},
	})
}

// Expect returns the next packet that comes, after Patience at the latest.
func (p *Puppet) Expect() Answer {
	p.t.Helper()
	if !p.clock.Run(Patience, p.Waiting) {
		p.t.Fatalf("no packet within %v", Patience)
	}
	a := p.waiting[0]
	p.waiting = p.waiting[1:]
	return a
}

// ExpectPacket is Expect for a packet of which opcode and PSN are known.
func (p *Puppet) ExpectPacket(opcode roce.Opcode, psn roce.PSN) Answer {
	p.t.Helper()
	return p.Expect().Is(opcode, psn)
}

// ExpectAck is Expect for an acknowledgement.
func (p *Puppet) ExpectAck(psn roce.PSN, msn uint32) Answer {
	p.t.Helper()
	return p.ExpectPacket(roce.RCAcknowledge, psn).Says(roce.SyndromeAckNoCredits, msn)
}

// ExpectNAK is Expect for a NAK, or an RNR NAK, with whatever MSN.
func (p *Puppet) ExpectNAK(psn roce.PSN, syndrome roce.Syndrome) Answer {
	p.t.Helper()
	a := p.ExpectPacket(roce.RCAcknowledge, psn)
	require.Equal(p.t, syndrome, a.AETH().Syndrome(), "%v", a)
	return a
}

// ExpectNothing lets time pass, in which no packet must come.
func (p *Puppet) ExpectNothing(duration time.Duration) {
	p.t.Helper()
	if p.clock.Run(duration, p.Waiting) {
		p.t.Fatalf("unexpected packet: %v", p.waiting[0])
	}
}

// Waiting says whether a packet has come that Expect would return at once.
func (p *Puppet) Waiting() bool {
	var frames [16]link.Frame
	for {
		n := p.queue.Receive(frames[:])
		for _, f := range frames[:n] {
			p.waiting = append(p.waiting, p.read(bytes.Join(f.Segments, nil)))
		}
		if n == 0 {
			return len(p.waiting) > 0
		}
		p.queue.Release()
	}
}
