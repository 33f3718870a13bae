package control

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/xroce/xroce/internal/jsonline"
)

// Handler writes the answer to a request. The context ends when the server is closed, and when the client is gone or
// has shut down its end; a write fails when the client is gone or does not read. After a close of the server there is
// a moment for last words. An error is told to the client if nothing was written yet.
type Handler func(ctx context.Context, request Request, answer io.Writer) error

// Server answers at one socket.
type Server struct {
	folder   string
	path     string // guarded by serving
	listener *net.UnixListener
	handler  Handler
	ctx      context.Context
	stop     context.CancelFunc
	running  sync.WaitGroup
}

// serving is held by whoever makes, names or removes a socket of this process.
var serving sync.Mutex

// Serve makes the socket of this process for a device in a folder, which it makes too, and answers there until Close.
// The handler is called from several goroutines at once. Devices of the same name, which a process may have from
// several network namespaces, get sockets of their own. What dead processes have left in the folder is removed.
func Serve(folder, device string, handler Handler) (*Server, error) {
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return nil, err
	}
	sweep(folder)
	serving.Lock()
	defer serving.Unlock()
	s := &Server{folder: folder, path: freePath(folder, device), handler: handler}
	s.ctx, s.stop = context.WithCancel(context.Background())
	config := net.ListenConfig{Control: ownerOnly}
	listener, err := config.Listen(s.ctx, "unix", s.path)
	if err != nil {
		s.stop()
		return nil, err
	}
	s.listener = listener.(*net.UnixListener)
	s.listener.SetUnlinkOnClose(false) // it knows the first path only
	s.running.Go(s.accept)
	return s, nil
}

// freePath is a path that no socket has.
func freePath(folder, device string) string {
	for number := 1; ; number++ {
		if path := filepath.Join(folder, fileName(os.Getpid(), device, number)); removeStale(path) {
			return path
		}
	}
}

// Rename gives the socket the name of a device that was renamed. Connections are not affected.
func (s *Server) Rename(device string) error {
	serving.Lock()
	defer serving.Unlock()
	path := freePath(s.folder, device)
	if err := os.Rename(s.path, path); err != nil {
		return err
	}
	s.path = path
	return nil
}

// Path is the present path of the socket.
func (s *Server) Path() string {
	serving.Lock()
	defer serving.Unlock()
	return s.path
}

// Close removes the socket and returns when no handler runs any more.
func (s *Server) Close() error {
	s.stop()
	serving.Lock()
	removed := os.Remove(s.path)
	if errors.Is(removed, fs.ErrNotExist) {
		removed = nil
	}
	err := errors.Join(removed, s.listener.Close())
	serving.Unlock()
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
			// For example, no file descriptor is left: the next try may find one.
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
	c := &conversation{connection: connection, patience: answerTime}
	var watching sync.WaitGroup
	defer watching.Wait()
	defer connection.Close()
	defer context.AfterFunc(s.ctx, c.end)()
	var request Request
	c.readWithin(requestTime)
	if err := jsonline.Read(connection, &request); err != nil {
		return
	}
	c.readWithin(0)
	if request.Stream {
		c.setPatience(0)
	}
	ctx, enough := context.WithCancel(s.ctx)
	defer enough()
	watching.Go(func() {
		_, _ = io.Copy(io.Discard, connection) // until the client is gone or has shut down its end
		c.setPatience(answerTime)
		enough()
	})
	if err := s.handler(ctx, request, c); err != nil && !c.written {
		_ = json.NewEncoder(c).Encode(failure{Error: err.Error()})
	}
}

// failure is the answer to a request that failed.
type failure struct {
	Error string `json:"error"`
}

// conversation gives the client its time for every write.
type conversation struct {
	connection net.Conn
	written    bool

	mu       sync.Mutex
	patience time.Duration // 0 is without end
	ending   bool
}

func (c *conversation) Write(b []byte) (int, error) {
	c.written = true
	c.mu.Lock()
	err := c.renew()
	c.mu.Unlock()
	if err != nil {
		return 0, err
	}
	return c.connection.Write(b)
}

// setPatience changes the time for a write, also for one under way.
func (c *conversation) setPatience(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.patience = d
	_ = c.renew() // of no use on a connection that is closed
}

// renew sets the deadline for a write that begins now.
func (c *conversation) renew() error {
	switch {
	case c.ending:
		return nil
	case c.patience == 0:
		return c.connection.SetWriteDeadline(time.Time{})
	}
	return c.connection.SetWriteDeadline(time.Now().Add(c.patience))
}

// readWithin bounds the time for what the client says; 0 does not.
func (c *conversation) readWithin(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	at := time.Time{}
	if d > 0 {
		at = time.Now().Add(d)
	}
	if !c.ending {
		_ = c.connection.SetReadDeadline(at) // of no use on a connection that is closed
	}
}

// end leaves a moment for last words, and hears nothing any more.
func (c *conversation) end() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ending = true
	_ = c.connection.SetReadDeadline(time.Now())
	_ = c.connection.SetWriteDeadline(time.Now().Add(lastTime))
}
