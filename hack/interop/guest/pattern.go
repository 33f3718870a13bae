//go:build linux

package guest

import (
	"math/rand/v2"
	"os"
)

const (
	patternFile = "/tmp/pattern"
	patternSize = 48 << 20
	bulkSize    = 256 << 20
)

// writePattern makes the file of random bytes, always the same ones. They repeat, but at no distance that one of
// packets, messages or offsets is likely to be.
func writePattern(bulk bool) error {
	size := patternSize
	if bulk {
		size = bulkSize + patternSize
	}
	source := rand.NewChaCha8([32]byte([]byte("the same bytes in each run, xroce")))
	buffer := make([]byte, 1<<20+4099)
	_, _ = source.Read(buffer)
	f, err := os.Create(patternFile)
	if err != nil {
		return err
	}
	for range size/len(buffer) + 1 {
		if _, err := f.Write(buffer); err != nil {
			return err
		}
	}
	return f.Close()
}

// patternAt is a part of it.
func patternAt(from, length int) ([]byte, error) {
	f, err := os.Open(patternFile)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	part := make([]byte, length)
	_, err = f.ReadAt(part, int64(from))
	return part, err
}
