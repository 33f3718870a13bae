package puppet_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
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

// Requests with a response of their own between two real ends, when packets get lost: executed once, and in order.

func loadWord(end *puppet.End, offset int) uint64 {
	return binary.NativeEndian.Uint64(end.Bytes(offset, 8))
}

func storeWord(end *puppet.End, offset int, value uint64) {
	binary.NativeEndian.PutUint64(end.Bytes(offset, 8), value)
}

// every says yes to each nth packet that fits, but not to the same one twice in a row: a resend may well be n
// packets, too.
func every(n int, fits func(*puppet.Sent) bool) func(*puppet.Sent) bool {
	seen, last := 0, roce.PSN(1<<24)
	return func(s *puppet.Sent) bool {
		if !fits(s) {
			return false
		}
		seen++
		if seen < n || s.PSN == last {
			return false
		}
		seen, last = 0, s.PSN
		return true
	}
}

// atomics runs a thousand atomics on one word, 16 in flight, over a wire with losses: the i-th must find i there.
func atomics(t *testing.T, depth uint8, step func(c *couple, i int) []verbs.SendWR, losses ...func(*puppet.Sent) bool) {
	const count = 1000
	stage := puppet.NewStage(t, mem.Options{})
	a := stage.NewEnd(puppet.EndOptions{Cap: verbs.QPCap{MaxSendWR: 2 * count}, CQE: 2 * count})
	c := &couple{stage: stage, a: a, b: stage.NewEnd(puppet.EndOptions{})}
	stage.Connect(c.a, c.b, func(a *verbs.QPAttr) {
		a.MaxRDAtomic, a.MaxDestRDAtomic, a.Timeout = depth, depth, 8
		a.RQPSN = 0xFFFE00 // wraps on the way
	})
	c.wire = stage.Watch()
	lost := 0
	inFlight := 0
	deepest := 0
	c.wire.Drop = func(s *puppet.Sent) bool {
		switch s.Opcode {
		case roce.RCFetchAdd, roce.RCCompareSwap:
			inFlight++
			deepest = max(deepest, inFlight)
		case roce.RCAtomicAcknowledge:
			inFlight--
		}
		for _, lose := range losses {
			if lose(s) {
				lost++
				return true
			}
		}
		return false
	}
	storeWord(c.b, word, 0)
	total := 0
	for i := range count {
		wrs := step(c, i)
		c.a.Post(wrs...)
		total += len(wrs)
	}
	for _, wc := range c.a.Sends(total) {
		require.Equal(t, verbs.WCSuccess, wc.Status, "%+v", wc)
	}
	for i := range count {
		require.EqualValues(t, i, loadWord(c.a, 7+8*i), "what the %dth found", i)
	}
	require.EqualValues(t, count, loadWord(c.b, word))
	if len(losses) > 0 {
		require.Greater(t, lost, 300)
	} else {
		require.LessOrEqual(t, deepest, int(depth), "more in flight than granted")
	}
}

// counting makes the i-th of a thousand atomics, of which the result goes to the i-th word of a.
func counting(operation verbs.WROpcode) func(c *couple, i int) []verbs.SendWR {
	return func(c *couple, i int) []verbs.SendWR {
		wr := c.request(uint64(i), operation, word, 8)
		wr.SGList = []verbs.SGE{c.a.MR.SGE(7+8*i, 8)}
		wr.CompareAdd = 1
		if operation == verbs.WRAtomicCmpAndSwp {
			wr.CompareAdd, wr.Swap = uint64(i), uint64(i+1)
		}
		return []verbs.SendWR{wr}
	}
}

var (
	isResponse = func(s *puppet.Sent) bool { return s.Opcode == roce.RCAtomicAcknowledge }
	isRequest  = func(s *puppet.Sent) bool { return s.Opcode == roce.RCFetchAdd || s.Opcode == roce.RCCompareSwap }
	isAnything = func(*puppet.Sent) bool { return true }
)

func testB5(t *testing.T, step func(c *couple, i int) []verbs.SendWR) {
	t.Run("no loss", func(t *testing.T) { atomics(t, 16, step) })
	t.Run("every third response", func(t *testing.T) { atomics(t, 16, step, every(3, isResponse)) })
	t.Run("every third request", func(t *testing.T) { atomics(t, 16, step, every(3, isRequest)) })
	t.Run("both", func(t *testing.T) { atomics(t, 16, step, every(3, isResponse), every(7, isRequest)) })
	t.Run("every fourth packet", func(t *testing.T) { atomics(t, 16, step, every(4, isAnything)) })
	t.Run("one in flight", func(t *testing.T) { atomics(t, 1, step, every(3, isResponse)) })
	support.Fault(t, "atomic or its response lost", support.Outcome{Responder: "executes it once", Requester: verbs.WCSuccess})
}

