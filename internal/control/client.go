package control

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/xroce/xroce/internal/jsonline"
)

// List returns the sockets in a folder that somebody serves, and removes those of dead processes. A folder that does
// not exist has none.
func List(folder string) ([]Socket, error) {
	entries, err := os.ReadDir(folder)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var list []Socket
	for _, e := range entries {
		pid, device, ok := parse(e.Name())
		path := filepath.Join(folder, e.Name())
		if !ok || e.Type() != fs.ModeSocket || removeStale(path) {
			continue
		}
		list = append(list, Socket{PID: pid, Device: device, Path: path})
	}
	return list, nil
}

// startTime is more than a process needs from binding its socket to listening there.
const startTime = time.Second

// sweep removes the sockets of dead processes. A young one is left alone, whose process may be starting, also where
// its number is one of another process ID namespace.
func sweep(folder string) {
	entries, _ := os.ReadDir(folder)
	for _, e := range entries {
		_, _, ok := parse(e.Name())
		if info, err := e.Info(); ok && err == nil && e.Type() == fs.ModeSocket && time.Since(info.ModTime()) > startTime {
			removeStale(filepath.Join(folder, e.Name()))
		}
	}
}

// removeStale says whether nobody serves the socket at a path, and removes it then. Nobody listens there if a
// connection is refused; but a process that is starting has bound its socket and does not listen yet, for an instant.
func removeStale(path string) bool {
	info, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return true
	}
	if err != nil || info.Mode().Type() != fs.ModeSocket {
		return false
	}
	connection, err := net.DialTimeout("unix", path, requestTime)
	if err == nil {
		_ = connection.Close()
		return false
	}
	if !errors.Is(err, syscall.ECONNREFUSED) {
		return errors.Is(err, fs.ErrNotExist)
	}
	pid, _, _ := parse(filepath.Base(path))
	starting := time.Since(info.ModTime()) < startTime && pid != os.Getpid() && lives(pid)
	if !starting {
		_ = os.Remove(path) // one that belongs to somebody else stays, and is left out all the same
	}
	return true
}

// longestAnswer bounds what Get takes from whoever serves a socket: several times the snapshot of a device that has
// all its 16,384 queue pairs, of some 3 KB each. It is a variable for tests.
var longestAnswer = 256 << 20

// ErrGone says that the process behind a socket has ended, before it was asked or while it answered.
var ErrGone = errors.New("the process has ended")

// gone adds ErrGone to an error of a connection whose other end is not there any more.
func gone(path string, err error) error {
	for _, sign := range []error{fs.ErrNotExist, syscall.ECONNREFUSED, syscall.EPIPE, syscall.ECONNRESET, io.ErrUnexpectedEOF} {
		if errors.Is(err, sign) {
			return fmt.Errorf("%s: %w: %w", path, ErrGone, err)
		}
	}
	return err
}

// Get asks for a document and decodes it. An answer that does not come ends with ctx, and one that breaks off with
// ErrGone.
func Get(ctx context.Context, path, want string, into any) error {
	connection, err := Open(ctx, path, Request{Want: want})
	if err != nil {
		return err
	}
	defer connection.Close()
	defer context.AfterFunc(ctx, func() { _ = connection.Close() })()
	answer, err := io.ReadAll(io.LimitReader(connection, int64(longestAnswer)+1))
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if err != nil {
		return gone(path, err)
	}
	if len(answer) > longestAnswer {
		return fmt.Errorf("%s: the answer is longer than %d bytes", path, longestAnswer)
	}
	if !bytes.HasSuffix(answer, []byte{'\n'}) {
		return gone(path, io.ErrUnexpectedEOF)
	}
	if refused := Refusal(answer); refused != nil {
		return fmt.Errorf("%s: %w", path, refused)
	}
	return json.Unmarshal(answer, into)
}

// Refusal is the error that an answer consists of; nil if it is another answer.
func Refusal(answer []byte) error {
	var refusal failure
	if err := json.Unmarshal(answer, &refusal); err == nil && refusal.Error != "" {
		return errors.New(refusal.Error)
	}
	return nil
}

// Open sends a request and returns the connection, on which the answer comes.
func Open(ctx context.Context, path string, request Request) (net.Conn, error) {
	var dialer net.Dialer
	connection, err := dialer.DialContext(ctx, "unix", path)
	if err != nil {
		return nil, gone(path, err)
	}
	if err := jsonline.Write(connection, request); err != nil {
		return nil, errors.Join(gone(path, err), connection.Close())
	}
	return connection, nil
}
