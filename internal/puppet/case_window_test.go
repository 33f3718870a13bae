package puppet_test

import (
	"bytes"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/xroce/xroce/internal/puppet"
	"github.com/xroce/xroce/internal/support"
	"github.com/xroce/xroce/roce"
	"github.com/xroce/xroce/roce/link/mem"
	"github.com/xroce/xroce/verbs"
)

// Memory windows, as a peer meets them, and the bounds of what atomics and FLUSH reach.

const windowRights = puppet.PeerAccess

var kinds = []verbs.MWType{verbs.MWType1, verbs.MWType2}

// newWindow makes a window of an end.
func newWindow(end *puppet.End, kind verbs.MWType) *verbs.MW {
	w, err := end.PD.AllocMW(kind)
	end.Require(err)
	end.Cleanup(w.Dealloc)
	return w
}

// bind binds a window, or fails to with status.
func bind(end *puppet.End, w *verbs.MW, status verbs.WCStatus, b verbs.MWBind) {
	b.WRID, b.Flags = 2000, verbs.SendSignaled
	end.Require(end.QP.BindMW(w, b))
	end.ExpectSend(2000, status)
}

// reach makes a request of eight bytes, or of any length if the opcode has one.
func reach(opcode roce.Opcode, psn roce.PSN, key uint32, va uint64, length uint32) puppet.Packet {
	packet := puppet.Packet{
		Opcode: opcode, PSN: psn, AckRequest: true, RETH: roce.RETHFields{VA: va, RKey: key, Length: length},
		Atomic: roce.AtomicETHFields{VA: va, RKey: key}, FETH: roce.FETHFields{Placement: 1},
	}
	switch opcode {
	case roce.RCWriteOnly, roce.RCWriteOnlyImmediate, roce.RCAtomicWrite:
		packet.Payload = make([]byte, length)
	}
	return packet
}

// tries says how a fresh peer's request is answered that names va under key: every call has another queue pair, as a
// refusal ends it.
type tries struct {
	t   *testing.T
	end *puppet.End
	p   *puppet.Puppet
}

func (r *tries) try(opcode roce.Opcode, key uint32, va uint64, length uint32) roce.Syndrome {
	r.t.Helper()
	qp := r.end.NewQP(verbs.QPCap{})
	r.p.ConnectQP(r.end.Device, qp)
	r.p.Send(reach(opcode, 100, key, va, length))
	a := r.p.Expect()
	require.Equal(r.t, roce.PSN(100), a.PSN)
	return a.AETH().Syndrome()
}

const ack = roce.SyndromeAckNoCredits

var reaching = map[roce.Opcode]verbs.AccessFlags{
	roce.RCWriteOnly: verbs.AccessRemoteWrite, roce.RCReadRequest: verbs.AccessRemoteRead, roce.RCFetchAdd: verbs.AccessRemoteAtomic,
	roce.RCCompareSwap: verbs.AccessRemoteAtomic, roce.RCAtomicWrite: verbs.AccessRemoteWrite, roce.RCFlush: verbs.AccessFlushGlobal,
}

// TestCase_C1_Words: atomics, atomic writes and FLUSH do not get out of a region either, nor out of a window.
func TestCase_C1_Words(t *testing.T) {
	const size = 1024
	const top = 1<<64 - size
	stage := puppet.NewStage(t, mem.Options{})
	end := stage.NewEnd(puppet.EndOptions{CQE: 1024})
	p := stage.NewPuppet()
	p.Connect(end)
	r := &tries{t: t, end: end, p: p}
	for _, base := range []uint64{0x10000, top, 0} {
		buffer := make([]byte, size)
		region, err := end.PD.RegMRIOVA(buffer, base, puppet.AllAccess)
		require.NoError(t, err)
		w := newWindow(end, verbs.MWType1)
		bind(end, w, verbs.WCSuccess, verbs.MWBind{MR: region, Addr: base, Length: size, Access: windowRights})
		for opcode := range reaching {
			for what, key := range map[string]uint32{"region": region.RKey(), "window": w.RKey()} {
				for _, c := range []struct {
					va   uint64
					want roce.Syndrome
				}{
					{base, ack}, {base + size - 8, ack}, {base + 8, ack},
					{base + size, refused}, {base - 8, refused}, {base + 1<<32, refused}, {base + 1<<63, refused}, {1<<63 - 8, refused},
				} {
					require.Equal(t, c.want, r.try(opcode, key, c.va, 8), "%v at %#x of the %s at %#x", opcode, c.va, what, base)
					if c.want == refused {
						support.Fault(t, "any operation beyond the "+what, support.Outcome{Wire: c.want})
					}
				}
			}
		}
		for _, length := range []uint32{9, 1 << 31, size + 1} {
			for _, opcode := range []roce.Opcode{roce.RCFlush, roce.RCReadRequest} {
				require.Equal(t, refused, r.try(opcode, w.RKey(), base+size-8, length), "%v of %d bytes", opcode, length)
			}
		}
		require.Equal(t, make([]byte, size), buffer) // every write was one of zeros
		bind(end, w, verbs.WCSuccess, verbs.MWBind{})
		require.NoError(t, region.Dereg())
	}
}

