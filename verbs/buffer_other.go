//go:build !linux

package verbs

import "fmt"

// AllocBuffer returns size bytes of zeroed memory. It is the caller's until FreeBuffer.
func AllocBuffer(size int) ([]byte, error) {
	if size <= 0 {
		return nil, fmt.Errorf("buffer: %w: %d bytes", ErrInvalid, size)
	}
	return make([]byte, size), nil
}

// FreeBuffer gives back a buffer of AllocBuffer. It must not be registered any more, and nobody may use it.
func FreeBuffer([]byte) error { return nil }
