package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"syscall"
	"time"

	"github.com/xroce/xroce/internal/control"
	"github.com/xroce/xroce/internal/pcapng"
	"github.com/xroce/xroce/verbs"
)

// captureSource is a process that streams a capture of one device: a section header, one interface, packets and, if it
// ends in order, statistics.
type captureSource struct {
	socket     control.Socket
	index      int // of the interface in the output
	connection *net.UnixConn
	blocks     *pcapng.Reader

	description pcapng.Block      // of the interface
	statistics  pcapng.Statistics // of what was written
	failure     error             // why it has ended too early
}

// newCaptureSource begins a capture: when it returns, packets are collected.
func newCaptureSource(ctx context.Context, socket control.Socket, options []byte, index int) (*captureSource, error) {
	connection, err := control.Open(ctx, socket.Path,
		control.Request{Want: verbs.WantCapture, Options: options, Stream: true})
	if err != nil {
		return nil, err
	}
	s := &captureSource{
		socket: socket, index: index, connection: connection.(*net.UnixConn), blocks: pcapng.NewReader(connection),
		statistics: pcapng.Statistics{Interface: index, Start: time.Duration(time.Now().UnixNano())},
	}
	stop := context.AfterFunc(ctx, func() { _ = connection.SetReadDeadline(time.Now()) })
	defer stop()
	if err := s.begin(); err != nil {
		_ = connection.Close()
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		return nil, err
	}
	if !stop() { // just now, and the deadline would stay
		_ = connection.Close()
		return nil, context.Cause(ctx)
	}
	return s, nil
}

// begin reads as far as the interface.
func (s *captureSource) begin() error {
	first, err := s.blocks.Peek()
	if err == io.EOF {
		return io.ErrUnexpectedEOF
	}
	if err != nil {
		return err
	}
	if first == '{' {
		answer, err := io.ReadAll(io.LimitReader(s.blocks.Rest(), 1<<16))
		if refused := control.Refusal(answer); refused != nil {
			return refused
		}
		return errors.Join(errors.New("an answer that is no capture"), err)
	}
	for {
		b, err := s.blocks.Next()
		if err != nil {
			return err
		}
		switch b.Type() {
		case pcapng.SectionHeader:
		case pcapng.InterfaceDescription:
			s.description = append(pcapng.Block(nil), b...)
			return nil
		default:
			return fmt.Errorf("a capture that begins with a block of type %#x", b.Type())
		}
	}
}

// copyTo passes packets on until the end. It passes on only whole blocks, so what a killed process has left can be
// read.
func (s *captureSource) copyTo(out *captureOutput) {
	complete := false
	for {
		b, err := s.blocks.Next()
		switch {
		case err != nil && complete:
			return
		case err == io.EOF || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, syscall.ECONNRESET):
			s.failure = fmt.Errorf("process %d has ended during the capture of %s", s.socket.PID, s.socket.Device)
			return
		case err != nil:
			s.failure = fmt.Errorf("capture of %s of process %d: %w", s.socket.Device, s.socket.PID, err)
			return
		}
		switch b.Type() {
		case pcapng.EnhancedPacket:
			b.SetInterface(s.index)
			if out.packet(b) {
				s.statistics.Delivered++
				s.statistics.Dropped += b.LeftOut()
			}
		case pcapng.InterfaceStatistics:
			all := b.Statistics()
			complete = true
			s.statistics.End, s.statistics.Comment = all.End, all.Comment
			if !out.full() {
				s.statistics.Dropped = all.Dropped // with those behind the last packet
			}
		}
	}
}

// stop asks for the end of the capture, which comes with what was not sent yet.
func (s *captureSource) stop() {
	_ = s.connection.SetReadDeadline(time.Now().Add(endTime))
	_ = s.connection.CloseWrite()
}
