package puppet_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/xroce/xroce/internal/puppet"
	"github.com/xroce/xroce/internal/support"
	"github.com/xroce/xroce/roce"
	"github.com/xroce/xroce/verbs"
)

// wrongness is what can be wrong with a request, in the order in which a responder looks (the state machine in
// drivers/infiniband/sw/rxe/rxe_resp.c).
type wrongness struct {
	name   string
	answer roce.Syndrome
	of     func(roce.Opcode) bool // nil: any request can have it
	spoil  func(*order)
}

// order is a request before it is sent.
type order struct {
	attr   verbs.QPAttr // of the queue pair from the start
	rights verbs.AccessFlags
	early  bool // a WRITE has begun before it
	sge    func(*puppet.End) verbs.SGE
	none   bool // there is no receive
	edit   []func(*puppet.End, *puppet.Packet)
}

func takesReceive(o roce.Opcode) bool {
	return o.Info().Operation == roce.OperationSend || o.Info().Has(roce.HeaderImmDt)
}

func wrongnesses() []wrongness {
	packet := func(edit func(*puppet.End, *puppet.Packet)) func(*order) {
		return func(o *order) { o.edit = append(o.edit, edit) }
	}
	isSend := func(o roce.Opcode) bool { return o.Info().Operation == roce.OperationSend }
	not := func(f func(roce.Opcode) bool) func(roce.Opcode) bool {
		return func(o roce.Opcode) bool { return !f(o) }
	}
	isWrite := func(o roce.Opcode) bool { return o.Info().Operation == roce.OperationWrite }
	isAnswered := func(o roce.Opcode) bool { return !isSend(o) && !isWrite(o) }
	isWord := func(o roce.Opcode) bool {
		return o == roce.RCFetchAdd || o == roce.RCCompareSwap || o == roce.RCAtomicWrite
	}
	return []wrongness{
		{"PSN ahead", roce.SyndromeNAKSequence, nil, packet(func(_ *puppet.End, p *puppet.Packet) { p.PSN++ })},
		{"out of sequence", invalid, nil, func(o *order) { o.early = true }},
		{"no right of the QP", invalid, not(isSend), func(o *order) { o.rights = 0 }},
		{"no ring", invalid, isAnswered, func(o *order) { o.attr.MaxDestRDAtomic = 0 }},
		{"no receive", roce.RNRNAK(12), takesReceive, func(o *order) { o.none = true }},
		{"too long", invalid, nil, packet(func(_ *puppet.End, p *puppet.Packet) { p.Payload = make([]byte, 2048) })},
		{"wrong key", refused, not(isSend), packet(func(_ *puppet.End, p *puppet.Packet) { p.RETH.RKey ^= 1; p.Atomic.RKey ^= 1 })},
		{"below the region", refused, not(isSend), packet(func(_ *puppet.End, p *puppet.Packet) { p.RETH.VA = 8; p.Atomic.VA = 8 })},
		{"not aligned", invalid, isWord, packet(func(_ *puppet.End, p *puppet.Packet) { p.RETH.VA++; p.Atomic.VA++ })},
		{"receive of a wrong key", nakLocal, isSend, func(o *order) {
			o.sge = func(end *puppet.End) verbs.SGE { s := end.MR.SGE(4096, 64); s.LKey ^= 1; return s }
		}},
		{"nothing to invalidate", roce.SyndromeAckNoCredits, func(o roce.Opcode) bool { return o.Info().Has(roce.HeaderIETH) },
			packet(func(_ *puppet.End, p *puppet.Packet) { p.Invalidate ^= 1 })},
	}
}

// TestOrderOfChecks: of two faults the one counts for which is looked first.
func TestOrderOfChecks(t *testing.T) {
	list := wrongnesses()
	for _, opcode := range requests() {
		if opcode.Info().Position != roce.PositionOnly {
			continue
		}
		for i, first := range list {
			for _, second := range list[i:] { // the first one alone, too
				if first.of != nil && !first.of(opcode) || second.of != nil && !second.of(opcode) {
					continue
				}
				t.Run(fmt.Sprintf("%v, %s, %s", opcode, first.name, second.name), func(t *testing.T) {
					o := order{attr: puppet.Attributes(), rights: puppet.PeerAccess}
					first.spoil(&o)
					if first.name != second.name {
						second.spoil(&o)
					}
					_, end, p := sender(t, func(a *verbs.QPAttr) { a.MaxDestRDAtomic = o.attr.MaxDestRDAtomic })
					mr := fastRegion(end, 64)
					psn := roce.PSN(100)
					if o.early {
						p.Send(anyRequest(end, roce.RCWriteFirst, psn, 1024, 4096))
						p.ExpectAck(psn, 0)
						psn++
					}
					require.NoError(t, end.QP.Modify(t.Context(), verbs.QPAttr{AccessFlags: o.rights}, verbs.QPAccessFlags))
					if !o.none {
						element := end.MR.SGE(4096, 64)
						if o.sge != nil {
							element = o.sge(end)
						}
						require.NoError(t, end.QP.PostRecv(verbs.RecvWR{WRID: 1, SGList: []verbs.SGE{element}}))
					}
					packet := anyRequest(end, opcode, psn, bytesOf(opcode), 8)
					packet.Invalidate = mr.RKey()
					for _, edit := range o.edit {
						edit(end, &packet)
					}
					image := string(end.MR.Bytes())
					p.Send(packet)
					a := p.ExpectPacket(roce.RCAcknowledge, psn)
					require.Equal(t, first.answer, a.AETH().Syndrome(), "%v", a)
					state := verbs.StateError
					if first.answer.IsRNR() || first.answer == roce.SyndromeNAKSequence {
						state = verbs.StateRTS
					}
					require.Equal(t, state, end.QP.State())
					support.Fault(t, "several faults, first: "+first.name, support.Outcome{Wire: first.answer, Responder: state})
					if !first.answer.IsAck() {
						require.True(t, image == string(end.MR.Bytes()), "memory was changed")
						_, err := mr.LoadUint64(0)
						require.NoError(t, err, "the key was invalidated for a packet that failed")
					}
				})
			}
		}
	}
}
