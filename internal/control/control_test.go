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
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// echo answers with what was wanted.
func echo(_ context.Context, r Request, answer io.Writer) error {
	if r.Want == "trouble" {
		return errors.New("there is none")
	}
	return json.NewEncoder(answer).Encode(map[string]string{"got": r.Want})
}

func serve(t *testing.T, folder, device string, h Handler) *Server {
	t.Helper()
	s, err := Serve(folder, device, h)
	require.NoError(t, err)
	return s
}

func TestAskAndAnswer(t *testing.T) {
	folder := filepath.Join(t.TempDir(), "made", "here")
	defer syscall.Umask(syscall.Umask(0)) // the mode must not depend on it
	s := serve(t, folder, "eth0.7", echo)
	require.Equal(t, filepath.Join(folder, fmt.Sprintf("%d-eth0.7.sock", os.Getpid())), s.Path())
	info, err := os.Lstat(s.Path())
	require.NoError(t, err)
	require.Equal(t, fs.ModeSocket|0o600, info.Mode())

	list, err := List(folder)
	require.NoError(t, err)
	require.Equal(t, []Socket{{PID: os.Getpid(), Device: "eth0.7", Path: s.Path()}}, list)
	var answer map[string]string
	require.NoError(t, Get(t.Context(), s.Path(), "news", &answer))
	require.Equal(t, map[string]string{"got": "news"}, answer)
	require.ErrorContains(t, Get(t.Context(), s.Path(), "trouble", &answer), "there is none")

	second := serve(t, folder, "eth0.7", echo)
	list, err = List(folder)
	require.NoError(t, err)
	require.Equal(t, []Socket{
		{PID: os.Getpid(), Device: "eth0.7", Path: s.Path()}, {PID: os.Getpid(), Device: "eth0.7", Path: second.Path()},
	}, list)
	require.NoError(t, second.Close())
	require.NoError(t, s.Close())
	require.NoFileExists(t, s.Path())
	list, err = List(folder)
	require.NoError(t, err)
	require.Empty(t, list)
	require.ErrorIs(t, Get(t.Context(), s.Path(), "news", &answer), fs.ErrNotExist)
}

// TestRename: a socket follows the name of its device, does not take the place of another one, and leaves nothing.
func TestRename(t *testing.T) {
	folder := t.TempDir()
	s, neighbour := serve(t, folder, "va", echo), serve(t, folder, "roce0", echo)
	open, err := Open(t.Context(), s.Path(), Request{Want: "news"})
	require.NoError(t, err)
	defer open.Close()
	require.NoError(t, s.Rename("roce0"))
	require.Equal(t, filepath.Join(folder, fmt.Sprintf("%d-roce0~2.sock", os.Getpid())), s.Path())
	stranger := serve(t, folder, "va", echo)
	for _, server := range []*Server{s, neighbour, stranger} {
		var answer map[string]string
		require.NoError(t, Get(t.Context(), server.Path(), "news", &answer))
		require.Equal(t, map[string]string{"got": "news"}, answer)
	}
	var answer map[string]string
	require.NoError(t, json.NewDecoder(open).Decode(&answer), "a connection of before")
	require.NoError(t, s.Close())
	list, err := List(folder)
	require.NoError(t, err)
	require.Equal(t, []Socket{
		{PID: os.Getpid(), Device: "roce0", Path: neighbour.Path()}, {PID: os.Getpid(), Device: "va", Path: stranger.Path()},
	}, list)
	require.NoError(t, neighbour.Close())
	require.NoError(t, stranger.Close())
	left, err := os.ReadDir(folder)
	require.NoError(t, err)
	require.Empty(t, left)
}

