package bpf

import (
	"errors"
	"net"

	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"
)

// Support says what the kernel has of what this package uses. Each field is nil if it is there, matches [ErrNotSupported]
// if it is not, and says otherwise why that cannot be found out, such as [ErrPermission].
type Support struct {
	Program error // the XDP program, for frames in one buffer
	Frags   error // the same for frames in several buffers
	Link    error // bpf_link for XDP, by which it is attached
}

// Probe loads the program for a moment, as [Load] would, and attaches it to nothing.
func Probe() Support {
	p, err := Load(Options{})
	if err != nil {
		return Support{Program: err, Frags: err, Link: err}
	}
	defer p.Close()
	return Support{Frags: p.noFrags, Link: p.probeLink()}
}

// probeLink tries to attach to the loopback device in native mode, which it does not have: a kernel with bpf_link for XDP
// says that (net/core/dev.c: dev_xdp_attach), one without does not know the type (kernel/bpf/syscall.c: link_create).
func (p *Program) probeLink() error {
	loopback, err := net.InterfaceByName("lo")
	if err != nil {
		return err
	}
	attached, err := link.AttachXDP(link.XDPOptions{Program: p.plain, Interface: loopback.Index, Flags: link.XDPDriverMode})
	switch {
	case err == nil:
		return attached.Close()
	case errors.Is(err, unix.EINVAL), errors.Is(err, link.ErrNotSupported):
		return &UnsupportedError{Feature: "bpf_link for XDP", Since: "Linux 5.9", Err: err}
	case errors.Is(err, unix.EOPNOTSUPP), errors.Is(err, unix.EBUSY), errors.Is(err, unix.EEXIST):
		return nil
	}
	return err
}
