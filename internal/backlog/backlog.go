// Package backlog is a list of what waits for a program to take it.
package backlog

import "github.com/xroce/xroce/internal/lockorder"

// List is a list that one side adds to and the other takes from, with a channel to select on. Its methods, all but Init
// and Ready, are called under Mu, which is a leaf: nothing else is locked meanwhile.
type List[T any] struct {
	Mu    lockorder.Mutex[lockorder.Backlog]
	items []T // from head on
	head  int
	// ready holds a token whenever the list is not empty, unless somebody has received it and not come to take yet.
	ready chan struct{}
}

// Init makes the list usable.
func (b *List[T]) Init() { b.ready = make(chan struct{}, 1) }

// Empty says that nothing is in the list.
func (b *List[T]) Empty() bool { return b.head == len(b.items) }

// Put adds an item.
func (b *List[T]) Put(item T) {
	if b.head > 0 && len(b.items) == cap(b.items) {
		kept := copy(b.items, b.items[b.head:])
		clear(b.items[kept:])
		b.items, b.head = b.items[:kept], 0
	}
	b.items = append(b.items, item)
	b.signal()
}

// Take removes the oldest item. What is left is signalled again: the token that brought the caller was for everything.
func (b *List[T]) Take() (item T, found bool) {
	if !b.Empty() {
		var none T
		item, found = b.items[b.head], true
		b.items[b.head] = none
		b.head++
	}
	b.signal()
	return item, found
}

// Remove drops the items that match.
func (b *List[T]) Remove(match func(T) bool) {
	kept := b.items[:0]
	for _, item := range b.items[b.head:] {
		if !match(item) {
			kept = append(kept, item)
		}
	}
	clear(b.items[len(kept):])
	b.items, b.head = kept, 0
	b.signal()
}

// Ready is readable while something is in the list, or was until a moment ago. It may be called without Mu.
func (b *List[T]) Ready() <-chan struct{} { return b.ready }

// signal makes the token agree with the list.
func (b *List[T]) signal() {
	if b.Empty() {
		b.items, b.head = b.items[:0], 0
		select {
		case <-b.ready:
		default:
		}
		return
	}
	select {
	case b.ready <- struct{}{}:
	default:
	}
}