// TestCase_C2_Keys: only READ and WRITE of length 0 need no key; a zero-length SEND with invalidate takes a receive.
func TestCase_C2_Keys(t *testing.T) {
	stage := puppet.NewStage(t, mem.Options{})
	end := stage.NewEnd(puppet.EndOptions{})
	p := stage.NewPuppet()
	p.Connect(end)
	r := &tries{t: t, end: end, p: p}
	w := newWindow(end, verbs.MWType2)
	for _, key := range []uint32{0, 1<<32 - 1, w.RKey(), end.MR.RKey() ^ 1} {
		for _, c := range []struct {
			opcode roce.Opcode
			va     uint64
			want   roce.Syndrome
		}{
			{roce.RCWriteOnly, 1<<64 - 1, ack}, {roce.RCReadRequest, 1<<64 - 1, ack}, {roce.RCFlush, 1<<64 - 1, refused},
			{roce.RCFetchAdd, 0, refused}, {roce.RCAtomicWrite, 0, invalid},
		} {
			require.Equal(t, c.want, r.try(c.opcode, key, c.va, 0))
			support.Fault(t, fmt.Sprintf("wrong key with length 0 in %v", c.opcode), support.Outcome{Wire: c.want})
		}
	}
	require.Equal(t, ack, r.try(roce.RCFlush, end.MR.RKey(), end.MR.Addr(), 0))
}

// TestWindowRange: a window shows its part of the region, no byte more.
func TestWindowRange(t *testing.T) {
	for _, kind := range kinds {
		for _, zeroBased := range []bool{false, true} {
			if zeroBased && kind == verbs.MWType1 {
				continue
			}
			for _, c := range []struct {
				offset, length int // of the access, from the window's first byte
				want           roce.Syndrome
			}{
				{0, 1, ack}, {0, 100, ack}, {99, 1, ack}, {-1, 1, refused}, {100, 1, refused}, {0, 101, refused}, {-1, 101, refused},
				{99, 2, refused}, {50, 51, refused}, {-word - 1, 8, refused},
			} {
				for _, opcode := range []roce.Opcode{roce.RCWriteOnly, roce.RCReadRequest, roce.RCFlush} {
					t.Run(fmt.Sprintf("type %d zero-based %v %v %+v", kind, zeroBased, opcode, c), func(t *testing.T) {
						_, end, p := sender(t)
						w := newWindow(end, kind)
						b := verbs.MWBind{MR: end.MR, Addr: end.MR.Addr() + 1000, Length: 100, Access: windowRights}
						base := b.Addr
						if zeroBased {
							b.Access |= verbs.AccessZeroBased
							base = 0
						}
						bind(end, w, verbs.WCSuccess, b)
						image := bytes.Clone(end.MR.Bytes())
						p.Send(reach(opcode, 100, w.RKey(), base+uint64(c.offset), uint32(c.length)))
						a := p.Expect()
						require.Equal(t, c.want, a.AETH().Syndrome(), "%v", a)
						if c.want == ack {
							switch opcode {
							case roce.RCReadRequest:
								a.Carries(end.Bytes(1000+c.offset, c.length))
							case roce.RCWriteOnly:
								clear(image[1000+c.offset:][:c.length])
							}
						}
						require.True(t, bytes.Equal(image, end.MR.Bytes()))
						based := ""
						if zeroBased {
							based = ", zero-based"
						}
						within := "within"
						if c.want == refused {
							within = "beyond"
						}
						support.Object(t, fmt.Sprintf("MW type %d", kind), "access "+within+" the window"+based, c.want)
					})
				}
			}
		}
	}
}

