//go:build !lockorder

// Package lockorder has the mutexes whose order docs/architecture.md gives. They are those of package sync: same type,
// same cost. In a build with the tag lockorder (make lockorder) each of them looks, whenever a goroutine takes it, at
// what that goroutine holds, and panics if the order is wrong.
package lockorder

import "sync"

// Mutex is a sync.Mutex with a place in the order.
type Mutex[R Rank] = sync.Mutex

// RWMutex is a sync.RWMutex with a place in the order.
type RWMutex[R Rank] = sync.RWMutex
