package jsonline

import (
	"bytes"
	"io"
	"net"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestReadLeavesTheRest(t *testing.T) {
	var b bytes.Buffer
	require.NoError(t, Write(&b, map[string]int{"a": 1}))
	b.WriteString("rest")
	var got map[string]int
	require.NoError(t, Read(&b, &got))
	require.Equal(t, map[string]int{"a": 1}, got)
	require.Equal(t, "rest", b.String())
}

func TestReadRefuses(t *testing.T) {
	var got int
	require.ErrorContains(t, Read(strings.NewReader(strings.Repeat("1", 5000)), &got), "longer than 4096")
	require.Error(t, Read(strings.NewReader("garbage\n"), &got))
	require.Error(t, Read(strings.NewReader("12"), &got), "no end of line")
}

// TestExchange over a pipe without any buffer.
func TestExchange(t *testing.T) {
	a, b := net.Pipe()
	other := make(chan error)
	var fromA, fromB int
	go func() { other <- Exchange(b, 2, &fromA, 10) }()
	require.NoError(t, Exchange(a, 1, &fromB, 10))
	require.NoError(t, <-other)
	require.Equal(t, []int{1, 2}, []int{fromA, fromB})
}

// TestExchangeLimit: a line of exactly the limit passes; what is longer is said by whoever has it, and by whoever
// gets it.
func TestExchangeLimit(t *testing.T) {
	const limit = 100_000
	fits := strings.Repeat("x", limit-3) // two quotes and the end of the line
	a, b := net.Pipe()
	other := make(chan error)
	var fromA, fromB string
	go func() { other <- Exchange(b, fits, &fromA, limit) }()
	require.NoError(t, Exchange(a, fits, &fromB, limit))
	require.NoError(t, <-other)
	require.Equal(t, fits, fromA)
	require.Equal(t, fits, fromB)

	var sent bytes.Buffer
	require.ErrorContains(t, Exchange(&sent, fits+"x", &fromB, limit),
		"own message of 100001 bytes is longer than 100000 bytes")
	require.Empty(t, sent.Bytes())
	channel := struct {
		io.Reader
		io.Writer
	}{strings.NewReader(strings.Repeat("1", limit+1)), io.Discard}
	require.ErrorContains(t, Exchange(channel, 1, &fromB, limit), "message is longer than 100000 bytes")
}
