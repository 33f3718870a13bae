package enum

import (
	"testing"

	"github.com/stretchr/testify/require"
)

type color uint8

func (c color) String() string { return [256]string{0: "red", 1: "green", 255: "last"}[c] }

type set uint8

func (s set) String() string { return Flags(s, []Flag[set]{{4, "FOUR"}, {1, "ONE"}}) }

func TestParse(t *testing.T) {
	var c color
	for value, text := range map[color]string{0: "red", 1: "green", 255: "last"} {
		require.NoError(t, Parse(&c, []byte(text)))
		require.Equal(t, value, c)
	}
	require.EqualError(t, Parse(&c, []byte("blue")), `"blue" is no enum.color`)
	require.Error(t, Parse(&c, []byte("red|green")), "not a set")
}

func TestFlags(t *testing.T) {
	for value, text := range map[set]string{0: "0", 1: "ONE", 5: "FOUR|ONE", 0x86: "FOUR|0x2|0x80"} {
		require.Equal(t, text, value.String())
		var s set
		require.NoError(t, ParseFlags(&s, []byte(text)))
		require.Equal(t, value, s)
	}
	for _, text := range []string{"", "TWO", "ONE|", "0x3", "ONE|two"} {
		kept := set(9)
		require.Error(t, ParseFlags(&kept, []byte(text)), text)
		require.Equal(t, set(9), kept)
	}
}