// TestCase_B5: a fetch-and-add whose response was lost is not executed again, but answered again.
func TestCase_B5(t *testing.T) { testB5(t, counting(verbs.WRAtomicFetchAdd)) }

// TestCase_B5_CompareSwap: the same with compare-and-swap, which would fail the second time.
func TestCase_B5_CompareSwap(t *testing.T) { testB5(t, counting(verbs.WRAtomicCmpAndSwp)) }

// TestCase_B5_Mixed has a WRITE of another word, or a READ of the same one, between each two atomics.
func TestCase_B5_Mixed(t *testing.T) {
	testB5(t, func(c *couple, i int) []verbs.SendWR {
		operations := []verbs.WROpcode{verbs.WRAtomicFetchAdd, verbs.WRAtomicCmpAndSwp}
		wrs := counting(operations[i%2])(c, i)
		if i%2 == 0 {
			return append(wrs, c.request(uint64(i), verbs.WRRDMAWrite, 65536, 8))
		}
		return append(wrs, c.request(uint64(i), verbs.WRRDMARead, 65536, 3000))
	})
}

// effect is what a request does at b, which must happen once.
func effects() map[verbs.WROpcode]func(t *testing.T, c *couple) (wr verbs.SendWR, check func()) {
	plain := func(operation verbs.WROpcode) func(*testing.T, *couple) (verbs.SendWR, func()) {
		return func(t *testing.T, c *couple) (verbs.SendWR, func()) {
			wr := c.request(2, operation, word, 8)
			switch operation {
			case verbs.WRAtomicFetchAdd:
				storeWord(c.b, word, 41)
				wr.CompareAdd = 1
				return wr, func() {
					require.EqualValues(t, 41, loadWord(c.a, word))
					require.EqualValues(t, 42, loadWord(c.b, word))
				}
			case verbs.WRAtomicCmpAndSwp:
				storeWord(c.b, word, 41)
				wr.CompareAdd, wr.Swap = 41, 42
				return wr, func() {
					require.EqualValues(t, 41, loadWord(c.a, word))
					require.EqualValues(t, 42, loadWord(c.b, word))
				}
			}
			return wr, func() {}
		}
	}
	list := make(map[verbs.WROpcode]func(*testing.T, *couple) (verbs.SendWR, func()))
	for _, operation := range withResponse {
		list[operation] = plain(operation)
	}
	list[verbs.WRAtomicWrite] = func(t *testing.T, c *couple) (verbs.SendWR, func()) {
		return c.request(2, verbs.WRAtomicWrite, word, 8), func() { require.Equal(t, c.a.Bytes(word, 8), c.b.Bytes(word, 8)) }
	}
	list[verbs.WRRDMARead] = func(t *testing.T, c *couple) (verbs.SendWR, func()) {
		return c.request(2, verbs.WRRDMARead, word, 8), func() { require.Equal(t, c.b.Bytes(word, 8), c.a.Bytes(word, 8)) }
	}
	list[verbs.WRSendWithInv] = func(t *testing.T, c *couple) (verbs.SendWR, func()) {
		mr := fastRegion(c.b, 64)
		c.b.PostRecv(11, 4096, 64)
		c.b.PostRecv(12, 8192, 64)
		wr := c.request(2, verbs.WRSendWithInv, word, 8)
		wr.InvalidateRKey = mr.RKey()
		return wr, func() {
			wc := c.b.ExpectRecv(11, verbs.WCSuccess)
			require.Equal(t, verbs.WCWithInv, wc.Flags)
			c.b.ExpectNoCompletion()
			require.Equal(t, verbs.StateRTS, c.b.QP.State())
		}
	}
	return list
}

