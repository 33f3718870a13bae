package puppet_test

import (
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

// Which completions there are, in which order, when something goes wrong; and what a fence holds back.

// TestCase_B16: an error flushes everything that is posted, in order, and what is posted later.
func TestCase_B16(t *testing.T) {
	stage := puppet.NewStage(t, mem.Options{})
	end := stage.NewEnd(puppet.EndOptions{})
	p := stage.NewPuppet()
	p.Connect(end)
	for id := range uint64(100) {
		wr := end.Request(id, []verbs.WROpcode{verbs.WRSend, verbs.WRRDMAWrite, verbs.WRRDMARead}[id%3], 0, 2000)
		if id%2 == 0 {
			wr.Flags = 0 // a failure shows even if no completion was asked for
		}
		end.Post(wr)
		end.PostRecv(1000+id, 0, 64)
	}
	p.ExpectPacket(roce.RCSendFirst, 40)
	require.NoError(t, end.QP.Modify(t.Context(), verbs.QPAttr{State: verbs.StateError}, verbs.QPStateMask))
	check := func(wcs []verbs.WC, first uint64) {
		for i, wc := range wcs {
			require.Equal(t, first+uint64(i), wc.WRID)
			require.Equal(t, verbs.WCWRFlushErr, wc.Status)
			require.Equal(t, end.QP.QPN(), wc.QPN)
		}
	}
	check(end.Sends(100), 0)
	check(end.Recvs(100), 1000)
	end.ExpectNoCompletion()
	require.Zero(t, end.QP.Outstanding())

	for id := range uint64(3) {
		end.Post(end.Request(id, verbs.WRSend, 0, 4))
		end.PostRecv(1000+id, 0, 4)
	}
	check(end.Sends(3), 0)
	check(end.Recvs(3), 1000)
	end.ExpectNoCompletion()
	for p.Waiting() {
		p.Expect()
	}
	p.Send(send(100, "rose"))
	p.ExpectNothing(time.Minute)
	support.Fault(t, "queue pair set to ERR with requests posted", support.Outcome{Receive: verbs.WCWRFlushErr, Requester: verbs.WCWRFlushErr})
}

// TestCase_B16_Reset: a reset drops what is posted without a completion, and gives the queues back.
func TestCase_B16_Reset(t *testing.T) {
	stage := puppet.NewStage(t, mem.Options{})
	end := stage.NewEnd(puppet.EndOptions{Cap: verbs.QPCap{MaxSendWR: 10, MaxRecvWR: 10}})
	p := stage.NewPuppet()
	for range 3 {
		p.Connect(end)
		for id := range uint64(10) {
			end.Post(end.Request(id, verbs.WRSend, 0, 4))
			end.PostRecv(id, 0, 64)
		}
		require.ErrorIs(t, end.QP.PostSend(end.Request(10, verbs.WRSend, 0, 4)), verbs.ErrQueueFull)
		require.ErrorIs(t, end.QP.PostRecv(verbs.RecvWR{}), verbs.ErrQueueFull)
		for i := range 10 {
			p.ExpectPacket(roce.RCSendOnly, 40+roce.PSN(i))
		}
		p.Send(send(100, "rose"))
		p.ExpectAck(100, 1)
		p.Ack(40, 1)
		end.ExpectSend(0, verbs.WCSuccess)
		end.ExpectRecv(0, verbs.WCSuccess)
		require.NoError(t, end.QP.Modify(t.Context(), verbs.QPAttr{State: verbs.StateReset}, verbs.QPStateMask))
		require.Zero(t, end.QP.Outstanding())
		p.ExpectNothing(time.Minute)
		end.ExpectNoCompletion()
	}
	support.Fault(t, "queue pair set to RESET with requests posted", support.Outcome{Receive: "no completion", Requester: "no completion"})
}

// TestCase_B21: a local fault of the third request leaves the first two alone and stops those behind it.
func TestCase_B21(t *testing.T) {
	for name, c := range map[string]struct {
		spoil  func(end *puppet.End, wr *verbs.SendWR)
		status verbs.WCStatus
	}{
		"key":         {func(_ *puppet.End, wr *verbs.SendWR) { wr.SGList[0].LKey ^= 1 }, verbs.WCLocProtErr},
		"index":       {func(_ *puppet.End, wr *verbs.SendWR) { wr.SGList[0].LKey += 1 << 20 }, verbs.WCLocProtErr},
		"below":       {func(_ *puppet.End, wr *verbs.SendWR) { wr.SGList[0].Addr-- }, verbs.WCLocProtErr},
		"beyond":      {func(end *puppet.End, wr *verbs.SendWR) { wr.SGList[0].Length = uint32(end.MR.Length() + 1) }, verbs.WCLocProtErr},
		"wrap":        {func(_ *puppet.End, wr *verbs.SendWR) { wr.SGList[0].Addr, wr.SGList[0].Length = 1<<64-2, 4 }, verbs.WCLocProtErr},
		"READ target": {func(end *puppet.End, wr *verbs.SendWR) { wr.Opcode = verbs.WRRDMARead; wr.SGList[0] = readOnly(end) }, verbs.WCLocProtErr},
		"domain":      {func(end *puppet.End, wr *verbs.SendWR) { wr.SGList[0] = foreign(end) }, verbs.WCLocProtErr},
		"unsignaled":  {func(_ *puppet.End, wr *verbs.SendWR) { wr.SGList[0].LKey ^= 1; wr.Flags = 0 }, verbs.WCLocProtErr},
	} {
		t.Run(name, func(t *testing.T) {
			_, end, p := sender(t)
			var wrs []verbs.SendWR
			for id := uint64(1); id <= 5; id++ {
				wrs = append(wrs, end.Request(id, verbs.WRSend, 0, 4))
			}
			c.spoil(end, &wrs[2])
			end.Post(wrs...)
			p.ExpectPacket(roce.RCSendOnly, 40)
			p.ExpectPacket(roce.RCSendOnly, 41)
			p.ExpectNothing(time.Millisecond)
			end.ExpectNoCompletion() // the first two are still under way
			require.Equal(t, verbs.StateRTS, end.QP.State())
			p.ExpectPacket(roce.RCSendOnly, 40) // and are sent again if need be
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
		})
	}
	support.Fault(t, "local memory of a send request that is not good", support.Outcome{Requester: verbs.WCLocProtErr})
}

// readOnly is an element of a region without the right of local write.
func readOnly(end *puppet.End) verbs.SGE {
	mr, err := end.PD.RegMR(make([]byte, 64), 0)
	end.Require(err)
	end.Cleanup(mr.Dereg)
	return mr.SGE(0, 4)
}

// foreign is an element of a region of another protection domain.
func foreign(end *puppet.End) verbs.SGE {
	pd, err := end.Device.AllocPD()
	end.Require(err)
	end.Cleanup(pd.Dealloc)
	mr, err := pd.RegMR(make([]byte, 64), puppet.AllAccess)
	end.Require(err)
	end.Cleanup(mr.Dereg)
	return mr.SGE(0, 4)
}

// TestBadReceive: a receive whose memory cannot be written makes a remote operational error (0x63) for the peer and a
// local protection error here.
func TestBadReceive(t *testing.T) {
	for name, element := range map[string]func(end *puppet.End) verbs.SGE{
		"key":       func(end *puppet.End) verbs.SGE { s := end.MR.SGE(0, 64); s.LKey ^= 1; return s },
		"range":     func(end *puppet.End) verbs.SGE { s := end.MR.SGE(0, 64); s.Addr--; return s },
		"read-only": readOnly,
		"domain":    foreign,
	} {
		t.Run(name, func(t *testing.T) {
			_, end, p := sender(t)
			require.NoError(t, end.QP.PostRecv(verbs.RecvWR{WRID: 1, SGList: []verbs.SGE{element(end)}}))
			end.PostRecv(2, 0, 64)
			p.Send(send(100, "rose"))
			p.ExpectNAK(100, roce.SyndromeNAKRemoteOperational)
			end.ExpectRecv(1, verbs.WCLocProtErr)
			end.ExpectRecv(2, verbs.WCWRFlushErr)
			require.Equal(t, verbs.StateError, end.QP.State())
		})
	}
	support.Fault(t, "memory of a receive that is not good", support.Outcome{Wire: roce.SyndromeNAKRemoteOperational, Receive: verbs.WCLocProtErr})
}

// TestCase_D3: a completion that finds its CQ full is an error of the queue pair, never a silent loss.
func TestCase_D3(t *testing.T) {
	stage := puppet.NewStage(t, mem.Options{})
	end := stage.NewEnd(puppet.EndOptions{CQE: 4})
	p := stage.NewPuppet()
	p.Connect(end)
	for id := range uint64(16) {
		end.Post(end.Request(id, verbs.WRSend, 0, 4))
		p.ExpectPacket(roce.RCSendOnly, 40+roce.PSN(id))
	}
	p.Ack(44, 5)
	p.ExpectNothing(time.Minute)
	require.Equal(t, verbs.StateError, end.QP.State())
	for i, wc := range end.Sends(4) {
		require.Equal(t, uint64(i), wc.WRID)
		require.Equal(t, verbs.WCSuccess, wc.Status)
	}
	require.Equal(t, uint64(12), opener.Counters(end.Device).Transport.CompletionsDropped)
	support.Fault(t, "completion queue full", support.Outcome{Requester: verbs.StateError})
}

// TestCase_B10: a fenced request waits for the READs before it, and for nothing else.
func TestCase_B10(t *testing.T) {
	fenced := func(end *puppet.End, id uint64, operation verbs.WROpcode) verbs.SendWR {
		wr := end.Request(id, operation, 0, 4)
		wr.Flags |= verbs.SendFence
		return wr
	}
	t.Run("READ, fenced SEND", func(t *testing.T) {
		_, end, p := sender(t)
		end.Post(end.Request(1, verbs.WRRDMARead, 0, 2048), fenced(end, 2, verbs.WRSend), end.Request(3, verbs.WRSend, 0, 4))
		p.ExpectPacket(roce.RCReadRequest, 40)
		p.ExpectNothing(50 * time.Millisecond)
		p.Respond(roce.RCReadResponseFirst, 40, make([]byte, 1024))
		p.ExpectNothing(50 * time.Millisecond)
		p.Respond(roce.RCReadResponseLast, 41, make([]byte, 1024))
		p.ExpectPacket(roce.RCSendOnly, 42)
		p.ExpectPacket(roce.RCSendOnly, 43)
	})
	t.Run("READ, fenced READ", func(t *testing.T) {
		_, end, p := sender(t)
		end.Post(end.Request(1, verbs.WRRDMARead, 0, 8), fenced(end, 2, verbs.WRRDMARead))
		p.ExpectPacket(roce.RCReadRequest, 40)
		p.ExpectNothing(50 * time.Millisecond)
		p.Respond(roce.RCReadResponseOnly, 40, make([]byte, 8))
		p.ExpectPacket(roce.RCReadRequest, 41)
	})
	t.Run("READ, SEND, fenced SEND", func(t *testing.T) {
		_, end, p := sender(t)
		end.Post(end.Request(1, verbs.WRRDMARead, 0, 8), end.Request(2, verbs.WRSend, 0, 4), fenced(end, 3, verbs.WRSend))
		p.ExpectPacket(roce.RCReadRequest, 40)
		p.ExpectPacket(roce.RCSendOnly, 41)
		p.ExpectNothing(50 * time.Millisecond)
		p.Respond(roce.RCReadResponseOnly, 40, make([]byte, 8))
		p.ExpectPacket(roce.RCSendOnly, 42)
	})
	t.Run("WRITE, fenced SEND", func(t *testing.T) {
		stage, end, p := sender(t)
		end.Post(end.Request(1, verbs.WRRDMAWrite, 0, 8), fenced(end, 2, verbs.WRSend))
		first := p.ExpectPacket(roce.RCWriteOnly, 40)
		require.Equal(t, first.At, p.ExpectPacket(roce.RCSendOnly, 41).At)
		stage.Pass(time.Millisecond)
	})
	t.Run("the READ is sent again", func(t *testing.T) {
		_, end, p := sender(t)
		end.Post(end.Request(1, verbs.WRRDMARead, 0, 8), fenced(end, 2, verbs.WRSend))
		p.ExpectPacket(roce.RCReadRequest, 40)
		p.ExpectPacket(roce.RCReadRequest, 40) // timeout
		p.ExpectNothing(50 * time.Millisecond)
		p.Respond(roce.RCReadResponseOnly, 40, make([]byte, 8))
		p.ExpectPacket(roce.RCSendOnly, 41)
	})
}

// TestUnsignaled: requests that ask for no completion get none, and give their places back all the same.
func TestUnsignaled(t *testing.T) {
	stage := puppet.NewStage(t, mem.Options{})
	a, b := stage.NewEnd(puppet.EndOptions{Cap: verbs.QPCap{MaxSendWR: 3}}), stage.NewEnd(puppet.EndOptions{})
	stage.Connect(a, b)
	for range 10 {
		for id := range uint64(3) {
			wr := a.Request(id, verbs.WRRDMAWrite, 0, 4)
			wr.Flags, wr.RemoteAddr, wr.RKey = 0, b.MR.Addr(), b.MR.RKey()
			a.Post(wr)
		}
		require.Equal(t, 3, a.QP.Outstanding())
		require.True(t, stage.Run(time.Second, func() bool { return a.QP.Outstanding() == 0 }))
		a.ExpectNoCompletion()
	}
}
