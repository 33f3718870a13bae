package driver

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/xroce/xroce/roce"
	"github.com/xroce/xroce/roce/link/loop"
	"github.com/xroce/xroce/roce/link/mem"
)

// TestShareOfAnInbox: no queue pair fills an inbox, alone or together with others, and what was taken out has room
// again.
func TestShareOfAnInbox(t *testing.T) {
	frame := [][]byte{make([]byte, 64)}
	for _, c := range []struct{ greedy, each int }{{1, 96}, {2, 55}, {4, 30}} {
		var b inbox
		for again := true; again; {
			again = false
			for offset := range roce.QPN(c.greedy) {
				again = b.put(offset, frame) || again
			}
		}
		for offset := range roce.QPN(c.greedy) {
			require.InDelta(t, c.each, b.held[offset].Load(), 1, "%d greedy ones", c.greedy)
		}
		require.Less(t, b.ring.Waiting(), loop.Slots)
		require.True(t, b.put(1<<qpnBits-1, frame), "another one finds a slot")
	}
}

// TestGarbageTakesNoPlace: while the home of a queue pair is busy, packets with a wrong ICRC or from somebody else that
// come in elsewhere take no place in its inbox, and right ones no more than their share; all that were taken arrive
// afterwards.
func TestGarbageTakesNoPlace(t *testing.T) {
	for name, want := range map[string]struct {
		waiting int
		reason  roce.DropReason
	}{"ICRC": {0, roce.DropICRC}, "source": {0, roce.DropAddressMismatch}, "right": {96, roce.DropInboxFull}} {
		t.Run(name, func(t *testing.T) {
			m := newMovers(t, mem.Options{}, 2, longestMoveAfter)
			path := m.a.qp.transport.Attributes().Path
			path.Source[15]++
			forged := roce.NewHeaderTemplate(path)
			m.spread(m.b, 0)
			arrivals := 0
			m.network.SetIntercept(func(frame []byte, p *roce.Packet) mem.Verdict {
				if p == nil || p.DestinationQPN != m.b.qp.number {
					return mem.Verdict{}
				}
				arrivals += 2
				switch {
				case name == "ICRC":
					frame[len(frame)-1]++
				case name == "source":
					forged.Put(frame)
					forged.Seal(frame)
				}
				return mem.Verdict{Duplicate: true}
			})
			home, other := m.b.device.shards[1], m.b.device.shards[0]
			require.Same(t, home, m.b.qp.shard())
			leave := occupy(home)
			for range 3 { // the window, and again after the timeouts
				m.a.write(t, m.a.qp, m.b, window/2<<10)
				m.a.write(t, m.a.qp, m.b, window/2<<10)
				m.a.device.Drive()
				m.arrive()
				other.drive(driveFully)
				m.network.AdvanceTo(m.network.Now() + 2*time.Second)
			}
			in := home.inboxFrom(other)
			waiting, dropped, handed := in.ring.Waiting(), other.engine.Counters().Drops[want.reason], other.engine.Counters().HandedOver
			leave(home.mu.Unlock)
			home.drive(driveFully)
			require.Equal(t, want.waiting, waiting)
			require.Greater(t, arrivals, 100)
			require.EqualValues(t, arrivals-want.waiting, dropped)
			require.EqualValues(t, want.waiting, handed)
			require.Zero(t, in.ring.Waiting())
			if in.held != nil {
				require.Zero(t, in.held[m.b.device.numbers.place(m.b.qp.number)].Load())
			}
			require.EqualValues(t, want.waiting, home.engine.Counters().ReceivedPackets)
		})
	}
}
