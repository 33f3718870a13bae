//go:build linux

package xsk

import (
	"fmt"
	"net"

	"golang.org/x/sys/unix"
)

// FDs describes the socket to another process. The numbers still belong to this
// Socket and are closed with it; SCM_RIGHTS duplicates them.
//
// The socket has one user at a time: before the other process calls FromFDs, release
// all frames, reap all buffers, and call none of the data methods any more. Kick,
// Statistics and Close still work here; the queue stays bound until both processes
// have closed.
func (s *Socket) FDs() FDs { return FDs{Socket: s.fd, UMEM: s.umem.fd, Info: s.info} }

// FromFDs makes a Socket of the descriptors that another process opened. On success
// they belong to the Socket, on error still to the caller. It needs no capability and
// makes no change to the socket.
//
// It refuses a socket whose frames are still held or in flight elsewhere (EBUSY):
// nobody would ever give their chunks back.
func FromFDs(fds FDs) (*Socket, error) {
	s := &Socket{info: fds.Info, fd: fds.Socket, umem: umem{fd: -1}}
	if problem := fds.Info.problem(); problem != "" {
		return nil, s.fail("take over", problem, ErrInvalidOptions, nil)
	}
	domain, err := unix.GetsockoptInt(fds.Socket, unix.SOL_SOCKET, unix.SO_DOMAIN)
	if err != nil || domain != unix.AF_XDP {
		return nil, s.fail("take over", fmt.Sprintf("file descriptor %d is not an AF_XDP socket", fds.Socket),
			ErrInvalidOptions, err)
	}
	if s.umem, err = openUMEM(fds.UMEM, memorySize(s.info)); err != nil {
		return nil, s.fail("take over UMEM", "", nil, err)
	}
	err = s.mapRings()
	if err == nil {
		err = s.checkIdle()
	}
	if err != nil {
		s.fd, s.umem.fd = -1, -1 // the caller's
		s.umem.unmap()
		s.releaseAll()
		return nil, err
	}
	s.info.ZeroCopy = zeroCopy(s.fd)
	return s, nil
}

// checkIdle compares the ring indices, which count everything since the rings were
// made: chunks given to the kernel and taken back, descriptors sent and completed.
func (s *Socket) checkIdle() error {
	r, t := &s.receive, &s.transmit
	if with := r.fill.next - r.ring.next; with != uint32(s.info.ReceiveFrames) {
		return s.fail("take over", fmt.Sprintf("the kernel has %d of the %d receive frames: release the others first",
			with, s.info.ReceiveFrames), nil, unix.EBUSY)
	}
	if inFlight := t.ring.next - t.completion.next; inFlight != 0 {
		return s.fail("take over", fmt.Sprintf("%d transmit descriptors are in flight: kick and reap them first", inFlight),
			nil, unix.EBUSY)
	}
	return nil
}

// SendFDs sends the descriptors and the Info over a Unix socket, stream or seqpacket.
func SendFDs(conn *net.UnixConn, fds FDs) error {
	encoded, err := fds.Info.MarshalBinary()
	if err != nil {
		return err
	}
	if _, _, err := conn.WriteMsgUnix(encoded, unix.UnixRights(fds.Socket, fds.UMEM), nil); err != nil {
		return fmt.Errorf("xsk: send file descriptors: %w", err)
	}
	return nil
}

// ReceiveFDs receives what SendFDs sent. The descriptors belong to the caller, who
// passes them to FromFDs; they are close-on-exec.
func ReceiveFDs(conn *net.UnixConn) (FDs, error) {
	encoded := make([]byte, infoSize)
	control := make([]byte, unix.CmsgSpace(2*4))
	n, controlLength, _, _, err := conn.ReadMsgUnix(encoded, control)
	if err != nil {
		return FDs{}, fmt.Errorf("xsk: receive file descriptors: %w", err)
	}
	received, err := parseRights(control[:controlLength])
	if err == nil && len(received) != 2 {
		err = fmt.Errorf("%d file descriptors instead of 2", len(received))
	}
	fds := FDs{}
	if err == nil {
		err = fds.Info.UnmarshalBinary(encoded[:n])
	}
	if err != nil {
		for _, fd := range received {
			_ = unix.Close(fd)
		}
		return FDs{}, fmt.Errorf("xsk: receive file descriptors: %w", err)
	}
	fds.Socket, fds.UMEM = received[0], received[1]
	return fds, nil
}

func parseRights(control []byte) ([]int, error) {
	messages, err := unix.ParseSocketControlMessage(control)
	if err != nil {
		return nil, err
	}
	var fds []int
	for i := range messages {
		rights, err := unix.ParseUnixRights(&messages[i])
		if err != nil {
			return fds, err
		}
		fds = append(fds, rights...)
	}
	return fds, nil
}
