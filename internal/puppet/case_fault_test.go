package puppet_test

import (
	"bytes"
	"context"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/xroce/xroce/internal/opener"
	"github.com/xroce/xroce/internal/puppet"
	"github.com/xroce/xroce/internal/support"
	"github.com/xroce/xroce/roce"
	"github.com/xroce/xroce/roce/link/mem"
	"github.com/xroce/xroce/verbs"
)

// Faults of a responder, seen from both ends: what goes over the wire, what becomes of the queue pair, how the receives
// complete, and what the requester is told.

// couple are two connected ends: a requests, b responds.
type couple struct {
	stage *puppet.Stage
	a, b  *puppet.End
	wire  *puppet.Wire
}

func newCouple(t *testing.T, adjust ...func(*verbs.QPAttr)) *couple {
	stage := puppet.NewStage(t, mem.Options{})
	c := &couple{stage: stage, a: stage.NewEnd(puppet.EndOptions{}), b: stage.NewEnd(puppet.EndOptions{})}
	stage.Connect(c.a, c.b, adjust...)
	c.wire = stage.Watch()
	return c
}

// word is the offset of an aligned word in the region of an End.
const word = 7 + 64

// request is a request of a on b's region, both from offset on.
func (c *couple) request(id uint64, operation verbs.WROpcode, offset, length int) verbs.SendWR {
	wr := c.a.Request(id, operation, offset, length)
	wr.RemoteAddr, wr.RKey = c.b.MR.Addr()+uint64(offset), c.b.MR.RKey()
	return wr
}

// change has a's request packets of an opcode changed on their way, bytes from the BTH on, with a right ICRC; resends,
// too: the fault is a's.
func (c *couple) change(opcode roce.Opcode, edit func(bth []byte)) {
	from := opener.Driver(c.a.Device).Link().HardwareAddr()
	c.wire.Change = func(frame []byte, p *roce.Packet) {
		if p.SourceMAC == from && p.Opcode == opcode {
			edit(frame[bthAt:])
			copy(frame[len(frame)-roce.ICRCLength:], icrc(frame, 0))
		}
	}
}

// fault is a row of the table. The requester posts what post returns; b has two receives of 64 bytes, 1 and 2.
type fault struct {
	name   string
	adjust func(*verbs.QPAttr) // of both ends
	own    func(*verbs.QPAttr) // of b only
	post   func(*couple) []verbs.SendWR
	bare   bool          // b has no receives
	answer roce.Syndrome // of the last packet that b sends
	psn    roce.PSN      // of that packet
	silent bool          // b sends nothing at all
	good   bool          // b's queue pair goes on
	recv   verbs.WCStatus
	sent   verbs.WCStatus // of the request with ID 1; the others are flushed, or succeed with it
	// What was right before the fault: bytes from the offset placed on.
	placed, bytes int
}

func only(operation verbs.WROpcode, spoil ...func(*couple, *verbs.SendWR)) func(*couple) []verbs.SendWR {
	return func(c *couple) []verbs.SendWR {
		wr := c.request(1, operation, word, 8)
		for _, f := range spoil {
			f(c, &wr)
		}
		return []verbs.SendWR{wr}
	}
}

// without makes an adjustment that takes a right from a queue pair.
func without(right verbs.AccessFlags) func(*verbs.QPAttr) {
	return func(a *verbs.QPAttr) { a.AccessFlags &^= right }
}

func granted(n uint8) func(*verbs.QPAttr) { return func(a *verbs.QPAttr) { a.MaxDestRDAtomic = n } }

// edited has the only packet of a request changed.
func edited(operation verbs.WROpcode, opcode roce.Opcode, edit func(bth []byte)) func(*couple) []verbs.SendWR {
	return only(operation, func(c *couple, _ *verbs.SendWR) { c.change(opcode, edit) })
}

