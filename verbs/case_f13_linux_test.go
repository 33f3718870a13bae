package verbs_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/xroce/xroce/internal/netlab"
	"github.com/xroce/xroce/internal/opener"
	"github.com/xroce/xroce/internal/support"
	"github.com/xroce/xroce/roce"
	"github.com/xroce/xroce/verbs"
)

// TestCase_F13: other traffic of the same devices goes on beside RDMA at full load, and every byte of it is right: TCP
// both ways, UDP to the port next to RoCE's, ICMP. What the program costs TCP is printed for each mode.
func TestCase_F13(t *testing.T) {
	for _, mode := range []verbs.XDPMode{verbs.XDPNative, verbs.XDPGeneric} {
		t.Run(mode.String(), func(t *testing.T) {
			netlab.RequireRoot(t)
			pair, err := netlab.NewPair(netlab.PairOptions{})
			require.NoError(t, err)
			t.Cleanup(func() { require.NoError(t, pair.Close()) })
			duration := time.Duration(size(300, 5000)) * time.Millisecond
			alone := speedOfTCP(t, pair, duration)
			a, b := openDevice(t, &pair.A, verbs.Options{Mode: mode}), openDevice(t, &pair.B, verbs.Options{Mode: mode})
			attached := speedOfTCP(t, pair, duration)

			ea, eb := newEnd(t, a, make([]byte, 1<<20), verbs.QPCap{}), newEnd(t, b, make([]byte, 1<<20), verbs.QPCap{})
			connect(t, ea, eb, verbs.ConnectOptions{Timeout: roce.AckTimeout(15)}) // a busy machine must not look like a dead peer
			source := rand.NewChaCha8([32]byte{13})
			_, _ = source.Read(ea.mr.Bytes())
			var stop atomic.Bool
			var load sync.WaitGroup
			var done atomic.Int64
			load.Go(func() {
				for ; !stop.Load(); done.Add(1) {
					wc, err := writeOnce(ea.qp, ea.sends, ea.mr, eb.mr.Remote(), len(ea.mr.Bytes()))
					if err != nil || wc.Status != verbs.WCSuccess {
						t.Errorf("%v, %s", err, ea.qp.Explain(wc))
						return
					}
				}
			})
			lost := otherTraffic(t, pair, duration)
			begin, count := time.Now(), done.Load()
			loaded := speedOfTCP(t, pair, duration)
			gigabits := float64(done.Load()-count) * 8 * float64(len(ea.mr.Bytes())) / time.Since(begin).Seconds() / 1e9
			stop.Store(true)
			load.Wait()
			require.NotZero(t, done.Load())
			eb.qp.Query() // shows the race detector that the data are there
			require.True(t, bytes.Equal(ea.mr.Bytes(), eb.mr.Bytes()))
			c := opener.Counters(a).Transport
			require.Zero(t, opener.Counters(a).DropReasons()["icrc_bad"], "%+v", c)
			t.Logf("TCP: %.2f Gbit/s without a program, %.2f with %s programs at both ends, %.2f beside RDMA WRITE of %.2f; %d datagrams lost or late",
				alone, attached, a.Information().Mode, loaded, gigabits, lost)
			support.Object(t, "Device", "TCP, UDP and ICMP on the same network device, "+mode.String(), "every byte right")
		})
	}
}

// speedOfTCP is what one connection from A to B carries, in Gbit/s.
func speedOfTCP(t *testing.T, pair *netlab.Pair, duration time.Duration) float64 {
	t.Helper()
	begin := time.Now()
	total, err := streamTCP(&pair.A, &pair.B, begin.Add(duration))
	require.NoError(t, err)
	require.NotZero(t, total)
	return float64(total) * 8 / time.Since(begin).Seconds() / 1e9
}

// otherTraffic runs TCP both ways, UDP and ICMP at once, and fails if any byte is missing or wrong. It returns how many
// datagrams were lost and sent again.
func otherTraffic(t *testing.T, pair *netlab.Pair, duration time.Duration) int64 {
	t.Helper()
	deadline := time.Now().Add(duration)
	var resent atomic.Int64
	var all sync.WaitGroup
	for what, run := range map[string]func() error{
		"TCP":      func() error { _, err := streamTCP(&pair.A, &pair.B, deadline); return err },
		"TCP back": func() error { _, err := streamTCP(&pair.B, &pair.A, deadline); return err },
		"UDP":      func() error { return echoUDP(pair, deadline, &resent) },
		"ICMP":     func() error { return echoICMP(pair, deadline, &resent) },
	} {
		all.Go(func() {
			if err := run(); err != nil {
				t.Errorf("%s: %v", what, err)
			}
		})
	}
	all.Wait()
	return resent.Load()
}

// chunks are numbered pieces of pseudo-random bytes.
type chunks struct {
	piece  []byte
	number uint64
}

func newChunks() *chunks {
	c := &chunks{piece: make([]byte, 256<<10)}
	_, _ = rand.NewChaCha8([32]byte{1}).Read(c.piece)
	return c
}

func (c *chunks) next() []byte {
	binary.BigEndian.PutUint64(c.piece, c.number)
	c.number++
	return c.piece
}

