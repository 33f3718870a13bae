package puppet_test

import (
	"context"
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

// State SQD: what was begun is finished, nothing new begins, and then attributes may change.

// to changes the state.
func to(end *puppet.End, state verbs.QPState) error {
	return end.QP.Modify(context.Background(), verbs.QPAttr{State: state}, verbs.QPStateMask)
}

// narrow is sender with an engine whose window is so small.
func narrow(t *testing.T, window int, adjust ...func(*verbs.QPAttr)) (*puppet.Stage, *puppet.End, *puppet.Puppet) {
	stage := puppet.NewStage(t, mem.Options{})
	end := stage.NewEnd(puppet.EndOptions{Window: window})
	p := stage.NewPuppet()
	p.Connect(end, adjust...)
	return stage, end, p
}

// requireDraining checks that the queue pair drains, and what it refuses meanwhile.
func requireDraining(t *testing.T, end *puppet.End) {
	t.Helper()
	attr := end.QP.Query()
	require.Equal(t, verbs.StateSQD, attr.State)
	require.True(t, attr.SQDraining)
	require.ErrorIs(t, to(end, verbs.StateRTS), verbs.ErrTransition)
	attr.Timeout, attr.MaxRDAtomic, attr.RetryCnt, attr.RNRRetry = 20, 2, 3, 4
	for _, mask := range []verbs.QPAttrMask{
		verbs.QPTimeout, verbs.QPRetryCnt, verbs.QPRNRRetry, verbs.QPMaxQPRDAtomic, verbs.QPMaxDestRDAtomic, verbs.QPAV,
		verbs.QPMinRNRTimer, verbs.QPAccessFlags, verbs.QPPort, verbs.QPPKeyIndex,
	} {
		require.ErrorIs(t, end.QP.Modify(t.Context(), attr, mask), verbs.ErrTransition, "%v", mask)
	}
	now := end.QP.Query()
	require.True(t, now.SQDraining)
	require.EqualValues(t, 14, now.Timeout)
	require.EqualValues(t, 4, now.MaxRDAtomic)
	support.Object(t, "QP", "Modify to RTS, or of attributes, while it drains", verbs.ErrTransition)
}

// requireDrained checks that it has drained.
func requireDrained(t *testing.T, end *puppet.End) {
	t.Helper()
	attr := end.QP.Query()
	require.Equal(t, verbs.StateSQD, attr.State)
	require.False(t, attr.SQDraining)
}

// TestDrainMessage: a message whose first packet is out is sent to its end, though the window cuts it; the SEND
// behind it, which was posted before, waits for RTS like the one that is posted in SQD.
func TestDrainMessage(t *testing.T) {
	for _, operation := range []verbs.WROpcode{verbs.WRRDMAWrite, verbs.WRSend} {
		t.Run(operation.String(), func(t *testing.T) {
			_, end, p := narrow(t, 4)
			end.Post(end.Request(1, operation, 0, 10*1024), end.Request(2, verbs.WRSend, 0, 4))
			for psn := roce.PSN(40); psn < 44; psn++ {
				require.Equal(t, psn, p.Expect().PSN)
			}
			require.NoError(t, to(end, verbs.StateSQD))
			end.Post(end.Request(3, verbs.WRRDMARead, 0, 4))
			for psn := roce.PSN(40); psn < 50; psn++ {
				requireDraining(t, end)
				p.Ack(psn, 0)
				if psn+4 < 50 {
					require.Equal(t, psn+4, p.Expect().PSN)
				}
				p.ExpectNothing(time.Millisecond)
			}
			end.ExpectSend(1, verbs.WCSuccess)
			requireDrained(t, end)
			p.ExpectNothing(time.Minute)
			end.ExpectNoCompletion()
			require.Equal(t, 2, end.QP.Outstanding())

			require.NoError(t, to(end, verbs.StateRTS))
			p.ExpectPacket(roce.RCSendOnly, 50)
			p.ExpectPacket(roce.RCReadRequest, 51)
			p.Respond(roce.RCReadResponseOnly, 51, make([]byte, 4))
			end.ExpectSend(2, verbs.WCSuccess)
			end.ExpectSend(3, verbs.WCSuccess)
		})
	}
	support.Object(t, "QP", "SQD in the middle of a message", "sent to its end, nothing behind it begins")
}

// TestDrainRead: a READ that goes out in several requests is one message.
func TestDrainRead(t *testing.T) {
	stage, end, p := narrow(t, 4, func(a *verbs.QPAttr) { a.MaxRDAtomic = 1 })
	end.Post(end.Request(1, verbs.WRRDMARead, 0, 10*1024), end.Request(2, verbs.WRSend, 0, 4))
	asked := []roce.PSN{p.Expect().PSN}
	require.NoError(t, to(end, verbs.StateSQD))
	for psn := roce.PSN(40); psn < 50; psn++ {
		require.True(t, end.QP.Query().SQDraining)
		require.ErrorIs(t, to(end, verbs.StateRTS), verbs.ErrTransition)
		for p.Waiting() {
			asked = append(asked, p.Expect().PSN)
		}
		p.Respond(roce.RCReadResponseMiddle, psn, make([]byte, 1024))
		stage.Pass(10 * latency)
	}
	require.Equal(t, []roce.PSN{40, 44, 48}, asked)
	end.ExpectSend(1, verbs.WCSuccess)
	requireDrained(t, end)
	p.ExpectNothing(time.Minute)
	require.NoError(t, to(end, verbs.StateRTS))
	p.ExpectPacket(roce.RCSendOnly, 50)
	support.Object(t, "QP", "SQD in the middle of a READ of several requests", "asked for to its end, nothing behind it begins")
}

// TestDrainResend: losses and refusals are dealt with in SQD as ever; only what was begun is sent again.
func TestDrainResend(t *testing.T) {
	for _, a := range allAnswered {
		t.Run(a.operation.String(), func(t *testing.T) {
			stage, end, p := sender(t)
			end.Post(end.Request(1, verbs.WRSend, 0, 4), a.request(end, 2), fenced(end, 3, verbs.WRSend))
			begun := func() puppet.Answer {
				t.Helper()
				p.ExpectPacket(roce.RCSendOnly, 40)
				return a.expect(t, end, p, 2, 41)
			}
			first := begun()
			require.NoError(t, to(end, verbs.StateSQD))
			require.Equal(t, timeout, begun().At-first.At)
			p.NAK(40, roce.SyndromeNAKSequence)
			begun()
			refused := stage.Now()
			p.NAK(40, roce.RNRNAK(12)) // 0.64 ms
			require.Equal(t, 640*time.Microsecond+2*latency, begun().At-refused)
			requireDraining(t, end)
			p.Ack(41, 2) // the response was lost
			a.expect(t, end, p, 2, 41)
			end.ExpectSend(1, verbs.WCSuccess)
			requireDraining(t, end)
			a.respond(p, 41, testWord)
			end.ExpectSend(2, verbs.WCSuccess)
			requireDrained(t, end)
			p.ExpectNothing(time.Minute) // the fence is open, but this is SQD
			require.NoError(t, to(end, verbs.StateRTS))
			p.ExpectPacket(roce.RCSendOnly, 42)
		})
	}
	support.Object(t, "QP", "losses and refusals in SQD", "what was begun is sent again")
}

// TestDrainLeave: while it drains, a queue pair can be taken to ERR and to RESET.
func TestDrainLeave(t *testing.T) {
	for _, state := range []verbs.QPState{verbs.StateError, verbs.StateReset} {
		_, end, p := sender(t)
		end.Post(end.Request(1, verbs.WRSend, 0, 4))
		p.ExpectPacket(roce.RCSendOnly, 40)
		require.NoError(t, to(end, verbs.StateSQD))
		end.Post(end.Request(2, verbs.WRSend, 0, 4))
		require.NoError(t, to(end, state))
		if state == verbs.StateError {
			end.ExpectSend(1, verbs.WCWRFlushErr)
			end.ExpectSend(2, verbs.WCWRFlushErr)
		}
		end.ExpectNoCompletion()
		require.Zero(t, end.QP.Outstanding())
		p.ExpectNothing(time.Minute)
		support.Object(t, "QP", fmt.Sprintf("%v while it drains", state), "no request is left")
	}
}

// TestDrainFailure: what fails while it drains fails as ever.
func TestDrainFailure(t *testing.T) {
	_, end, p := sender(t, func(a *verbs.QPAttr) { a.RetryCnt = 1 })
	end.Post(end.Request(1, verbs.WRSend, 0, 4))
	p.ExpectPacket(roce.RCSendOnly, 40)
	require.NoError(t, to(end, verbs.StateSQD))
	end.Post(end.Request(2, verbs.WRSend, 0, 4))
	p.ExpectPacket(roce.RCSendOnly, 40)
	end.ExpectSend(1, verbs.WCRetryExcErr)
	end.ExpectSend(2, verbs.WCWRFlushErr)
	require.Equal(t, verbs.StateError, end.QP.State())
	support.Object(t, "QP", "failure while it drains", verbs.StateError)
}

// TestDrainQueues: an idle queue pair has drained at once. Nothing that is posted then begins before RTS, neither a
// local operation nor a request that will fail; the peer is served all the time.
func TestDrainQueues(t *testing.T) {
	faulty := func(end *puppet.End, id uint64) verbs.SendWR {
		wr := end.Request(id, verbs.WRSend, 0, 4)
		wr.SGList[0].LKey ^= 1
		return wr
	}
	for name, c := range map[string]struct {
		make   func(end *puppet.End, id uint64) verbs.SendWR
		status verbs.WCStatus
		sent   bool
	}{
		"SEND":             {func(end *puppet.End, id uint64) verbs.SendWR { return end.Request(id, verbs.WRSend, 0, 4) }, verbs.WCSuccess, true},
		"fetch-and-add":    {func(end *puppet.End, id uint64) verbs.SendWR { return end.Request(id, verbs.WRAtomicFetchAdd, 0, 8) }, verbs.WCSuccess, true},
		"bind":             {window, verbs.WCSuccess, false},
		"registration":     {fast, verbs.WCSuccess, false},
		"wrong key":        {faulty, verbs.WCLocProtErr, false},
		"wrong invalidate": {func(end *puppet.End, id uint64) verbs.SendWR { return invalidate(end, id, 1) }, verbs.WCLocQPOpErr, false},
	} {
		t.Run(name, func(t *testing.T) {
			_, end, p := sender(t)
			require.NoError(t, to(end, verbs.StateSQD))
			requireDrained(t, end)
			end.Post(c.make(end, 1))
			end.PostRecv(2, 0, 64)
			p.ExpectNothing(time.Minute)
			end.ExpectNoCompletion()
			requireDrained(t, end)
			p.Send(send(100, "rose"))
			p.ExpectAck(100, 1)
			end.ExpectRecv(2, verbs.WCSuccess)
			end.ExpectNoCompletion()
			require.NoError(t, to(end, verbs.StateRTS))
			if c.sent {
				a := p.Expect()
				require.Equal(t, roce.PSN(40), a.PSN)
				if a.Opcode == roce.RCFetchAdd {
					p.RespondAtomic(40, 1)
				} else {
					p.Ack(40, 1)
				}
			}
			end.ExpectSend(1, c.status)
			support.Object(t, "QP", "request posted in SQD: "+name, fmt.Sprintf("begins in RTS: %v", c.status))
		})
	}
}

// TestDrainAttributes: what is changed in SQD holds from RTS on, also for what was posted in between.
func TestDrainAttributes(t *testing.T) {
	for _, limits := range [][2]uint8{{4, 1}, {1, 3}, {0, 2}, {2, 0}} {
		t.Run(fmt.Sprint(limits), func(t *testing.T) {
			_, end, p := sender(t, func(a *verbs.QPAttr) { a.MaxRDAtomic = limits[0] })
			end.Post(end.Request(9, verbs.WRSend, 0, 4))
			p.ExpectPacket(roce.RCSendOnly, 40)
			p.Ack(40, 1)
			end.ExpectSend(9, verbs.WCSuccess)
			require.NoError(t, to(end, verbs.StateSQD))
			for id := range uint64(5) {
				end.Post(end.Request(id, verbs.WRRDMARead, 0, 4))
			}
			p.ExpectNothing(time.Millisecond)
			attr := verbs.QPAttr{Timeout: 10, RetryCnt: 1, RNRRetry: 0, MaxRDAtomic: limits[1]}
			require.NoError(t, end.QP.Modify(t.Context(), attr, verbs.QPTimeout|verbs.QPRetryCnt|verbs.QPRNRRetry|verbs.QPMaxQPRDAtomic))
			require.NoError(t, to(end, verbs.StateRTS))
			if limits[1] == 0 {
				end.ExpectSend(0, verbs.WCLocQPOpErr)
				return
			}
			start := p.Expect().Is(roce.RCReadRequest, 41)
			for i := roce.PSN(1); i < roce.PSN(limits[1]); i++ {
				p.ExpectPacket(roce.RCReadRequest, 41+i)
			}
			again := p.ExpectPacket(roce.RCReadRequest, 41)
			require.Equal(t, 4096*1024*time.Nanosecond, again.At-start.At)
			end.ExpectSend(0, verbs.WCRetryExcErr)
			require.Equal(t, uint64(2), opener.Counters(end.Device).Transport.Timeouts)
		})
	}
	support.Object(t, "QP", "TIMEOUT, RETRY_CNT and MAX_QP_RD_ATOMIC changed in SQD", "hold from RTS on")
}

// TestDrainAgain: every time in SQD is a new one.
func TestDrainAgain(t *testing.T) {
	_, end, p := sender(t)
	for psn := roce.PSN(40); psn < 43; psn++ {
		end.Post(end.Request(1, verbs.WRSend, 0, 4))
		p.ExpectPacket(roce.RCSendOnly, psn)
		require.NoError(t, to(end, verbs.StateSQD))
		requireDraining(t, end)
		p.Ack(psn, 1)
		end.ExpectSend(1, verbs.WCSuccess)
		requireDrained(t, end)
		require.NoError(t, to(end, verbs.StateRTS))
	}
}

// TestDrainLimitToZero: the request that waited its turn when the queue pair went to SQD finds that there is none any
// more.
func TestDrainLimitToZero(t *testing.T) {
	for _, a := range allAnswered {
		_, end, p := sender(t, func(at *verbs.QPAttr) { at.MaxRDAtomic = 1 })
		end.Post(a.request(end, 1), a.request(end, 2), end.Request(3, verbs.WRSend, 0, 4))
		a.expect(t, end, p, 1, 40)
		require.NoError(t, to(end, verbs.StateSQD))
		a.respond(p, 40, testWord)
		end.ExpectSend(1, verbs.WCSuccess)
		requireDrained(t, end)
		require.NoError(t, end.QP.Modify(t.Context(), verbs.QPAttr{}, verbs.QPMaxQPRDAtomic))
		p.ExpectNothing(time.Second)
		end.ExpectNoCompletion()
		require.NoError(t, to(end, verbs.StateRTS))
		end.ExpectSend(2, verbs.WCLocQPOpErr)
		end.ExpectSend(3, verbs.WCWRFlushErr)
		p.ExpectNothing(time.Minute)
	}
	support.Object(t, "QP", "MAX_QP_RD_ATOMIC 0, set in SQD", verbs.WCLocQPOpErr)
}
