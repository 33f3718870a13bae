//go:build !linux

package xsk

import (
	"net"
	"runtime"
)

// Socket exists on Linux only; here no function returns one.
type Socket struct{}

func notSupported(step string) error {
	return &Error{Step: step, Detail: "AF_XDP exists on Linux only, this is " + runtime.GOOS, Kind: ErrNotSupported}
}

// Open fails with ErrNotSupported: AF_XDP exists on Linux only.
func Open(options Options) (*Socket, error) {
	if _, err := options.complete(); err != nil {
		return nil, err
	}
	return nil, notSupported("open")
}

// FromFDs fails with ErrNotSupported.
func FromFDs(FDs) (*Socket, error) { return nil, notSupported("take over") }

// SendFDs fails with ErrNotSupported.
func SendFDs(*net.UnixConn, FDs) error { return notSupported("send file descriptors") }

// ReceiveFDs fails with ErrNotSupported.
func ReceiveFDs(*net.UnixConn) (FDs, error) { return FDs{}, notSupported("receive file descriptors") }

// ChannelCount fails with ErrNotSupported.
func ChannelCount(int) (receive, transmit int, err error) {
	return 0, 0, notSupported("channel count")
}

// CheckMultiBuffer fails with ErrNotSupported.
func CheckMultiBuffer() error { return notSupported("probe multi-buffer") }

func (s *Socket) Receive([]Frame) int       { return 0 }
func (s *Socket) Release()                  {}
func (s *Socket) Buffer() []byte            { return nil }
func (s *Socket) Commit(int) error          { return notSupported("commit") }
func (s *Socket) Publish()                  {}
func (s *Socket) Reap() int                 { return 0 }
func (s *Socket) FreeBuffers() int          { return 0 }
func (s *Socket) CheckOwners() error        { return nil }
func (s *Socket) Kick() (KickResult, error) { return KickNotNeeded, notSupported("kick") }
func (s *Socket) KickPending() bool         { return false }
func (s *Socket) WakeReceive() (KickResult, error) {
	return KickNotNeeded, notSupported("wake receive")
}
func (s *Socket) Statistics() (Statistics, error) { return Statistics{}, notSupported("statistics") }
func (s *Socket) Counters() Counters              { return Counters{} }
func (s *Socket) Info() Info                      { return Info{} }
func (s *Socket) FD() int                         { return -1 }
func (s *Socket) FDs() FDs                        { return FDs{Socket: -1, UMEM: -1} }
func (s *Socket) Close() error                    { return nil }