// TestForeignSockets: what somebody else has put into the folder cannot take the memory of who asks, nor write to his terminal.
func TestForeignSockets(t *testing.T) {
	defer func(n int) { longestAnswer = n }(longestAnswer)
	longestAnswer = 1 << 20
	folder := t.TempDir()
	length := 0
	s := serve(t, folder, "eth0", func(_ context.Context, _ Request, answer io.Writer) error {
		return json.NewEncoder(answer).Encode(string(bytes.Repeat([]byte("x"), length)))
	})
	defer s.Close()
	var answer string
	length = longestAnswer - 3 // two quotes and a line feed
	require.NoError(t, Get(t.Context(), s.Path(), "news", &answer))
	require.Len(t, answer, length)
	length++
	require.EqualError(t, Get(t.Context(), s.Path(), "news", &answer), s.Path()+": the answer is longer than 1048576 bytes")

	escape, err := net.Listen("unix", filepath.Join(folder, "1-eth\x1b[2J.sock"))
	require.NoError(t, err)
	defer escape.Close()
	list, err := List(folder)
	require.NoError(t, err)
	require.Equal(t, []Socket{{PID: os.Getpid(), Device: "eth0", Path: s.Path()}}, list)
}

// TestCloseEndsEverything: clients that never ask, and an answer that never ends.
func TestCloseEndsEverything(t *testing.T) {
	begun := make(chan struct{})
	s := serve(t, t.TempDir(), "eth0", func(ctx context.Context, _ Request, answer io.Writer) error {
		close(begun)
		for {
			if _, err := answer.Write(make([]byte, 64<<10)); err != nil {
				return err
			}
		}
	})
	silent, err := net.Dial("unix", s.Path())
	require.NoError(t, err)
	defer silent.Close()
	stream, err := Open(t.Context(), s.Path(), Request{Want: "all"})
	require.NoError(t, err)
	defer stream.Close()
	<-begun
	_, err = io.ReadFull(stream, make([]byte, 1<<20))
	require.NoError(t, err)
	closed := make(chan error)
	go func() { closed <- s.Close() }()
	select {
	case err := <-closed:
		require.NoError(t, err)
	case <-time.After(answerTime / 2):
		require.Fail(t, "Close waits for a client")
	}
}

func TestNonsenseIsNotAnswered(t *testing.T) {
	s := serve(t, t.TempDir(), "eth0", echo)
	defer s.Close()
	for _, request := range []string{"nonsense\n", "{\"want\":3}\n", string(make([]byte, 10000))} {
		connection, err := net.Dial("unix", s.Path())
		require.NoError(t, err)
		_, _ = connection.Write([]byte(request))
		answer, _ := io.ReadAll(connection)
		require.Empty(t, answer, "%q", request)
		require.NoError(t, connection.Close())
	}
}

// TestStale: what a killed process leaves is removed, and nothing else is.
func TestStale(t *testing.T) {
	folder := t.TempDir()
	leave := func(name string) string {
		path := filepath.Join(folder, name)
		l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path})
		require.NoError(t, err)
		l.SetUnlinkOnClose(false)
		require.NoError(t, l.Close())
		require.FileExists(t, path)
		return path
	}
	const nobody = 1<<22 + 1 // beyond the largest process ID (PID_MAX_LIMIT)
	dead := leave(fmt.Sprintf("%d-eth0.sock", nobody))
	starting := leave("1-eth0.sock") // a living process, and a moment ago
	reused := leave("1-eth1.sock")
	long := time.Now().Add(-time.Minute)
	require.NoError(t, os.Chtimes(reused, long, long))
	other := leave("eth0.sock")
	plain := filepath.Join(folder, "5-eth0.sock")
	require.NoError(t, os.WriteFile(plain, nil, 0o600))
	own := leave(fileName(os.Getpid(), "eth2", 1))

	s := serve(t, folder, "eth2", echo) // a predecessor with the same number is no obstacle
	require.Equal(t, own, s.Path())
	list, err := List(folder)
	require.NoError(t, err)
	require.Equal(t, []Socket{{PID: os.Getpid(), Device: "eth2", Path: own}}, list)
	require.NoFileExists(t, dead)
	require.NoFileExists(t, reused)
	require.FileExists(t, starting)
	require.FileExists(t, other)
	require.FileExists(t, plain)
	require.NoError(t, s.Close())
}

