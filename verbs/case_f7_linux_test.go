package verbs_test

import (
	"bytes"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/xroce/xroce/internal/netlab"
	"github.com/xroce/xroce/internal/opener"
	"github.com/xroce/xroce/internal/pcapng/pcapngtest"
	"github.com/xroce/xroce/internal/support"
	"github.com/xroce/xroce/roce"
	"github.com/xroce/xroce/roce/driver"
	"github.com/xroce/xroce/roce/link"
	"github.com/xroce/xroce/roce/link/xdp"
	"github.com/xroce/xroce/verbs"
)

// lossy is a device of which one in so many frames gets lost on the wire, at random.
type lossy struct {
	link.Device
	queues []link.Queue
	oneIn  atomic.Int64 // 0 loses none
}

type lossyQueue struct {
	link.Queue
	device *lossy
	random *rand.Rand
}

func newLossy(d link.Device) *lossy {
	l := &lossy{Device: d}
	for i, q := range d.Queues() {
		l.queues = append(l.queues, &lossyQueue{Queue: q, device: l, random: rand.New(rand.NewPCG(7, uint64(i)))})
	}
	return l
}

func (l *lossy) Queues() []link.Queue { return l.queues }

func (q *lossyQueue) Commit(length int) {
	if oneIn := q.device.oneIn.Load(); oneIn == 0 || q.random.Int64N(oneIn) != 0 {
		q.Queue.Commit(length)
	}
}

// captured is a device with a capture that goes on.
type captured struct {
	*verbs.Device
	wire    *lossy
	file    bytes.Buffer
	capture *verbs.Capture
}

func newCaptured(t *testing.T, e *netlab.End) *captured {
	t.Helper()
	l, err := xdp.Open(t.Context(), e.Name, xdp.Options{NetNS: e.Namespace.Path(), CheckOwners: true})
	require.NoError(t, err)
	c := &captured{wire: newLossy(l)}
	c.Device, err = opener.Open[verbs.Device](c.wire, driver.Options{})
	require.NoError(t, err)
	t.Cleanup(func() { closeDevice(t, c.Device) })
	c.capture, err = c.StartCapture(&c.file, verbs.CaptureOptions{BufferSize: 64 << 20})
	require.NoError(t, err)
	return c
}

// TestCase_F7_Wireshark: everything that RC does, over IPv4 and IPv6, with and without loss. Each end's capture holds
// what its counters say, mark by mark; tshark dissects every packet, tells the same opcodes and finds fault with none.
func TestCase_F7_Wireshark(t *testing.T) {
	for _, v6 := range []bool{false, true} {
		for _, loss := range []int64{0, 15} {
			name := map[bool]string{false: "IPv4", true: "IPv6"}[v6] + map[bool]string{false: "", true: ", with loss"}[loss > 0]
			t.Run(name, func(t *testing.T) {
				netlab.RequireRoot(t)
				pair, err := netlab.NewPair(netlab.PairOptions{Queues: 2})
				require.NoError(t, err)
				t.Cleanup(func() { require.NoError(t, pair.Close()) })
				ca, cb := newCaptured(t, &pair.A), newCaptured(t, &pair.B)
				ca.wire.oneIn.Store(loss)
				cb.wire.oneIn.Store(loss)
				capacity := verbs.QPCap{MaxInline: 100}
				a, b := newEnd(t, ca.Device, make([]byte, 64<<10), capacity), newEnd(t, cb.Device, make([]byte, 64<<10), capacity)
				for _, e := range []*end{a, b} {
					access := everyAccess
					require.NoError(t, e.mr.Rereg(verbs.MRChange{Access: &access}))
				}
				timeout := roce.AckTimeout(12)
				if loss == 0 {
					timeout = noTimeout // a busy machine must not look like loss
				}
				connect(t, a, b, verbs.ConnectOptions{
					GIDIndex: new(gidIndex(t, ca.Device, v6)), Timeout: timeout, RetryCnt: new(uint8(7)),
					AccessFlags: new(verbs.AccessRemoteRead | verbs.AccessRemoteWrite | verbs.AccessRemoteAtomic | verbs.AccessFlushGlobal),
				})
				everything(t, a, b, 5)
				stop := func(c *captured) pcapngtest.Capture {
					stats, err := c.capture.Stop()
					require.NoError(t, err)
					require.Zero(t, stats.LeftOut)
					file := c.file.Bytes()
					dissect(t, file, int(stats.Packets))
					return pcapngtest.Read(t, bytes.NewReader(file))
				}
				ca.wire.oneIn.Store(0)
				cb.wire.oneIn.Store(0)
				require.Eventually(t, func() bool { // the last acknowledgements
					ca, cb := opener.Counters(ca.Device), opener.Counters(cb.Device)
					return ca.Link.Received == cb.Link.Transmitted && cb.Link.Received == ca.Link.Transmitted
				}, patience, tick)
				for _, c := range []*captured{ca, cb} {
					compare(t, stop(c), opener.Counters(c.Device), loss > 0)
				}
			})
		}
	}
	support.Object(t, "Device", "StartCapture, on network devices", "Wireshark dissects every packet, and every ICRC is right")
}

