package queue

// Move copies everything that was published and not released into another ring whose slots have the same length and
// which is empty, in order, and takes the request for a notification over. It is how the producer of a queue resizes
// it: only what is the producer's is written, and the consumer's index of this ring is looked at once. first is the
// index here of what comes first there, and count how much it is; if the other ring is too small, nothing is moved. The
// consumer does not release anything meanwhile, or makes up for it afterwards (Consumer.SkipTo).
func (p *Producer) Move(to *Producer) (first uint32, count int, moved bool) {
	count = p.Used()
	first = p.next - uint32(count)
	if p.stride != to.stride || to.Used() > 0 || count > to.Free() {
		return first, count, false
	}
	for i := range count {
		copy(to.Slot(i), p.slot(first+uint32(i)))
	}
	to.Publish(count)
	to.arm.Store(p.arm.Swap(armNone))
	return first, count, true
}

// SkipTo releases what the consumer of another ring has released already since Move: first is what that returned. It
// reports false if that is more than there is.
func (c *Consumer) SkipTo(other *Consumer, first uint32) bool {
	skip := other.next - first
	if skip > uint32(c.Available(int(c.capacity))) {
		return false
	}
	c.Release(int(skip))
	return true
}
