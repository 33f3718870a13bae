package xdp

import (
	"encoding/binary"
	"fmt"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/xroce/xroce/bpf"
	"github.com/xroce/xroce/roce"
	"github.com/xroce/xroce/roce/link"
)

// Steer has the packets for the QPNs of s, and for QP1 if asked for, delivered to the queues instead of to the
// kernel. The QPNs must lie in [2, 0xFFFFFE]; base and bits both 0 mean none. A packet that arrives during the
// change is judged by either steering.
func (d *Device) Steer(s link.Steering) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closing.Load() {
		return link.ErrClosed
	}
	count, err := qpnCount(s)
	if err != nil {
		return err
	}
	if err := setQPNs(d.program, uint32(s.QPNBase), count, s.OwnGSI); err != nil {
		return fmt.Errorf("steer %s: %w", d.netdev.name, err)
	}
	return nil
}

// qpnCount returns the number of QPNs of s. QPN 0 and 1 are the management QPs, and 0xFFFFFF is the destination
// of multicast packets (IBTA 3.5.10).
func qpnCount(s link.Steering) (uint32, error) {
	if s.QPNBase == 0 && s.QPNBits == 0 {
		return 0, nil
	}
	if s.QPNBits > 24 || s.QPNBase <= roce.QPNGSI || uint64(s.QPNBase)+1<<s.QPNBits > uint64(roce.QPNMulticast) {
		return 0, fmt.Errorf("%w: steering of 2^%d QPNs from %#x on, want them in [2, %#x]",
			ErrInvalidOptions, s.QPNBits, uint32(s.QPNBase), uint32(roce.QPNMulticast)-1)
	}
	return 1 << s.QPNBits, nil
}

// setQPNs writes into the configuration of the steering program: struct configuration of xdp_roce.c, which is MAC
// address (6 bytes), own_gsi, a reserved byte, qpn_base and qpn_count in the byte order of the machine.
func setQPNs(program *bpf.Program, base, count uint32, ownGSI bool) error {
	descriptors, err := program.FDs()
	if err != nil {
		return err
	}
	own, err := unix.FcntlInt(uintptr(descriptors.Configuration), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return err
	}
	configuration, err := ebpf.NewMapFromFD(own) // closes own when it fails
	if err != nil {
		return err
	}
	defer configuration.Close()
	var value [16]byte
	if err := configuration.Lookup(uint32(0), &value); err != nil {
		return err
	}
	value[6] = 0
	if ownGSI {
		value[6] = 1
	}
	binary.NativeEndian.PutUint32(value[8:], base)
	binary.NativeEndian.PutUint32(value[12:], count)
	return configuration.Put(uint32(0), &value)
}