// on names another region of b.
func on(access verbs.AccessFlags, odd int) func(*couple, *verbs.SendWR) {
	return func(c *couple, wr *verbs.SendWR) {
		buffer := make([]byte, 128)
		for i := range buffer {
			buffer[i] = 0xA5
		}
		mr, err := c.b.PD.RegMRIOVA(buffer[odd:], 1<<40, access)
		c.b.Require(err)
		c.b.Cleanup(func() error {
			if !bytes.Equal(bytes.Repeat([]byte{0xA5}, len(buffer)), buffer) {
				panic("memory was changed")
			}
			return mr.Dereg()
		})
		wr.RemoteAddr, wr.RKey = mr.Addr()+8, mr.RKey()
	}
}

// oddAddress names an aligned word in memory by an address that is not.
func oddAddress(opcode roce.Opcode) func(*couple, *verbs.SendWR) {
	return func(c *couple, wr *verbs.SendWR) {
		mr, err := c.b.PD.RegMRIOVA(make([]byte, 64), 1<<40+1, puppet.AllAccess)
		c.b.Require(err)
		c.b.Cleanup(mr.Dereg)
		wr.RemoteAddr, wr.RKey = 1<<40, mr.RKey()
		c.change(opcode, func(bth []byte) { bth[addressLow] |= 1 })
	}
}

func badReceive(spoil func(*couple, *verbs.SGE)) func(*couple, *verbs.SendWR) {
	return func(c *couple, _ *verbs.SendWR) {
		element := c.b.MR.SGE(4096, 64)
		spoil(c, &element)
		element.Length = 64
		c.b.Require(c.b.QP.PostRecv(verbs.RecvWR{WRID: 1, SGList: []verbs.SGE{element}}))
	}
}

const (
	success  = verbs.WCSuccess
	flushed  = verbs.WCWRFlushErr
	invalid  = roce.SyndromeNAKInvalidRequest
	refused  = roce.SyndromeNAKRemoteAccess
	nakLocal = roce.SyndromeNAKRemoteOperational
)

// withResponse are the operations that get a response of their own.
var withResponse = []verbs.WROpcode{
	verbs.WRRDMARead, verbs.WRAtomicFetchAdd, verbs.WRAtomicCmpAndSwp, verbs.WRAtomicWrite, verbs.WRFlush,
}

// rightOf is the right that an operation needs.
var rightOf = map[verbs.WROpcode]verbs.AccessFlags{
	verbs.WRRDMARead: verbs.AccessRemoteRead, verbs.WRRDMAWrite: verbs.AccessRemoteWrite,
	verbs.WRRDMAWriteWithImm: verbs.AccessRemoteWrite, verbs.WRAtomicFetchAdd: verbs.AccessRemoteAtomic,
	verbs.WRAtomicCmpAndSwp: verbs.AccessRemoteAtomic, verbs.WRAtomicWrite: verbs.AccessRemoteWrite,
	verbs.WRFlush: verbs.AccessFlushGlobal,
}

// bth are the bytes of a packet from its BTH on.
type bth = []byte

// faults are all rows of the table.
func faults() []fault {
	return slices.Concat(
		sequenceFaults(), lengthFaults(), alignmentFaults(), flushFaults(), memoryFaults(), silentFaults(), rightFaults(), grantFaults(),
	)
}

// invalidRequest is a fault that the responder answers with NAK "invalid request".
func invalidRequest(name string, post func(*couple) []verbs.SendWR) fault {
	return fault{name: name, answer: invalid, psn: 40, recv: flushed, sent: verbs.WCRemInvReqErr, post: post}
}

// refusedAccess is a fault that the responder answers with NAK "remote access error".
func refusedAccess(name string, post func(*couple) []verbs.SendWR) fault {
	return fault{name: name, answer: refused, psn: 40, recv: flushed, sent: verbs.WCRemAccessErr, post: post}
}

