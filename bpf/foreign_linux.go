package bpf

import (
	"encoding/binary"
	"fmt"
	"syscall"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// xdpProgram is what rtnetlink tells of the XDP program of a device.
type xdpProgram struct {
	id   uint32
	mode string
}

// name returns the name of the program, empty if it may not be read.
func (x *xdpProgram) name() string {
	program, err := ebpf.NewProgramFromID(ebpf.ProgramID(x.id))
	if err != nil {
		return ""
	}
	defer program.Close()
	info, err := program.Info()
	if err != nil {
		return ""
	}
	return info.Name
}

// attachedProgram returns the XDP program of a device in the calling thread's
// network namespace, nil if there is none.
func attachedProgram(ifindex int) (*xdpProgram, error) {
	answer, err := syscall.NetlinkRIB(unix.RTM_GETLINK, unix.AF_UNSPEC)
	if err != nil {
		return nil, fmt.Errorf("list network devices: %w", err)
	}
	messages, err := syscall.ParseNetlinkMessage(answer)
	if err != nil {
		return nil, fmt.Errorf("list network devices: %w", err)
	}
	for _, message := range messages {
		if message.Header.Type != unix.RTM_NEWLINK || len(message.Data) < unix.SizeofIfInfomsg {
			continue
		}
		// struct ifinfomsg: family, padding, type, index, flags, change.
		if int(int32(binary.NativeEndian.Uint32(message.Data[4:]))) != ifindex {
			continue
		}
		attributes, err := syscall.ParseNetlinkRouteAttr(&message)
		if err != nil {
			return nil, fmt.Errorf("read attributes of ifindex %d: %w", ifindex, err)
		}
		for _, attribute := range attributes {
			if attribute.Attr.Type&^unix.NLA_F_NESTED == unix.IFLA_XDP {
				return parseXDPAttributes(attribute.Value), nil
			}
		}
	}
	return nil, nil
}

// parseXDPAttributes reads the attributes nested in IFLA_XDP
// (net/core/rtnetlink.c: rtnl_xdp_fill), nil if they name no program.
func parseXDPAttributes(b []byte) *xdpProgram {
	modes := []struct {
		attribute uint16
		name      string
	}{
		{unix.IFLA_XDP_DRV_PROG_ID, "native"},
		{unix.IFLA_XDP_SKB_PROG_ID, "generic"},
		{unix.IFLA_XDP_HW_PROG_ID, "offload"},
	}
	ids := map[uint16]uint32{}
	for len(b) >= unix.SizeofRtAttr {
		length := int(binary.NativeEndian.Uint16(b))
		if length < unix.SizeofRtAttr || length > len(b) {
			break
		}
		if length == unix.SizeofRtAttr+4 {
			ids[binary.NativeEndian.Uint16(b[2:])] = binary.NativeEndian.Uint32(b[unix.SizeofRtAttr:])
		}
		b = b[min((length+3)&^3, len(b)):]
	}
	for _, mode := range modes {
		if id := ids[mode.attribute]; id != 0 {
			return &xdpProgram{id: id, mode: mode.name}
		}
	}
	return nil
}
