//go:build lockorder

// Package lockorder has the mutexes whose order docs/architecture.md gives, here with the assertion that it is kept.
//
// A goroutine may take a lock whose row is below the rows of all locks that it holds. TryLock counts as Lock does, and
// counts whether it succeeds or not. It never waits and so cannot be a part of a deadlock by itself, but the table says
// what is held at the same time: the kick makes no system call under a shard's lock, and no shard is driven from within
// another one. A try that is found wrong only when it happens to succeed would be found wrong too seldom.
//
// The goroutine that has taken a lock releases it. A mutex of package sync permits another one to do so; the table has
// no meaning then, and no code needs it, so it is a fault here.
package lockorder

import (
	"fmt"
	"slices"
	"sync"
)

// Mutex is a sync.Mutex with a place in the order.
type Mutex[R Rank] struct{ mu sync.Mutex }

// Lock is that of sync.Mutex.
func (m *Mutex[R]) Lock() {
	claim[R](m)
	m.mu.Lock()
}

// TryLock is that of sync.Mutex.
func (m *Mutex[R]) TryLock() bool {
	claim[R](m)
	taken := m.mu.TryLock()
	if !taken {
		release[R](m)
	}
	return taken
}

// Unlock is that of sync.Mutex.
func (m *Mutex[R]) Unlock() {
	release[R](m)
	m.mu.Unlock()
}

// RWMutex is a sync.RWMutex with a place in the order. Taking it for reading counts as taking it: a goroutine that does
// so twice hangs if another one wants to write in between.
type RWMutex[R Rank] struct{ mu sync.RWMutex }

// Lock is that of sync.RWMutex.
func (m *RWMutex[R]) Lock() {
	claim[R](m)
	m.mu.Lock()
}

// Unlock is that of sync.RWMutex.
func (m *RWMutex[R]) Unlock() {
	release[R](m)
	m.mu.Unlock()
}

// RLock is that of sync.RWMutex.
func (m *RWMutex[R]) RLock() {
	claim[R](m)
	m.mu.RLock()
}

// RUnlock is that of sync.RWMutex.
func (m *RWMutex[R]) RUnlock() {
	release[R](m)
	m.mu.RUnlock()
}

// holding is a lock that a goroutine holds or waits for.
type holding struct {
	lock any // pointer to the mutex
	row  int
	name string
}

func (h holding) String() string {
	if h.row == leaf {
		return h.name + " (a leaf)"
	}
	return fmt.Sprintf("%s (row %d)", h.name, h.row)
}

// held has what each goroutine holds, by the address of its descriptor. Only the goroutine itself looks at its list;
// the locks are those of the maps. The list stays for the next goroutine that gets the descriptor. If one has ended
// without releasing a lock, which nobody else can do, the next one is found at fault for it.
var held [1 << 6]struct {
	mu    sync.Mutex
	lists map[uintptr]*[]holding
}

// list returns what the calling goroutine holds.
func list() *[]holding {
	g := goroutine()
	bucket := &held[g>>8%uintptr(len(held))]
	bucket.mu.Lock()
	defer bucket.mu.Unlock()
	l := bucket.lists[g]
	if l == nil {
		if bucket.lists == nil {
			bucket.lists = make(map[uintptr]*[]holding)
		}
		l = new([]holding)
		bucket.lists[g] = l
	}
	return l
}

// claim notes that the goroutine takes a lock, if it may.
func claim[R Rank](lock any) {
	var r R
	row, name := r.rank()
	next, l := holding{lock, row, name}, list()
	for _, h := range *l {
		if row <= h.row {
			panic(fmt.Sprintf("lockorder: %v is taken under %v", next, h))
		}
	}
	*l = append(*l, next)
}

// release takes back a claim.
func release[R Rank](lock any) {
	l := list()
	for i, h := range *l {
		if h.lock == lock {
			*l = slices.Delete(*l, i, i+1) // it clears what is behind the end, which would keep the lock in memory
			return
		}
	}
	var r R
	row, name := r.rank()
	panic(fmt.Sprintf("lockorder: %v is released by a goroutine that has not taken it", holding{lock, row, name}))
}
