//go:build linux

package vm

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestLockIsWaitedForUntilTheContextEnds(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	silent := func(what string) { t.Error(what) }
	unlock, err := lock(t.Context(), path, silent)
	require.NoError(t, err)

	enough := errors.New("enough")
	ctx, end := context.WithCancelCause(t.Context())
	told := 0
	_, err = lock(ctx, path, func(what string) {
		told++
		require.Contains(t, what, "wait for process "+strconv.Itoa(os.Getpid())+",")
		end(enough)
	})
	require.ErrorIs(t, err, enough)
	require.Equal(t, 1, told)

	unlocked := false
	unlockSecond, err := lock(t.Context(), path, func(string) { unlock(); unlocked = true })
	require.NoError(t, err)
	require.True(t, unlocked)
	unlockSecond()
}
