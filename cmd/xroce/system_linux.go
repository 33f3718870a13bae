package main

import (
	"errors"
	"fmt"
	"net"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// self names the running program, also after its file was replaced or deleted.
const self = "/proc/self/exe"

// nameProcess sets the name that top and ps show, which would be that of self otherwise.
func nameProcess(name string) {
	_ = os.WriteFile("/proc/self/comm", []byte(name), 0) // only for the eye
}

// socketPair returns the two ends of a stream that belongs to no network namespace.
func socketPair() (a, b *os.File, err error) {
	ends, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, nil, os.NewSyscallError("socketpair", err)
	}
	return os.NewFile(uintptr(ends[0]), "socketpair"), os.NewFile(uintptr(ends[1]), "socketpair"), nil
}

// inheritedSocket returns the connection behind an inherited descriptor.
func inheritedSocket(descriptor uintptr) (net.Conn, error) {
	unix.CloseOnExec(int(descriptor))
	file := os.NewFile(descriptor, "inherited")
	defer file.Close()
	connection, err := net.FileConn(file)
	if err != nil {
		return nil, fmt.Errorf("descriptor %d is no socket: this command is for xroce demo: %w", descriptor, err)
	}
	return connection, nil
}

// terminal says whether a file is one.
func terminal(file *os.File) bool {
	_, err := unix.IoctlGetTermios(int(file.Fd()), unix.TCGETS)
	return err == nil
}

// ownGroup keeps a terminal's ^C away from a child: its parent ends it.
func ownGroup() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }

// inodeOf returns the number of a file, which for a namespace is the namespace's own.
func inodeOf(path string) (inode uint64, ok bool) {
	var s unix.Stat_t
	err := unix.Stat(path, &s)
	return s.Ino, err == nil
}

// bothFamilies has an IPv6 socket take IPv4 as well (net.ListenConfig.Control).
func bothFamilies(_, _ string, connection syscall.RawConn) error {
	var failure error
	err := connection.Control(func(descriptor uintptr) {
		failure = unix.SetsockoptInt(int(descriptor), unix.IPPROTO_IPV6, unix.IPV6_V6ONLY, 0)
	})
	return errors.Join(err, failure)
}
