package bpf

import (
	"errors"
	"net"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"
)

// Support says what the kernel has of what this package uses. Each field is nil if it is there, matches
// [ErrNotSupported] if it is not, and says otherwise why that cannot be found out, such as [ErrPermission].
type Support struct {
	Program error // the XDP program, for frames in one buffer
	Frags   error // the same for frames in several buffers
	Link    error // bpf_link for XDP, by which it is attached
}

// Probe loads the program for a moment, as [Load] would, and one that does nothing: neither is attached to anything.
func Probe() Support { return probe(Load) }

func probe(load func(Options) (*Program, error)) Support {
	s := Support{Link: probeLink()}
	p, err := load(Options{})
	if err != nil {
		s.Program, s.Frags = err, err
		return s
	}
	defer p.Close()
	s.Frags = p.noFrags
	return s
}

// probeLink tries to attach to the loopback device in native mode, which it does not have: a kernel with bpf_link for
// XDP says that (net/core/dev.c: dev_xdp_attach), one without does not know the type (kernel/bpf/syscall.c:
// link_create). The program is one that kernels load which refuse that of this package.
func probeLink() error {
	loopback, err := net.InterfaceByName("lo")
	if err != nil {
		return err
	}
	if err := checkDescriptors(); err != nil {
		return explainLoad("load XDP program", err)
	}
	const pass = 2 // XDP_PASS
	program, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Type: ebpf.XDP, License: "GPL", Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, pass), asm.Return()},
	})
	if err != nil {
		return explainLoad("load XDP program", err)
	}
	defer program.Close()
	attached, err := link.AttachXDP(link.XDPOptions{Program: program, Interface: loopback.Index, Flags: link.XDPDriverMode})
	switch {
	case err == nil:
		return attached.Close()
	case errors.Is(err, unix.EINVAL), errors.Is(err, link.ErrNotSupported):
		return unsupported("bpf_link for XDP", "Linux 5.9", "CONFIG_BPF_SYSCALL", err)
	case errors.Is(err, unix.EOPNOTSUPP), errors.Is(err, unix.EBUSY), errors.Is(err, unix.EEXIST):
		return nil
	}
	return err
}
