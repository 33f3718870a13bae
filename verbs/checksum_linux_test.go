package verbs_test

import (
	"net"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/xroce/xroce/internal/netlab"
	"github.com/xroce/xroce/internal/opener"
	"github.com/xroce/xroce/internal/puppet"
	"github.com/xroce/xroce/roce"
	"github.com/xroce/xroce/verbs"
)

// TestUnfinishedChecksum: a peer sends through a UDP socket. On a virtual link its kernel leaves the checksum
// unfinished (CHECKSUM_PARTIAL), and XDP sees it so. The packets are executed and counted; one with a wrong ICRC is
// dropped as before.
func TestUnfinishedChecksum(t *testing.T) {
	netlab.RequireRoot(t)
	for _, mode := range []verbs.XDPMode{verbs.XDPNative, verbs.XDPGeneric} {
		pair, err := netlab.NewPair(netlab.PairOptions{})
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, pair.Close()) })
		d := openDevice(t, &pair.A, verbs.Options{Mode: mode})
		for _, v6 := range []bool{false, true} {
			name := map[bool]string{false: mode.String() + " IPv4", true: mode.String() + " IPv6"}[v6]
			t.Run(name, func(t *testing.T) { unfinishedChecksum(t, pair, d, v6) })
		}
	}
}

// udpSocket makes a socket whose packets have the headers that roce.HeaderTemplate makes: the ICRC covers them.
func udpSocket(t *testing.T, e *netlab.End, at netip.AddrPort) (socket *net.UDPConn) {
	t.Helper()
	require.NoError(t, e.Namespace.Do(func() (err error) {
		socket, err = net.ListenUDP("udp", net.UDPAddrFromAddrPort(at))
		return err
	}))
	raw, err := socket.SyscallConn()
	require.NoError(t, err)
	require.NoError(t, raw.Control(func(fd uintptr) {
		if at.Addr().Is4() { // DF, and so identification 0
			err = unix.SetsockoptInt(int(fd), unix.IPPROTO_IP, unix.IP_MTU_DISCOVER, unix.IP_PMTUDISC_DO)
		} else { // RoCE has no checksum on IPv6 either
			const noCheckReceive = 102 // UDP_NO_CHECK6_RX, include/uapi/linux/udp.h
			err = unix.SetsockoptInt(int(fd), unix.IPPROTO_UDP, noCheckReceive, 1)
		}
	}))
	require.NoError(t, err)
	return socket
}

func unfinishedChecksum(t *testing.T, pair *netlab.Pair, d *verbs.Device, v6 bool) {
	from, to := pair.B.IPv4(), pair.A.IPv4()
	if v6 {
		from, to = pair.B.IPv6(), pair.A.IPv6()
	}
	a := newEnd(t, d, make([]byte, 64), verbs.QPCap{})
	attr := puppet.Attributes()
	attr.DestQPN, attr.AH = puppet.QPN, verbs.AHAttr{DGID: roce.GIDFromAddr(from), SGIDIndex: gidIndex(t, d, v6)}
	puppet.Establish(t, a.qp, attr)

	socket := udpSocket(t, &pair.B, netip.AddrPortFrom(from, 0))
	defer socket.Close()

	template := roce.NewHeaderTemplate(roce.Path{
		Source: roce.GIDFromAddr(from), Destination: roce.GIDFromAddr(to),
		SourcePort: uint16(socket.LocalAddr().(*net.UDPAddr).Port),
	})
	packet := func(psn roce.PSN, text string) []byte {
		headers := template.Length()
		frame := make([]byte, headers+roce.BTHLength+len(text)+roce.ICRCLength)
		template.Put(frame)
		roce.BTHFields{
			Opcode: roce.RCSendOnly, PSN: psn, DestinationQPN: a.qp.QPN(), PKey: 0xFFFF, MigReq: true, AckRequest: true,
		}.Put(frame[headers:])
		copy(frame[headers+roce.BTHLength:], text)
		template.Seal(frame)
		return frame[headers:] // the kernel makes the rest
	}
	send := func(datagram []byte) {
		_, err := socket.WriteToUDPAddrPort(datagram, netip.AddrPortFrom(to, roce.UDPPort))
		require.NoError(t, err)
	}
	before := opener.Counters(d)
	require.NoError(t, a.qp.PostRecv(verbs.RecvWR{WRID: 7, SGList: []verbs.SGE{a.mr.SGE(0, 64)}}))
	damaged := packet(attr.RQPSN, "evil")
	damaged[len(damaged)-1] ^= 1
	send(damaged)
	send(packet(attr.RQPSN, "good"))
	wc := poll(t, a.recvs)
	require.Equal(t, verbs.WCSuccess, wc.Status)
	require.Equal(t, uint64(7), wc.WRID)
	require.Equal(t, "good", string(a.mr.Bytes()[:4]))
	after := opener.Counters(d)
	require.Equal(t, uint64(1), after.Transport.Named()["udp_checksum_ignored"]-before.Transport.Named()["udp_checksum_ignored"])
	require.Equal(t, uint64(1), after.DropReasons()["icrc_bad"]-before.DropReasons()["icrc_bad"])
}