// TestWindowRights: what a window grants counts, not what the region does: each may have rights that the other lacks.
func TestWindowRights(t *testing.T) {
	all := puppet.PeerAccess
	for _, kind := range kinds {
		for opcode, right := range reaching {
			for name, c := range map[string]struct {
				window, region verbs.AccessFlags
				want           roce.Syndrome
			}{
				"window only":  {right, 0, ack},
				"both":         {right, all, ack},
				"region only":  {0, all, refused},
				"all but this": {all &^ right, all, refused},
			} {
				t.Run(fmt.Sprintf("type %d %v %s", kind, opcode, name), func(t *testing.T) {
					_, end, p := sender(t)
					mr, err := end.PD.RegMRIOVA(make([]byte, 64), 0, verbs.AccessLocalWrite|verbs.AccessMWBind|c.region)
					require.NoError(t, err)
					end.Cleanup(mr.Dereg)
					w := newWindow(end, kind)
					bind(end, w, verbs.WCSuccess, verbs.MWBind{MR: mr, Length: 64, Access: c.window})
					p.Send(reach(opcode, 100, w.RKey(), 8, 8))
					require.Equal(t, c.want, p.Expect().AETH().Syndrome())
					support.Object(t, fmt.Sprintf("MW type %d", kind), "access that is a right of: "+name, c.want)
				})
			}
		}
		// What the region's owner may not do himself he cannot grant.
		for _, right := range []verbs.AccessFlags{verbs.AccessRemoteWrite, verbs.AccessRemoteAtomic} {
			_, end, p := sender(t)
			mr, err := end.PD.RegMRIOVA(make([]byte, 64), 0, verbs.AccessMWBind|verbs.AccessRemoteRead)
			require.NoError(t, err)
			end.Cleanup(mr.Dereg)
			w := newWindow(end, kind)
			bind(end, w, verbs.WCMWBindErr, verbs.MWBind{MR: mr, Length: 64, Access: right})
			r := &tries{t: t, end: end, p: p}
			require.Equal(t, refused, r.try(roce.RCWriteOnly, w.RKey(), 8, 8))
			support.Object(t, fmt.Sprintf("MW type %d", kind), "bind with a right to change what its owner may not", verbs.WCMWBindErr)
		}
	}
}

// TestWindowRebound: another binding of a type 1 window makes the old key, and the old range, invalid; length 0
// unbinds it.
func TestWindowRebound(t *testing.T) {
	stage := puppet.NewStage(t, mem.Options{})
	end := stage.NewEnd(puppet.EndOptions{})
	p := stage.NewPuppet()
	p.Connect(end)
	r := &tries{t: t, end: end, p: p}
	w := newWindow(end, verbs.MWType1)
	var keys []uint32
	for round := range 4 {
		base := end.MR.Addr() + uint64(1000*round)
		bind(end, w, verbs.WCSuccess, verbs.MWBind{MR: end.MR, Addr: base, Length: 8, Access: windowRights})
		require.Equal(t, ack, r.try(roce.RCReadRequest, w.RKey(), base, 8))
		if round > 0 {
			require.Equal(t, refused, r.try(roce.RCReadRequest, w.RKey(), base-1000, 8))
		}
		for i, old := range keys {
			require.Equal(t, refused, r.try(roce.RCReadRequest, old, base, 8))
			require.Equal(t, refused, r.try(roce.RCReadRequest, old, end.MR.Addr()+uint64(1000*i), 8))
		}
		keys = append(keys, w.RKey())
	}
	last := w.RKey()
	bind(end, w, verbs.WCSuccess, verbs.MWBind{})
	for _, key := range []uint32{last, w.RKey()} {
		require.Equal(t, refused, r.try(roce.RCReadRequest, key, end.MR.Addr()+3000, 8))
	}
	require.Equal(t, ack, r.try(roce.RCReadRequest, end.MR.RKey(), end.MR.Addr()+3000, 8))
	support.Object(t, "MW type 1", "key and range of an earlier binding", refused)
	support.Object(t, "MW type 1", "bind of length 0, then access", refused)
}

