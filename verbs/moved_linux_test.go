package verbs_test

import (
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"

	"github.com/xroce/xroce/internal/netlab"
	"github.com/xroce/xroce/internal/puppet"
	"github.com/xroce/xroce/roce"
	"github.com/xroce/xroce/verbs"
)

// quiet is a peer of a queue pair that acknowledges all that it is sent, through a UDP socket: nobody at its end looks
// after neighbours, so its kernel tells nobody when its Ethernet address changes.
type quiet struct {
	address netip.Addr
	socket  *net.UDPConn
	ended   chan struct{}
}

func newQuiet(t *testing.T, e *netlab.End, address netip.Addr) *quiet {
	t.Helper()
	return &quiet{address: address, socket: udpSocket(t, e, netip.AddrPortFrom(address, roce.UDPPort)), ended: make(chan struct{})}
}

// serve answers the queue pair a.
func (q *quiet) serve(a *end, own netip.Addr) {
	defer close(q.ended)
	template := roce.NewHeaderTemplate(roce.Path{
		Source: roce.GIDFromAddr(q.address), Destination: roce.GIDFromAddr(own), SourcePort: roce.UDPPort,
	})
	headers := template.Length()
	buffer := make([]byte, 2048)
	for {
		n, from, err := q.socket.ReadFromUDPAddrPort(buffer)
		if err != nil {
			return
		}
		if n < roce.BTHLength {
			continue
		}
		answer := make([]byte, headers+roce.BTHLength+roce.AETHLength+roce.ICRCLength)
		template.Put(answer)
		roce.BTHFields{
			Opcode: roce.RCAcknowledge, PSN: roce.BTH(buffer[:roce.BTHLength]).PSN(), PKey: 0xFFFF, MigReq: true, DestinationQPN: a.qp.QPN(),
		}.Put(answer[headers:])
		roce.AETHFields{Syndrome: roce.SyndromeAckNoCredits}.Put(answer[headers+roce.BTHLength:])
		template.Seal(answer)
		_, _ = q.socket.WriteToUDPAddrPort(answer[headers:], netip.AddrPortFrom(from.Addr(), roce.UDPPort))
	}
}

func (q *quiet) close() {
	q.socket.Close()
	<-q.ended
}

// connectQuiet makes a queue pair whose peer is a quiet one, and runs f with it.
func connectQuiet(t *testing.T, d *verbs.Device, pair *netlab.Pair, v6 bool, adjust func(*verbs.QPAttr), f func(*end)) {
	own, address := pair.A.IPv4(), pair.B.IPv4()
	if v6 {
		own, address = pair.A.IPv6(), pair.B.IPv6()
	}
	q := newQuiet(t, &pair.B, address)
	a := newEnd(t, d, make([]byte, 64), verbs.QPCap{})
	attr := puppet.Attributes()
	attr.DestQPN, attr.AH = puppet.QPN, verbs.AHAttr{DGID: roce.GIDFromAddr(address), SGIDIndex: gidIndex(t, d, v6)}
	adjust(&attr)
	puppet.Establish(t, a.qp, attr)
	go q.serve(a, own)
	defer q.close()
	f(a)
}

func (e *end) writeBlindly(t *testing.T) verbs.WC {
	t.Helper()
	return e.do(t, verbs.SendWR{Opcode: verbs.WRRDMAWrite, SGList: []verbs.SGE{e.mr.SGE(0, 8)}, RKey: 1})
}

// setMAC gives a network device another Ethernet address, of which it tells nobody.
func setMAC(t *testing.T, e *netlab.End, last byte) {
	t.Helper()
	change(t, e, func(device netlink.Link) error {
		return netlink.LinkSetHardwareAddr(device, net.HardwareAddr{2, 0, 0, 0, 9, last})
	})
}

// neighbourOf returns the kernel's entry for an address, as end A of a pair has it.
func neighbourOf(t *testing.T, e *netlab.End, address netip.Addr) (entry netlink.Neigh) {
	t.Helper()
	change(t, e, func(device netlink.Link) error {
		family := netlink.FAMILY_V4
		if address.Is6() {
			family = netlink.FAMILY_V6
		}
		list, err := netlink.NeighList(device.Attrs().Index, family)
		for _, n := range list {
			if n.IP.Equal(address.AsSlice()) {
				entry = n
			}
		}
		return err
	})
	return entry
}

