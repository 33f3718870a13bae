//go:build lockorder

package lockorder

import (
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// locks are one of each kind that the tests need.
type locks struct {
	life    RWMutex[Life]
	kick    Mutex[Kick]
	shard   Mutex[Shard]
	another Mutex[Shard]
	device  Mutex[Device]
	take    Mutex[Take]
	produce Mutex[Produce]
	list    Mutex[Backlog]
	routes  Mutex[Routes]
}

// TestWrongOrder: every kind of wrong order panics, and the text names both locks and their rows.
func TestWrongOrder(t *testing.T) {
	for name, c := range map[string]struct {
		do   func(l *locks)
		want string
	}{
		"row above": {func(l *locks) {
			l.shard.Lock()
			l.kick.Lock()
		}, "lockorder: driver.Shard.kickMu (row 10) is taken under driver.Shard.mu (row 11)"},
		"row above by a try that would succeed": {func(l *locks) {
			l.shard.Lock()
			l.kick.TryLock()
		}, "lockorder: driver.Shard.kickMu (row 10) is taken under driver.Shard.mu (row 11)"},
		"row above by a try that would fail": {func(l *locks) {
			elsewhere(l.kick.Lock)
			l.shard.Lock()
			l.kick.TryLock()
		}, "lockorder: driver.Shard.kickMu (row 10) is taken under driver.Shard.mu (row 11)"},
		"under a try": {func(l *locks) {
			l.shard.TryLock()
			l.kick.Lock()
		}, "lockorder: driver.Shard.kickMu (row 10) is taken under driver.Shard.mu (row 11)"},
		"row above all but the first": {func(l *locks) {
			l.shard.Lock()
			l.take.Lock()
			l.shard.Unlock()
			l.shard.Lock()
		}, "lockorder: driver.Shard.mu (row 11) is taken under driver.SRQ.take (row 13)"},
		"two of a kind": {func(l *locks) {
			l.shard.Lock()
			l.another.Lock()
		}, "lockorder: driver.Shard.mu (row 11) is taken under driver.Shard.mu (row 11)"},
		"the same twice": {func(l *locks) {
			l.shard.Lock()
			l.shard.Lock()
		}, "lockorder: driver.Shard.mu (row 11) is taken under driver.Shard.mu (row 11)"},
		"two kinds of a row": {func(l *locks) {
			l.take.Lock()
			l.produce.Lock()
		}, "lockorder: driver.CQ.produce (row 13) is taken under driver.SRQ.take (row 13)"},
		"a device's lock under a shard's": {func(l *locks) {
			l.shard.Lock()
			l.device.Lock()
		}, "lockorder: driver.Device.mu (row 11) is taken under driver.Shard.mu (row 11)"},
		"under a leaf": {func(l *locks) {
			l.list.Lock()
			l.shard.Lock()
		}, "lockorder: driver.Shard.mu (row 11) is taken under backlog.List.Mu (a leaf)"},
		"a leaf under a leaf": {func(l *locks) {
			l.list.Lock()
			l.routes.Lock()
		}, "lockorder: driver.routes.mu (a leaf) is taken under backlog.List.Mu (a leaf)"},
		"under a lock for reading": {func(l *locks) {
			l.life.RLock()
			l.life.RLock()
		}, "lockorder: verbs.belongings.life (row 1) is taken under verbs.belongings.life (row 1)"},
		"for reading": {func(l *locks) {
			l.shard.Lock()
			l.life.RLock()
		}, "lockorder: verbs.belongings.life (row 1) is taken under driver.Shard.mu (row 11)"},
		"for writing": {func(l *locks) {
			l.shard.Lock()
			l.life.Lock()
		}, "lockorder: verbs.belongings.life (row 1) is taken under driver.Shard.mu (row 11)"},
		"released by another goroutine": {func(l *locks) {
			elsewhere(l.shard.Lock)
			l.shard.Unlock()
		}, "lockorder: driver.Shard.mu (row 11) is released by a goroutine that has not taken it"},
	} {
		t.Run(name, func(t *testing.T) {
			defer forget()
			require.PanicsWithValue(t, c.want, func() { c.do(new(locks)) })
		})
	}
}

// TestRightOrder: what the table permits goes through.
func TestRightOrder(t *testing.T) {
	for name, do := range map[string]func(l *locks){
		"all rows": func(l *locks) {
			l.life.RLock()
			l.kick.Lock()
			l.shard.Lock()
			l.take.Lock()
			l.list.Lock()
			l.list.Unlock()
			l.routes.Lock()
			l.routes.Unlock()
			l.take.Unlock()
			l.produce.Lock()
			l.produce.Unlock()
			l.shard.Unlock()
			l.device.Lock()
			l.device.Unlock()
			l.kick.Unlock()
			l.life.RUnlock()
		},
		"released in the order of taking": func(l *locks) {
			l.kick.Lock()
			l.shard.Lock()
			l.kick.Unlock()
			l.take.Lock()
			l.shard.Unlock()
			l.list.Lock()
			l.take.Unlock()
			l.list.Unlock()
			l.life.Lock()
			l.life.Unlock()
		},
		"a try that fails holds nothing": func(l *locks) {
			elsewhere(l.shard.Lock)
			require.False(t, l.shard.TryLock())
			l.kick.Lock()
			l.kick.Unlock()
		},
		"a try that succeeds": func(l *locks) {
			require.True(t, l.shard.TryLock())
			require.False(t, l.shard.mu.TryLock())
			l.shard.Unlock()
			require.True(t, l.shard.mu.TryLock())
		},
		"each goroutine for itself": func(l *locks) {
			l.shard.Lock()
			elsewhere(func() {
				l.kick.Lock()
				l.another.Lock()
				l.another.Unlock()
				l.kick.Unlock()
			})
			l.shard.Unlock()
		},
	} {
		t.Run(name, func(t *testing.T) {
			defer forget()
			do(new(locks))
			require.Empty(t, *list())
		})
	}
}

// TestExclusion: many goroutines exclude each other as they do with package sync, also where stacks move and goroutines
// follow each other on the same descriptor.
func TestExclusion(t *testing.T) {
	var l locks
	var written int
	var all sync.WaitGroup
	for range 1000 {
		all.Go(func() {
			for range 100 {
				l.life.RLock()
				l.shard.Lock()
				written++
				deep(20)
				l.shard.Unlock()
				l.life.RUnlock()
				runtime.Gosched()
			}
		})
	}
	all.Wait()
	require.Equal(t, 100_000, written)
}

// deep makes the stack longer.
func deep(n int) (sum byte) {
	var room [256]byte
	if n > 0 {
		return room[n] + deep(n-1)
	}
	return 0
}

// TestLetsGo: a lock that was released is not kept in memory.
func TestLetsGo(t *testing.T) {
	collected := make(chan struct{})
	l := new(locks)
	runtime.AddCleanup(l, func(done chan struct{}) { close(done) }, collected)
	l.kick.Lock()
	l.shard.Lock()
	l.shard.Unlock()
	l.kick.Unlock()
	require.Eventually(t, func() bool {
		runtime.GC()
		select {
		case <-collected:
			return true
		default:
			return false
		}
	}, 5*time.Second, time.Millisecond)
}

// elsewhere does something on another goroutine.
func elsewhere(do func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		do()
	}()
	<-done
}

// forget forgets who holds what, after tests that leave locks behind.
func forget() {
	for i := range held {
		held[i].mu.Lock()
		held[i].lists = nil
		held[i].mu.Unlock()
	}
}
