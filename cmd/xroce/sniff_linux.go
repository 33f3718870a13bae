package main

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"

	"github.com/xroce/xroce/internal/netlab"
)

// sniffer counts the packets to UDP port 4791 that pass through the kernel's network stack, in either direction, on any
// device of a namespace. It is a packet socket, so it knows nothing of XDP: frames that an XDP program
// redirects, and those that an AF_XDP socket sends, never come by (net/core/dev.c: __netif_receive_skb_core,
// __dev_direct_xmit).
type sniffer struct{ socket int }

func newSniffer(n *netlab.Namespace) (*sniffer, error) {
	s := &sniffer{socket: -1}
	err := n.Do(func() (err error) {
		s.socket, err = openSniffer()
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("open packet socket: %w", err)
	}
	return s, nil
}

func openSniffer() (int, error) {
	// Protocol 0 receives nothing: the socket must not see a packet before it has its filter.
	socket, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return -1, err
	}
	program := unix.SockFprog{Len: uint16(len(rocePortFilter)), Filter: &rocePortFilter[0]}
	err = unix.SetsockoptSockFprog(socket, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &program)
	if err == nil {
		everyProtocol := binary.NativeEndian.Uint16([]byte{unix.ETH_P_ALL >> 8, unix.ETH_P_ALL & 0xFF})
		err = unix.Bind(socket, &unix.SockaddrLinklayer{Protocol: everyProtocol})
	}
	if err != nil {
		return -1, errors.Join(err, unix.Close(socket))
	}
	return socket, nil
}

// rocePortFilter accepts UDP datagrams to port 4791 over IPv4, other than later fragments, and IPv6.
var rocePortFilter = []unix.SockFilter{
	{Code: unix.BPF_LD | unix.BPF_H | unix.BPF_ABS, K: 12}, // EtherType
	{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: unix.ETH_P_IPV6, Jt: 8},
	{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: unix.ETH_P_IP, Jf: 12},
	{Code: unix.BPF_LD | unix.BPF_B | unix.BPF_ABS, K: 14 + 9}, // protocol
	{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: unix.IPPROTO_UDP, Jf: 10},
	{Code: unix.BPF_LD | unix.BPF_H | unix.BPF_ABS, K: 14 + 6}, // fragment offset
	{Code: unix.BPF_JMP | unix.BPF_JSET | unix.BPF_K, K: 0x1FFF, Jt: 8},
	{Code: unix.BPF_LDX | unix.BPF_B | unix.BPF_MSH, K: 14}, // length of the IPv4 header
	{Code: unix.BPF_LD | unix.BPF_H | unix.BPF_IND, K: 14 + 2},
	{Code: unix.BPF_JMP | unix.BPF_JA, K: 3},
	{Code: unix.BPF_LD | unix.BPF_B | unix.BPF_ABS, K: 14 + 6}, // next header
	{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: unix.IPPROTO_UDP, Jf: 3},
	{Code: unix.BPF_LD | unix.BPF_H | unix.BPF_ABS, K: 14 + 40 + 2},
	{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: rocePort, Jf: 1},
	{Code: unix.BPF_RET | unix.BPF_K, K: 64},
	{Code: unix.BPF_RET | unix.BPF_K, K: 0},
}

// count returns how many packets have come by since the last count. Those that found the socket's buffer full
// are among them (packet(7), PACKET_STATISTICS).
func (s *sniffer) count() (uint64, error) {
	statistics, err := unix.GetsockoptTpacketStats(s.socket, unix.SOL_PACKET, unix.PACKET_STATISTICS)
	if err != nil {
		return 0, fmt.Errorf("read packet socket: %w", err)
	}
	return uint64(statistics.Packets), nil
}

func (s *sniffer) close() error { return unix.Close(s.socket) }

// proveSniffers has the kernel send a datagram to port 4791 from one end of a pair to the other and waits until both
// sniffers have counted it: their zero later on means something.
func proveSniffers(p *netlab.Pair, at [2]*sniffer) error {
	for _, addresses := range [][2]netip.Addr{{p.A.IPv4(), p.B.IPv4()}, {p.A.IPv6(), p.B.IPv6()}} {
		if !addresses[0].IsValid() {
			continue // a system without IPv6
		}
		if err := sendDatagram(p.A.Namespace, netip.AddrPortFrom(addresses[1], rocePort)); err != nil {
			return err
		}
		for _, s := range at {
			if err := s.awaitOne(); err != nil {
				return fmt.Errorf("datagram from %v to %v: %w", addresses[0], addresses[1], err)
			}
		}
	}
	return nil
}

func sendDatagram(n *netlab.Namespace, to netip.AddrPort) error {
	return n.Do(func() error {
		connection, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(to))
		if err != nil {
			return err
		}
		_, err = connection.Write([]byte("not RoCE"))
		return errors.Join(err, connection.Close())
	})
}

func (s *sniffer) awaitOne() error {
	for deadline := time.Now().Add(2 * time.Second); time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		if n, err := s.count(); err != nil || n > 0 {
			return err
		}
	}
	return errors.New("the packet socket that should count it did not")
}
