//go:build unix

package control

import (
	"errors"
	"syscall"
)

// ownerOnly sets the mode that the file will have, before it exists: nobody else can ever connect (unix_bind in
// net/unix/af_unix.c takes the mode of the socket's inode).
func ownerOnly(_, _ string, connection syscall.RawConn) error {
	var failure error
	err := connection.Control(func(descriptor uintptr) { failure = syscall.Fchmod(int(descriptor), 0o600) })
	return errors.Join(err, failure)
}

// lives says whether there is a process of this number.
func lives(pid int) bool { return !errors.Is(syscall.Kill(pid, 0), syscall.ESRCH) }
