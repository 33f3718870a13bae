package xdp

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/xroce/xroce/internal/netlab"
)

// TestCase_F14: frames that the program redirects and nobody delivers are noticed and told once. A socket of another
// queue in the slot plays the driver: the kernel drops what is redirected to it, and counts nothing (net/xdp/xsk.c,
// xsk_rcv_check).
func TestCase_F14(t *testing.T) {
	p := newPair(t, netlab.PairOptions{Queues: 2})
	a, b := openEnd(t, p.A, Options{}), openEnd(t, p.B, Options{})
	require.NoError(t, steer(b, steering))
	frame := frameTo(a.HardwareAddr(), b.HardwareAddr(), p.A.IPv4(), p.B.IPv4(), qpn, 64, 1)
	const interval = 20 * time.Millisecond
	reports := make(chan error, 9)
	b.watchDelivery(interval, func(err error) { reports <- err })
	quiet := func() {
		t.Helper()
		select {
		case err := <-reports:
			require.NoError(t, err)
		case <-time.After(5 * interval):
		}
	}
	quiet() // with nothing to deliver

	require.NoError(t, b.program.RegisterSocket(0, b.sockets[1].socket.Load().FD()))
	for range deliveryProof - 1 {
		send(t, a.Queues()[0], frame)
	}
	quiet() // too few
	require.EqualValues(t, deliveryProof-1, b.Details()["undelivered"])
	send(t, a.Queues()[0], frame)
	select {
	case err := <-reports:
		require.EqualError(t, err, "veth0: the XDP program has redirected 8 frames and the driver veth has delivered none: "+
			"open the device in copy mode")
	case <-time.After(soon):
		require.Fail(t, "no report")
	}
	send(t, a.Queues()[0], frame)
	quiet() // once is enough
	require.EqualValues(t, deliveryProof+1, b.Details()["undelivered"])
	require.EqualValues(t, deliveryProof+1, b.Details()["redirected"])

	// A device that delivers is left alone, also while what it has delivered waits.
	require.NoError(t, b.program.RegisterSocket(0, b.sockets[0].socket.Load().FD()))
	b.stopDelivery()
	for range 2 * deliveryProof {
		send(t, a.Queues()[0], frame)
	}
	require.EqualValues(t, deliveryProof+1, b.Details()["undelivered"])
	b.watchDelivery(interval, func(err error) { reports <- err })
	quiet()
	for range 2 * deliveryProof {
		require.Equal(t, frame, receive(t, b.Queues()[0], soon))
	}
	require.EqualValues(t, deliveryProof+1, b.Details()["undelivered"])
	require.NotContains(t, a.Details(), "undelivered")
}

// TestDeliveryIsNotWatchedInCopyMode: there the kernel itself delivers, and an idle device wakes nobody.
func TestDeliveryIsNotWatchedInCopyMode(t *testing.T) {
	p := newPair(t, netlab.PairOptions{})
	d := openEnd(t, p.A, Options{})
	require.False(t, d.Information().ZeroCopy)
	require.Nil(t, d.delivery.closing)
}
