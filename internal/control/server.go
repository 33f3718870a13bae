package control

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"github.com/xroce/xroce/internal/jsonline"
)

// Handler writes the answer to a request. The context ends when the server is closed; a write fails when the client is
// gone or does not read. An error is told to the client if nothing was written yet.
type Handler func(ctx context.Context, request Request, answer io.Writer) error

// Server answers at one socket.
type Server struct {
	path     string
	listener *net.UnixListener
	handler  Handler
	ctx      context.Context
	stop     context.CancelFunc
	running  sync.WaitGroup
}

// serving is held by whoever makes a socket of this process.
var serving sync.Mutex

// Serve makes the socket of this process for a device in a folder, which it makes too, and answers there until Close. The
// handler is called from several goroutines at once. Devices of the same name, which a process may have from several network
// namespaces, get sockets of their own.
func Serve(folder, device string, handler Handler) (*Server, error) {
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return nil, err
	}
	serving.Lock()
	defer serving.Unlock()
	number := 1
	path := func() string { return filepath.Join(folder, fileName(os.Getpid(), device, number)) }
	for !removeStale(path()) {
		number++
	}
	s := &Server{path: path(), handler: handler}
	s.ctx, s.stop = context.WithCancel(context.Background())
	config := net.ListenConfig{Control: ownerOnly}
	listener, err := config.Listen(s.ctx, "unix", s.path)
	if err != nil {
		s.stop()
		return nil, err
	}
	s.listener = listener.(*net.UnixListener)
	s.running.Go(s.accept)
	return s, nil
}

// ownerOnly sets the mode that the file will have, before it exists: nobody else can ever connect (unix_bind in
// net/unix/af_unix.c takes the mode of the socket's inode).
func ownerOnly(_, _ string, connection syscall.RawConn) error {
	var failure error
	err := connection.Control(func(descriptor uintptr) { failure = syscall.Fchmod(int(descriptor), 0o600) })
	return errors.Join(err, failure)
}

// Path is the path of the socket.
func (s *Server) Path() string { return s.path }

// Close removes the socket and returns when no handler runs any more.
func (s *Server) Close() error {
	s.stop()
	err := s.listener.Close() // removes the file
	s.running.Wait()
	return err
}

func (s *Server) accept() {
	for {
		connection, err := s.listener.Accept()
		switch {
		case s.ctx.Err() != nil:
			if err == nil {
				_ = connection.Close() // it came too late
			}
			return
		case err != nil:
			// No file descriptor is left, for one: the next try may find one.
			select {
			case <-s.ctx.Done():
			case <-time.After(100 * time.Millisecond):
			}
			continue
		}
		s.running.Go(func() { s.answer(connection) })
	}
}

func (s *Server) answer(connection net.Conn) {
	defer connection.Close()
	defer context.AfterFunc(s.ctx, func() { _ = connection.Close() })()
	var request Request
	_ = connection.SetReadDeadline(time.Now().Add(requestTime))
	if err := jsonline.Read(connection, &request); err != nil {
		return
	}
	out := &patient{connection: connection}
	if err := s.handler(s.ctx, request, out); err != nil && !out.written {
		_ = json.NewEncoder(out).Encode(failure{Error: err.Error()})
	}
}

// failure is the answer to a request that failed.
type failure struct {
	Error string `json:"error"`
}

// patient gives the client its time for every write.
type patient struct {
	connection net.Conn
	written    bool
}

func (p *patient) Write(b []byte) (int, error) {
	p.written = true
	if err := p.connection.SetWriteDeadline(time.Now().Add(answerTime)); err != nil {
		return 0, err
	}
	return p.connection.Write(b)
}
