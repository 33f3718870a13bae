//go:build linux

package vm

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestArchive(t *testing.T) {
	var a archive
	a.directory("d")
	a.file("d/f", 0o755, []byte("hello"))
	a.close()
	b := a.Bytes()
	require.Zero(t, len(b)%4)
	require.Equal(t, "070701"+"00000001"+"000041ed", string(b[:22]), "an entry begins with magic, inode and mode")
	// A header has 110 bytes; the name follows with its zero, both padded to 4.
	file := b[112:]
	require.Equal(t, "070701"+"00000002"+"000081ed", string(file[:22]))
	require.Equal(t, "00000005", string(file[54:62]), "size")
	require.Equal(t, "00000004", string(file[94:102]), "length of the name")
	require.Equal(t, "d/f\x00", string(file[110:114]))
	require.Equal(t, "hello", string(file[116:121]))
	require.Equal(t, "TRAILER!!!", string(file[124+110:124+120]))
}
