package puppet_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/xroce/xroce/internal/puppet"
	"github.com/xroce/xroce/internal/support"
	"github.com/xroce/xroce/roce"
	"github.com/xroce/xroce/roce/link/mem"
	"github.com/xroce/xroce/verbs"
)

// How many READs and atomics are in flight, and where they go on after a loss.

// mixedRequest is a request on its way: a WRITE, or a piece of a READ or another operation with a response.
type mixedRequest struct {
	packets int
	answer  *answered // nil for a WRITE
}

// mixedFlight is a sender with requests of all kinds, and what the peer has seen of it.
type mixedFlight struct {
	*testing.T
	seed      uint64
	random    *rand.Rand
	stage     *puppet.Stage
	end       *puppet.End
	p         *puppet.Puppet
	limit     int                       // MAX_QP_RD_ATOMIC
	plan      map[roce.PSN]mixedRequest // by first PSN; READs by piece
	next      roce.PSN                  // behind the last one of the plan
	una, sent roce.PSN                  // what was answered, and sent since the last rewind
}

// post posts requests of random kinds.
func (f *mixedFlight) post(requests uint64) {
	chunk := 16 / min(4, f.limit)
	for id := range requests {
		kind := f.random.IntN(len(allAnswered) + 1)
		if kind == len(allAnswered) {
			f.end.Post(f.end.Request(id, verbs.WRRDMAWrite, 0, 8))
			f.plan[f.next] = mixedRequest{1, nil}
			f.next++
			continue
		}
		a := &allAnswered[kind]
		wr := a.request(f.end, id)
		count := 1
		if a.operation == verbs.WRRDMARead {
			count = 1 + f.random.IntN(3*chunk)
			wr.SGList[0] = f.end.MR.SGE(0, 1024*count)
		}
		f.end.Post(wr)
		for left := count; left > 0; left -= chunk {
			n := min(left, chunk)
			f.plan[f.next] = mixedRequest{n, a}
			f.next += roce.PSN(n)
		}
	}
}

// watch takes what is sent, in order, and counts what is open.
func (f *mixedFlight) watch() {
	f.stage.Pass(10 * latency)
	for f.p.Waiting() {
		got := f.p.Expect()
		require.Equal(f, f.sent, got.PSN, "seed %d", f.seed)
		if h := got.RETH(); got.Opcode == roce.RCReadRequest {
			f.sent += roce.PSN(h.Length()+1023) / 1024
		} else {
			f.sent++
		}
	}
	require.Greater(f, f.sent, f.una, "seed %d: stalled", f.seed)
	open := 0
	for first, r := range f.plan {
		if r.answer != nil && first < f.sent && first+roce.PSN(r.packets) > f.una {
			open++
		}
	}
	require.LessOrEqual(f, open, f.limit, "seed %d", f.seed)
	if f.sent < f.next && open < f.limit && f.plan[f.sent].answer != nil {
		require.Greater(f, int(f.sent-f.una)+f.plan[f.sent].packets, 4, "seed %d: held back without need", f.seed)
	}
}

// answer answers the oldest packet.
func (f *mixedFlight) answer() {
	for first, r := range f.plan {
		if f.una < first || f.una >= first+roce.PSN(r.packets) {
			continue
		}
		switch {
		case r.answer == nil:
			f.p.Ack(f.una, 0)
		case r.answer.operation == verbs.WRRDMARead:
			f.p.Respond(roce.RCReadResponseMiddle, f.una, make([]byte, 1024))
		default:
			r.answer.respond(f.p, f.una, testWord)
		}
		f.una++
		return
	}
}

// TestMaxRDAtomicMixed posts answered requests of all kinds, READs of several pieces among them, with WRITEs in
// between, and loses answers. Never are more in flight than were agreed on, everything goes out in order, and nothing
// stalls: a rewind takes back what it takes back, no more and no less.
func TestMaxRDAtomicMixed(t *testing.T) {
	const requests = 30
	for seed := range uint64(40) {
		random := rand.New(rand.NewPCG(seed, 1))
		limit := 1 + random.IntN(5)
		stage, end, p := narrow(t, 16, func(a *verbs.QPAttr) { a.MaxRDAtomic = uint8(limit) })
		f := &mixedFlight{
			T: t, seed: seed, random: random, stage: stage, end: end, p: p, limit: limit,
			plan: map[roce.PSN]mixedRequest{}, next: 40, una: 40, sent: 40,
		}
		f.post(requests)
		rewound := false
		for f.una < f.next {
			f.watch()
			if !rewound && random.IntN(4) == 0 {
				rewound = true // a second NAK without progress would be the same news
				p.NAK(f.una, roce.SyndromeNAKSequence)
				f.sent = f.una
				continue
			}
			rewound = false
			f.answer()
		}
		for id := range uint64(requests) {
			end.ExpectSend(id, verbs.WCSuccess)
		}
	}
	support.Object(t, "QP", "READs, atomics, FLUSHes and atomic writes in flight",
		"at most MAX_QP_RD_ATOMIC, and as many if there are")
}

