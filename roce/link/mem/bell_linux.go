package mem

import (
	"encoding/binary"

	"golang.org/x/sys/unix"
)

// bell is an eventfd that is readable while frames wait.
type bell struct{ fd int }

var silentBell = bell{fd: -1}

func (b *bell) open() (err error) {
	b.fd, err = unix.Eventfd(0, unix.EFD_NONBLOCK|unix.EFD_CLOEXEC)
	return err
}

func (b *bell) ring() {
	if b.fd < 0 {
		return
	}
	var one [8]byte
	binary.NativeEndian.PutUint64(one[:], 1)
	_, _ = unix.Write(b.fd, one[:]) // cannot fail: the count never nears its limit
}

func (b *bell) silence() {
	if b.fd < 0 {
		return
	}
	var count [8]byte
	_, _ = unix.Read(b.fd, count[:]) // EAGAIN: it was silent
}

func (b *bell) close() {
	if b.fd >= 0 {
		_ = unix.Close(b.fd)
		b.fd = -1
	}
}
