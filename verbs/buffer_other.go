//go:build !linux

package verbs

func mapBuffer(size int) ([]byte, error) { return make([]byte, size), nil }

func unmapBuffer([]byte) error { return nil }
