package verbs_test

import (
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/xroce/xroce/roce/link/mem"
	"github.com/xroce/xroce/verbs"
)

// says is a channel whose other end says one thing.
func says(line string) io.ReadWriter {
	return struct {
		io.Reader
		io.Writer
	}{strings.NewReader(line + "\n"), io.Discard}
}

type inner struct{ Endpoint verbs.Endpoint }

// hello is what a program of its own design may exchange.
type hello struct {
	inner
	List    []verbs.Endpoint
	ByName  map[string]*verbs.Endpoint
	Memory  verbs.RemoteMemory
	private verbs.Endpoint
}

// TestWrongEndpoints: what no queue pair can be connected to is refused by Exchange and by Connect with the same words,
// in whatever Exchange finds it, and Connect has changed nothing.
func TestWrongEndpoints(t *testing.T) {
	a, b := pair(t, mem.Options{})
	require.NoError(t, a.qp.Modify(t.Context(), verbs.QPAttr{State: verbs.StateReset}, verbs.QPStateMask))
	right, err := b.qp.Endpoint(verbs.ConnectOptions{})
	require.NoError(t, err)
	const format = `{"address":%q,"qpn":%d,"psn":%d,"mtu":%d,"rd_atomic":16}`
	for _, wrong := range []struct {
		address  string
		qpn, psn uint32
		mtu      uint8
		want     string
	}{
		{"", 17, 5, 3, "has no address"},
		{"0.0.0.0", 17, 5, 3, "has the address 0.0.0.0, which is none of a host"},
		{"224.0.0.1", 17, 5, 3, "has the address 224.0.0.1, which is none of a host"},
		{"10.0.0.2", 0, 5, 3, "has QPN 0x0, want 0x2 to 0xfffffe"},
		{"10.0.0.2", 1, 5, 3, "has QPN 0x1, want 0x2 to 0xfffffe"},
		{"10.0.0.2", 0xFFFFFF, 5, 3, "has QPN 0xffffff, want 0x2 to 0xfffffe"},
		{"10.0.0.2", 1<<27 - 1, 5, 3, "has QPN 0x7ffffff, want 0x2 to 0xfffffe"},
		{"10.0.0.2", 17, 1 << 24, 3, "has PSN 0x1000000, the largest is 0xffffff"},
		{"10.0.0.2", 17, 5, 77, "has path MTU code 77, want 1 (256 bytes) to 5 (4096 bytes)"},
		{"10.0.0.2", 17, 5, 6, "has path MTU code 6, want 1 (256 bytes) to 5 (4096 bytes)"},
	} {
		remote := verbs.Endpoint{QPN: verbs.QPN(wrong.qpn), PSN: verbs.PSN(wrong.psn), MTU: verbs.MTU(wrong.mtu), RDAtomic: 16}
		if wrong.address != "" {
			remote.Address = netip.MustParseAddr(wrong.address)
		}
		// Named here, the path MTU is not the peer's, whose code is wrong all the same.
		for _, o := range []verbs.ConnectOptions{{}, {PathMTU: verbs.MTU256}} {
			err := a.qp.Connect(t.Context(), remote, o)
			require.ErrorIs(t, err, verbs.ErrInvalid)
			require.ErrorContains(t, err, "the peer's endpoint "+wrong.want)
			require.Equal(t, verbs.StateReset, a.qp.State())
		}
		line := fmt.Sprintf(format, wrong.address, wrong.qpn, wrong.psn, wrong.mtu)
		_, err := verbs.Exchange(says(line), right)
		require.ErrorIs(t, err, verbs.ErrInvalid)
		require.ErrorContains(t, err, "the peer's endpoint "+wrong.want)
		for _, whole := range []string{
			`{"Endpoint":` + line + `}`, `{"List":[{},` + line + `]}`, `{"ByName":{"x":null,"y":` + line + `}}`,
		} {
			_, err := verbs.Exchange(says(whole), hello{})
			require.ErrorContains(t, err, "the peer's endpoint "+wrong.want, "%s", whole)
		}
		_, err = verbs.Exchange(says("["+line+"]"), []any{})
		require.NoError(t, err, "an Endpoint is one by its type, not by its looks")
	}
	// What was left out is none.
	got, err := verbs.Exchange(says(`{"Memory":{"rkey":7}}`), hello{private: right})
	require.NoError(t, err)
	require.EqualValues(t, 7, got.Memory.RKey)
	require.NoError(t, b.qp.Modify(t.Context(), verbs.QPAttr{State: verbs.StateReset}, verbs.QPStateMask))
	connect(t, a, b, verbs.ConnectOptions{})
}

// TestExchangeOfMany: the endpoints of 1,000 queue pairs, and (-full) of as many as a device can have, at once,
// over a TCP connection; and what follows in it stays there.
func TestExchangeOfMany(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer listener.Close()
	sizes := []int{1000}
	if *fullSize {
		sizes = append(sizes, verbs.MaxQP) // a second for each megabyte: it is read byte by byte, so that what follows stays
	}
	for _, n := range sizes {
		a, err := net.Dial("tcp", listener.Addr().String())
		require.NoError(t, err)
		defer a.Close()
		b, err := listener.Accept()
		require.NoError(t, err)
		defer b.Close()
		list := make([]verbs.Endpoint, n)
		for i := range list {
			list[i] = verbs.Endpoint{
				Address: netip.MustParseAddr("2001:db8:1111:2222:3333:4444:5555:6666"), QPN: verbs.QPN(0xFF0000 + i),
				PSN: verbs.PSN(0xFFFFFF - i), MTU: verbs.MTU4096, RDAtomic: 128,
			}
		}
		other := make(chan error)
		var there []verbs.Endpoint
		go func() {
			var err error
			there, err = verbs.Exchange(b, list[:n/2])
			_, _ = io.WriteString(b, "rest")
			other <- err
		}()
		here, err := verbs.Exchange(a, list)
		require.NoError(t, err)
		rest := make([]byte, 4)
		_, err = io.ReadFull(a, rest)
		require.NoError(t, err)
		require.NoError(t, <-other)
		require.Equal(t, "rest", string(rest))
		require.Equal(t, list[:n/2], here)
		require.Equal(t, list, there)
	}
	// Beyond the bound both ends say so.
	_, err = verbs.Exchange(says(`""`), strings.Repeat("x", 4<<20))
	require.ErrorContains(t, err, "own message of 4194307 bytes is longer than 4194304 bytes")
	_, err = verbs.Exchange(says(strings.Repeat("1", 4<<20)), 1)
	require.ErrorContains(t, err, "message is longer than 4194304 bytes")
}