// TestPeerMovesSilently: the address of the peer goes to another Ethernet address, of which nobody tells. The queue
// pair goes on within its timeouts, and where these are too short the next one works.
func TestPeerMovesSilently(t *testing.T) {
	netlab.RequireRoot(t)
	pair, err := netlab.NewPair(netlab.PairOptions{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, pair.Close()) })
	d := openDevice(t, &pair.A, verbs.Options{})
	for i, v6 := range []bool{false, true} {
		patient := func(a *verbs.QPAttr) { a.Timeout = 15 } // 134 ms, given up after 1.07 s
		connectQuiet(t, d, pair, v6, patient, func(a *end) {
			require.Equal(t, verbs.WCSuccess, a.writeBlindly(t).Status)
			setMAC(t, &pair.B, byte(4*i+1))
			require.Equal(t, verbs.WCSuccess, a.writeBlindly(t).Status, "IPv6 %v", v6)
			require.Equal(t, verbs.WCSuccess, a.writeBlindly(t).Status)
		})
		for _, retries := range []uint8{0, 1} {
			setMAC(t, &pair.B, byte(4*i+2)+retries)
			short := func(a *verbs.QPAttr) { a.Timeout, a.RetryCnt = 10, retries } // 4 ms
			connectQuiet(t, d, pair, v6, short, func(a *end) {
				require.Equal(t, verbs.WCRetryExcErr, a.writeBlindly(t).Status, "IPv6 %v", v6)
			})
			begin := time.Now()
			connectQuiet(t, d, pair, v6, patient, func(a *end) {
				require.Equal(t, verbs.WCSuccess, a.writeBlindly(t).Status, "IPv6 %v", v6)
			})
			t.Logf("the next one works after %v", time.Since(begin))
		}
	}
}

// TestPeerGoneNeighbourKept: a queue pair without a peer does not take the neighbour's entry away from other traffic,
// nor does it touch one that somebody has made.
func TestPeerGoneNeighbourKept(t *testing.T) {
	netlab.RequireRoot(t)
	pair, err := netlab.NewPair(netlab.PairOptions{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, pair.Close()) })
	d := openDevice(t, &pair.A, verbs.Options{})
	fail := func() {
		a := newEnd(t, d, make([]byte, 64), verbs.QPCap{})
		attr := puppet.Attributes()
		attr.DestQPN, attr.AH = puppet.QPN, verbs.AHAttr{DGID: roce.GIDFromAddr(pair.B.IPv4()), SGIDIndex: gidIndex(t, d, false)}
		attr.Timeout = 12 // 17 ms
		puppet.Establish(t, a.qp, attr)
		require.Equal(t, verbs.WCRetryExcErr, a.writeBlindly(t).Status)
	}
	watched := make(chan netlink.NeighUpdate, 1024)
	done := make(chan struct{})
	require.NoError(t, pair.A.Namespace.Do(func() error { return netlink.NeighSubscribe(watched, done) }))
	fail()
	require.Equal(t, pair.B.HardwareAddr, neighbourOf(t, &pair.A, pair.B.IPv4()).HardwareAddr)
	require.Eventually(t, func() bool {
		return neighbourOf(t, &pair.A, pair.B.IPv4()).State == netlink.NUD_REACHABLE
	}, 5*time.Second, time.Millisecond)

	change(t, &pair.A, func(device netlink.Link) error {
		return netlink.NeighSet(&netlink.Neigh{
			LinkIndex: device.Attrs().Index, IP: pair.B.IPv4().AsSlice(), State: netlink.NUD_PERMANENT, HardwareAddr: net.HardwareAddr{2, 0, 0, 0, 9, 99},
		})
	})
	fail()
	entry := neighbourOf(t, &pair.A, pair.B.IPv4())
	require.Equal(t, netlink.NUD_PERMANENT, entry.State)
	require.Equal(t, net.HardwareAddr{2, 0, 0, 0, 9, 99}, entry.HardwareAddr)
	close(done)
	for update := range watched {
		if update.Neigh.IP.Equal(pair.B.IPv4().AsSlice()) {
			require.Zero(t, update.Neigh.State&netlink.NUD_FAILED, "the entry was given up: %+v", update.Neigh)
		}
	}
}
