package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"strconv"
	"sync"
	"time"

	"github.com/xroce/xroce/internal/pcapng"
)

// captureOutput writes packets of several sources into one file after the other. Its methods may be called
// concurrently.
type captureOutput struct {
	name    string // empty is a stream that stays open
	header  []byte // of every file: section and interfaces
	limit   int64  // bytes of a file, 0 is none
	files   int    // how many there are at most, 0 is no limit
	most    uint64 // packets, 0 is no limit
	sources []*captureSource
	enough  chan struct{} // closed when nothing more is wanted: there are most packets, or there was an error

	mu      sync.Mutex
	file    *os.File // or nil
	buffer  *bufio.Writer
	number  int   // of the file
	size    int64 // of the file
	packets uint64
	ended   bool
	err     error
}

// statisticsSize is what the end of a file takes for each source, roughly.
const statisticsSize = 256

// newCaptureOutput begins the first file. A FIFO is opened when somebody reads it, or not before ctx ends.
func newCaptureOutput(
	ctx context.Context, stdout io.Writer, name string, sources []*captureSource, most uint64, limit int64, files int,
) (*captureOutput, error) {
	o := &captureOutput{
		name: name, most: most, limit: limit, files: files, sources: sources, enough: make(chan struct{}),
		buffer: bufio.NewWriterSize(nil, 256<<10),
	}
	o.header = pcapng.Section()
	for _, s := range sources {
		o.header = append(o.header, s.description...)
	}
	if name == "-" {
		o.name = ""
		o.buffer.Reset(stdout)
		_, err := o.buffer.Write(o.header)
		return o, err
	}
	opened := make(chan error, 1)
	go func() { opened <- o.open() }()
	select {
	case err := <-opened:
		return o, err
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// describe names where the capture goes.
func (o *captureOutput) describe() string {
	if o.name == "" {
		return "the standard output"
	}
	return o.name
}

// fileName is the name of the current file, as tcpdump has it.
func (o *captureOutput) fileName() string {
	switch {
	case o.limit == 0:
		return o.name
	case o.files > 0:
		return fmt.Sprintf("%s%0*d", o.name, len(strconv.Itoa(o.files-1)), o.number%o.files)
	case o.number == 0:
		return o.name
	}
	return o.name + strconv.Itoa(o.number)
}

// open begins the current file. It is only written, so that a FIFO tells when its reader is gone.
func (o *captureOutput) open() (err error) {
	if o.file, err = os.OpenFile(o.fileName(), os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o666); err != nil {
		return err
	}
	o.buffer.Reset(o.file)
	o.size = int64(len(o.header))
	_, err = o.buffer.Write(o.header)
	return err
}

// packet writes a packet, and reports whether it did.
func (o *captureOutput) packet(b pcapng.Block) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.ended {
		return false
	}
	if room := o.limit - int64(statisticsSize*len(o.sources)); o.limit > 0 && o.size > int64(len(o.header)) && o.size+int64(len(b)) > room {
		if o.failed(o.finishFile()) {
			return false
		}
		o.number++
		if o.failed(o.open()) {
			return false
		}
	}
	o.size += int64(len(b))
	if _, err := o.buffer.Write(b); o.failed(err) {
		return false
	}
	o.packets++
	if o.packets == o.most {
		o.end()
	}
	return true
}

// failed notes an error, after which nothing is written any more.
func (o *captureOutput) failed(err error) bool {
	if err == nil {
		return false
	}
	if o.err == nil {
		o.err = err
	}
	o.end()
	return true
}

func (o *captureOutput) end() {
	if !o.ended {
		o.ended = true
		close(o.enough)
	}
}

// full says that no more packets are written.
func (o *captureOutput) full() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.ended
}

// flush hands on what was written.
func (o *captureOutput) flush() {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.err == nil {
		o.failed(o.buffer.Flush())
	}
}

// flushUntil flushes again and again.
func (o *captureOutput) flushUntil(closing <-chan struct{}) {
	tick := time.NewTicker(flushInterval)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			o.flush()
		case <-closing:
			return
		}
	}
}

func (o *captureOutput) finishFile() error {
	err := o.buffer.Flush()
	if o.file != nil {
		if failure := o.file.Close(); err == nil {
			err = failure
		}
		o.file = nil
	}
	return err
}

// close completes the file with what is known about the sources, which have ended.
func (o *captureOutput) close() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.end()
	for _, s := range o.sources {
		statistics := s.statistics
		statistics.Received = statistics.Delivered + statistics.Dropped
		if statistics.End == 0 {
			statistics.End = time.Duration(time.Now().UnixNano())
		}
		if o.err == nil {
			_, err := o.buffer.Write(statistics.Block())
			o.failed(err)
		}
	}
	o.failed(o.finishFile())
	return o.err
}
