package bpf

import (
	"errors"
	"fmt"
	"io"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"
)

// bpf_xdp_get_buff_len, bpf_xdp_load_bytes and programs for several buffers came with this kernel.
const firstKernel = "Linux 5.18"

// Load checks the options, loads the program and creates its maps. Nothing is
// redirected before [Attach].
//
// Errors match [ErrInvalid], [ErrPermission] or [ErrNotSupported].
func Load(options Options) (*Program, error) {
	if err := options.validate(); err != nil {
		return nil, fmt.Errorf("load XDP program: %w", err)
	}
	if err := checkDescriptors(); err != nil {
		return nil, explainLoad("load XDP program", err)
	}
	specs, err := newSpecs()
	if err != nil {
		return nil, err
	}
	specs.plain.Maps[roceMapSockets].MaxEntries = uint32(max(options.Queues, 1))

	var objects roceObjects
	if err := specs.plain.LoadAndAssign(&objects, nil); err != nil {
		return nil, explainLoad("load XDP program", err)
	}
	p := &Program{plain: objects.XdpRoce, maps: objects.roceMaps}
	if options.NoFrags {
		p.noFrags = errors.New("not wanted (Options.NoFrags)")
	} else if err := p.loadFrags(specs.frags); err != nil {
		p.noFrags = explainLoad("load XDP program for several buffers", err)
	}
	err = errors.Join(p.SetMAC(options.MAC), p.SetQPNs(options.QPNBase, options.QPNBits, options.OwnGSI))
	if err != nil {
		return nil, errors.Join(fmt.Errorf("configure XDP program: %w", err), p.Close())
	}
	return p, nil
}

// loadFrags loads the program a second time, on the same maps.
func (p *Program) loadFrags(spec *ebpf.CollectionSpec) error {
	spec.Maps[roceMapSockets].MaxEntries = p.maps.Sockets.MaxEntries()
	var programs rocePrograms
	err := spec.LoadAndAssign(&programs, &ebpf.CollectionOptions{MapReplacements: map[string]*ebpf.Map{
		roceMapSockets:       p.maps.Sockets,
		roceMapAddresses:     p.maps.Addresses,
		roceMapGroups:        p.maps.Groups,
		roceMapConfiguration: p.maps.Configuration,
		roceMapCounters:      p.maps.Counters,
	}})
	p.frags = programs.XdpRoce
	return err
}

// specs are the two forms in which the program is loaded.
type specs struct{ plain, frags *ebpf.CollectionSpec }

func newSpecs() (specs, error) {
	frags, err := loadRoce()
	if err != nil {
		return specs{}, err
	}
	plain := frags.Copy()
	plain.Programs[roceProgXdpRoce].Flags &^= unix.BPF_F_XDP_HAS_FRAGS
	return specs{plain: plain, frags: frags}, nil
}

// loadDescriptors is more than Load has open at once: five maps, two programs, type information, and what the library
// opens to find out what the kernel can do.
const loadDescriptors = 16

// checkDescriptors looks for room before the library does. The library takes a probe that failed because no descriptor
// was free for a feature that the kernel lacks, and keeps that answer for the life of the process.
func checkDescriptors() (err error) {
	var held [loadDescriptors]int
	n := 0
	for ; err == nil && n < len(held); n++ {
		held[n], err = unix.Eventfd(0, unix.EFD_CLOEXEC)
	}
	if err != nil {
		n--
	}
	for _, fd := range held[:n] {
		err = errors.Join(err, unix.Close(fd))
	}
	return err
}

func explainLoad(operation string, err error) error {
	switch {
	case errors.Is(err, unix.EMFILE):
		return fmt.Errorf("%s: needs up to %d descriptors: %w: raise the limit (ulimit -n)",
			operation, loadDescriptors, unix.EMFILE)
	case errors.Is(err, unix.EPERM):
		// The library's text speaks of MEMLOCK, which does not limit BPF since Linux 5.11.
		return refused(operation, unix.EPERM)
	case errors.Is(err, unix.ENOSYS):
		// There is no system call of this number, or a filter says so.
		return unsupported(operation, firstKernel, "CONFIG_BPF_SYSCALL", err)
	case errors.Is(err, unix.EINVAL), errors.Is(err, unix.EACCES), errors.Is(err, ebpf.ErrNotSupported):
		// The object in this package is valid, so what this kernel refuses
		// (EINVAL; EACCES is the verifier's) is unknown to it: a map type, a helper or a flag.
		return unsupported(operation+" with AF_XDP, bpf_xdp_get_buff_len and BPF_F_XDP_HAS_FRAGS",
			firstKernel, "CONFIG_XDP_SOCKETS", err)
	}
	return fmt.Errorf("%s: %w", operation, err)
}