// TestWindowOwner: a type 2 window is for the queue pair that bound it, a type 1 window for all of the domain.
func TestWindowOwner(t *testing.T) {
	for _, kind := range kinds {
		for opcode := range reaching {
			_, end, p := sender(t)
			w := newWindow(end, kind)
			bind(end, w, verbs.WCSuccess, verbs.MWBind{MR: end.MR, Addr: end.MR.Addr() + 7, Length: 800, Access: windowRights})
			base := end.MR.Addr() + word
			p.Send(reach(opcode, 100, w.RKey(), base, 8))
			require.Equal(t, ack, p.Expect().AETH().Syndrome())
			want := ack
			if kind == verbs.MWType2 {
				want = refused
			}
			r := &tries{t: t, end: end, p: p}
			require.Equal(t, want, r.try(opcode, w.RKey(), base, 8), "type %d, %v", kind, opcode)
			support.Object(t, fmt.Sprintf("MW type %d", kind), "access by another queue pair of the domain", want)

			// It is of another domain for all others.
			pd, err := end.Device.AllocPD()
			require.NoError(t, err)
			stranger, err := pd.CreateQP(verbs.QPInitAttr{SendCQ: end.SendCQ, RecvCQ: end.RecvCQ})
			require.NoError(t, err)
			p.ConnectQP(end.Device, stranger)
			p.Send(reach(opcode, 100, w.RKey(), base, 8))
			p.ExpectNAK(100, refused)
			support.Object(t, fmt.Sprintf("MW type %d", kind), "access by a queue pair of another domain", refused)
			require.NoError(t, stranger.Destroy())
			require.NoError(t, pd.Dealloc())
		}
	}
}

// TestWindowsOfPastLives: type 2 windows end with the life of the queue pair that bound them. Its next life neither
// shows them to its peer nor has to invalidate them, and neither does anybody keep their regions. Type 1 windows are
// the domain's, and stay.
func TestWindowsOfPastLives(t *testing.T) {
	for _, kind := range kinds {
		_, end, p := sender(t)
		region, err := end.PD.RegMR(make([]byte, 64), puppet.AllAccess)
		require.NoError(t, err)
		end.Cleanup(region.Dereg)
		w := newWindow(end, kind)
		b := verbs.MWBind{MR: region, Addr: region.Addr(), Length: 8, Access: windowRights}
		bind(end, w, verbs.WCSuccess, b)
		key := w.RKey()
		p.Send(reach(roce.RCReadRequest, 100, key, region.Addr(), 8))
		p.Expect().Is(roce.RCReadResponseOnly, 100)

		require.NoError(t, end.QP.Modify(t.Context(), verbs.QPAttr{State: verbs.StateReset}, verbs.QPStateMask))
		p.Connect(end)
		p.Send(reach(roce.RCReadRequest, 100, key, region.Addr(), 8))
		if kind == verbs.MWType1 {
			p.Expect().Is(roce.RCReadResponseOnly, 100)
			require.ErrorIs(t, region.Dereg(), verbs.ErrInUse)
		} else {
			p.ExpectNAK(100, refused)
			require.NoError(t, end.QP.Modify(t.Context(), verbs.QPAttr{State: verbs.StateReset}, verbs.QPStateMask))
			p.Connect(end)
			bind(end, w, verbs.WCSuccess, b)
			require.ErrorIs(t, region.Dereg(), verbs.ErrInUse)
			require.NoError(t, end.QP.Modify(t.Context(), verbs.QPAttr{State: verbs.StateReset}, verbs.QPStateMask))
			p.Connect(end)
			bind(end, w, verbs.WCSuccess, b) // the one that the life before has bound does not count any more
			require.NoError(t, end.QP.Modify(t.Context(), verbs.QPAttr{State: verbs.StateReset}, verbs.QPStateMask))
		}
	}
}
