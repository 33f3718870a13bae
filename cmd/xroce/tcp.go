package main

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"time"
)

// TCP for comparison: the same bytes between the same processes over the other pair of devices.

// tcpDeadline bounds the whole of it.
const tcpDeadline = 60 * time.Second

// receiveTCP tells the peer where it listens, and fills memory with what comes.
func receiveTCP(peer *channel, address netip.Addr, memory []byte) error {
	clear(memory)
	listener, err := net.ListenTCP("tcp", net.TCPAddrFromAddrPort(netip.AddrPortFrom(address, 0)))
	if err != nil {
		return fmt.Errorf("TCP: %w", err)
	}
	defer listener.Close()
	if err := peer.send(listener.Addr().String()); err != nil {
		return err
	}
	if err := listener.SetDeadline(time.Now().Add(tcpDeadline)); err != nil {
		return err
	}
	connection, err := listener.Accept()
	if err != nil {
		return fmt.Errorf("TCP: %w", err)
	}
	defer connection.Close()
	err = connection.SetDeadline(time.Now().Add(tcpDeadline))
	if err == nil {
		_, err = io.ReadFull(connection, memory)
	}
	if err == nil {
		_, err = connection.Write([]byte{1})
	}
	if err != nil {
		return fmt.Errorf("TCP: %w", err)
	}
	return peer.send(hash(memory))
}

// sendTCP sends memory to the peer. It is there when the peer has answered.
func sendTCP(peer *channel, memory []byte) (transferReport, error) {
	var address, sum string
	if err := peer.receive(&address); err != nil {
		return transferReport{}, err
	}
	connection, err := net.DialTimeout("tcp", address, 5*time.Second)
	if err != nil {
		return transferReport{}, fmt.Errorf("TCP: %w", err)
	}
	start := time.Now()
	err = connection.SetDeadline(start.Add(tcpDeadline))
	if err == nil {
		_, err = connection.Write(memory)
	}
	if err == nil {
		_, err = io.ReadFull(connection, make([]byte, 1))
	}
	took := time.Since(start)
	if err = errors.Join(err, connection.Close()); err != nil {
		return transferReport{}, fmt.Errorf("TCP: %w", err)
	}
	if err := peer.receive(&sum); err != nil {
		return transferReport{}, err
	}
	report := newTransferReport(len(memory), took)
	report.SHA256 = sum
	return report, nil
}