// FromFDs makes a Program of descriptors that another process got from
// [Program.FDs]. It needs no capability. It takes over the descriptors, also
// when it fails: they are closed with the Program, or before FromFDs returns.
// Only numbers that cannot be right (0, the same twice) are refused and left alone.
//
// Errors match [ErrInvalid] if a descriptor is not what its field says, or comes
// from another version of this package.
func FromFDs(fds FDs) (*Program, error) {
	if err := fds.validate(); err != nil {
		return nil, err
	}
	specs, err := newSpecs()
	if err != nil {
		return nil, err
	}
	p := &Program{noFrags: errors.New("no descriptor for it (FDs.FragsProgram)")}
	var opened []io.Closer
	var failures []error
	note := func(name string, object io.Closer, err error) {
		if err != nil {
			failures = append(failures, fmt.Errorf("%w: descriptor of %s: %w", ErrInvalid, name, err))
			return
		}
		opened = append(opened, object)
	}

	for _, m := range []struct {
		name        string
		fd          int
		destination **ebpf.Map
	}{
		{roceMapSockets, fds.Sockets, &p.maps.Sockets},
		{roceMapAddresses, fds.Addresses, &p.maps.Addresses},
		{roceMapGroups, fds.Groups, &p.maps.Groups},
		{roceMapConfiguration, fds.Configuration, &p.maps.Configuration},
		{roceMapCounters, fds.Counters, &p.maps.Counters},
	} {
		*m.destination, err = mapFromFD(m.fd, specs.plain.Maps[m.name])
		note(m.name, *m.destination, err)
	}
	p.plain, err = programFromFD(fds.Program)
	note("program", p.plain, err)
	if fds.FragsProgram >= 0 {
		p.frags, err = programFromFD(fds.FragsProgram)
		note("program for several buffers", p.frags, err)
	}
	if fds.Link >= 0 {
		p.attachment, err = attachmentFromFD(p, fds.Link, fds.Rung)
		note("link", p.attachment, err)
	}
	if len(failures) > 0 {
		for _, object := range opened {
			failures = append(failures, object.Close())
		}
		return nil, errors.Join(failures...)
	}
	return p, nil
}

func mapFromFD(fd int, spec *ebpf.MapSpec) (*ebpf.Map, error) {
	m, err := ebpf.NewMapFromFD(fd)
	if err != nil {
		return nil, err
	}
	if spec.Name == roceMapSockets { // of any length
		spec.MaxEntries = m.MaxEntries()
	}
	if err := spec.Compatible(m); err != nil {
		return nil, errors.Join(err, m.Close())
	}
	return m, nil
}

func programFromFD(fd int) (*ebpf.Program, error) {
	program, err := ebpf.NewProgramFromFD(fd)
	if err != nil {
		return nil, err
	}
	if program.Type() != ebpf.XDP {
		return nil, errors.Join(fmt.Errorf("program of type %v, want %v", program.Type(), ebpf.XDP), program.Close())
	}
	return program, nil
}

func attachmentFromFD(p *Program, fd int, rung Rung) (*Attachment, error) {
	l, err := link.NewFromFD(fd)
	if err != nil {
		return nil, err
	}
	info, err := l.Info()
	if err == nil && info.XDP() == nil {
		err = fmt.Errorf("link of type %v, want XDP", info.Type)
	}
	if err == nil && !rung.valid() {
		err = fmt.Errorf("%v for the link", rung)
	}
	if err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return &Attachment{program: p, link: l, rung: rung, ifindex: int(info.XDP().Ifindex)}, nil
}