// TestReadPieces: a READ that is asked for in pieces, with a hole in one of them: VA, length and PSN of the restart
// move together, it ends where its piece ended, and the pieces behind it are asked for as before.
func TestReadPieces(t *testing.T) {
	const packets, tail = 7, 100 // the last response has 100 bytes
	const length = 1024*(packets-1) + tail
	target := func(psn roce.PSN, count int) roce.RETHFields {
		offset := 1024 * int(psn-40)
		return roce.RETHFields{VA: 0x7000_0000_0001 + uint64(offset), RKey: 0x1234,
			Length: uint32(min(1024*count, length-offset))}
	}
	for missing := roce.PSN(40); missing < 40+packets; missing++ {
		for _, restart := range []roce.Opcode{roce.RCReadResponseFirst, roce.RCReadResponseMiddle, roce.RCReadResponseOnly, roce.RCReadResponseLast} {
			t.Run(fmt.Sprintf("missing %d, %v", missing, restart), func(t *testing.T) {
				stage, end, p := narrow(t, 8) // two responses to a request
				wr := end.Request(1, verbs.WRRDMARead, 3, length)
				wr.RemoteAddr, wr.RKey = 0x7000_0000_0001, 0x1234
				end.Post(wr)
				piece := func(psn roce.PSN) []byte {
					return bytes.Repeat([]byte{byte(psn)}, min(1024, length-1024*int(psn-40)))
				}
				for psn := roce.PSN(40); psn < 40+packets; psn += 2 {
					p.ExpectPacket(roce.RCReadRequest, psn).Asks(target(psn, 2))
				}
				for psn := roce.PSN(40); psn < 40+packets; psn++ {
					if psn != missing {
						p.Respond(middleOrLast(piece(psn)), psn, piece(psn))
					}
				}
				// If the last one is missing, only the timeout tells.
				require.True(t, stage.Run(2*timeout, p.Waiting))
				asked := missing // the window is smaller now, so the pieces come one after the other
				for psn := missing; psn < 40+packets; psn++ {
					for stage.Pass(10 * latency); p.Waiting(); asked += 2 - asked%2 {
						p.ExpectPacket(roce.RCReadRequest, asked).Asks(target(asked, int(2-asked%2)))
					}
					require.Greater(t, asked, psn)
					end.ExpectNoCompletion()
					opcode := middleOrLast(piece(psn))
					if psn == missing && (opcode == roce.RCReadResponseMiddle || restart == roce.RCReadResponseOnly) {
						opcode = restart
					}
					p.Respond(opcode, psn, piece(psn))
				}
				require.Equal(t, uint32(length), end.ExpectSend(1, verbs.WCSuccess).ByteLen)
				for psn := roce.PSN(40); psn < 40+packets; psn++ {
					require.Equal(t, piece(psn), end.Bytes(3+1024*int(psn-40), len(piece(psn))))
				}
				p.ExpectNothing(time.Minute)
			})
		}
	}
	support.Fault(t, "READ response lost in part",
		support.Outcome{Requester: "asks for the rest from the first missing packet on"})
}

// middleOrLast is an opcode that a response with this payload may have.
func middleOrLast(payload []byte) roce.Opcode {
	if len(payload) == 1024 {
		return roce.RCReadResponseMiddle
	}
	return roce.RCReadResponseLast
}

