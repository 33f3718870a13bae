package puppet_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/xroce/xroce/internal/puppet"
	"github.com/xroce/xroce/internal/support"
	"github.com/xroce/xroce/roce"
	"github.com/xroce/xroce/verbs"
)

// Operations that nothing of goes to the peer: when they are executed, how often, and what their failure does. And
// what a fence holds back.

// fenced makes a request of 8 bytes that waits for the READs and atomics before it.
func fenced(end *puppet.End, id uint64, operation verbs.WROpcode) verbs.SendWR {
	wr := end.Request(id, operation, 0, 8)
	wr.Flags |= verbs.SendFence
	return wr
}

// window makes a memory window of type 2, and the request that binds it to 64 bytes of the region.
func window(end *puppet.End, id uint64) verbs.SendWR {
	mw, err := end.PD.AllocMW(verbs.MWType2)
	end.Require(err)
	end.Cleanup(mw.Dealloc)
	wr := end.Request(id, verbs.WRBindMW, 0, 0)
	wr.RKey = verbs.IncRKey(mw.RKey())
	wr.Bind = verbs.BindInfo{
		LKey: end.MR.LKey(), Addr: end.MR.Addr(), Length: 64, Access: verbs.AccessRemoteWrite | verbs.AccessRemoteRead,
	}
	return wr
}

// fast makes a region for fast registration, closed, and the request that opens it.
func fast(end *puppet.End, id uint64) verbs.SendWR {
	mr, err := end.PD.AllocMR(64)
	end.Require(err)
	end.Cleanup(mr.Dereg)
	end.Require(mr.Map(make([]byte, 64), 0))
	end.Require(mr.UpdateKey(uint8(mr.RKey()) + 1))
	wr := mr.RegWR(puppet.PeerAccess | verbs.AccessLocalWrite)
	wr.WRID, wr.Flags = id, verbs.SendSignaled
	return wr
}

// invalidate makes the request that closes a key.
func invalidate(end *puppet.End, id uint64, key uint32) verbs.SendWR {
	wr := end.Request(id, verbs.WRLocalInv, 0, 0)
	wr.InvalidateRKey = key
	return wr
}

// TestCase_B10_Answered: a fence waits for each kind of answered request, whatever is fenced, and not for what was
// merely acknowledged or is still to be.
func TestCase_B10_Answered(t *testing.T) {
	for _, a := range allAnswered {
		for _, behind := range []verbs.WROpcode{
			verbs.WRSend, verbs.WRRDMAWrite, verbs.WRRDMARead, verbs.WRAtomicFetchAdd, verbs.WRFlush, verbs.WRAtomicWrite,
		} {
			t.Run(fmt.Sprintf("%v, fenced %v", a.operation, behind), func(t *testing.T) {
				_, end, p := sender(t)
				end.Post(a.request(end, 1), end.Request(2, verbs.WRRDMAWrite, 0, 8), fenced(end, 3, behind), end.Request(4, verbs.WRSend, 0, 8))
				a.expect(t, end, p, 1, 40)
				p.ExpectPacket(roce.RCWriteOnly, 41)
				p.ExpectNothing(50 * time.Millisecond)
				a.respond(p, 40, testWord)
				require.Equal(t, roce.PSN(42), p.Expect().PSN) // the WRITE is not acknowledged yet
				p.ExpectPacket(roce.RCSendOnly, 43)
				end.ExpectSend(1, verbs.WCSuccess)
				end.ExpectNoCompletion()
				support.Object(t, "Fence", "behind "+a.operation.String(), "waits for the response")
			})
		}
	}
}

// TestCase_B10_WriteThenFenced: a fence waits for nothing that has no response.
func TestCase_B10_WriteThenFenced(t *testing.T) {
	for _, before := range []verbs.WROpcode{verbs.WRSend, verbs.WRRDMAWrite, verbs.WRRDMAWriteWithImm, verbs.WRSendWithInv} {
		_, end, p := sender(t)
		end.Post(end.Request(1, before, 0, 8), fenced(end, 2, verbs.WRRDMARead), fenced(end, 3, verbs.WRSend))
		first := p.Expect()
		require.Equal(t, first.At, p.ExpectPacket(roce.RCReadRequest, 41).At)
		p.ExpectNothing(time.Millisecond)
		support.Object(t, "Fence", "behind "+before.String(), "waits for nothing")
	}
}

