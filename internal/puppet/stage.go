package puppet

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/xroce/xroce/internal/opener"
	"github.com/xroce/xroce/internal/simulation"
	"github.com/xroce/xroce/roce"
	"github.com/xroce/xroce/roce/link/mem"
	"github.com/xroce/xroce/verbs"
)

// Stage is a world in virtual time, where puppets and devices under test meet.
type Stage struct {
	*Virtual
	World *simulation.World
	t     testing.TB
	ends  uint64
}

// NewStage makes a stage.
func NewStage(t testing.TB, o mem.Options) *Stage {
	w := simulation.NewWorld(o)
	return &Stage{Virtual: NewVirtual(w.Network), World: w, t: t}
}

// NewPuppet adds a puppet, which is a device of its own on the network.
func (s *Stage) NewPuppet() *Puppet {
	l, err := s.World.Network.NewDevice(mem.DeviceOptions{})
	require.NoError(s.t, err)
	return New(s.t, l, s)
}

// EndOptions are the choices of an End; the zero value works.
type EndOptions struct {
	Device mem.DeviceOptions
	Window int         // of the engine
	Cap    verbs.QPCap // of the queue pair
	Memory int         // bytes of the region, 128 KiB by default
	CQE    int         // of each CQ, 256 by default
}

// End is a device with one of each object that a case needs.
type End struct {
	Device         *verbs.Device
	PD             *verbs.PD
	SendCQ, RecvCQ *verbs.CQ
	QP             *verbs.QP
	MR             *verbs.MR // all rights, random content

	stage *Stage
	t     testing.TB
}

// IOVA is the address of an End's region: an odd one, which no other region has.
const IOVA = uint64(0x5_0000_0111)

// AllAccess is every right that there is.
const AllAccess = verbs.AccessLocalWrite | PeerAccess | verbs.AccessMWBind

// PeerAccess is every right of a peer.
const PeerAccess = verbs.AccessRemoteWrite | verbs.AccessRemoteRead | verbs.AccessRemoteAtomic | verbs.AccessFlushGlobal

// NewEnd adds a device under test. It is closed when the test ends, which shows what was leaked.
func (s *Stage) NewEnd(o EndOptions) *End {
	s.ends++
	d, err := s.World.AddDevice(s.ends, o.Device, o.Window)
	require.NoError(s.t, err)
	s.Add(d)
	e := &End{Device: d, stage: s, t: s.t}
	e.PD, err = d.AllocPD()
	require.NoError(s.t, err)
	e.SendCQ, err = d.CreateCQ(verbs.CQInitAttr{CQE: orDefault(o.CQE, 256)})
	require.NoError(s.t, err)
	e.RecvCQ, err = d.CreateCQ(verbs.CQInitAttr{CQE: orDefault(o.CQE, 256)})
	require.NoError(s.t, err)
	e.QP = e.NewQP(o.Cap)
	buffer := make([]byte, 1+orDefault(o.Memory, 128<<10))[1:] // its words are aligned where their addresses are
	_, _ = rand.NewChaCha8([32]byte{byte(s.ends)}).Read(buffer)
	e.MR, err = e.PD.RegMRIOVA(buffer, IOVA, AllAccess)
	require.NoError(s.t, err)
	s.t.Cleanup(e.close)
	return e
}

func orDefault(value, fallback int) int {
	if value == 0 {
		return fallback
	}
	return value
}

// NewQP makes another queue pair on the end's CQs; it is destroyed when the test ends.
func (e *End) NewQP(c verbs.QPCap) *verbs.QP {
	qp, err := e.PD.CreateQP(verbs.QPInitAttr{SendCQ: e.SendCQ, RecvCQ: e.RecvCQ, Cap: c})
	require.NoError(e.t, err)
	if e.QP != nil {
		e.Cleanup(qp.Destroy)
	}
	return qp
}

func (e *End) close() {
	for _, undo := range []func() error{
		e.QP.Destroy, e.SendCQ.Destroy, e.RecvCQ.Destroy, e.MR.Dereg, e.PD.Dealloc, func() error { return opener.InUse(e.Device) }, e.Device.Close,
	} {
		e.undo(undo)
	}
}

// undo undoes something at the end of the test. A panic in the engine leaves its locks taken: it must be seen, and
// not a test that hangs.
func (e *End) undo(undo func() error) {
	if e.t.Failed() {
		return // what is left over is no news then
	}
	done := make(chan error, 1)
	go func() { done <- undo() }()
	select {
	case err := <-done:
		require.NoError(e.t, err)
	case <-time.After(Patience):
		e.t.Error("the end of the test hangs")
	}
}

// Require fails the test unless err is nil.
func (e *End) Require(err error) { e.t.Helper(); require.NoError(e.t, err) }

// Cleanup has something undone before the end is closed.
func (e *End) Cleanup(undo func() error) { e.t.Cleanup(func() { e.undo(undo) }) }

// Bytes returns length bytes of the region from offset on.
func (e *End) Bytes(offset, length int) []byte { return e.MR.Bytes()[offset : offset+length] }

// RETH names length bytes of the region from offset on.
func (e *End) RETH(offset, length int) roce.RETHFields {
	return roce.RETHFields{VA: e.MR.Addr() + uint64(offset), RKey: e.MR.RKey(), Length: uint32(length)}
}