// sequenceFaults are requests that come out of sequence, or to a responder without a receive.
func sequenceFaults() []fault {
	return []fault{
		{name: "PSN after the expected, once", good: true, answer: roce.SyndromeAckNoCredits, psn: 41, sent: success,
			post: func(c *couple) []verbs.SendWR {
				c.wire.Drop = puppet.Once(puppet.Is(roce.RCWriteOnly, 40))
				return []verbs.SendWR{c.request(1, verbs.WRRDMAWrite, word, 8), c.request(2, verbs.WRRDMAWrite, word, 8)}
			}},
		{name: "PSN after the expected, for ever", good: true, answer: roce.SyndromeNAKSequence, psn: 40, sent: verbs.WCRetryExcErr,
			post: func(c *couple) []verbs.SendWR {
				c.wire.Drop = puppet.Is(roce.RCWriteOnly, 40)
				return []verbs.SendWR{c.request(1, verbs.WRRDMAWrite, word, 8), c.request(2, verbs.WRRDMAWrite, word, 8)}
			}},
		{name: "no receive, SEND", bare: true, good: true, answer: roce.RNRNAK(12), psn: 40, sent: verbs.WCRNRRetryExcErr, post: only(verbs.WRSend)},
		{name: "no receive, SEND with invalidate", bare: true, good: true, answer: roce.RNRNAK(12), psn: 40,
			sent: verbs.WCRNRRetryExcErr, post: only(verbs.WRSendWithInv)},
		{name: "no receive, WRITE with immediate", bare: true, good: true, answer: roce.RNRNAK(12), psn: 40,
			sent: verbs.WCRNRRetryExcErr, post: only(verbs.WRRDMAWriteWithImm)},
		{name: "opcode out of sequence in a SEND", answer: invalid, psn: 41, recv: verbs.WCRemInvReqErr, sent: verbs.WCRemInvReqErr,
			post: func(c *couple) []verbs.SendWR {
				c.b.PostRecv(1, 4096, 2048)
				c.change(roce.RCSendLast, func(b bth) { b[opcodeByte] = byte(roce.RCWriteLast) })
				return []verbs.SendWR{c.request(1, verbs.WRSend, 0, 2048)}
			}, bare: true, placed: 4096, bytes: 1024},
		{name: "opcode out of sequence in a WRITE", answer: invalid, psn: 41, recv: flushed, sent: verbs.WCRemInvReqErr,
			post: func(c *couple) []verbs.SendWR {
				c.change(roce.RCWriteLast, func(b bth) { b[opcodeByte] = byte(roce.RCSendLast) })
				return []verbs.SendWR{c.request(1, verbs.WRRDMAWrite, 0, 2048)}
			}, bytes: 1024},
		invalidRequest("opcode out of sequence, no message",
			edited(verbs.WRSend, roce.RCSendOnly, func(b bth) { b[opcodeByte] = byte(roce.RCSendLast) })),
	}
}

// lengthFaults are requests whose lengths do not fit.
func lengthFaults() []fault {
	return []fault{
		invalidRequest("DMALen above 2^31",
			edited(verbs.WRRDMARead, roce.RCReadRequest, func(b bth) { b[dmaLenHigh], b[dmaLenLow] = 0x80, 1 })),
		invalidRequest("longer than the DMALen", edited(verbs.WRRDMAWrite, roce.RCWriteOnly, func(b bth) { b[dmaLenLow]-- })),
		{name: "longer than the DMALen, with immediate", answer: invalid, psn: 40, recv: verbs.WCRemInvReqErr, sent: verbs.WCRemInvReqErr,
			post: edited(verbs.WRRDMAWriteWithImm, roce.RCWriteOnlyImmediate, func(b bth) { b[dmaLenLow]-- })},
		invalidRequest("pad in place of data", edited(verbs.WRRDMAWrite, roce.RCWriteOnly, func(b bth) { b[flagsByte] |= padCountOne })),
		{name: "another path MTU", answer: invalid, psn: 40, recv: flushed, sent: verbs.WCRemInvReqErr,
			own:  func(a *verbs.QPAttr) { a.PathMTU = verbs.MTU512 },
			post: func(c *couple) []verbs.SendWR { return []verbs.SendWR{c.request(1, verbs.WRRDMAWrite, 0, 2048)} }},
		{name: "SEND longer than the receive", answer: invalid, psn: 40, recv: verbs.WCLocLenErr, sent: verbs.WCRemInvReqErr,
			post: func(c *couple) []verbs.SendWR { return []verbs.SendWR{c.request(1, verbs.WRSend, 0, 65)} }},
	}
}

