package bpf

import (
	"errors"
	"fmt"
	"net"

	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"
)

// Attach attaches the program to a network device of the calling thread's network
// namespace, on the best rung of the mode's ladder that kernel and driver accept:
//
//	native+frags, native, generic+frags, generic
//
// It goes by bpf_link only, which replaces nothing: another program on the device
// is left there, and none can take our place. The program is gone from the device
// when the link is closed or the last process that holds it ends. Attaching can
// bounce the link of a NIC, and on veth it lowers the largest MTU of the peer.
//
// A [Program] is attached to one device at a time: its sockets, its MAC address
// and its addresses are those of one device.
//
// Errors: [ForeignProgramError], [PermissionError], [AttachError] if no rung could
// be taken (it matches [ErrNotSupported] if driver or kernel lack the mode),
// [ErrInvalid] if the program is attached already or there is no such device.
func Attach(program *Program, ifindex int, mode Mode) (*Attachment, error) {
	ladder, err := mode.ladder()
	if err != nil {
		return nil, fmt.Errorf("attach: %w", err)
	}
	if program == nil {
		return nil, fmt.Errorf("attach: %w: no program", ErrInvalid)
	}
	if err := program.lock(); err != nil {
		return nil, fmt.Errorf("attach: %w", err)
	}
	defer program.mu.Unlock()
	if program.attachment != nil {
		return nil, fmt.Errorf("attach: %w: program is attached to ifindex %d already",
			ErrInvalid, program.attachment.ifindex)
	}
	device, err := net.InterfaceByIndex(ifindex)
	if err != nil {
		return nil, fmt.Errorf("attach: %w: ifindex %d: %w", ErrInvalid, ifindex, err)
	}

	var skipped []*RungError
	for _, rung := range ladder {
		if rung.Frags() && program.frags == nil {
			skipped = append(skipped, &RungError{Rung: rung, Err: program.noFrags})
			continue
		}
		attached, err := attachRung(program, ifindex, rung)
		if err == nil {
			program.attachment = &Attachment{
				program: program, link: attached, ifindex: ifindex, rung: rung, skipped: skipped,
			}
			return program.attachment, nil
		}
		if err := fatal(device, err); err != nil {
			return nil, err
		}
		skipped = append(skipped, &RungError{Rung: rung, Err: explainRung(device, rung, err)})
	}
	return nil, &AttachError{Interface: device.Name, Ifindex: ifindex, Mode: mode, Rungs: skipped}
}

func attachRung(program *Program, ifindex int, rung Rung) (link.Link, error) {
	options := link.XDPOptions{Program: program.plain, Interface: ifindex, Flags: link.XDPGenericMode}
	if rung.Native() {
		options.Flags = link.XDPDriverMode
	}
	if rung.Frags() {
		options.Program = program.frags
	}
	return link.AttachXDP(options)
}

// fatal returns the error of Attach if no other rung can succeed either.
func fatal(device *net.Interface, err error) error {
	switch {
	case errors.Is(err, unix.EPERM):
		return refused(fmt.Sprintf("attach XDP program to %s", device.Name), err)
	case errors.Is(err, unix.EBUSY), errors.Is(err, unix.EEXIST):
		// EBUSY: a program in the same mode. EEXIST: in the other mode.
		foreign, queryError := attachedProgram(device.Index)
		if queryError != nil {
			return fmt.Errorf("attach XDP program to %s: %w", device.Name, errors.Join(err, queryError))
		}
		if foreign == nil {
			return nil // the device itself is free: see explainRung
		}
		return &ForeignProgramError{
			Interface: device.Name,
			Ifindex:   device.Index,
			ID:        foreign.id,
			Name:      foreign.name(),
			Mode:      foreign.mode,
			Err:       err,
		}
	}
	return nil
}

// explainRung says what an errno of BPF_LINK_CREATE means (net/core/dev.c:
// dev_xdp_attach, dev_xdp_install; drivers/net/veth.c: veth_xdp_set).
func explainRung(device *net.Interface, rung Rung, err error) error {
	explain := func(text string) error { return fmt.Errorf("%s: %w", text, err) }
	switch {
	case errors.Is(err, link.ErrNotSupported):
		return unsupported("bpf_link for XDP", "Linux 5.9", "CONFIG_BPF_SYSCALL", err)
	case errors.Is(err, unix.EOPNOTSUPP) && rung.Native():
		return &UnsupportedError{Feature: fmt.Sprintf("native XDP in the driver of %s", device.Name), Err: err}
	case errors.Is(err, unix.EOPNOTSUPP):
		return &UnsupportedError{Feature: fmt.Sprintf("generic XDP on %s", device.Name), Err: err}
	case errors.Is(err, unix.ERANGE):
		return explain(fmt.Sprintf("the MTU is too large for this rung: that of %s is %d, on veth that of the peer counts",
			device.Name, device.MTU))
	case errors.Is(err, unix.ENOSPC):
		return explain(fmt.Sprintf("%s has too few receive queues: on veth at least as many as the peer has transmit queues",
			device.Name))
	case errors.Is(err, unix.EEXIST):
		return fmt.Errorf("%w %s (macvlan, VLAN, bond, bridge): %w", ErrProgramAbove, device.Name, err)
	case errors.Is(err, unix.EBUSY):
		return explain(fmt.Sprintf("%s is used in a way that excludes XDP (header-data split, memory provider)", device.Name))
	case errors.Is(err, unix.EINVAL):
		return explain(fmt.Sprintf("the driver of %s refuses, often for the MTU (%d), LRO or ring sizes", device.Name, device.MTU))
	}
	return err
}
