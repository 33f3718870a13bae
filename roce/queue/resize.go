package queue

// Move moves everything that is published into another ring whose slots have the same length, in order, and the
// request for a notification with it. count is how much that is; if to has not as many free slots, nothing moves.
// Neither ring may be in use meanwhile. It is how a queue is resized.
func (c *Consumer) Move(to *Producer) (count int, moved bool) {
	count = c.Available(int(c.capacity))
	if c.stride != to.stride || count > to.Free() {
		return count, false
	}
	for i := range count {
		copy(to.Slot(i), c.Slot(i))
	}
	c.Release(count)
	to.Publish(count)
	to.arm.Store(c.arm.Swap(armNone))
	return count, true
}
