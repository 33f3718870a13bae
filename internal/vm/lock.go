//go:build linux

package vm

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// lock takes the file for this process, which the file names meanwhile. It ends with the process. progress hears of a
// wait.
func lock(ctx context.Context, path string, progress func(string)) (unlock func(), err error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, err
	}
	for told := false; ; {
		// One that blocks could not be interrupted: Go restarts system calls after signals.
		err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			err = errors.Join(f.Truncate(0), writeAt(f, strconv.Itoa(os.Getpid())))
		}
		if err == nil {
			return func() { f.Close() }, nil
		}
		if !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR) {
			f.Close()
			return nil, fmt.Errorf("lock %s: %w", path, err)
		}
		if !told {
			holder, _ := os.ReadFile(path)
			progress(fmt.Sprintf("wait for process %s, which holds %s", bytes.TrimSpace(holder), path))
			told = true
		}
		select {
		case <-ctx.Done():
			f.Close()
			return nil, fmt.Errorf("lock %s: %w", path, context.Cause(ctx))
		case <-time.After(50 * time.Millisecond):
		}
	}
}

func writeAt(f *os.File, text string) error {
	_, err := f.WriteAt([]byte(text), 0)
	return err
}

// TempDir makes a folder in the cache. remove removes it; if this process dies before, the next TempDir of any
// process does.
func TempDir(ctx context.Context) (dir string, remove func(), err error) {
	cache, err := Cache()
	if err != nil {
		return "", nil, err
	}
	jobs := filepath.Join(cache, "jobs")
	if err := os.MkdirAll(jobs, 0o755); err != nil {
		return "", nil, err
	}
	// Between its making and its lock, a folder looks as if it were left behind.
	unlock, err := lock(ctx, filepath.Join(jobs, "lock"), func(string) {})
	if err != nil {
		return "", nil, err
	}
	defer unlock()
	entries, err := os.ReadDir(jobs)
	if err != nil {
		return "", nil, err
	}
	for _, e := range entries {
		if e.IsDir() {
			sweep(filepath.Join(jobs, e.Name()))
		}
	}
	dir, err = os.MkdirTemp(jobs, strconv.Itoa(os.Getpid())+"-")
	if err != nil {
		return "", nil, err
	}
	own, err := hold(dir)
	if err != nil {
		return "", nil, errors.Join(err, os.RemoveAll(dir))
	}
	return dir, func() { os.RemoveAll(dir); own.Close() }, nil
}

// sweep removes a folder that nobody holds. One that cannot be removed, such as another user's, is left to that user.
func sweep(dir string) {
	if f, err := hold(dir); err == nil {
		os.RemoveAll(dir)
		f.Close()
	}
}

// hold locks a folder for as long as the file is open.
func hold(dir string) (*os.File, error) {
	f, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		f.Close()
		return nil, fmt.Errorf("lock %s: %w", dir, err)
	}
	return f, nil
}
