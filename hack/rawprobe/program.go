//go:build linux

package main

import (
	"encoding/binary"
	"fmt"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"
)

// etherType is one of those for local experiments (IEEE 802).
const etherType = 0x88b5

const xdpPass = 2

// redirect attaches a program that puts the frames of etherType into the socket. The program goes with the link.
func redirect(device int, socket int, generic bool) (link.Link, error) {
	m, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.XSKMap, KeySize: 4, ValueSize: 4, MaxEntries: 1})
	if err != nil {
		return nil, fmt.Errorf("make the XSKMAP: %w", err)
	}
	defer m.Close()
	if err := m.Put(uint32(0), uint32(socket)); err != nil {
		return nil, fmt.Errorf("put the socket into the XSKMAP: %w", err)
	}
	var onWire [2]byte
	binary.BigEndian.PutUint16(onWire[:], etherType)
	// Offsets are those of struct xdp_md: data, data_end, rx_queue_index.
	program, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Type: ebpf.XDP, License: "Dual BSD/GPL",
		Flags: unix.BPF_F_XDP_HAS_FRAGS, // lifts veth's limit of the MTU, too
		Instructions: asm.Instructions{
			asm.LoadMem(asm.R2, asm.R1, 0, asm.Word),
			asm.LoadMem(asm.R3, asm.R1, 4, asm.Word),
			asm.Mov.Reg(asm.R4, asm.R2),
			asm.Add.Imm(asm.R4, 14),
			asm.JGT.Reg(asm.R4, asm.R3, "pass"),
			asm.LoadMem(asm.R4, asm.R2, 12, asm.Half),
			asm.JNE.Imm(asm.R4, int32(binary.NativeEndian.Uint16(onWire[:])), "pass"),
			asm.LoadMem(asm.R2, asm.R1, 16, asm.Word),
			asm.LoadMapPtr(asm.R1, m.FD()),
			asm.Mov.Imm(asm.R3, xdpPass),
			asm.FnRedirectMap.Call(),
			asm.Return(),
			asm.Mov.Imm(asm.R0, xdpPass).WithSymbol("pass"),
			asm.Return(),
		},
	})
	if err != nil {
		return nil, fmt.Errorf("load the XDP program: %w", err)
	}
	defer program.Close()
	flags := link.XDPDriverMode
	if generic {
		flags = link.XDPGenericMode
	}
	l, err := link.AttachXDP(link.XDPOptions{Program: program, Interface: device, Flags: flags})
	if err != nil {
		return nil, fmt.Errorf("attach the XDP program: %w", err)
	}
	return l, nil
}
