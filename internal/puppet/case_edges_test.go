package puppet_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/xroce/xroce/internal/puppet"
	"github.com/xroce/xroce/roce"
	"github.com/xroce/xroce/roce/link/mem"
	"github.com/xroce/xroce/verbs"
)

// TestWordsAlignedByPlaceAndAddress: the address of an atomic has to be a multiple of 8, whatever the place in memory is, and the other way
// round. The two differ where the region's address does not have the alignment of its buffer.
func TestWordsAlignedByPlaceAndAddress(t *testing.T) {
	for _, opcode := range []roce.Opcode{roce.RCFetchAdd, roce.RCCompareSwap, roce.RCAtomicWrite} {
		for shift := range uint64(8) { // by which the first address misses alignment
			stage := puppet.NewStage(t, mem.Options{})
			end := stage.NewEnd(puppet.EndOptions{})
			p := stage.NewPuppet()
			p.Connect(end)
			r := &tries{t: t, end: end, p: p}
			region, err := end.PD.RegMRIova(make([]byte, 64), 0x10000+shift, puppet.AllAccess)
			require.NoError(t, err)
			end.Cleanup(region.Dereg)
			for offset := range uint64(16) {
				want := invalid
				if shift == 0 && offset%8 == 0 {
					want = ack
				}
				require.Equal(t, want, r.try(opcode, region.RKey(), region.Addr()+offset, 8), "%v at %#x, byte %d of the buffer",
					opcode, region.Addr()+offset, offset)
			}
		}
	}
}

// TestRNRWaitAndLaterNAK: a sequence NAK during an RNR wait changes nothing, whichever packet behind the refused one it names: it acknowledges
// nothing, and the wait lasts as long as it was told to.
func TestRNRWaitAndLaterNAK(t *testing.T) {
	for named := roce.PSN(41); named <= 43; named++ {
		t.Run(fmt.Sprintf("PSN %d", named), func(t *testing.T) {
			stage, end, p := sender(t)
			for i := range 4 {
				end.Post(end.Request(uint64(i), verbs.WRSend, 0, 4))
				p.ExpectPacket(roce.RCSendOnly, 40+roce.PSN(i))
			}
			refused := stage.Now()
			p.NAK(41, roce.RNRNAK(24)) // 41 ms
			end.ExpectSend(0, verbs.WCSuccess)
			p.NAK(named, roce.SyndromeNAKSequence)
			for psn := roce.PSN(41); psn <= 43; psn++ {
				at := p.ExpectPacket(roce.RCSendOnly, psn).At
				require.Equal(t, 40960*time.Microsecond, at-refused-2*latency)
				end.ExpectNoCompletion()
			}
			p.Ack(43, 4)
			for i := uint64(1); i < 4; i++ {
				end.ExpectSend(i, verbs.WCSuccess)
			}
		})
	}
}

// TestRoundTripOfResends: the answer to a packet that was sent again says nothing of the round trip, why ever it was sent again
// (Karn's algorithm); the next packet is measured.
func TestRoundTripOfResends(t *testing.T) {
	for why, resend := range map[string]func(*puppet.Puppet){
		"timeout":      func(*puppet.Puppet) {},
		"sequence NAK": func(p *puppet.Puppet) { p.NAK(40, roce.SyndromeNAKSequence) },
		"RNR NAK":      func(p *puppet.Puppet) { p.NAK(40, roce.RNRNAK(24)) },
	} {
		t.Run(why, func(t *testing.T) {
			stage, end, p := sender(t)
			roundTrip := func() float64 {
				now, err := end.Device.Snapshot()
				require.NoError(t, err)
				return now.QPs[0].RoundTrip
			}
			end.Post(end.Request(1, verbs.WRSend, 0, 4))
			p.ExpectPacket(roce.RCSendOnly, 40)
			resend(p)
			p.ExpectPacket(roce.RCSendOnly, 40)
			p.Ack(40, 1)
			end.ExpectSend(1, verbs.WCSuccess)
			require.Zero(t, roundTrip())
			end.Post(end.Request(2, verbs.WRSend, 0, 4))
			p.ExpectPacket(roce.RCSendOnly, 41)
			stage.Pass(3 * time.Millisecond)
			p.Ack(41, 2)
			end.ExpectSend(2, verbs.WCSuccess)
			require.InDelta(t, (3*time.Millisecond + 2*latency).Seconds(), roundTrip(), 1e-9)
		})
	}
}

// TestWindowEndsWithReset: what a queue pair has bound as a type 2 window works for nobody when it was reset, not even for itself.
func TestWindowEndsWithReset(t *testing.T) {
	stage := puppet.NewStage(t, mem.Options{})
	end := stage.NewEnd(puppet.EndOptions{})
	p := stage.NewPuppet()
	for _, kind := range kinds {
		p.Connect(end)
		w := newWindow(end, kind)
		b := verbs.MWBind{MR: end.MR, Addr: end.MR.Addr() + word, Length: 64, Access: windowRights}
		bind(end, w, verbs.WCSuccess, b)
		p.Send(reach(roce.RCWriteOnly, 100, w.RKey(), b.Addr, 8))
		p.ExpectAck(100, 1)
		end.Require(end.QP.ModifyQP(verbs.QPAttr{State: verbs.StateReset}, verbs.QPStateMask))
		p.Connect(end)
		p.Send(reach(roce.RCWriteOnly, 100, w.RKey(), b.Addr, 8))
		want := ack
		if kind == verbs.MWType2 {
			want = refused
		}
		require.Equal(t, want, p.Expect().AETH().Syndrome(), "type %d", kind)
		end.Require(end.QP.ModifyQP(verbs.QPAttr{State: verbs.StateReset}, verbs.QPStateMask))
	}
}