// streamTCP sends chunks over a TCP connection until the deadline, and compares what arrives to the last byte.
func streamTCP(from, to *netlab.End, deadline time.Time) (total uint64, err error) {
	var listener net.Listener
	if err := to.Namespace.Do(func() (err error) {
		listener, err = net.Listen("tcp", netip.AddrPortFrom(to.IPv4(), 0).String())
		return err
	}); err != nil {
		return 0, err
	}
	defer listener.Close()
	sent := make(chan error, 1)
	go func() {
		var c net.Conn
		err := from.Namespace.Do(func() (err error) {
			c, err = net.DialTimeout("tcp", listener.Addr().String(), 10*time.Second)
			return err
		})
		if err != nil {
			sent <- err
			_ = listener.Close()
			return
		}
		defer c.Close()
		for source := newChunks(); err == nil && time.Now().Before(deadline); {
			_, err = c.Write(source.next())
		}
		sent <- err
	}()
	c, err := listener.Accept()
	if err != nil {
		return 0, errors.Join(err, <-sent)
	}
	defer c.Close()
	want := newChunks()
	for buffer := make([]byte, len(want.piece)); ; {
		_ = c.SetReadDeadline(time.Now().Add(10 * time.Second))
		n, err := io.ReadFull(c, buffer)
		if err == io.EOF {
			return total, <-sent
		} else if err != nil {
			return total, fmt.Errorf("after %d bytes: %w", total+uint64(n), errors.Join(err, <-sent))
		}
		if !bytes.Equal(want.next(), buffer) {
			return total, fmt.Errorf("wrong bytes after %d", total)
		}
		total += uint64(n)
	}
}

// echo sends a message until its answer comes, and compares it.
func echo(c net.Conn, message []byte, answer func([]byte) []byte, resent *atomic.Int64) error {
	buffer := make([]byte, 4096)
	for tries := 1; ; tries++ {
		if _, err := c.Write(message); err != nil {
			return err
		}
		_ = c.SetReadDeadline(time.Now().Add(500 * time.Millisecond))
		for {
			n, err := c.Read(buffer)
			if errors.Is(err, os.ErrDeadlineExceeded) {
				break
			} else if err != nil {
				return err
			}
			got := answer(buffer[:n])
			switch {
			case got == nil, binary.BigEndian.Uint64(got) != binary.BigEndian.Uint64(answer(message)):
				continue // of somebody else, or a late one
			case !bytes.Equal(got, answer(message)):
				return fmt.Errorf("wrong answer %x to %x", got, message)
			}
			return nil
		}
		resent.Add(1)
		if tries == 10 {
			return fmt.Errorf("no answer to %d bytes", len(message))
		}
	}
}

func echoUDP(pair *netlab.Pair, deadline time.Time, resent *atomic.Int64) error {
	const port = 4792
	var server *net.UDPConn
	var client net.Conn
	if err := errors.Join(
		pair.B.Namespace.Do(func() (err error) { server, err = net.ListenUDP("udp4", &net.UDPAddr{Port: port}); return err }),
		pair.A.Namespace.Do(func() (err error) {
			client, err = net.Dial("udp4", netip.AddrPortFrom(pair.B.IPv4(), port).String())
			return err
		})); err != nil {
		return err
	}
	defer client.Close()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for buffer := make([]byte, 4096); ; {
			n, from, err := server.ReadFromUDPAddrPort(buffer)
			if err != nil {
				return
			}
			_, _ = server.WriteToUDPAddrPort(buffer[:n], from)
		}
	}()
	defer func() { _ = server.Close(); <-ended }()
	source := rand.NewChaCha8([32]byte{2})
	for number := uint64(0); time.Now().Before(deadline); number++ {
		message := make([]byte, 8+number%1465) // up to the MTU
		_, _ = source.Read(message)
		binary.BigEndian.PutUint64(message, number)
		if err := echo(client, message, func(b []byte) []byte { return b }, resent); err != nil {
			return err
		}
	}
	return nil
}

func echoICMP(pair *netlab.Pair, deadline time.Time, resent *atomic.Int64) error {
	var c net.Conn
	if err := pair.A.Namespace.Do(func() (err error) {
		c, err = new(net.Dialer).DialContext(context.Background(), "ip4:icmp", pair.B.IPv4().String())
		return err
	}); err != nil {
		return err
	}
	defer c.Close()
	source := rand.NewChaCha8([32]byte{3})
	for number := uint64(0); time.Now().Before(deadline); number++ {
		// Type, code, checksum, identifier, sequence number (RFC 792), and then data.
		message := make([]byte, 8+8+2*(number%700))
		_, _ = source.Read(message[16:])
		message[0] = 8
		binary.BigEndian.PutUint64(message[8:], number)
		sum := uint32(0)
		for i := 0; i < len(message); i += 2 {
			sum += uint32(binary.BigEndian.Uint16(message[i:]))
		}
		sum = sum>>16 + sum&0xFFFF
		binary.BigEndian.PutUint16(message[2:], ^uint16(sum+sum>>16))
		data := func(b []byte) []byte {
			if len(b) > 20 && b[0] == 0x45 { // what is received begins with the IPv4 header
				b = b[20:]
			}
			if len(b) < 16 || b[0] != 0 && b[0] != 8 {
				return nil
			}
			return b[8:]
		}
		if err := echo(c, message, data, resent); err != nil {
			return err
		}
	}
	return nil
}
