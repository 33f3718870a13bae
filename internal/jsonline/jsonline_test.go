package jsonline

import (
	"bytes"
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
	go func() { other <- Exchange(b, 2, &fromA) }()
	require.NoError(t, Exchange(a, 1, &fromB))
	require.NoError(t, <-other)
	require.Equal(t, []int{1, 2}, []int{fromA, fromB})
}