// alignmentFaults are operations on a word that is not aligned or has another length.
func alignmentFaults() []fault {
	addVA := func(n byte) func(bth) { return func(b bth) { b[addressLow] += n } }
	return []fault{
		invalidRequest("fetch-and-add not aligned", edited(verbs.WRAtomicFetchAdd, roce.RCFetchAdd, addVA(4))),
		invalidRequest("compare-and-swap not aligned", edited(verbs.WRAtomicCmpAndSwp, roce.RCCompareSwap, addVA(1))),
		invalidRequest("atomic write not aligned", edited(verbs.WRAtomicWrite, roce.RCAtomicWrite, addVA(4))),
		invalidRequest("atomic where the memory is not aligned", only(verbs.WRAtomicFetchAdd, on(puppet.AllAccess, 1))),
		invalidRequest("atomic write where the memory is not aligned", only(verbs.WRAtomicWrite, on(puppet.AllAccess, 1))),
		invalidRequest("atomic where only the address is not aligned", only(verbs.WRAtomicFetchAdd, oddAddress(roce.RCFetchAdd))),
		invalidRequest("atomic write where only the address is not aligned", only(verbs.WRAtomicWrite, oddAddress(roce.RCAtomicWrite))),
		invalidRequest("atomic write, DMALen 4", edited(verbs.WRAtomicWrite, roce.RCAtomicWrite, func(b bth) { b[dmaLenLow] = 4 })),
		invalidRequest("atomic write, pad",
			edited(verbs.WRAtomicWrite, roce.RCAtomicWrite, func(b bth) { b[flagsByte] |= padCountOne; b[dmaLenLow] = 7 })),
	}
}

// flushFaults are FLUSHes of what there is not, or may not be flushed.
func flushFaults() []fault {
	return []fault{
		invalidRequest("FLUSH of no placement", edited(verbs.WRFlush, roce.RCFlush, func(b bth) { b[flushWhat] = 0 })),
		invalidRequest("FLUSH to placement 4", edited(verbs.WRFlush, roce.RCFlush, func(b bth) { b[flushWhat] |= 4 })),
		invalidRequest("FLUSH of selectivity 2", edited(verbs.WRFlush, roce.RCFlush, func(b bth) { b[flushWhat] |= selectUnused })),
		invalidRequest("FLUSH to persistence, no QP right",
			only(verbs.WRFlush, func(_ *couple, wr *verbs.SendWR) { wr.Flush.Placement = verbs.FlushPlacementPersistent })),
		{name: "FLUSH to persistence, no MR right", answer: refused, psn: 40, recv: flushed, sent: verbs.WCRemAccessErr,
			own:  func(a *verbs.QPAttr) { a.AccessFlags |= verbs.AccessFlushPersistent },
			post: only(verbs.WRFlush, func(_ *couple, wr *verbs.SendWR) { wr.Flush.Placement = 3 })},
		{name: "FLUSH of the whole region, wild range", good: true, answer: roce.SyndromeAckNoCredits, psn: 40, sent: success,
			post: only(verbs.WRFlush, func(_ *couple, wr *verbs.SendWR) {
				wr.Flush.Selectivity, wr.Flush.Length, wr.RemoteAddr = verbs.FlushSelectMR, 1<<31, 1<<64-1
			})},
		refusedAccess("FLUSH of the whole region, wrong key",
			only(verbs.WRFlush, func(_ *couple, wr *verbs.SendWR) { wr.Flush.Selectivity = verbs.FlushSelectMR; wr.RKey ^= 1 })),
		{name: "FLUSH of the whole region, no MR right", answer: refused, psn: 40, recv: flushed, sent: verbs.WCRemAccessErr,
			post: only(verbs.WRFlush, on(puppet.AllAccess&^verbs.AccessFlushGlobal, 0),
				func(_ *couple, wr *verbs.SendWR) { wr.Flush.Selectivity = verbs.FlushSelectMR })},
	}
}