// TestCase_B2_Responses: the only response, or the only request packet, is lost. Nothing but the timeout reveals it,
// and the second request is not executed again.
func TestCase_B2_Responses(t *testing.T) {
	for operation, effect := range effects() {
		for _, lost := range []string{"request", "response"} {
			t.Run(operation.String()+", "+lost, func(t *testing.T) {
				c := newCouple(t)
				wr, check := effect(t, c)
				c.wire.Clear()
				c.wire.Drop = puppet.Once(func(s *puppet.Sent) bool { return s.Opcode.Info().Request == (lost == "request") })
				start := c.stage.Now()
				c.a.Post(wr)
				c.a.ExpectSend(2, verbs.WCSuccess)
				check()
				waited := c.stage.Now() - start
				require.GreaterOrEqual(t, waited, timeout)
				require.LessOrEqual(t, waited, timeout+4*latency)
				packets := c.wire.From(c.a)
				require.Len(t, packets, 2)
				packets[0].At, packets[0].Lost = packets[1].At, packets[1].Lost
				require.Equal(t, packets[0], packets[1], "the same request")
				answers := c.wire.From(c.b)
				require.Equal(t, answers[0].AETH, answers[len(answers)-1].AETH)
				require.Equal(t, roce.PSN(40), answers[0].PSN)
				require.Equal(t, uint32(1), answers[0].AETH.MSN)
				support.Opcode(t, packets[0].Opcode, support.Sent, support.Received)
				support.Opcode(t, answers[0].Opcode, support.Sent, support.Received)
				support.Fault(t, fmt.Sprintf("%v: only %s lost", operation, lost), support.Outcome{Requester: "sends again after the ACK timeout"})
			})
		}
	}
}

// TestCase_B3_EveryOperation: the response between two WRITEs is lost. The acknowledgement behind it says so at once;
// all three complete in order.
func TestCase_B3_EveryOperation(t *testing.T) {
	for operation, effect := range effects() {
		if operation == verbs.WRSendWithInv {
			continue // the acknowledgement is for it, too
		}
		t.Run(operation.String(), func(t *testing.T) {
			c := newCouple(t)
			wr, check := effect(t, c)
			c.wire.Drop = puppet.Once(func(s *puppet.Sent) bool { return !s.Opcode.Info().Request && s.PSN == 41 })
			start := c.stage.Now()
			c.a.Post(c.request(1, verbs.WRRDMAWrite, 1024, 8), wr, c.request(3, verbs.WRRDMAWrite, 2048, 8))
			for id := range uint64(3) {
				c.a.ExpectSend(id+1, verbs.WCSuccess)
			}
			check()
			require.Less(t, c.stage.Now()-start, time.Millisecond)
			require.EqualValues(t, 1, opener.Counters(c.a.Device).Transport.ImpliedNAKs)
			require.True(t, bytes.Equal(c.a.Bytes(1024, 8), c.b.Bytes(1024, 8)))
			require.True(t, bytes.Equal(c.a.Bytes(2048, 8), c.b.Bytes(2048, 8)))
			support.Fault(t, fmt.Sprintf("response to %v lost, a later request answered", operation), support.Outcome{Requester: "asks again, at once"})
		})
	}
}

// TestWordAlignment: an atomic needs an address that is a multiple of eight, and a word of memory that lies so. Where
// a region's addresses lie otherwise than its memory, each is checked for itself.
func TestWordAlignment(t *testing.T) {
	stage := puppet.NewStage(t, mem.Options{})
	end := stage.NewEnd(puppet.EndOptions{CQE: 1024})
	p := stage.NewPuppet()
	p.Connect(end)
	r := &tries{t: t, end: end, p: p}
	aligned, err := verbs.AllocBuffer(128)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, verbs.FreeBuffer(aligned)) })
	for shift := range uint64(8) { // of the addresses
		for skip := range uint64(8) { // of the memory
			region, err := end.PD.RegMRIOVA(aligned[skip:], 0x10000+shift, puppet.AllAccess)
			require.NoError(t, err)
			for _, opcode := range []roce.Opcode{roce.RCCompareSwap, roce.RCFetchAdd, roce.RCAtomicWrite} {
				for at := range uint64(8) {
					want := roce.SyndromeNAKInvalidRequest
					if (shift+at)%8 == 0 && (skip+at)%8 == 0 {
						want = ack
					}
					require.Equal(t, want, r.try(opcode, region.RKey(), 0x10000+shift+at, 8),
						"%v at address %#x, memory at %d modulo 8", opcode, 0x10000+shift+at, (skip+at)%8)
				}
			}
			require.NoError(t, region.Dereg())
		}
	}
}
