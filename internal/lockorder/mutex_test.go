//go:build !lockorder

package lockorder

import (
	"reflect"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestPlain: without the tag the mutexes are those of package sync, so that they cost what those cost.
func TestPlain(t *testing.T) {
	require.Equal(t, reflect.TypeFor[sync.Mutex](), reflect.TypeFor[Mutex[Shard]]())
	require.Equal(t, reflect.TypeFor[sync.RWMutex](), reflect.TypeFor[RWMutex[Life]]())
}
