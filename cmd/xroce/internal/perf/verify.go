package perf

import (
	"bytes"
	"encoding/binary"
	"fmt"

	"github.com/xroce/xroce/verbs"
)

// checker makes the data of messages and checks them where they arrive. Without --verify it does nothing but count
// bytes, and marks the last byte of each message of a WRITE's latency test.
type checker struct {
	verify bool
	marked bool   // the last byte tells the number of the message
	want   []byte // scratch
	// write fills a message. Tests put another one here.
	write func(message []byte, qp int, number uint64)
}

func (c *checker) open(p *Plan) {
	c.verify, c.write = p.Verify, fillMessage
	c.marked = p.Operation == "write" && p.Test == latency
	if c.verify {
		c.want = make([]byte, p.largest())
	}
}

// mark is the last byte of a marked message: another one than that of the message before it, and never the 0 of memory
// where none has come.
func mark(number uint64) byte { return byte(number%255) + 1 }

// fillMessage makes the content of a message, of which no part looks like another part or like another message.
func fillMessage(message []byte, qp int, number uint64) {
	seed := (number<<qpBits | uint64(qp)) * 0x9e3779b97f4a7c15
	var word [8]byte
	for i := 0; i < len(message); i += 8 {
		binary.LittleEndian.PutUint64(word[:], mixed(seed+uint64(i)))
		copy(message[i:], word[:])
	}
}

// mixed spreads the bits of x over all of the result (the finalizer of MurmurHash3, public domain).
func mixed(x uint64) uint64 {
	x = (x ^ x>>33) * 0xff51afd7ed558ccd
	x = (x ^ x>>33) * 0xc4ceb9fe1a85ec53
	return x ^ x>>33
}

// begin fills what the peer fetches.
func (c *checker) begin(s *station) {
	if !s.plan.operation().fetches {
		return
	}
	clear(s.memory[:s.plan.half()])
	if !c.verify || s.plan.Operation == "atomic" {
		return
	}
	for _, p := range s.pairs {
		for slot := range s.plan.slots {
			at := s.plan.place(p.index, slot)
			c.write(s.memory[at:at+s.size], p.index, uint64(slot))
		}
	}
}

// fill makes the content of a message that is to be posted.
func (c *checker) fill(s *station, p *pair, at int, number uint64) error {
	if c.verify {
		c.write(s.memory[at:at+s.size], p.index, number)
	}
	if !c.marked {
		return nil
	}
	// The engine may read the place of the message before it, which has arrived, to send it again.
	last := at + s.size - 1
	word := last &^ 7
	var b [8]byte
	copy(b[:], s.memory[word:])
	b[last-word] = mark(number)
	return s.mr.StoreUint64(word, binary.NativeEndian.Uint64(b[:]))
}

// marker returns the last byte of the message at a place, as it is now: a WRITE is there when that has changed.
func (c *checker) marker(s *station, at int) (byte, error) {
	last := at + s.size - 1
	word, err := s.mr.LoadUint64(last &^ 7)
	var b [8]byte
	binary.NativeEndian.PutUint64(b[:], word)
	return b[last&7], err
}

// compare checks a message of a queue pair.
func (c *checker) compare(s *station, at, qp int, number, shown uint64) error {
	got, want := s.memory[at:at+s.size], c.want[:s.size]
	fillMessage(want, qp, number)
	if c.marked {
		want[s.size-1] = mark(number)
	}
	if bytes.Equal(got, want) {
		return nil
	}
	for i := range want {
		if got[i] != want[i] {
			return fmt.Errorf("%s of %d bytes, message %d of queue pair %d: byte %d is %#02x instead of %#02x",
				s.plan.Operation, s.size, shown, qp, i, got[i], want[i])
		}
	}
	return nil
}

// received checks what has completed a receive.
func (c *checker) received(s *station, p *pair, wc *verbs.WC, slot uint64) error {
	if int(wc.ByteLen) != s.size {
		return fmt.Errorf("%s, message %d of queue pair %d has %d bytes instead of %d", s.plan.Operation, p.arrived,
			p.index, wc.ByteLen, s.size)
	}
	if !c.verify {
		return nil
	}
	if s.plan.Operation == "write-imm" {
		slot = p.arrived
	}
	return c.compare(s, s.plan.sink(p.index, slot), p.index, p.arrived, p.arrived)
}

// fetched checks the results of READs and atomics from one number to before another.
func (c *checker) fetched(s *station, p *pair, from, to uint64) error {
	if !c.verify || !s.plan.operation().fetches {
		return nil
	}
	for n := from; n < to; n++ {
		at := s.plan.result(p.index, n)
		if s.plan.Operation == "atomic" {
			if got := binary.NativeEndian.Uint64(s.memory[at:]); got != n {
				return fmt.Errorf("atomic %d of queue pair %d found %d instead of %d", n, p.index, got, n)
			}
			continue
		}
		if err := c.compare(s, at, p.index, n%uint64(s.plan.slots), n); err != nil {
			return err
		}
	}
	return nil
}

// end checks, when the peer sends no more, what came without telling: the last WRITEs of each queue pair, as many as
// have a place, and the words that atomics have changed. counts are the messages of each queue pair of the peer.
func (c *checker) end(s *station, counts []uint64) error {
	silent := s.plan.Operation == "write" || s.plan.Operation == "atomic"
	if !c.verify || !silent {
		return nil
	}
	if len(counts) != len(s.pairs) {
		return fmt.Errorf("the other end tells of %d queue pairs instead of %d", len(counts), len(s.pairs))
	}
	for i, count := range counts {
		if s.plan.Operation == "atomic" {
			if got := binary.NativeEndian.Uint64(s.memory[s.plan.source(i, 0):]); got != count {
				return fmt.Errorf("the word of queue pair %d is %d after %d atomics that add 1", i, got, count)
			}
			continue
		}
		for n := count - min(count, uint64(s.plan.slots)); n < count; n++ {
			if err := c.compare(s, s.plan.sink(i, n), i, n, n); err != nil {
				return err
			}
		}
	}
	return nil
}