// everything executes every operation some times.
func everything(t *testing.T, a, b *end, times int) {
	t.Helper()
	for range times {
		for _, wr := range []verbs.SendWR{
			{Opcode: verbs.WRRDMAWrite, SGList: []verbs.SGE{a.mr.SGE(0, 9001)}},
			{Opcode: verbs.WRRDMAWriteWithImm, SGList: []verbs.SGE{a.mr.SGE(0, 3000)}},
			{Opcode: verbs.WRRDMARead, SGList: []verbs.SGE{a.mr.SGE(0, 20000)}},
			{Opcode: verbs.WRSend, SGList: []verbs.SGE{a.mr.SGE(0, 4096)}},
			{Opcode: verbs.WRSendWithImm, SGList: []verbs.SGE{a.mr.SGE(0, 7)}},
			{Opcode: verbs.WRAtomicFetchAdd, SGList: []verbs.SGE{a.mr.SGE(8, 8)}, CompareAdd: 1},
			{Opcode: verbs.WRAtomicCmpAndSwp, SGList: []verbs.SGE{a.mr.SGE(8, 8)}},
			{Opcode: verbs.WRFlush, Flush: verbs.FlushRange{Length: 8, Placement: verbs.FlushPlacementGlobal}},
		} {
			wr.RemoteAddr, wr.RKey = b.mr.Addr(), b.mr.RKey()
			require.NoError(t, b.qp.PostRecv(verbs.RecvWR{SGList: []verbs.SGE{b.mr.SGE(0, 4096)}}))
			wc := a.do(t, wr)
			require.Equal(t, verbs.WCSuccess, wc.Status, "%v: %s", wr.Opcode, a.qp.Explain(wc))
		}
	}
}

// compare compares a capture with the counters of its device.
func compare(t *testing.T, c pcapngtest.Capture, counters opener.EngineCounters, lossy bool) {
	t.Helper()
	var packet roce.Packet
	sent, received, drops := make(map[string]uint64), make(map[string]uint64), make(map[string]uint64)
	comments := make(map[string]uint64)
	var inbound, outbound uint64
	for _, p := range c.Packets {
		require.Equal(t, roce.DropNone, packet.Parse([][]byte{p.Frame}), "headers and ICRC are right")
		if p.Outbound {
			outbound++
			sent[packet.Opcode.String()]++
		} else {
			inbound++
			received[packet.Opcode.String()]++
		}
		if reason, dropped := strings.CutPrefix(p.Comment, "dropped: "); dropped {
			drops[reason]++
		} else {
			comments[p.Comment]++
		}
	}
	total := counters.Transport
	require.Equal(t, total.SentPackets, outbound)
	require.Equal(t, counters.Link.Received, inbound)
	require.Equal(t, total.Sent(), sent)
	require.Equal(t, total.Received(), received)
	require.Equal(t, total.Dropped(), drops)
	require.Equal(t, total.Retransmitted, comments["retransmission"])
	require.Equal(t, total.DuplicateRequests, comments["duplicate request"]+drops["duplicate_unanswerable"])
	if lossy {
		require.NotZero(t, comments["retransmission"]+comments["response sent again"]+comments["duplicate request"]+sum(drops))
		return
	}
	require.Equal(t, counters.Link.Transmitted, outbound)
	require.Equal(t, map[string]uint64{"": outbound + inbound}, comments)
}

var noTshark sync.Once

// dissect has tshark look at a capture: each packet is InfiniBand to it, in one piece, with nothing to complain of.
func dissect(t *testing.T, file []byte, packets int) {
	t.Helper()
	tshark, err := exec.LookPath("tshark")
	if err != nil {
		if os.Getenv("CI") == "true" {
			t.Fatal("this test must run tshark in CI, and cannot: ", err)
		}
		noTshark.Do(func() { t.Log("not dissected: ", err) })
		return
	}
	name := filepath.Join(t.TempDir(), "a.pcapng")
	require.NoError(t, os.WriteFile(name, file, 0o600))
	command := exec.Command(tshark, "-r", name, "-T", "fields", "-E", "separator=;", "-e", "infiniband.bth.opcode",
		"-e", "infiniband.invariant.crc", "-e", "_ws.malformed", "-e", "frame.packet_flags_direction", "-e", "frame.comment")
	var complaints bytes.Buffer
	command.Stderr = &complaints
	output, err := command.Output()
	require.NoError(t, err, "%s", &complaints)
	lines := strings.Split(strings.TrimSpace(string(output)), "\n")
	require.Len(t, lines, packets)
	written := pcapngtest.Read(t, bytes.NewReader(file)).Packets
	var p roce.Packet
	for i, line := range lines {
		fields := strings.Split(line, ";")
		require.Len(t, fields, 5, line)
		require.Equal(t, roce.DropNone, p.Parse([][]byte{written[i].Frame}))
		require.Equal(t, strconv.Itoa(int(p.Opcode)), fields[0], line)
		if p.Opcode != roce.RCFlush { // tshark 4.0 does not know it yet
			require.Len(t, strings.TrimPrefix(fields[1], "0x"), 8, line)
		}
		require.Empty(t, fields[2], line)
		require.Equal(t, written[i].Outbound, strings.HasSuffix(fields[3], "2"), line)
		require.Equal(t, written[i].Comment, fields[4], line)
	}
}