func TestFolder(t *testing.T) {
	t.Setenv(Environment, "/somewhere")
	folder, err := Folder()
	require.NoError(t, err)
	require.Equal(t, "/somewhere", folder)
	t.Setenv(Environment, "")
	t.Setenv("XDG_RUNTIME_DIR", "/run/user/7")
	folder, err = Folder()
	require.NoError(t, err)
	if os.Geteuid() == 0 {
		require.Equal(t, "/run/xroce", folder)
		return
	}
	require.Equal(t, "/run/user/7/xroce", folder)
	t.Setenv("XDG_RUNTIME_DIR", "")
	_, err = Folder()
	require.ErrorIs(t, err, ErrNoFolder)
	list, err := List("/absent")
	require.NoError(t, err)
	require.Empty(t, list)
}

func TestNames(t *testing.T) {
	for name, want := range map[string]Socket{
		"7-eth0.sock": {PID: 7, Device: "eth0"}, "12-a-b.sock": {PID: 12, Device: "a-b"},
		"7-.sock": {}, "-7-eth0.sock": {}, "07-eth0.sock": {}, "x-eth0.sock": {}, "7-eth0": {}, ".sock": {}, "+7-eth0.sock": {}, "0-eth0.sock": {},
	} {
		pid, device, ok := parse(name)
		require.Equal(t, want.PID > 0, ok, name)
		if ok {
			require.Equal(t, want, Socket{PID: pid, Device: device})
			require.Equal(t, name, fileName(pid, device, 1))
		}
	}
}

// TestServeSweeps: who serves a device removes what dead processes have left in the folder, and nothing else.
func TestServeSweeps(t *testing.T) {
	folder := t.TempDir()
	living := serve(t, folder, "eth1", echo)
	defer living.Close()
	long := time.Now().Add(-time.Minute)
	leave := func(name string, age time.Time) string {
		path := filepath.Join(folder, name)
		l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path})
		require.NoError(t, err)
		l.SetUnlinkOnClose(false)
		require.NoError(t, l.Close())
		require.NoError(t, os.Chtimes(path, age, age))
		return path
	}
	const nobody = 1<<22 + 1 // beyond the largest process ID (PID_MAX_LIMIT)
	for i := range 1300 {
		leave(fmt.Sprintf("%d-eth0.sock", nobody+i), long)
	}
	reused := leave("1-eth1.sock", long)
	starting := leave(fmt.Sprintf("%d-eth7.sock", nobody), time.Now())
	other := leave("eth0.sock", long)
	require.NoError(t, os.Chtimes(living.Path(), long, long))

	s := serve(t, folder, "eth2", echo)
	defer s.Close()
	require.NoFileExists(t, reused)
	entries, err := os.ReadDir(folder)
	require.NoError(t, err)
	var names []string
	for _, e := range entries {
		names = append(names, filepath.Join(folder, e.Name()))
	}
	require.ElementsMatch(t, []string{living.Path(), s.Path(), starting, other}, names)
}

// TestGone: a process that ends before it is asked, when it has been asked, or in the middle of its answer, is gone.
func TestGone(t *testing.T) {
	folder := t.TempDir()
	for name, end := range map[string]func(c *net.UnixConn){
		"without an answer":         func(c *net.UnixConn) { _, _ = c.Read(make([]byte, 100)) },
		"with the request unread":   func(*net.UnixConn) {}, // the kernel resets the connection then
		"in the middle of a number": func(c *net.UnixConn) { _, _ = c.Read(make([]byte, 100)); _, _ = c.Write([]byte(`12`)) },
	} {
		path := filepath.Join(folder, "1-veth0.sock")
		listener, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
		require.NoError(t, err)
		go func() {
			if c, err := listener.AcceptUnix(); err == nil {
				time.Sleep(20 * time.Millisecond) // for the request to come
				end(c)
				_ = c.Close()
			}
		}()
		var answer int
		require.ErrorIs(t, Get(t.Context(), path, "snapshot", &answer), ErrGone, name)
		require.NoError(t, listener.Close())
		require.ErrorIs(t, Get(t.Context(), path, "snapshot", &answer), ErrGone, name)
	}
}
