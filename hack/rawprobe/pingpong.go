//go:build linux

package main

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// message returns what writes a frame with a number.
func (p *probe) message(number uint64) func([]byte, int) {
	return func(chunk []byte, _ int) {
		copy(chunk, p.socket.header[:])
		binary.LittleEndian.PutUint64(chunk[atSequence:], number)
	}
}

// ping sends a frame and waits until it comes back, for the duration.
func (p *probe) ping() (result, error) {
	s := p.socket
	var times []time.Duration
	var answer uint64
	handle := func(pieces []unix.XDPDesc) { answer = binary.LittleEndian.Uint64(s.bytes(pieces[0])[atSequence:]) }
	begin := time.Now()
	var r result
	for now := begin; now.Sub(begin) < p.duration; r.Frames++ {
		if !s.send(frameOverhead+p.payload, p.message(r.Frames+1)) {
			return r, errors.New("no chunk to send from")
		}
		if err := s.kick(); err != nil {
			return r, err
		}
		arrived := true
		for idle := 0; answer != r.Frames+1; {
			if s.poll(1, handle) > 0 {
				continue
			}
			if idle++; idle%16 == 0 {
				yield()
				if arrived = time.Since(now) < stall; !arrived {
					r.Lost++
					break
				}
			}
		}
		end := time.Now()
		if arrived && now.Sub(begin) > p.duration/10 { // not while caches and predictors are cold
			times = append(times, end.Sub(now))
		}
		now = end
	}
	if err := p.toPeer.Encode(r.Frames); err != nil {
		return r, err
	}
	var got count
	if err := p.peer.Decode(&got); err != nil {
		return r, fmt.Errorf("the other end is gone: %w", err)
	}
	if len(times) == 0 {
		return r, errors.New("no frame came back in time")
	}
	slices.Sort(times)
	r.Microseconds = float64(times[len(times)/2]) / 1e3
	r.P99 = float64(times[len(times)*99/100]) / 1e3
	return r, got.judge(r.Frames)
}

// answerPings sends back what comes until the other end says that it is done.
func (p *probe) answerPings() error {
	s := p.socket
	var over atomic.Bool
	go func() {
		var sent uint64
		_ = p.peer.Decode(&sent)
		over.Store(true)
	}()
	var got count
	var number uint64
	handle := func(pieces []unix.XDPDesc) {
		number = binary.LittleEndian.Uint64(s.bytes(pieces[0])[atSequence:])
		got.Frames++
	}
	for idle := 0; ; {
		if s.poll(1, handle) > 0 {
			idle = 0
			s.send(frameOverhead+p.payload, p.message(number))
			if err := s.kick(); err != nil {
				return err
			}
			continue
		}
		if over.Load() {
			break
		}
		if idle++; idle%16 == 0 {
			yield()
		}
	}
	if err := s.invalid(); err != nil {
		got.Error = err.Error()
	}
	return p.toPeer.Encode(got)
}