// TestCase_B10_SentAgain: a resend neither forgets that a request before the fence is open, nor counts it twice.
func TestCase_B10_SentAgain(t *testing.T) {
	for _, a := range allAnswered {
		_, end, p := sender(t)
		end.Post(end.Request(1, verbs.WRSend, 0, 4), a.request(end, 2), fenced(end, 3, verbs.WRSend))
		for range 3 {
			p.ExpectPacket(roce.RCSendOnly, 40)
			a.expect(t, end, p, 2, 41)
			p.ExpectNothing(time.Millisecond)
			p.NAK(40, roce.RNRNAK(1))
		}
		p.ExpectPacket(roce.RCSendOnly, 40)
		a.expect(t, end, p, 2, 41)
		a.respond(p, 41, testWord)
		p.ExpectPacket(roce.RCSendOnly, 42)
		// The fenced one was sent, so it is sent again without a look at the fence.
		p.NAK(42, roce.SyndromeNAKSequence)
		p.ExpectPacket(roce.RCSendOnly, 42)
	}
	support.Object(t, "Fence", "when what is around it is sent again", "waits no longer and no shorter")
}

// TestCase_B10_LocalInvalidate: local invalidate and fast registration wait for everything before them, without a
// fence: the requests before may still need the key. What is behind waits with them.
func TestCase_B10_LocalInvalidate(t *testing.T) {
	for _, before := range []verbs.WROpcode{verbs.WRSend, verbs.WRRDMAWrite, verbs.WRRDMARead, verbs.WRAtomicFetchAdd} {
		t.Run(before.String(), func(t *testing.T) {
			_, end, p := sender(t)
			open := fast(end, 2)
			end.Post(end.Request(1, before, 0, 8), open, end.Request(3, verbs.WRSend, 0, 4), invalidate(end, 4, open.RKey), end.Request(5, verbs.WRSend, 0, 4))
			settle := func(psn roce.PSN) {
				for _, a := range allAnswered {
					if psn == 40 && a.operation == before {
						a.respond(p, 40, testWord)
						return
					}
				}
				p.Ack(psn, 1)
			}
			// Whether the key is open shows in what the peer may do: 1 byte of READ.
			peer := roce.PSN(100)
			opened := func() bool {
				p.Send(puppet.Packet{Opcode: roce.RCReadRequest, PSN: peer, RETH: roce.RETHFields{RKey: open.RKey, Length: 1}, AckRequest: true})
				return p.ExpectPacket(roce.RCReadResponseOnly, peer).PayloadLength == 1
			}
			require.Equal(t, roce.PSN(40), p.Expect().PSN)
			p.ExpectNothing(50 * time.Millisecond)
			end.ExpectNoCompletion()
			settle(40)
			p.ExpectPacket(roce.RCSendOnly, 41)
			end.ExpectSend(1, verbs.WCSuccess)
			end.ExpectSend(2, verbs.WCSuccess)
			p.ExpectNothing(50 * time.Millisecond) // the invalidation waits, the SEND behind it, too
			require.True(t, opened())
			settle(41)
			p.ExpectPacket(roce.RCSendOnly, 42)
			end.ExpectSend(3, verbs.WCSuccess)
			end.ExpectSend(4, verbs.WCSuccess)
			settle(42)
			end.ExpectSend(5, verbs.WCSuccess)
			p.Send(puppet.Packet{Opcode: roce.RCReadRequest, PSN: peer + 1, RETH: roce.RETHFields{RKey: open.RKey, Length: 1}, AckRequest: true})
			p.ExpectNAK(peer+1, roce.SyndromeNAKRemoteAccess)
			support.Object(t, "QP", "registration and local invalidate behind "+before.String(), "wait until that is complete")
		})
	}
}

// TestCase_B10_Bind: a fenced binding waits for the READ before it, one without a fence does not. Whether it was
// executed shows in what the peer may do.
func TestCase_B10_Bind(t *testing.T) {
	for _, fence := range []verbs.SendFlags{0, verbs.SendFence} {
		for _, a := range allAnswered {
			_, end, p := sender(t)
			bind := window(end, 2)
			bind.Flags |= fence
			end.Post(a.request(end, 1), bind)
			a.expect(t, end, p, 1, 40)
			peer := read(end, 100, 0, 4)
			peer.RETH.RKey = bind.RKey
			if fence == 0 {
				p.Send(peer)
				p.ExpectPacket(roce.RCReadResponseOnly, 100).Carries(end.Bytes(0, 4))
				support.Object(t, "QP", fmt.Sprintf("%v behind %v, no fence", bind.Opcode, a.operation), "waits for nothing")
				peer.PSN++
			} else if a.isAtomic() { // with the other kinds it shows that the binding is executed in the end
				p.Send(peer)
				p.ExpectNAK(100, roce.SyndromeNAKRemoteAccess)
				support.Object(t, "QP", fmt.Sprintf("%v behind %v, fenced", bind.Opcode, a.operation), "waits for the response")
				continue
			}
			a.respond(p, 40, testWord)
			end.ExpectSend(1, verbs.WCSuccess)
			end.ExpectSend(2, verbs.WCSuccess)
			p.Send(peer)
			p.ExpectPacket(roce.RCReadResponseOnly, peer.PSN).Carries(end.Bytes(0, 4))
		}
	}
}

