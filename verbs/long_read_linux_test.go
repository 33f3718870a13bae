package verbs_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/xroce/xroce/internal/netlab"
	"github.com/xroce/xroce/internal/opener"
	"github.com/xroce/xroce/roce"
	"github.com/xroce/xroce/verbs"
)

// TestLongRead: a peer may ask for 2 GiB with one READ request. Its responses take their share of the device, and no
// more.
func TestLongRead(t *testing.T) {
	netlab.RequireRoot(t)
	pair, err := netlab.NewPair(netlab.PairOptions{MTU: 4200})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, pair.Close()) })
	a, b := openDevice(t, &pair.A, verbs.Options{}), openDevice(t, &pair.B, verbs.Options{})
	huge, err := unix.Mmap(-1, 0, 1<<31, unix.PROT_READ, unix.MAP_ANONYMOUS|unix.MAP_PRIVATE|unix.MAP_NORESERVE)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, unix.Munmap(huge)) })
	pd, err := b.AllocPD()
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, pd.Dealloc()) })
	mr, err := pd.RegMR(huge, verbs.AccessRemoteRead)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, mr.Dereg()) })
	cq := newCQ(t, b, 16)
	far, err := pd.CreateQP(verbs.QPInitAttr{SendCQ: cq, RecvCQ: cq})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, far.Destroy()) })
	near := newEnd(t, a, make([]byte, 64), verbs.QPCap{})
	o := verbs.ConnectOptions{PathMTU: verbs.MTU256}
	en, err := near.qp.Endpoint(o)
	require.NoError(t, err)
	ef, err := far.Endpoint(o)
	require.NoError(t, err)
	require.NoError(t, near.qp.Connect(t.Context(), ef, o))
	require.NoError(t, far.Connect(t.Context(), en, o))

	healthyA := newEnd(t, a, make([]byte, busyMessage), verbs.QPCap{})
	healthyB := newEnd(t, b, make([]byte, busyMessage), verbs.QPCap{})
	connect(t, healthyA, healthyB, verbs.ConnectOptions{PathMTU: verbs.MTU4096})
	single := &crowd{a: a, b: b, qps: []*verbs.QP{healthyA.qp}, cq: healthyA.sends, local: healthyA.mr, remote: healthyB.mr.Remote()}
	reverse := &crowd{a: b, b: a, qps: []*verbs.QP{healthyB.qp}, cq: healthyB.sends, local: healthyB.mr, remote: healthyA.mr.Remote()}

	frame := readRequest(pair, en, ef, mr.Addr(), mr.RKey(), 1<<31)
	length := time.Duration(size(200, 2000)) * time.Millisecond
	directions := map[string]*crowd{"to the device": single, "from the device": reverse}
	alone := map[string]float64{}
	for name, c := range directions {
		alone[name] = c.run(t, verbs.WRRDMAWrite, 1, length).rate()
	}
	inject(t, &pair.A, frame)
	for name, c := range directions {
		beside := c.run(t, verbs.WRRDMAWrite, 1, length).rate()
		t.Logf("%s: %.2f Gbit/s, beside a READ of 2 GiB %.2f", name, alone[name], beside)
		// Half is the share of each; a busy machine may take more.
		require.Greater(t, beside, alone[name]/5)
	}
	responses := opener.Counters(b).Transport.SentOpcodes[roce.RCReadResponseMiddle&0x1F]
	require.Greater(t, responses, uint64(1000), "the READ goes on")
}

// readRequest makes a READ request as the queue pair of en would send it first.
func readRequest(pair *netlab.Pair, en, ef verbs.Endpoint, va uint64, rkey, length uint32) []byte {
	template := roce.NewHeaderTemplate(roce.Path{
		SourceMAC: roce.MAC(pair.A.HardwareAddr), DestinationMAC: roce.MAC(pair.B.HardwareAddr),
		Source: roce.GIDFromAddr(en.Address), Destination: roce.GIDFromAddr(ef.Address), SourcePort: roce.UDPSourcePort(roce.FlowLabel(en.QPN, ef.QPN)), HopLimit: 64,
	})
	frame := make([]byte, template.Length()+roce.BTHLength+roce.RETHLength+roce.ICRCLength)
	template.Put(frame)
	roce.BTHFields{
		Opcode: roce.RCReadRequest, DestinationQPN: ef.QPN, PKey: 0xFFFF, MigReq: true, AckRequest: true, PSN: en.PSN,
	}.Put(frame[template.Length():])
	roce.RETHFields{VA: va, RKey: rkey, Length: length}.Put(frame[template.Length()+roce.BTHLength:])
	template.Seal(frame)
	return frame
}

// inject sends a frame from a device, past whatever serves it.
func inject(t *testing.T, e *netlab.End, frame []byte) {
	t.Helper()
	require.NoError(t, e.Namespace.Do(func() error {
		fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		return unix.Sendto(fd, frame, 0, &unix.SockaddrLinklayer{Ifindex: e.Index})
	}))
}