// memoryFaults are requests whose memory at the responder is not good.
func memoryFaults() []fault {
	return []fault{
		{name: "WRITE with immediate, wrong key", answer: refused, psn: 40, recv: verbs.WCRemAccessErr, sent: verbs.WCRemAccessErr,
			post: only(verbs.WRRDMAWriteWithImm, func(_ *couple, wr *verbs.SendWR) { wr.RKey ^= 1 })},
		{name: "receive of a wrong key", bare: true, answer: nakLocal, psn: 40, recv: verbs.WCLocProtErr, sent: verbs.WCRemOpErr,
			post: only(verbs.WRSend, badReceive(func(_ *couple, s *verbs.SGE) { s.LKey ^= 1 }))},
		{name: "receive of another domain", bare: true, answer: nakLocal, psn: 40, recv: verbs.WCLocProtErr, sent: verbs.WCRemOpErr,
			post: only(verbs.WRSend, badReceive(func(c *couple, s *verbs.SGE) { *s = foreign(c.b) }))},
		{name: "receive that is read-only", bare: true, answer: nakLocal, psn: 40, recv: verbs.WCLocProtErr, sent: verbs.WCRemOpErr,
			post: only(verbs.WRSendWithInv, badReceive(func(c *couple, s *verbs.SGE) { *s = readOnly(c.b) }))},
		{name: "invalidation fails", answer: roce.SyndromeAckNoCredits, psn: 40, recv: verbs.WCRemInvReqErr, sent: success,
			post:   only(verbs.WRSendWithInv, func(c *couple, wr *verbs.SendWR) { wr.InvalidateRKey = c.b.MR.RKey() }),
			placed: 4096, bytes: 8},
	}
}

// silentFaults are packets that get no answer.
func silentFaults() []fault {
	return []fault{
		{name: "queue pair in error", silent: true, recv: flushed, sent: verbs.WCRetryExcErr,
			post: only(verbs.WRRDMAWrite, func(c *couple, _ *verbs.SendWR) {
				c.b.Require(c.b.QP.Modify(context.Background(), verbs.QPAttr{State: verbs.StateError}, verbs.QPStateMask))
			})},
		{name: "unknown queue pair", silent: true, good: true, sent: verbs.WCRetryExcErr,
			post: edited(verbs.WRRDMAWrite, roce.RCWriteOnly, func(b bth) { b[qpnMidByte] ^= 0x10 })},
		{name: "another partition", silent: true, good: true, sent: verbs.WCRetryExcErr,
			post: edited(verbs.WRRDMAWrite, roce.RCWriteOnly, func(b bth) { b[pkeyLowByte] ^= 1 })},
		{name: "opcode that nobody has", silent: true, good: true, sent: verbs.WCRetryExcErr,
			post: edited(verbs.WRRDMAWrite, roce.RCWriteOnly, func(b bth) { b[opcodeByte] = 0x15 })},
		{name: "frame that is damaged every time", silent: true, good: true, sent: verbs.WCRetryExcErr,
			post: only(verbs.WRRDMAWrite, func(c *couple, _ *verbs.SendWR) {
				c.wire.Change = func(frame []byte, _ *roce.Packet) { frame[len(frame)-roce.ICRCLength-1] ^= 1 }
			})},
	}
}