// TestBindOnce: binding a window waits for nothing but a fence, and a resend of what is around it does not execute it
// again, which would fail.
func TestBindOnce(t *testing.T) {
	for _, fence := range []verbs.SendFlags{0, verbs.SendFence} {
		for una := roce.PSN(40); una <= 42; una++ {
			t.Run(fmt.Sprintf("fence %d, resend from %d", fence, una), func(t *testing.T) {
				_, end, p := sender(t)
				bind := window(end, 3)
				bind.Flags |= fence
				end.Post(end.Request(1, verbs.WRSend, 0, 4), end.Request(2, verbs.WRRDMAWrite, 0, 4), bind, end.Request(4, verbs.WRSend, 0, 4))
				all := func(from roce.PSN) {
					for psn := from; psn <= 42; psn++ {
						require.Equal(t, psn, p.Expect().PSN)
					}
				}
				all(40)
				p.NAK(una, roce.SyndromeNAKSequence)
				all(una)
				all(una) // after a timeout
				p.NAK(una, roce.RNRNAK(1))
				all(una)
				p.Ack(42, 3)
				for id := uint64(1); id <= 4; id++ {
					end.ExpectSend(id, verbs.WCSuccess)
				}
				require.Equal(t, verbs.StateRTS, end.QP.State())
			})
		}
	}
	support.Object(t, "QP", verbs.WRBindMW.String()+" while what is around it is sent again", "once")
}

// TestManyLocal: more local operations in a row than are executed at a time, with nothing to send between them.
func TestManyLocal(t *testing.T) {
	stage, end, p := sender(t)
	open := fast(end, 0)
	var wrs []verbs.SendWR
	for i := range uint64(60) {
		open.WRID = 2 * i
		wrs = append(wrs, open, invalidate(end, 2*i+1, open.RKey))
	}
	end.Post(append(wrs, end.Request(120, verbs.WRSend, 0, 4))...)
	before := stage.Now()
	p.ExpectPacket(roce.RCSendOnly, 40)
	require.Equal(t, latency, stage.Now()-before)
	for i, wc := range end.Sends(120) {
		require.Equal(t, uint64(i), wc.WRID)
		require.Equal(t, verbs.WCSuccess, wc.Status)
	}
	support.Object(t, "QP", "120 local operations in a row", verbs.WCSuccess)
}

