// Life of an entry. The producer writes it behind the entries that the consumer
// can see (write), then shows a whole batch with one store of its index (submit).
// The consumer sees it (peek), copies it out (read) and gives the place back with
// one store of its own index for the batch (release), whereupon the producer may
// write there again (reserve).
//
// Each side keeps its own index privately and a copy of the other side's index,
// which it reads again only when the copy says "full" or "empty": the cache line
// with the other index then travels once per batch. Indices run freely through
// all 2^32 values and are masked on use only, so that full and empty differ.
//
// The memory order is that of net/xdp/xsk_queue.h: the index of the other side is
// loaded with acquire, one's own is stored with release. Go's sync/atomic gives
// both and more: on amd64 the store is an XCHG of some 20 cycles, hence one store
// per batch and never one per entry. As a full barrier it also orders the index
// before the load of the wake-up flag that follows.

package xsk

import "sync/atomic"

// ring is the memory that both sides share. All four AF_XDP rings have this form;
// the entries of FILL and COMPLETION are addresses, those of RX and TX descriptors.
type ring[E any] struct {
	producer *atomic.Uint32 // entries written so far
	consumer *atomic.Uint32 // entries read so far
	flags    *atomic.Uint32 // XDP_RING_NEED_WAKEUP, written by the kernel
	entries  []E            // a power of two
}

func (r *ring[E]) mask() uint32 { return uint32(len(r.entries) - 1) }

// producer is the writing end. One goroutine at a time may use it.
type producer[E any] struct {
	ring[E]
	next      uint32 // index of the next entry to write
	published uint32 // what the consumer can see: entries before this index
	limit     uint32 // consumer index as last seen + size: entries before it are free
}

// newProducer goes on where the shared indices stand, so that a ring can be taken
// over from another process.
func newProducer[E any](r ring[E]) producer[E] {
	next := r.producer.Load()
	return producer[E]{ring: r, next: next, published: next, limit: r.consumer.Load() + uint32(len(r.entries))}
}

// reserve returns how many entries may be written now, at most want.
func (p *producer[E]) reserve(want uint32) uint32 {
	if p.limit-p.next < want {
		p.limit = p.consumer.Load() + uint32(len(p.entries))
	}
	return min(want, p.limit-p.next)
}

// write puts an entry behind the others; reserve must have granted it.
func (p *producer[E]) write(entry E) {
	p.entries[p.next&p.mask()] = entry
	p.next++
}

// submit shows all written entries to the consumer.
func (p *producer[E]) submit() {
	if p.next != p.published {
		p.producer.Store(p.next)
		p.published = p.next
	}
}

// consumer is the reading end. One goroutine at a time may use it.
type consumer[E any] struct {
	ring[E]
	next     uint32 // index of the next entry to read
	released uint32 // what the producer knows to be free
	limit    uint32 // producer index as last seen: entries before it can be read
}

// newConsumer goes on where the shared indices stand.
func newConsumer[E any](r ring[E]) consumer[E] {
	next := r.consumer.Load()
	return consumer[E]{ring: r, next: next, released: next, limit: next}
}

// peek returns how many entries can be read now, at most want.
func (c *consumer[E]) peek(want uint32) uint32 {
	if c.limit-c.next < want {
		c.limit = c.producer.Load()
	}
	return min(want, c.limit-c.next)
}

// read takes the next entry out; peek must have promised it.
func (c *consumer[E]) read() E {
	entry := c.entries[c.next&c.mask()]
	c.next++
	return entry
}

// release gives the places of all entries read back to the producer.
func (c *consumer[E]) release() {
	if c.next != c.released {
		c.consumer.Store(c.next)
		c.released = c.next
	}
}