// TestCase_B17_ReadRestart: the holes of a READ are on both sides of the wrap; the second one shows by a timeout.
func TestCase_B17_ReadRestart(t *testing.T) {
	_, end, p := sender(t, func(a *verbs.QPAttr) { a.SQPSN = 0xFFFFFE })
	wr := end.Request(1, verbs.WRRDMARead, 0, 4096)
	wr.RemoteAddr, wr.RKey = 1<<64-4096, 7
	end.Post(wr)
	piece := func(b byte) []byte { return bytes.Repeat([]byte{b}, 1024) }
	expect := func(index uint32) {
		t.Helper()
		p.ExpectPacket(roce.RCReadRequest, roce.PSN(0xFFFFFE).Add(index)).Asks(roce.RETHFields{
			VA: wr.RemoteAddr + 1024*uint64(index), RKey: 7, Length: 4096 - 1024*index,
		})
	}
	expect(0)
	p.Respond(roce.RCReadResponseFirst, 0xFFFFFE, piece(1))
	p.Respond(roce.RCReadResponseLast, 1, piece(9)) // 0xFFFFFF and 0 are lost
	expect(1)
	p.Respond(roce.RCReadResponseFirst, 0xFFFFFF, piece(2))
	expect(2)
	p.Respond(roce.RCReadResponseLast, 1, piece(9)) // 0 is lost again
	p.ExpectNothing(time.Millisecond)
	expect(2)
	p.Respond(roce.RCReadResponseFirst, 0, piece(3))
	p.Respond(roce.RCReadResponseLast, 1, piece(4))
	end.ExpectSend(1, verbs.WCSuccess)
	require.Equal(t, bytes.Join([][]byte{piece(1), piece(2), piece(3), piece(4)}, nil), end.Bytes(0, 4096))
	support.Fault(t, "packets lost where PSNs wrap", support.Outcome{Requester: verbs.WCSuccess})
}

// TestCase_B17_Refused: the completion of a request that is refused behind the wrap names the right PSN.
func TestCase_B17_Refused(t *testing.T) {
	_, end, p := sender(t, func(a *verbs.QPAttr) { a.SQPSN = 0xFFFFFF })
	end.Post(end.Request(1, verbs.WRSend, 0, 4), end.Request(2, verbs.WRAtomicFetchAdd, 0, 8))
	p.ExpectPacket(roce.RCSendOnly, 0xFFFFFF)
	p.ExpectPacket(roce.RCFetchAdd, 0)
	p.NAK(0, roce.SyndromeNAKRemoteAccess)
	end.ExpectSend(1, verbs.WCSuccess)
	require.Equal(t, roce.PSN(0), end.ExpectSend(2, verbs.WCRemAccessErr).PSN)
	support.Fault(t, "answer: "+roce.SyndromeNAKRemoteAccess.String(), support.Outcome{Requester: verbs.WCRemAccessErr})
}

// TestCase_B17_Atomics: atomics over the wrap, with requests and answers lost around it, are each executed once.
func TestCase_B17_Atomics(t *testing.T) {
	const count = 10
	for _, operation := range []verbs.WROpcode{verbs.WRAtomicFetchAdd, verbs.WRAtomicCmpAndSwp} {
		for _, answer := range []bool{false, true} {
			for _, lost := range [][]roce.PSN{nil, {0xFFFFFE}, {0xFFFFFF}, {0}, {1}, {0xFFFFFF, 0}, {0xFFFFFE, 0xFFFFFF, 0, 1, 2}, {7}} {
				t.Run(fmt.Sprintf("%v lost %x answers %v", operation, lost, answer), func(t *testing.T) {
					stage := puppet.NewStage(t, mem.Options{})
					a, b := stage.NewEnd(puppet.EndOptions{}), stage.NewEnd(puppet.EndOptions{})
					stage.Connect(a, b, func(at *verbs.QPAttr) { at.RQPSN = 0xFFFFFE })
					var losses []func(*puppet.Sent) bool
					for _, psn := range lost {
						losses = append(losses, func(s *puppet.Sent) bool {
							return s.PSN == psn && (s.Opcode == roce.RCAtomicAcknowledge) == answer
						})
					}
					stage.Watch().Drop = puppet.Once(losses...)
					binary.NativeEndian.PutUint64(b.Bytes(7, 8), 1000)
					for id := range uint64(count) {
						wr := a.Request(id, operation, 8*int(id), 8)
						wr.RemoteAddr, wr.RKey = b.MR.Addr()+7, b.MR.RKey()
						wr.CompareAdd = 1
						if operation == verbs.WRAtomicCmpAndSwp {
							wr.CompareAdd, wr.Swap = 1000+id, 1001+id
						}
						a.Post(wr)
					}
					for id := range uint64(count) {
						a.ExpectSend(id, verbs.WCSuccess)
						require.Equal(t, 1000+id, binary.NativeEndian.Uint64(a.Bytes(8*int(id), 8)))
					}
					require.EqualValues(t, 1000+count, binary.NativeEndian.Uint64(b.Bytes(7, 8)))
				})
			}
		}
	}
	support.Fault(t, "packets lost where PSNs wrap", support.Outcome{Requester: verbs.WCSuccess})
}