// rightFaults are requests without a right that they need, and of memory that they do not name rightly, for each
// operation on memory.
func rightFaults() (rows []fault) {
	for operation, right := range rightOf {
		name := operation.String()
		claimed := flushed
		if operation == verbs.WRRDMAWriteWithImm {
			claimed = verbs.WCRemAccessErr
		}
		rows = append(rows,
			fault{name: name + ", no QP right", own: without(right), post: only(operation), answer: invalid, psn: 40,
				recv: flushed, sent: verbs.WCRemInvReqErr},
			fault{name: name + ", no other QP right", own: without(^right), post: only(operation), answer: roce.SyndromeAckNoCredits,
				psn: 40, good: true, sent: success},
			fault{name: name + ", no MR right", post: only(operation, on(puppet.AllAccess&^right, 0)), answer: refused, psn: 40,
				recv: claimed, sent: verbs.WCRemAccessErr},
		)
		for what, spoil := range map[string]func(*couple, *verbs.SendWR){
			"key byte":         func(_ *couple, wr *verbs.SendWR) { wr.RKey ^= 0x80 },
			"key index":        func(_ *couple, wr *verbs.SendWR) { wr.RKey += 1 << 20 },
			"below":            func(c *couple, wr *verbs.SendWR) { wr.RemoteAddr = c.b.MR.Addr() - 1 },
			"above":            func(c *couple, wr *verbs.SendWR) { wr.RemoteAddr = (c.b.MR.Addr() + 128<<10) &^ 7 },
			"end of addresses": func(_ *couple, wr *verbs.SendWR) { wr.RemoteAddr = 1<<64 - 8 },
		} {
			rows = append(rows, fault{name: name + ", wrong " + what, post: only(operation, spoil, align), answer: refused, psn: 40,
				recv: claimed, sent: verbs.WCRemAccessErr})
		}
	}
	return rows
}

// grantFaults are requests with a response of which more are in flight than the responder grants, and as many.
func grantFaults() (rows []fault) {
	for _, operation := range withResponse {
		rows = append(rows,
			fault{name: operation.String() + ", none granted", own: granted(0), post: only(operation), answer: invalid, psn: 40,
				recv: flushed, sent: verbs.WCRemInvReqErr},
			fault{name: operation.String() + ", one granted", own: granted(1), post: only(operation), answer: roce.SyndromeAckNoCredits, psn: 40,
				good: true, sent: success},
		)
	}
	return rows
}

// align makes a remote address one that a post of an atomic accepts.
func align(_ *couple, wr *verbs.SendWR) { wr.RemoteAddr &^= 7 }

func TestFaultTable(t *testing.T) {
	for _, f := range faults() {
		t.Run(f.name, f.run)
	}
}

// TestCase_B4_EveryOperation: who asks for what it may not have learns so at once.
func TestCase_B4_EveryOperation(t *testing.T) {
	count := 0
	for _, f := range faults() {
		if f.answer == refused {
			count++
			t.Run(f.name, f.run)
		}
	}
	require.Greater(t, count, 6*len(rightOf)-1)
}