// TestCase_B21_Kinds: the local fault of the third request, by kind. The first two run to their end, though they are
// sent again; the last two, a local one among them, are not executed.
func TestCase_B21_Kinds(t *testing.T) {
	type spoil func(end *puppet.End) verbs.SendWR
	bind := func(change func(wr *verbs.SendWR)) spoil {
		return func(end *puppet.End) verbs.SendWR {
			wr := window(end, 3)
			change(&wr)
			return wr
		}
	}
	onReadOnly := func(operation verbs.WROpcode) spoil {
		return func(end *puppet.End) verbs.SendWR {
			wr := end.Request(3, operation, 0, 8)
			wr.SGList[0] = readOnly(end)
			wr.SGList[0].Length = 8
			return wr
		}
	}
	for name, c := range map[string]struct {
		spoil  spoil
		status verbs.WCStatus
	}{
		"bind, region's key":  {bind(func(wr *verbs.SendWR) { wr.Bind.LKey ^= 1 }), verbs.WCMWBindErr},
		"bind, window's key":  {bind(func(wr *verbs.SendWR) { wr.RKey += 1 << 20 }), verbs.WCMWBindErr},
		"bind, range":         {bind(func(wr *verbs.SendWR) { wr.Bind.Addr-- }), verbs.WCMWBindErr},
		"bind, length 0":      {bind(func(wr *verbs.SendWR) { wr.Bind.Length = 0 }), verbs.WCMWBindErr},
		"bind, rights":        {bind(func(wr *verbs.SendWR) { wr.Bind.Access = verbs.AccessLocalWrite }), verbs.WCMWBindErr},
		"bind, unsignaled":    {bind(func(wr *verbs.SendWR) { wr.Bind.LKey ^= 1; wr.Flags = 0 }), verbs.WCMWBindErr},
		"invalidate, no such": {func(end *puppet.End) verbs.SendWR { return invalidate(end, 3, 0xFFFFFF00) }, verbs.WCLocQPOpErr},
		"invalidate, plain":   {func(end *puppet.End) verbs.SendWR { return invalidate(end, 3, end.MR.RKey()) }, verbs.WCLocQPOpErr},
		"invalidate, free":    {func(end *puppet.End) verbs.SendWR { return invalidate(end, 3, fast(end, 0).RKey) }, verbs.WCLocQPOpErr},
		"register, plain":     {func(end *puppet.End) verbs.SendWR { wr := fast(end, 3); wr.RKey = end.MR.RKey(); return wr }, verbs.WCLocQPOpErr},
		"register, rights":    {func(end *puppet.End) verbs.SendWR { wr := fast(end, 3); wr.Access = 2; return wr }, verbs.WCLocQPOpErr},
		"swap into read-only": {onReadOnly(verbs.WRAtomicCmpAndSwp), verbs.WCLocProtErr},
		"add into read-only":  {onReadOnly(verbs.WRAtomicFetchAdd), verbs.WCLocProtErr},
		"READ into read-only": {onReadOnly(verbs.WRRDMARead), verbs.WCLocProtErr},
		"atomic write, key": {func(end *puppet.End) verbs.SendWR {
			wr := end.Request(3, verbs.WRAtomicWrite, 0, 8)
			wr.SGList[0].LKey ^= 1
			return wr
		}, verbs.WCLocProtErr},
		"SEND with invalidate": {func(end *puppet.End) verbs.SendWR {
			wr := end.Request(3, verbs.WRSendWithInv, 0, 8)
			wr.SGList[0].LKey ^= 1
			return wr
		}, verbs.WCLocProtErr},
		"register, valid":       {registerTwice, verbs.WCLocQPOpErr},
		"bind, not invalidated": {bindTwice, verbs.WCMWBindErr},
	} {
		t.Run(name, func(t *testing.T) {
			_, end, p := sender(t)
			bad := c.spoil(end) // may use the queue pair
			for p.Waiting() {
				p.Expect()
			}
			end.Post(end.Request(1, verbs.WRSend, 0, 4), end.Request(2, verbs.WRSend, 0, 4), bad, end.Request(4, verbs.WRSend, 0, 4), fast(end, 5))
			p.ExpectPacket(roce.RCSendOnly, 40)
			p.ExpectPacket(roce.RCSendOnly, 41)
			p.ExpectNothing(time.Millisecond)
			end.ExpectNoCompletion()
			p.ExpectPacket(roce.RCSendOnly, 40)
			p.ExpectPacket(roce.RCSendOnly, 41)
			p.Ack(41, 2)
			end.ExpectSend(1, verbs.WCSuccess)
			end.ExpectSend(2, verbs.WCSuccess)
			end.ExpectSend(3, c.status)
			end.ExpectSend(4, verbs.WCWRFlushErr)
			end.ExpectSend(5, verbs.WCWRFlushErr)
			require.Equal(t, verbs.StateError, end.QP.State())
			p.ExpectNothing(time.Minute)
			end.ExpectNoCompletion()
			support.Fault(t, "send request that is not good: "+name, support.Outcome{Requester: c.status})
		})
	}
}

// registerTwice registers a region, and makes the request that does so again.
func registerTwice(end *puppet.End) verbs.SendWR {
	wr := fast(end, 3)
	end.Post(wr)
	end.ExpectSend(3, verbs.WCSuccess)
	return wr
}

// bindTwice is registerTwice for a window of type 2.
func bindTwice(end *puppet.End) verbs.SendWR {
	wr := window(end, 3)
	end.Post(wr)
	end.ExpectSend(3, verbs.WCSuccess)
	wr.RKey = verbs.IncRKey(wr.RKey)
	return wr
}

// TestCase_B21_MaxRDAtomicZero: without the right to have one in flight, every answered request fails, when what is
// before it is done.
func TestCase_B21_MaxRDAtomicZero(t *testing.T) {
	for _, a := range allAnswered {
		_, end, p := sender(t, func(at *verbs.QPAttr) { at.MaxRDAtomic = 0 })
		end.Post(end.Request(1, verbs.WRSend, 0, 4), a.request(end, 2), end.Request(3, verbs.WRSend, 0, 4))
		p.ExpectPacket(roce.RCSendOnly, 40)
		p.ExpectNothing(time.Millisecond)
		end.ExpectNoCompletion()
		p.Ack(40, 1)
		end.ExpectSend(1, verbs.WCSuccess)
		end.ExpectSend(2, verbs.WCLocQPOpErr)
		end.ExpectSend(3, verbs.WCWRFlushErr)
		p.ExpectNothing(time.Minute)
		support.Fault(t, a.operation.String()+" with MAX_QP_RD_ATOMIC 0", support.Outcome{Requester: verbs.WCLocQPOpErr})
	}
}
