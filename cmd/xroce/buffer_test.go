package main

import (
	"bytes"
	"sync"
)

// watchedBuffer is a buffer that can be read while a program writes to it.
type watchedBuffer struct {
	changed chan struct{} // gets a value when it has grown; may be nil

	mu     sync.Mutex
	buffer bytes.Buffer
}

func (b *watchedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	n, err := b.buffer.Write(p)
	select {
	case b.changed <- struct{}{}:
	default:
	}
	return n, err
}

func (b *watchedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buffer.String()
}
