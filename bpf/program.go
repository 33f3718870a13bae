package bpf

import (
	"errors"
	"fmt"

	"github.com/cilium/ebpf"

	"github.com/xroce/xroce/internal/lockorder"
)

// The flags make the object depend on nothing but the source and the major
// version of clang. The last two find asm/types.h where Debian keeps it.
//go:generate go run github.com/cilium/ebpf/cmd/bpf2go -target bpfel,bpfeb -type reason -output-stem xdp_roce roce xdp_roce.c -- -O2 -mcpu=v3 -fno-strict-aliasing -Wall -Wextra -Werror -idirafter /usr/include/x86_64-linux-gnu -idirafter /usr/include/aarch64-linux-gnu

const (
	maxQueues = 1 << 16
	// QPN 0 and 1 are those of the subnet and general management interfaces,
	// 0xFFFFFF is the destination of every multicast packet.
	firstQPN = 2
	lastQPN  = 0xFFFFFE
)

// Options say which frames belong to the process. The zero value is valid: the
// program then redirects nothing but multicast, to a socket at queue 0.
type Options struct {
	// Queues is the number of receive queues of the device, so the number of
	// slots for sockets; 0 means 1. Frames of further queues go to the kernel.
	Queues int
	// MAC is the address of the device, see [Program.SetMAC].
	MAC [6]byte
	// QPNBase and QPNBits: the process owns the QPNs in
	// [QPNBase, QPNBase + 2^QPNBits), which must lie in [2, 0xFFFFFE].
	// Both 0 means none. The base need not be a multiple of the size. They can be
	// changed later, see [Program.SetQPNs].
	QPNBase uint32
	QPNBits uint8
	// OwnGSI: the process owns QP1 too, to which connection management goes.
	OwnGSI bool
	// NoFrags: do not use the program for frames in several buffers. [Attach]
	// then leaves out the rungs with frags.
	NoFrags bool
}

// qpnCount returns the number of QPNs that a base and a number of bits stand for.
func qpnCount(base uint32, bits uint8) (uint32, error) {
	if base == 0 && bits == 0 {
		return 0, nil
	}
	if bits > 24 {
		return 0, fmt.Errorf("%w: 2^%d QPNs, but a QPN has 24 bits", ErrInvalid, bits)
	}
	last := uint64(base) + 1<<bits - 1
	if base < firstQPN || last > lastQPN {
		return 0, fmt.Errorf("%w: QPNs %#x to %#x, but a process can own only %#x to %#x",
			ErrInvalid, base, last, firstQPN, lastQPN)
	}
	return 1 << bits, nil
}

func (o *Options) validate() error {
	if o.Queues < 0 || o.Queues > maxQueues {
		return fmt.Errorf("%w: %d queues, want 0 to %d", ErrInvalid, o.Queues, maxQueues)
	}
	if err := validateMAC(o.MAC); err != nil {
		return err
	}
	_, err := qpnCount(o.QPNBase, o.QPNBits)
	return err
}

// Program is the XDP program with its maps, in the kernel. Its methods may be
// called at the same time by several goroutines, and by several processes that
// share it (see [Program.FDs]); of two changes to the same setting the later wins.
//
// The kernel objects last until Close, or until the Program is unreachable:
// keep it referenced while it is attached.
type Program struct {
	mu         lockorder.Mutex[lockorder.Program]
	closed     bool
	plain      *ebpf.Program
	frags      *ebpf.Program // nil if there is none, for the reason in noFrags
	noFrags    error
	maps       roceMaps
	attachment *Attachment
}

// lock locks the program for one call, or says that it is closed.
func (p *Program) lock() error {
	p.mu.Lock()
	if p.closed {
		p.mu.Unlock()
		return ErrClosed
	}
	return nil
}

// Queues returns the number of slots for sockets.
func (p *Program) Queues() int { return int(p.maps.Sockets.MaxEntries()) }

// Attachment returns where the program is attached by this process, or by the
// process whose descriptors it got, and nil if nowhere.
func (p *Program) Attachment() *Attachment {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.attachment
}

// Close lets go of the attachment, if any, then of program and maps. Close the
// sockets before. Closing twice is allowed.
func (p *Program) Close() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil
	}
	p.closed = true
	var failures []error
	if p.attachment != nil {
		failures = append(failures, p.attachment.close())
	}
	if p.frags != nil {
		failures = append(failures, p.frags.Close())
	}
	failures = append(failures, p.plain.Close(), p.maps.Close())
	return errors.Join(failures...)
}

// FDs are the descriptors behind a [Program], for another process: send them
// over a Unix socket (SCM_RIGHTS) or leave them to a child. A descriptor that
// does not exist is -1.
//
// The receiver needs no capability to use them (Linux 5.19 or later; before,
// kernel.unprivileged_bpf_disabled stood in the way). The program stays attached
// until every process that holds Link has closed it or ended.
type FDs struct {
	Program       int // for frames in one buffer
	FragsProgram  int // for frames in several buffers, or -1
	Sockets       int
	Addresses     int
	Groups        int
	Configuration int
	Counters      int
	Link          int  // the attachment, or -1
	Rung          Rung // of the attachment: the kernel does not tell it from Link
}

// FDs returns the descriptors of the program, its maps and its attachment. They
// still belong to the program: duplicate them, do not close them, and keep the
// program open meanwhile.
func (p *Program) FDs() (FDs, error) {
	if err := p.lock(); err != nil {
		return FDs{}, err
	}
	defer p.mu.Unlock()
	fds := FDs{
		Program:       p.plain.FD(),
		FragsProgram:  -1,
		Sockets:       p.maps.Sockets.FD(),
		Addresses:     p.maps.Addresses.FD(),
		Groups:        p.maps.Groups.FD(),
		Configuration: p.maps.Configuration.FD(),
		Counters:      p.maps.Counters.FD(),
		Link:          -1,
	}
	if p.frags != nil {
		fds.FragsProgram = p.frags.FD()
	}
	if p.attachment != nil {
		fds.Link = p.attachment.fd()
		fds.Rung = p.attachment.rung
	}
	return fds, nil
}

func (fds *FDs) validate() error {
	seen := map[int]bool{}
	for _, fd := range []int{fds.Program, fds.FragsProgram, fds.Sockets, fds.Addresses,
		fds.Groups, fds.Configuration, fds.Counters, fds.Link} {
		if fd == 0 || (fd > 0 && seen[fd]) {
			return fmt.Errorf("%w: descriptor %d is standard input or in two fields; -1 stands for none: %+v",
				ErrInvalid, fd, *fds)
		}
		seen[fd] = true
	}
	return nil
}

func boolByte(b bool) uint8 {
	if b {
		return 1
	}
	return 0
}