// Request makes a signaled send request of an operation on length bytes of the region from offset on.
func (e *End) Request(id uint64, opcode verbs.WROpcode, offset, length int) verbs.SendWR {
	wr := verbs.SendWR{WRID: id, Opcode: opcode, Flags: verbs.SendSignaled}
	switch opcode {
	case verbs.WRFlush:
		wr.Flush = verbs.FlushRange{Length: uint32(length), Placement: verbs.FlushPlacementGlobal}
	case verbs.WRLocalInv, verbs.WRBindMW, verbs.WRRegMR:
	default:
		wr.SGList = []verbs.SGE{e.MR.SGE(offset, length)}
	}
	return wr
}

// Post posts send requests.
func (e *End) Post(wrs ...verbs.SendWR) {
	e.t.Helper()
	require.NoError(e.t, e.QP.PostSend(wrs...))
}

// PostRecv posts a receive for length bytes of the region from offset on.
func (e *End) PostRecv(id uint64, offset, length int) {
	e.t.Helper()
	require.NoError(e.t, e.QP.PostRecv(verbs.RecvWR{WRID: id, SGList: []verbs.SGE{e.MR.SGE(offset, length)}}))
}

// Sends waits for the next n completions of send requests, and Recvs for those of receives.
func (e *End) Sends(n int) []verbs.WC { e.t.Helper(); return e.completions(e.SendCQ, n) }

// Recvs is Sends for receives.
func (e *End) Recvs(n int) []verbs.WC { e.t.Helper(); return e.completions(e.RecvCQ, n) }

func (e *End) completions(cq *verbs.CQ, n int) []verbs.WC {
	e.t.Helper()
	wcs := make([]verbs.WC, n)
	got := 0
	full := e.stage.Run(Patience, func() bool {
		k, err := cq.Poll(wcs[got:])
		require.NoError(e.t, err)
		got += k
		return got == n
	})
	require.True(e.t, full, "%d completions of %d: %+v", got, n, wcs[:got])
	return wcs
}

// ExpectNoCompletion checks that both CQs are empty, now.
func (e *End) ExpectNoCompletion() {
	e.t.Helper()
	var wc [1]verbs.WC
	for _, cq := range []*verbs.CQ{e.SendCQ, e.RecvCQ} {
		n, err := cq.Poll(wc[:])
		require.NoError(e.t, err)
		require.Zero(e.t, n, "unexpected completion: %+v", wc[0])
	}
}

// ExpectSend waits for the next completion of a send request and checks it.
func (e *End) ExpectSend(id uint64, status verbs.WCStatus) verbs.WC {
	e.t.Helper()
	return e.expect(e.Sends(1)[0], id, status)
}

// ExpectRecv waits for the next completion of a receive and checks it.
func (e *End) ExpectRecv(id uint64, status verbs.WCStatus) verbs.WC {
	e.t.Helper()
	return e.expect(e.Recvs(1)[0], id, status)
}

func (e *End) expect(wc verbs.WC, id uint64, status verbs.WCStatus) verbs.WC {
	e.t.Helper()
	require.Equal(e.t, id, wc.WRID, "%+v", wc)
	require.Equal(e.t, status, wc.Status, "%+v", wc)
	require.Equal(e.t, e.QP.QPN(), wc.QPN, "%+v", wc)
	return wc
}

// Attributes are those that a queue pair under test has by default: all rights for the peer, path MTU 1024, four READs
// in flight each way, timeout 67 ms, seven retries, RNR without end. The peer is yet to be filled in.
func Attributes() verbs.QPAttr {
	return verbs.QPAttr{
		PortNum: 1, AccessFlags: PeerAccess,
		PathMTU: verbs.MTU1024, RQPSN: FirstPSN, SQPSN: FirstPSNOfQP, MaxRDAtomic: 4, MaxDestRDAtomic: 4,
		MinRNRTimer: 12, Timeout: 14, RetryCnt: 7, RNRRetry: 7,
	}
}

// Establish brings a queue pair from RESET to RTS.
func Establish(t testing.TB, qp *verbs.QP, attr verbs.QPAttr) {
	t.Helper()
	for _, step := range []struct {
		state verbs.QPState
		mask  verbs.QPAttrMask
	}{
		{verbs.StateInit, verbs.QPPKeyIndex | verbs.QPPort | verbs.QPAccessFlags},
		{verbs.StateRTR, verbs.QPAV | verbs.QPPathMTU | verbs.QPDestQPN | verbs.QPRQPSN | verbs.QPMaxDestRDAtomic | verbs.QPMinRNRTimer},
		{verbs.StateRTS, verbs.QPSQPSN | verbs.QPTimeout | verbs.QPRetryCnt | verbs.QPRNRRetry | verbs.QPMaxQPRDAtomic},
	} {
		attr.State = step.state
		require.NoError(t, qp.Modify(t.Context(), attr, verbs.QPStateMask|step.mask))
	}
}

// Connect connects the queue pairs of two ends. Adjust changes the attributes of both; the first PSNs are the same in
// both directions, RQPSN.
func (s *Stage) Connect(a, b *End, adjust ...func(*verbs.QPAttr)) {
	s.t.Helper()
	for _, side := range [][2]*End{{a, b}, {b, a}} {
		attr := Attributes()
		attr.RQPSN = FirstPSNOfQP
		for _, change := range adjust {
			change(&attr)
		}
		attr.SQPSN = attr.RQPSN
		gid, err := side[1].Device.QueryGID(attr.AH.SGIDIndex)
		require.NoError(s.t, err)
		attr.AH.DGID, attr.DestQPN = gid, side[1].QP.QPN()
		Establish(s.t, side[0].QP, attr)
	}
}

// Pass lets time pass.
func (s *Stage) Pass(d time.Duration) { s.Run(d, func() bool { return false }) }
