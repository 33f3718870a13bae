//go:build linux

package main

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"hash/crc32"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// A frame: Ethernet header, sequence number (8 bytes), CRC-32 of the payload if there is work (4 bytes), nothing in
// particular up to 58 bytes, payload. 58 is what an RC packet over IPv4 has beside its payload: Ethernet 14, IPv4 20,
// UDP 8, BTH 12, ICRC 4. A credit is such a frame without payload; its number is one more than the highest that has
// arrived.
const (
	frameOverhead  = 58
	atSequence     = 14
	atSum          = 22
	minimumPayload = 8
	maximumPayload = 2*3840 - frameOverhead // two chunks of a receiver, which lose 256 bytes to the headroom
	regionSize     = 1 << 20                // of memory that the work copies from and to
)

// probe is one end of a run.
type probe struct {
	options
	socket *socket
	peer   *json.Decoder
	toPeer *json.Encoder
}

// count is what the receiver has seen.
type count struct {
	Frames  uint64 `json:"frames"`
	Damaged uint64 `json:"damaged"`
	Error   string `json:"error,omitempty"`
}

// stall is the time after which what is in flight is taken for lost: longer than a busy machine keeps the other end
// from running, for the window would open again while its ring is full.
const stall = 500 * time.Millisecond

// sendStream sends frames for the duration, a window of them at a time, until the credits of all have come.
func (p *probe) sendStream() (result, error) {
	s := p.socket
	region := make([]byte, regionSize)
	for i := range region {
		region[i] = byte(i * 7)
	}
	length := frameOverhead + p.payload
	var sent, credit uint64
	offset := 0
	fill := func(chunk []byte, start int) {
		if start == 0 {
			copy(chunk, s.header[:])
			binary.LittleEndian.PutUint64(chunk[atSequence:], sent)
			if p.work {
				binary.LittleEndian.PutUint32(chunk[atSum:], crc32.ChecksumIEEE(region[offset:offset+p.payload]))
			}
			chunk = chunk[frameOverhead:]
		} else {
			start -= frameOverhead
		}
		if p.work {
			copy(chunk, region[offset+start:])
		}
	}
	takeCredit := func(pieces []unix.XDPDesc) {
		credit = max(credit, min(sent, binary.LittleEndian.Uint64(s.bytes(pieces[0])[atSequence:])))
	}
	begin := time.Now()
	end, progress := begin.Add(p.duration), begin
	for now, idle := begin, 0; now.Before(end) || credit < sent; {
		queued := 0
		for ; now.Before(end) && queued < batch && sent-credit < window && s.send(length, fill); queued++ {
			sent++
			if offset += p.payload; offset+p.payload > regionSize {
				offset = 0
			}
		}
		if queued > 0 {
			if err := s.kick(); err != nil {
				return result{}, err
			}
		}
		if s.poll(ringSize, takeCredit) > 0 {
			now, idle = time.Now(), 0
			progress = now
			continue
		}
		if idle++; idle%emptyPolls == 0 {
			s.sleep()
			if now = time.Now(); now.Sub(progress) > stall {
				credit, progress = sent, now // the receiver's count tells what was lost
			}
		}
	}
	took := progress.Sub(begin)
	if err := p.toPeer.Encode(sent); err != nil {
		return result{}, err
	}
	var got count
	if err := p.peer.Decode(&got); err != nil {
		return result{}, fmt.Errorf("the receiver is gone: %w", err)
	}
	r := result{Frames: sent, Lost: sent - got.Frames,
		Gigabits: float64(got.Frames) * float64(p.payload) * 8 / float64(took)}
	return r, got.judge(sent)
}

// judge says whether a run counts.
func (c count) judge(sent uint64) error {
	switch {
	case c.Error != "":
		return fmt.Errorf("receiver: %s", c.Error)
	case c.Damaged > 0:
		return fmt.Errorf("%d of %d frames arrived damaged", c.Damaged, c.Frames)
	case c.Frames > sent:
		return fmt.Errorf("%d frames arrived, and %d were sent", c.Frames, sent)
	case float64(sent-c.Frames) > maximumLoss*float64(sent):
		return fmt.Errorf("%d of %d frames arrived: more than %.1f %% are lost", c.Frames, sent, maximumLoss*100)
	}
	return nil
}

// receiveStream receives until the sender says that it is done, and gives a credit per batch.
func (p *probe) receiveStream() error {
	s := p.socket
	region := make([]byte, regionSize)
	var over atomic.Bool
	go func() {
		var sent uint64
		_ = p.peer.Decode(&sent) // also when the sender is gone
		over.Store(true)
	}()
	var got count
	var next uint64
	offset := 0
	handle := func(pieces []unix.XDPDesc) {
		first := s.bytes(pieces[0])
		next = max(next, binary.LittleEndian.Uint64(first[atSequence:])+1)
		got.Frames++
		if !p.work {
			return
		}
		var sum uint32
		at := offset
		for i, piece := range pieces {
			payload := s.bytes(piece)
			if i == 0 {
				payload = payload[frameOverhead:]
			}
			sum = crc32.Update(sum, crc32.IEEETable, payload)
			at += copy(region[at:], payload)
		}
		if at != offset+p.payload || sum != binary.LittleEndian.Uint32(first[atSum:]) {
			got.Damaged++
		}
		if offset += p.payload; offset+p.payload > regionSize {
			offset = 0
		}
	}
	credit := func(chunk []byte, _ int) {
		copy(chunk, s.header[:])
		binary.LittleEndian.PutUint64(chunk[atSequence:], next)
	}
	for idle := 0; ; {
		if s.poll(batch, handle) > 0 {
			idle = 0
			s.send(frameOverhead, credit)
			if err := s.kick(); err != nil {
				return err
			}
			continue
		}
		if over.Load() {
			break
		}
		if idle++; idle%emptyPolls == 0 {
			s.sleep()
		}
	}
	if err := s.invalid(); err != nil {
		got.Error = err.Error()
	}
	return p.toPeer.Encode(got)
}