func (f fault) run(t *testing.T) {
	stage := puppet.NewStage(t, mem.Options{})
	c := &couple{stage: stage, a: stage.NewEnd(puppet.EndOptions{}), b: stage.NewEnd(puppet.EndOptions{})}
	first := true
	stage.Connect(c.a, c.b, func(a *verbs.QPAttr) {
		a.RNRRetry, a.RetryCnt = 1, 1
		if f.adjust != nil {
			f.adjust(a)
		}
		if f.own != nil && !first {
			f.own(a)
		}
		first = false
	})
	c.wire = stage.Watch()
	if !f.bare {
		c.b.PostRecv(1, 4096, 64)
		c.b.PostRecv(2, 8192, 64)
	}
	image := bytes.Clone(c.b.MR.Bytes())
	wrs := f.post(c)
	if f.bare && f.recv != success {
		c.b.PostRecv(2, 8192, 64)
	}
	start := stage.Now()
	c.a.Post(wrs...)
	wc := c.a.ExpectSend(1, f.sent)
	if f.answer > roce.SyndromeNAKSequence || f.answer.IsRNR() {
		require.Equal(t, f.answer, wc.Syndrome)
	}
	if f.answer > roce.SyndromeNAKSequence {
		require.Zero(t, wc.Retries)
		require.Less(t, stage.Now()-start, time.Millisecond)
	}
	for _, wr := range wrs[1:] {
		status := flushed
		if f.sent == success {
			status = success
		}
		c.a.ExpectSend(wr.WRID, status)
	}
	c.stage.Pass(time.Second)
	f.judge(t, c, image)
}

// judge looks at the wire and at both ends when all is over. image are the bytes of b's region as they were before.
func (f fault) judge(t *testing.T, c *couple, image []byte) {
	packets := c.wire.From(c.b)
	if f.silent {
		require.Empty(t, packets)
	} else {
		last := packets[len(packets)-1]
		require.Equal(t, f.answer, last.AETH.Syndrome)
		require.Equal(t, f.psn, last.PSN)
		if !f.answer.IsAck() {
			require.Equal(t, roce.RCAcknowledge, last.Opcode)
		}
	}
	if f.sent != success {
		require.Equal(t, verbs.StateError, c.a.QP.State())
	}
	require.Empty(t, events(c.a), "its completions tell it all")
	require.Equal(t, f.events(c), events(c.b))
	outcome := support.Outcome{Wire: f.answer, Event: "none", Requester: f.sent}
	for _, e := range f.events(c) {
		outcome.Event = e.Type
		support.Object(t, "Event", e.Type.String(), "request that is refused, if no receive tells of it")
	}
	if f.silent {
		outcome.Wire = "nothing"
	}
	if f.good {
		require.Equal(t, verbs.StateRTS, c.b.QP.State())
		outcome.Responder = verbs.StateRTS
		support.Fault(t, f.name, outcome)
		return
	}
	require.Equal(t, verbs.StateError, c.b.QP.State())
	recvs := c.b.Recvs(2)
	require.Equal(t, []uint64{1, 2}, []uint64{recvs[0].WRID, recvs[1].WRID})
	require.Equal(t, []verbs.WCStatus{f.recv, flushed}, []verbs.WCStatus{recvs[0].Status, recvs[1].Status})
	copy(image[f.placed:], c.b.Bytes(f.placed, f.bytes))
	require.True(t, bytes.Equal(image, c.b.MR.Bytes()), "memory was changed")
	c.b.ExpectNoCompletion()
	outcome.Responder, outcome.Receive = verbs.StateError, f.recv
	support.Fault(t, f.name, outcome)
}

// events is what b's program must be told beside its completions: the fault that ended its queue pair, unless a receive
// completes with it (IBTA volume 1, section 11.6.3.2).
func (f fault) events(c *couple) []verbs.AsyncEvent {
	types := map[roce.Syndrome]verbs.EventType{invalid: verbs.EventQPReqErr, refused: verbs.EventQPAccessErr}
	if event, fatal := types[f.answer]; fatal && f.recv == flushed {
		return []verbs.AsyncEvent{{Type: event, QP: c.b.QP}}
	}
	return nil
}

// events takes the asynchronous events that wait at an end, without the fault of those whose QP has failed of the same.
func events(end *puppet.End) (list []verbs.AsyncEvent) {
	for e, found := end.Device.PollAsyncEvent(); found; e, found = end.Device.PollAsyncEvent() {
		if e.QP != nil && e.Fault == verbs.AccessFault(e.QP.Failure().VendorErr) {
			e.Fault = verbs.FaultNone
		}
		list = append(list, e)
	}
	return list
}
