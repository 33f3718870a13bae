package control

import (
	"context"
	"io"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// streamUntilEnough writes until the client has enough, and then its last words.
func streamUntilEnough(ctx context.Context, r Request, answer io.Writer) error {
	for ctx.Err() == nil {
		if _, err := answer.Write(append([]byte(r.Options), '\n')); err != nil {
			return err
		}
		time.Sleep(time.Millisecond)
	}
	_, err := answer.Write([]byte("end\n"))
	return err
}

func openStream(t *testing.T, s *Server) *net.UnixConn {
	t.Helper()
	c, err := Open(t.Context(), s.Path(), Request{Want: "all", Options: []byte(`{"a":1}`), Stream: true})
	require.NoError(t, err)
	return c.(*net.UnixConn)
}

// TestStreamEnds: a client that shuts down its end gets the rest, and so does one whose server is closed.
func TestStreamEnds(t *testing.T) {
	for name, end := range map[string]func(*net.UnixConn, *Server) error{
		"client": func(c *net.UnixConn, _ *Server) error { return c.CloseWrite() },
		"server": func(_ *net.UnixConn, s *Server) error { return s.Close() },
	} {
		t.Run(name, func(t *testing.T) {
			s := serve(t, t.TempDir(), "eth0", streamUntilEnough)
			c := openStream(t, s)
			defer c.Close()
			first := make([]byte, 8)
			_, err := io.ReadFull(c, first)
			require.NoError(t, err)
			require.Equal(t, "{\"a\":1}\n", string(first))
			require.NoError(t, end(c, s))
			rest, err := io.ReadAll(c)
			require.NoError(t, err)
			require.Equal(t, "end\n", string(rest[len(rest)-4:]))
			if name == "client" {
				require.NoError(t, s.Close())
			}
		})
	}
}

// TestStreamClientGone: the handler hears that its client is gone, whether it writes or not.
func TestStreamClientGone(t *testing.T) {
	heard := make(chan struct{})
	s := serve(t, t.TempDir(), "eth0", func(ctx context.Context, _ Request, answer io.Writer) error {
		<-ctx.Done()
		close(heard)
		return nil
	})
	defer s.Close()
	require.NoError(t, openStream(t, s).Close())
	select {
	case <-heard:
	case <-time.After(5 * time.Second):
		require.Fail(t, "nobody has told the handler")
	}
}

// TestStreamWaits: a client of a stream that does not read for long holds up nothing but its own handler, and not the
// end of the server.
func TestStreamWaits(t *testing.T) {
	begun, failed := make(chan struct{}), make(chan error, 1)
	s := serve(t, t.TempDir(), "eth0", func(_ context.Context, _ Request, answer io.Writer) error {
		close(begun)
		_, err := answer.Write(make([]byte, 64<<20))
		failed <- err
		return err
	})
	c := openStream(t, s)
	defer c.Close()
	<-begun
	start := time.Now()
	require.NoError(t, s.Close())
	require.Less(t, time.Since(start), 5*time.Second)
	require.Error(t, <-failed)
}
